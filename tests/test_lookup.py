"""The lookup drafter: the longer match wins, pictures are not crossed, no unknown token comes out.

Method: prompts and stores by hand; a naive search over prompt and answer as they grow.
"""

import random

import numpy as np
import pytest
from suffix_files import store_of

from cache.suffix_store import SuffixStore
from engine.adapter import Engine
from engine.lookup import Lookup, LookupConfig
from engine.monitor import Budget, Monitor
from engine.sampling import Greedy


class Vocab:
    """An engine as far as a lookup asks."""

    vocab = 1_000

    def draft(self, token: int, count: int) -> list[int]:
        return [1] * count


ENGINE: Engine = Vocab()  # type: ignore[assignment]


def lookup(store: SuffixStore | None = None, **settings: int) -> Lookup:
    return Lookup(store, LookupConfig(**{"match_min": 2, "drafts": 3, **settings}))


def begun(found: Lookup, prompt: list[int], answer: list[int] | None = None) -> list[int]:
    found.begin(np.array(prompt, np.int32))
    found.wrote(answer or [])
    return found.guess(ENGINE)


def test_the_longer_match_wins_and_of_equal_ones_the_requests_own() -> None:
    store = store_of([5, 6, 7, 8, 100, 101, 102])
    assert begun(lookup(store), [7, 8, 50, 51, 1, 7, 8]) == [50, 51, 1]
    assert begun(lookup(store), [7, 8, 50, 51, 6, 7, 8]) == [100, 101, 102]
    assert begun(lookup(), [7, 8, 50, 51, 6, 7, 8]) == [50, 51, 6]
    assert begun(lookup(store), [1, 2, 3]) == []


def test_a_match_that_is_too_short_is_left_to_the_draft_layer() -> None:
    store = store_of([5, 6, 7, 8, 100])
    assert begun(lookup(store, match_min=4), [6, 7, 8]) == []
    rule = Greedy(2, lookup(store, match_min=4))
    rule.begin(np.array([6, 7, 8], np.int32))
    assert rule.drafts(ENGINE, 8) == [1, 1]
    rule.begin(np.array([5, 6, 7, 8], np.int32))
    assert rule.drafts(ENGINE, 8) == [100]


def test_no_match_reaches_over_a_picture() -> None:
    store = store_of([3, 4, 5, 6, 7])
    assert begun(lookup(store), [3, -9, -9, 4, 5]) == [6, 7]
    assert begun(lookup(store, match_min=3), [3, -9, -9, 4, 5]) == []
    assert begun(lookup(), [3, 4, -9, -8, 60, 3, 4]) == [], "a picture is never drafted"
    assert begun(lookup(), [-9, 4, 5, 6, -9, 4, 5]) == [6]


def test_no_token_comes_out_that_the_engine_does_not_have() -> None:
    assert begun(lookup(store_of([3, 4, 999, 1_000, 5])), [3, 4]) == [999]


def test_the_stores_end_of_a_document_gives_way_to_the_requests_own() -> None:
    assert begun(lookup(store_of([1, 3, 4])), [3, 4, 8, 9, 1, 3, 4]) == [8, 9, 1]


@pytest.mark.parametrize("seed", range(8))
def test_the_answer_so_far_is_searched_as_the_prompt_is(seed: int) -> None:
    draw = random.Random(seed)
    text = [draw.randrange(4) for _ in range(200)]
    found = lookup(match_max=6)
    found.begin(np.array(text[:50], np.int32))
    for at in range(50, 200):
        guess = found.find(3)
        best = 0
        for length in range(2, 7):
            end = text[at - length : at]
            places = [p for p in range(length, at) if text[p - length : p] == end]
            if places:
                best, newest = length, places[-1]
        assert (guess.length if guess else 0) == best or guess is not None
        if guess is not None and guess.length == best:
            assert guess.tokens == text[newest : newest + 3][: at - newest]
        found.wrote([text[at]])


def test_a_lookup_of_no_drafts_is_off() -> None:
    assert begun(lookup(store_of([1, 2, 3]), drafts=0), [1, 2]) == []


def test_a_monitor_hands_the_prompt_on() -> None:
    rule = Greedy(0, lookup(store_of([3, 4, 5, 6])))
    Monitor(rule, Budget(100, end_id=99)).begin(np.array([3, 4], np.int32))
    assert rule.drafts(ENGINE, 4) == [5, 6]
