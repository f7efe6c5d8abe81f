"""Which images are left out.

Goal: never more than the cap, the newest always there, and the set moves once a step of half the
cap. Method: the formula for a cap on their number; hypothesis for caps on both, conversation after
conversation; and a count of moves beside leaving out one at a time.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.pictures.leave_out import Cap, left_out

ROWS = st.lists(st.integers(9, 60), max_size=40)


@given(st.integers(0, 120), st.integers(1, 20))
def test_a_cap_on_their_number_is_the_formula(count: int, most: int) -> None:
    step = max(1, most // 2)
    wanted = 0 if count <= most else -(-(count - most) // step) * step
    assert left_out([9] * count, Cap(most, 10**9)) == wanted


@given(ROWS, st.integers(1, 8), st.integers(9, 200))
def test_under_the_cap_the_newest_there_and_never_back(
    rows: list[int], most: int, room: int
) -> None:
    before = 0
    for count in range(len(rows) + 1):
        gone = left_out(rows[:count], Cap(most, room))
        kept = rows[gone:count]
        assert len(kept) <= most and (sum(kept) <= room or len(kept) == 1)
        assert gone >= before and (kept or not count)
        before = gone


@given(ROWS, st.integers(2, 8), st.integers(120, 300))
def test_a_step_frees_half_of_the_cap(rows: list[int], most: int, room: int) -> None:
    """Whenever the set moves, what was kept before the newest is down to half."""
    for count in range(1, len(rows) + 1):
        gone, before = (left_out(rows[:n], Cap(most, room)) for n in (count, count - 1))
        if gone != before:
            older = rows[gone : count - 1]
            assert len(older) <= most - most // 2 and sum(older) <= room - room // 2
        if sum(rows[before:count]) <= room and count - before <= most:
            assert gone == before


def test_the_set_moves_once_a_step() -> None:
    moves = len({left_out([64] * count, Cap(8, 10**6)) for count in range(9, 41)})
    one_at_a_time = len({max(0, count - 8) for count in range(9, 41)})
    assert (moves, one_at_a_time) == (8, 32)


@pytest.mark.parametrize("name", ["images", "rows"])
def test_a_cap_that_cannot_be_is_named(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Cap(**{name: 0})
