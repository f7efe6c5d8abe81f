"""The memory budget: who may grow, who gives way, which prompt is refused.

Method: made levels over a counted allocator; the figures are small and worked out by hand.
"""

from __future__ import annotations

import pytest

from cache.budget import DRIVE, LEVELS, RETRY_AFTER_S, Budget, Refused
from cache.types import Cost, Limits

COST = Cost(1, 1, workspace_floor_bytes=10, workspace_row_bytes=1)
LIMITS = Limits(ceiling_bytes=100, peak_bytes=130, slack_bytes=10)


class Shelf:
    """A level that holds pieces of one size and gives them one by one."""

    def __init__(self, name: str, pieces: int, memory: Counted, size: int = 5) -> None:
        self.name, self.pieces, self.size = name, pieces, size
        self._memory = memory
        memory.shelves.append(self)

    def held_bytes(self) -> int:
        return self.pieces * self.size

    def release(self, nbytes: int) -> int:
        gone = min(self.pieces, -(-nbytes // self.size))
        self.pieces -= gone
        self._memory.reserve += gone * self.size
        self._memory.log.append(self.name)
        return gone * self.size


class Counted:
    """An allocator: a base, the shelves' pieces, and a reserve of all that was freed."""

    def __init__(self, base: int, reserve: int = 0) -> None:
        self.base, self.reserve, self.shelves = base, reserve, list[Shelf]()
        self.most, self.log = 0, list[str]()

    def allocated_bytes(self) -> int:
        return self.base + sum(shelf.held_bytes() for shelf in self.shelves)

    def reserve_bytes(self) -> int:
        return self.reserve

    def give_back(self, keep_bytes: int) -> None:
        self.log.append("reserve")
        self.reserve = min(self.reserve, keep_bytes)

    def mark(self) -> None:
        self.most = self.allocated_bytes()

    def peak_bytes(self) -> int:
        return self.most


def budget(base: int, reserve: int = 0, **pieces: int) -> tuple[Budget, Counted, dict[str, Shelf]]:
    """A budget over levels that hold so many pieces of 5 bytes."""
    memory = Counted(base, reserve)
    shelves = {name: Shelf(name, pieces[name], memory) for name in LEVELS if name in pieces}
    return Budget(LIMITS, memory, lambda: COST, list(shelves.values())), memory, shelves


def held(shelves: dict[str, Shelf]) -> dict[str, int]:
    return {name: shelf.pieces for name, shelf in shelves.items()}


# growing


def test_a_cache_grows_up_to_the_ceiling_less_the_slack() -> None:
    over, memory, _ = budget(80, anchors=0)
    assert over.grow("anchors", 10)
    memory.base = 81
    assert not over.grow("anchors", 10)
    assert over.counters == {"declined.anchors": 1}


def test_the_reserve_goes_first_and_only_as_much_as_is_needed() -> None:
    over, memory, shelves = budget(70, 15, store=1, anchors=0)
    assert over.grow("anchors", 5)
    assert (memory.reserve, memory.log, held(shelves)) == (
        10,
        ["reserve"],
        {"store": 1, "anchors": 0},
    )


def test_cheaper_caches_give_their_room_and_dearer_ones_never() -> None:
    over, memory, shelves = budget(60, store=2, anchors=2, park=2)
    assert over.grow("anchors", 5)
    assert held(shelves) == {"store": 1, "anchors": 2, "park": 2}
    assert memory.log == ["store", "reserve"]
    assert over.counters == {"shed.store": 5}
    assert not over.grow("anchors", 15)
    assert held(shelves) == {"store": 1, "anchors": 2, "park": 2}


def test_every_cache_gives_for_buffers_that_never_do() -> None:
    of, _, shelves = budget(60, store=1, pin=5)
    assert of.grow(DRIVE, 20)
    assert (shelves["store"].pieces, shelves["pin"].pieces) == (0, 2)
    assert not of.grow(DRIVE, 31) and shelves["pin"].pieces == 2


def test_who_cant_have_enough_takes_nothing_from_anybody() -> None:
    over, memory, shelves = budget(75, 3, store=2, anchors=1)
    assert not over.grow("anchors", 12)
    assert (memory.log, memory.reserve, held(shelves)) == ([], 3, {"store": 2, "anchors": 1})


def test_growth_leaves_room_for_the_prefill_under_way() -> None:
    over, memory, _ = budget(70, anchors=0)
    assert over.admit(50) is None
    assert not over.grow("anchors", 1)
    over.prefilled(50, memory.allocated_bytes() + 60)
    assert over.grow("anchors", 20)


# admission


def test_a_prefill_that_fits_takes_nothing() -> None:
    over, memory, shelves = budget(80, 5, store=2)
    assert over.admit(25) is None
    assert (memory.log, held(shelves)) == ([], {"store": 2})


def test_room_for_a_prefill_is_made_cheapest_first_and_no_more_than_needed() -> None:
    over, memory, shelves = budget(60, 5, encoded=1, store=2, anchors=2, pin=3)
    assert over.admit(40) is None
    assert held(shelves) == {"encoded": 0, "store": 0, "anchors": 1, "pin": 3}
    assert memory.log[0] == "reserve"
    assert [name for name in memory.log if name != "reserve"] == ["encoded", "store", "anchors"]
    assert over.counters == {"shed.encoded": 5, "shed.store": 10, "shed.anchors": 5}
    assert memory.allocated_bytes() + memory.reserve + 50 <= LIMITS.peak_bytes


def test_what_can_never_fit_is_refused_and_changes_nothing() -> None:
    over, memory, shelves = budget(60, 5, store=2, pin=3)
    refused = over.admit(61)
    assert refused == Refused(
        "a prefill to 61 tokens takes 71 bytes, 70 could be had", RETRY_AFTER_S, 71, 70
    )
    assert (memory.log, memory.reserve, held(shelves)) == ([], 5, {"store": 2, "pin": 3})
    assert over.counters == {"refused": 1}
    assert over.admit(60) is None
    assert held(shelves) == {"store": 0, "pin": 0}


def test_nothing_to_forward_needs_no_workspace() -> None:
    over, _, _ = budget(125, store=1)
    assert over.admit(100, 100) is None
    assert over.admit(100, 99) is not None


def test_a_prefill_that_took_more_raises_what_the_next_must_find() -> None:
    over, memory, shelves = budget(80, store=3)
    assert over.admit(25) is None
    over.prefilled(25, memory.allocated_bytes() + 45)
    over.after_request()
    assert over.workspace.learned_bytes == 10
    assert over.admit(25) is None
    assert held(shelves) == {"store": 1}


def test_what_a_chunk_teaches_makes_room_for_the_next_one() -> None:
    """Nothing is given for a chunk that took what was expected, nor for the last one."""
    over, memory, shelves = budget(75, store=3, pin=2)
    assert over.admit(20) is None
    over.prefilled(10, memory.allocated_bytes() + 20)
    assert (memory.log, held(shelves)) == ([], {"store": 3, "pin": 2})
    over.prefilled(15, memory.allocated_bytes() + 32)
    assert held(shelves) == {"store": 1, "pin": 2}
    over.prefilled(20, memory.allocated_bytes() + 60)
    assert held(shelves) == {"store": 1, "pin": 2}


# between requests


def test_after_a_request_the_reserve_is_the_slack_and_not_before() -> None:
    over, memory, _ = budget(60, 25, store=1)
    assert over.admit(5) is None
    over.prefilled(5, memory.allocated_bytes() + 15)
    assert memory.reserve == 25
    over.after_request()
    assert memory.reserve == 10


def test_after_a_request_nothing_is_over_the_ceiling() -> None:
    over, memory, shelves = budget(94, 8, store=1, anchors=1)
    over.after_request()
    assert memory.allocated_bytes() + memory.reserve <= LIMITS.ceiling_bytes
    assert held(shelves) == {"store": 0, "anchors": 1}


# limits


@pytest.mark.parametrize(
    ("limits", "line"),
    [
        ((-1, 5, 0), "ceiling_bytes must not be negative"),
        ((1, -5, 0), "peak_bytes must not be negative"),
        ((1, 5, -1), "slack_bytes must not be negative"),
        ((10, 9, 1), "peak_bytes must not be below ceiling_bytes"),
        ((10, 20, 10), "slack_bytes must be below ceiling_bytes"),
    ],
)
def test_contradictions_are_one_line(limits: tuple[int, int, int], line: str) -> None:
    with pytest.raises(ValueError, match=f"^{line}$"):
        Limits(*limits)


def test_canary_levels_out_of_order_are_not_taken() -> None:
    memory = Counted(0)
    shelves = [Shelf(name, 1, memory) for name in ("park", "store")]
    with pytest.raises(AssertionError, match="not cheapest first"):
        Budget(LIMITS, memory, lambda: COST, shelves)


def test_what_one_lets_go_of_another_gives_in_a_second_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A copy that the pool and the rows in place hold is free when both have let go of it."""
    over, memory, shelves = budget(90, anchors=2, park=2)
    park, anchors = shelves["park"], shelves["anchors"]
    release = park.release

    def shared(nbytes: int) -> int:
        release(nbytes)
        memory.reserve -= 5
        anchors.pieces += 1
        return 5

    monkeypatch.setattr(park, "release", shared)
    assert over.admit(30) is None
    assert held(shelves) == {"anchors": 0, "park": 0}


def test_a_slot_that_ends_forgets_no_other_slots_prefill() -> None:
    over, memory, _ = budget(70, anchors=0)
    assert over.admit(50) is None and over.admit(20, slot=1) is None
    over.prefilled(20, memory.allocated_bytes(), slot=1)
    over.after_request(1)
    assert not over.grow("anchors", 1)
    over.after_request(0)
    assert over.grow("anchors", 20)
