"""The board's memory: what is allocated, what the allocator keeps, and what was highest when.

Method: made caches on a small board, figures by hand; an allocator that finds all its blocks again
holds the running maximum of what was allocated, which is its naive twin.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.board import Board, Moment, workspace_of
from sim.clock import VirtualClock
from sim.profile import load

SMALL = replace(
    load("spark-27b"),
    base_bytes=1_000,
    ceiling_bytes=1_500,
    peak_bytes=1_800,
    board_bytes=2_000,
    slack_bytes=50,
    workspace_floor_bytes=100,
    workspace_row_bytes=1,
    workspace_cap_bytes=400,
)


class Steady:
    """A second a chunk, half of one a round."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock

    def prefilled(self, start: int, stop: int) -> None:
        self._clock.charge(1.0)

    def decoded(self, tokens: int) -> None:
        self._clock.charge(0.5)


def board(reuse: float = 1.0, factor: float = 1.0) -> tuple[Board, dict[str, int], VirtualClock]:
    """A board, the caches that lie on it, and its clock."""
    clock, caches = VirtualClock(), dict.fromkeys(("rows", "anchors", "park"), 0)
    made = Board(replace(SMALL, workspace_factor=factor), clock, Steady(clock), reuse=reuse)
    made.holds(lambda: caches)
    return made, caches, clock


def test_what_is_allocated_is_the_load_and_the_caches_but_not_the_rows_again() -> None:
    on, caches, _ = board()
    caches |= {"rows": 500, "anchors": 30, "park": 70}
    assert on.allocated_bytes() == 1_100
    on.holds(lambda: {"park": 5, "encoded": 7})
    assert on.allocated_bytes() == 1_112
    on.begins()
    assert on.ends().after.caches == {"anchors": 30, "park": 75, "encoded": 7}


def test_side_slots_lie_on_the_board_from_the_load_on() -> None:
    clock = VirtualClock()
    beside = replace(SMALL, side_slots=1, side_window=2, row_bytes=10, anchor_bytes=3)
    assert Board(beside, clock, Steady(clock)).allocated_bytes() == 1_023


def test_freed_blocks_stay_in_the_reserve_until_they_are_given_back() -> None:
    on, caches, _ = board()
    caches["park"] = 100
    assert on.reserve_bytes() == 0
    caches["park"] = 30
    assert (on.allocated_bytes(), on.reserve_bytes()) == (1_030, 70)
    on.give_back(40)
    assert on.reserve_bytes() == 40
    on.give_back(60)
    assert on.reserve_bytes() == 40


def test_a_copy_is_made_of_the_reserve_as_far_as_it_can_be_used() -> None:
    for reuse, left in ((1.0, 50), (0.5, 60), (0.0, 70)):
        on, caches, _ = board(reuse)
        caches["park"] = 70
        on.allocated_bytes()
        caches["park"] = 0
        on.allocated_bytes()
        caches["anchors"] = 20
        assert on.reserve_bytes() == left


@given(st.lists(st.one_of(st.integers(0, 300), st.none()), max_size=30))
def test_where_all_blocks_are_found_again_the_total_is_the_highest_so_far(
    sizes: list[int | None],
) -> None:
    """None gives all back."""
    on, caches, _ = board()
    highest = 1_000
    for size in sizes:
        if size is None:
            on.give_back(0)
            highest = on.allocated_bytes()
        else:
            caches["park"] = size
            highest = max(highest, 1_000 + size)
        assert on.allocated_bytes() + on.reserve_bytes() == highest


def test_a_chunk_takes_its_workspace_and_leaves_it_in_the_reserve() -> None:
    on, caches, clock = board()
    caches["park"] = 40
    on.begins()
    on.mark()
    on.prefilled(0, 100)
    assert on.peak_bytes() == 1_040 + 200
    assert (on.allocated_bytes(), on.reserve_bytes()) == (1_040, 200)
    on.mark()
    on.prefilled(100, 150)
    assert on.peak_bytes() == 1_040 + 250
    assert on.reserve_bytes() == 250
    on.decoded(3)
    assert clock.mono_s() == 2.5
    usage = on.ends()
    assert usage.highest == Moment(2.0, 1_000, {"anchors": 0, "park": 40}, 250, 0)
    assert usage.after == Moment(2.5, 1_000, {"anchors": 0, "park": 40}, 0, 250)


def test_the_true_workspace_may_be_more_than_the_expected_one() -> None:
    assert [workspace_of(SMALL)(n) for n in (1, 100, 1_000)] == [101, 200, 400]
    on, _, _ = board(factor=1.5)
    on.mark()
    on.prefilled(0, 100)
    assert on.peak_bytes() == 1_000 + 300


def test_time_over_the_limits_is_counted() -> None:
    on, caches, clock = board()
    caches["park"] = 600
    on.begins()
    on.prefilled(0, 100)
    assert on.ends().over_peak_s == 0.0
    clock.charge(10.0)
    on.begins()
    caches["park"] = 650
    on.prefilled(0, 100)
    caches["park"] = 700
    on.prefilled(100, 1_000)
    usage = on.ends()
    assert (usage.over_ceiling_s, usage.over_peak_s, usage.over_board_s) == (10.0, 2.0, 1.0)
    caches["park"] = 0
    on.give_back(0)
    clock.charge(10.0)
    on.begins()
    assert on.ends().over_ceiling_s == 0.0
    assert len(on.usages) == 3


@pytest.mark.parametrize("asks_first", [True, False])
def test_canary_a_copy_made_before_asking_passes_the_limit_for_a_moment(asks_first: bool) -> None:
    """The moment is over when anybody looks at the caches, but not out of the board's sight."""
    on, caches, _ = board(reuse=0.0)
    caches |= {"anchors": 100, "park": 400}
    on.begins()
    if asks_first:
        caches["anchors"] -= 100
        on.allocated_bytes()
        on.give_back(0)
        caches["park"] += 100
    else:
        caches["park"] += 100
        on.allocated_bytes()
        caches["anchors"] -= 100
        on.allocated_bytes()
        on.give_back(0)
    usage = on.ends()
    assert usage.after.total_bytes == SMALL.ceiling_bytes
    assert (usage.highest.total_bytes > SMALL.ceiling_bytes) is not asks_first
