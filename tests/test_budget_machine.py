"""The budget on a board: nothing passes a limit, cheaper caches always give before dearer ones.

Method: a hypothesis state machine drives made levels, prefills and idle times over the board's
memory, whose blocks are found again or not and whose true workspace may exceed the estimate. After
every step a naive account of what each level had says who may have given, and the board's highest
moment is held to the limits. The canaries are budgets with one fault each: the machine finds all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from cache.budget import LEVELS, Budget
from cache.workspace import Workspace
from sim.board import Board
from sim.clock import VirtualClock
from sim.compute import Compute
from sim.profile import load

BOARD = replace(
    load("spark-27b"),
    base_bytes=1_000,
    ceiling_bytes=1_500,
    peak_bytes=1_700,
    board_bytes=3_000,
    slack_bytes=60,
    workspace_floor_bytes=50,
    workspace_row_bytes=1,
    workspace_cap_bytes=600,
)
GRID = 64
PIECE = 20


class Shelf:
    """Pieces of one size, given one by one."""

    def __init__(self, name: str) -> None:
        self.name, self.pieces = name, 0

    def held_bytes(self) -> int:
        return self.pieces * PIECE

    def release(self, nbytes: int) -> int:
        gone = min(self.pieces, -(-nbytes // PIECE))
        self.pieces -= gone
        return gone * PIECE


Pieces = dict[str, int]


class Held(RuleBasedStateMachine):
    """An engine's caches under a budget."""

    def budget(self, board: Board, shelves: list[Shelf]) -> Budget:
        return Budget(BOARD.limits, board, lambda: BOARD.cost, shelves)

    def copy(self, name: str, pieces: int) -> bool:
        """A cache takes pieces; it asks first."""
        if not self.over.grow(name, pieces * PIECE):
            return False
        self.shelves[name].pieces += pieces
        return True

    @initialize(
        reuse=st.sampled_from((0.0, 0.5, 1.0)),
        factor=st.sampled_from((1.0, 1.0, 1.4, 2.0)),
        more=st.sampled_from((0, 0, 70)),
    )
    def begin(self, reuse: float, factor: float, more: int) -> None:
        clock = VirtualClock()
        self.shelves = {name: Shelf(name) for name in LEVELS}

        def true(tokens: int) -> int:
            return round(factor * BOARD.cost.workspace_bytes(tokens)) + more

        self.true: Callable[[int], int] = true
        self.board = Board(BOARD, clock, Compute(BOARD, clock), true, reuse)
        self.board.holds(lambda: {n: s.held_bytes() for n, s in self.shelves.items()})
        self.over = self.budget(self.board, list(self.shelves.values()))
        self.longest = 0
        self.exceeded = 0
        self.board.begins()

    def pieces(self) -> Pieces:
        return {name: shelf.pieces for name, shelf in self.shelves.items()}

    def total(self) -> int:
        return self.board.allocated_bytes() + self.board.reserve_bytes()

    def gave_in_order(self, before: Pieces, limit: int) -> None:
        """The dearest that gave had to: all cheaper ones are empty, and a piece less was too few.

        `limit` is what was to stay free of what they hold.
        """
        after = self.pieces()
        gave = [name for name in LEVELS if after[name] < before[name]]
        assert all(after[name] <= before[name] for name in LEVELS)
        if gave:
            cheaper = LEVELS[: LEVELS.index(gave[-1])]
            assert all(after[name] == 0 for name in cheaper), "gave before a cheaper one"
            assert self.board.allocated_bytes() + PIECE > limit, "gave more than was needed"

    @rule(name=st.sampled_from(LEVELS), pieces=st.integers(1, 9))
    def grow(self, name: str, pieces: int) -> None:
        self.grow_under(name, pieces, BOARD.ceiling_bytes - BOARD.slack_bytes)

    def grow_under(self, name: str, pieces: int, limit: int) -> None:
        before, reserve = self.pieces(), self.board.reserve_bytes()
        if self.copy(name, pieces):
            assert self.total() <= limit, "grew into the prefill's room"
            taken = self.pieces()
            self.shelves[name].pieces -= pieces
            rank = LEVELS.index(name)
            assert all(taken[other] == before[other] for other in LEVELS[rank + 1 :])
            self.gave_in_order(before, limit - pieces * PIECE)
            self.shelves[name].pieces += pieces
        else:
            seen = (self.pieces(), self.board.reserve_bytes())
            assert seen == (before, reserve), "took without a grant"
            least = sum(before[dear] for dear in LEVELS[LEVELS.index(name) :]) + pieces
            assert BOARD.base_bytes + least * PIECE > limit, "declined what would have fitted"

    @rule(name=st.sampled_from(LEVELS), pieces=st.integers(1, 9))
    def drop(self, name: str, pieces: int) -> None:
        """A cache gives up some of its own accord."""
        shelf = self.shelves[name]
        shelf.pieces = max(0, shelf.pieces - pieces)

    @rule(
        chunks=st.integers(1, 9),
        name=st.sampled_from(LEVELS),
        pieces=st.integers(0, 3),
    )
    def prefill(self, chunks: int, name: str, pieces: int) -> None:
        """A prompt is read, and a cache grows between its chunks."""
        tokens, before, reserve = chunks * GRID, self.pieces(), self.board.reserve_bytes()
        estimate = self.over.workspace.bytes(tokens)
        self.board.begins()
        refused = self.over.admit(tokens)
        if refused is not None:
            assert (self.pieces(), self.board.reserve_bytes()) == (before, reserve)
            assert refused.need_bytes == estimate > refused.have_bytes
            assert BOARD.base_bytes + estimate > BOARD.peak_bytes
            return
        self.gave_in_order(before, BOARD.peak_bytes - estimate)
        for chunk in range(chunks):
            self.over.forwards()
            self.board.prefilled(chunk * GRID, (chunk + 1) * GRID)
            self.over.prefilled((chunk + 1) * GRID)
            if pieces and chunk + 1 < chunks:
                rest = BOARD.peak_bytes - self.over.workspace.bytes(tokens)
                limit = min(BOARD.ceiling_bytes - BOARD.slack_bytes, rest)
                self.grow_under(name, pieces, limit)
        kept = self.true(tokens) <= estimate
        assert kept or tokens > self.longest, "exceeded the estimate a second time"
        self.longest = max(self.longest, tokens)
        usage = self.board.ends()
        assert usage.highest.total_bytes <= BOARD.peak_bytes or not kept
        assert usage.over_peak_s == 0.0 or not kept
        self.over.after_request()
        assert self.board.reserve_bytes() <= BOARD.slack_bytes
        self.board.begins()

    @rule()
    def after_request(self) -> None:
        before = self.pieces()
        self.over.after_request()
        assert self.pieces() == before

    @invariant()
    def between_requests_the_ceiling_holds(self) -> None:
        if hasattr(self, "board"):
            assert self.board.allocated_bytes() <= BOARD.ceiling_bytes - BOARD.slack_bytes
            shed = sum(self.over.counters[f"shed.{name}"] for name in LEVELS)
            assert shed % PIECE == 0


Held.TestCase.settings = settings(
    max_examples=max(150, settings().max_examples), stateful_step_count=30
)
TestHeld = Held.TestCase


# canaries: one fault each


class CopiesFirst(Held):
    """A cache that copies before it asks, and drops the copy when it may not."""

    def grow_under(self, name: str, pieces: int, limit: int) -> None:
        self.shelves[name].pieces += pieces
        self.board.allocated_bytes()
        self.shelves[name].pieces -= pieces
        if self.copy(name, pieces):
            self.board.allocated_bytes()
        highest = self.board.ends().highest.total_bytes
        assert highest <= BOARD.peak_bytes, "passed the peak for a moment"
        self.board.begins()


class DearestFirst(Held):
    def budget(self, board: Board, shelves: list[Shelf]) -> Budget:
        over = super().budget(board, shelves)
        over._levels = over._levels[::-1]
        return over


class NeverLearns(Held):
    def budget(self, board: Board, shelves: list[Shelf]) -> Budget:
        class Deaf(Workspace):
            def learn(self, tokens: int, took_bytes: int) -> bool:
                return False

        over = super().budget(board, shelves)
        over.workspace = Deaf(lambda: BOARD.cost)
        return over


class KeepsTheReserve(Held):
    """Takes what caches freed for free memory."""

    def budget(self, board: Board, shelves: list[Shelf]) -> Budget:
        class Blind(Budget):
            def _reserve_back(self, limit: int, more: int) -> None:
                pass

        return Blind(BOARD.limits, board, lambda: BOARD.cost, shelves)


class GivesForNothing(Held):
    """Lets caches give before it knows that it would do."""

    def budget(self, board: Board, shelves: list[Shelf]) -> Budget:
        class Eager(Budget):
            def _least_bytes(self, levels: object) -> int:
                return 0

        return Eager(BOARD.limits, board, lambda: BOARD.cost, shelves)


class ForgetsThePrefill(Held):
    """Lets caches grow into the room of a prefill that is under way."""

    def budget(self, board: Board, shelves: list[Shelf]) -> Budget:
        class Forgetful(Budget):
            def forwards(self) -> None:
                super().forwards()
                self._prefills.clear()

        return Forgetful(BOARD.limits, board, lambda: BOARD.cost, shelves)


# The first failure is enough: it need not be small, nor explained.
FINDS = settings(
    max_examples=300,
    stateful_step_count=30,
    phases=[Phase.generate],
    print_blob=False,
    report_multiple_bugs=False,
)


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        (CopiesFirst, "passed the peak for a moment"),
        (DearestFirst, "gave before a cheaper one"),
        (NeverLearns, "exceeded the estimate a second time"),
        (KeepsTheReserve, "declined what would have fitted"),
        (GivesForNothing, "took without a grant"),
        (ForgetsThePrefill, "grew into the prefill's room"),
    ],
)
def test_canary_the_machine_finds(fault: type[Held], seen: str) -> None:
    with pytest.raises(AssertionError, match=seen):
        run_state_machine_as_test(fault, settings=FINDS)
