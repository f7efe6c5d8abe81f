"""What of a request is added: what the last requests had not, with a lead-in, without pictures.

Method: growing conversations on four slots by hand, and a property: whatever the requests, every
n-gram as long as the lead-in and one more is in some piece, as long as nothing is left out.
"""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cache.suffix_recent import Recent, newest_of, pieces
from cache.types import Ids


def ids(*parts: int | range) -> Ids:
    flat = [token for part in parts for token in ([part] if isinstance(part, int) else part)]
    return np.array(flat, np.int32)


def test_a_prompt_that_goes_on_adds_from_the_parting_with_a_lead_in() -> None:
    recent = Recent()
    assert recent.added(ids(range(100))) == [(0, 100)]
    assert recent.added(ids(range(100), range(500, 530))) == [(92, 130)]
    assert recent.added(ids(range(3), range(700, 720))) == [(0, 23)], "the lead-in is what there is"
    assert recent.added(ids(range(50))) == [], "all of it is there"


def test_only_the_last_requests_are_remembered() -> None:
    recent = Recent(remembered=2)
    first = ids(range(100))
    recent.added(first)
    recent.added(ids(range(200, 300)))
    assert recent.added(ids(range(100), 7)) == [(92, 101)]
    recent.added(ids(range(300, 400)))
    recent.added(ids(range(400, 500)))
    assert recent.added(first) == [(0, 100)]
    whole = Recent(remembered=0)
    assert whole.added(first) == whole.added(first) == [(0, 100)]


def test_pictures_and_hidden_tokens_part_a_request() -> None:
    picture = ids(range(10), -5, -5, range(20, 25), -6, range(30, 33))
    assert pieces(picture, 0, 0) == [(0, 10), (12, 17), (18, 21)]
    assert pieces(picture, 0, 0, [(13, 2)]) == [(0, 10), (12, 13), (15, 17), (18, 21)]
    assert pieces(picture, 4, 12) == [(12, 17), (18, 21)], "a lead-in alone is nothing new"
    assert pieces(ids(-1, -1), 0, 0) == []


def test_outputs_alone_have_no_lead_in_from_the_prompt() -> None:
    recent = Recent()
    assert recent.added(ids(range(50), 90, 91), first=50) == [(50, 52)]
    assert recent.added(ids(range(50), 90, 91), first=50) == []
    assert recent.added(ids(range(50), 90, 92, 93), first=50) == [(50, 53)]


def test_the_newest_tokens_stay_where_there_is_no_room_for_all() -> None:
    assert newest_of([(0, 10), (12, 17)], 100) == [(0, 10), (12, 17)]
    assert newest_of([(0, 10), (12, 17)], 8) == [(7, 10), (12, 17)]
    assert newest_of([(0, 10), (12, 17)], 5) == [(12, 17)]
    assert newest_of([(0, 10), (12, 17)], 3) == [(14, 17)]


@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=40), min_size=1, max_size=8))
def test_every_gram_up_to_the_lead_in_is_stored(requests: list[list[int]]) -> None:
    recent, gram = Recent(lead_in=3), 4
    stored: set[tuple[int, ...]] = set()
    for request in requests:
        for start, stop in recent.added(ids(*request)):
            piece = request[start:stop]
            stored |= {tuple(piece[at : at + gram]) for at in range(len(piece) - gram + 1)}
        wanted = {tuple(request[at : at + gram]) for at in range(len(request) - gram + 1)}
        assert wanted <= stored
