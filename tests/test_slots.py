"""Goal: a side slot serves what would be a guest, and each conversation stays where it is held.

Method: turns through the slots' own boxes, on every kind of model, the state after each prefill
held to its gate. The canary gives a side slot the main engine's rows instead of its own.
"""

from __future__ import annotations

import pytest
from support import CANARIES, GRID, MODELS, box, engine, forced, joined, judge, tokens, verifier

from cache.anchors import AnchorConfig
from cache.config import StackConfig
from cache.guest import GuestConfig
from cache.journal import TurnRow
from cache.parked import ParkConfig
from cache.stack import Stack
from cache.types import Ids
from engine.adapter import Engine
from engine.slots import Slots
from engine.turn import Prompt, Ready, turn
from replay.verify import Verdict


def plain(of: Engine) -> Stack:
    """The caches of a side slot: the rows in place and a few anchors."""
    anchors = AnchorConfig(budget_bytes=6 * of.cost().anchor_bytes, newest_kept=2)
    off = StackConfig(anchors, ParkConfig(0, 0), GuestConfig(tokens_max=0))
    return Stack(of, off)


class Lot:
    """A main slot and side slots."""

    def __init__(self, model: str, sides: int = 1, window: int = 8 * GRID, **room: int) -> None:
        self.model = model
        main = box(engine(model), **room)
        self.slots = Slots.beside(main, sides, window, plain)
        self.checks = {one.slot: verifier(one.engine) for one in self.slots}
        self.verdict: Verdict | None = None

    def send(self, ids: Ids, answer: Ids, session: str = "a") -> TurnRow:
        prompt = Prompt(ids, session, answer_max=len(answer))
        on = self.slots.choose(prompt)
        for event in turn(on, prompt, forced(answer), limit=len(answer)):
            if isinstance(event, Ready):
                self.verdict = judge(on, event.ids, event.logits, self.checks[on.slot])
        self.slots.used(on)
        on.stack.check()
        assert self.verdict is not None
        assert self.verdict.ok, self.verdict
        return on.journal.rows[-1]


@pytest.mark.parametrize("model", MODELS)
def test_a_guest_takes_the_side_slot_and_needs_no_stash(model: str) -> None:
    lot = Lot(model, guest_tokens=200, stash_rows=900)
    ids, answer = tokens(14 * GRID, 1), tokens(20, 2)
    assert lot.send(ids, answer).slot == 0
    end = lot.slots.main.stack.end
    row = lot.send(tokens(70, 5), tokens(9, 6))
    assert (row.slot, row.guest, row.source) == (1, False, "cold")
    row = lot.send(joined(ids, answer, tokens(50, 3)), tokens(9, 4))
    assert (row.slot, row.source, row.cached) == (0, "end", end)


@pytest.mark.parametrize("model", MODELS)
def test_a_conversation_stays_in_the_slot_that_holds_it(model: str) -> None:
    lot = Lot(model, guest_tokens=200, stash_rows=900)
    lot.send(tokens(14 * GRID, 1), tokens(20, 2))
    ids, answer = tokens(2 * GRID + 9, 5), tokens(30, 6)
    assert lot.send(ids, answer, "t").slot == 1
    row = lot.send(joined(ids, answer, tokens(40, 7)), tokens(9, 8), "t")
    assert (row.slot, row.source) == (1, "end")


def test_the_slot_used_longest_ago_takes_what_none_holds() -> None:
    lot = Lot("witness", sides=2, guest_tokens=200, stash_rows=900)
    lot.send(tokens(14 * GRID, 1), tokens(20, 2))
    taken = [lot.send(tokens(70, seed), tokens(9, 6)).slot for seed in (11, 12, 13, 14)]
    assert taken in ([1, 2, 1, 2], [2, 1, 2, 1])


def test_what_does_not_fit_a_side_slot_stays_in_the_main_one() -> None:
    lot = Lot("witness", window=2 * GRID, guest_tokens=4 * GRID, stash_rows=900)
    lot.send(tokens(18 * GRID, 1), tokens(20, 2))
    row = lot.send(tokens(3 * GRID, 5), tokens(9, 6))
    assert row.slot == 0 and row.guest
    row = lot.send(tokens(GRID, 7), tokens(GRID, 8))
    assert row.slot == 0 and row.guest, "its answer would not fit"


def test_a_long_stranger_replaces_the_main_slots_rows() -> None:
    lot = Lot("witness", guest_tokens=100, stash_rows=900, park_rows=4_000)
    lot.send(tokens(8 * GRID, 1), tokens(20, 2))
    assert lot.send(tokens(6 * GRID, 5), tokens(9, 6), "b").slot == 0


def test_without_side_slots_the_main_one_serves_all() -> None:
    lot = Lot("witness", sides=0, guest_tokens=200, stash_rows=900)
    lot.send(tokens(14 * GRID, 1), tokens(20, 2))
    row = lot.send(tokens(70, 5), tokens(9, 6))
    assert row.slot == 0 and row.guest


@pytest.mark.parametrize("model", CANARIES)
def test_canary_a_side_slot_that_writes_into_the_main_slots_rows(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lot = Lot(model, guest_tokens=200, stash_rows=900)
    ids = tokens(14 * GRID, 1)
    lot.send(ids, tokens(20, 2))
    side = list(lot.slots)[1]
    main = lot.slots.main.engine
    views = {view.name: view for view in main.cache_state().views}
    lot.send(tokens(70, 5), tokens(9, 6))
    for view in side.engine.cache_state().views:
        views[view.name].rows(0, 70).copy_(view.rows(0, 70))
    with pytest.raises(AssertionError, match=r"differ|other tokens"):
        lot.send(joined(ids[: 10 * GRID], tokens(50, 3)), tokens(9, 4))


def choose(lot: Lot, ids: Ids, busy: set[int], session: str, kind: str = "turn") -> int | None:
    """The slot that would serve a prompt while some are busy."""
    chosen = lot.slots.choose(Prompt(ids, session, kind=kind, answer_max=9), busy)
    return chosen.slot if chosen is not None else None


def test_beside_a_busy_main_slot_a_turn_takes_a_side_slot_and_leaves_conversations_be() -> None:
    lot = Lot("witness", sides=2, guest_tokens=200, stash_rows=900)
    lot.send(tokens(9 * GRID, 1), tokens(9, 2), "main")
    chat = tokens(3 * GRID, 3)
    side = choose(lot, chat, {0}, "chat")
    assert side in (1, 2)
    on = next(box for box in lot.slots if box.slot == side)
    for _ in turn(on, Prompt(chat, "chat", answer_max=9), forced(tokens(9, 4)), limit=9):
        pass
    lot.slots.used(on)
    other = 3 - side
    # What holds nothing of a title takes the slot without a conversation, again and again.
    for n in range(3):
        assert choose(lot, tokens(2 * GRID, 50 + n), {0}, "chat", "title") == other
        box = next(box for box in lot.slots if box.slot == other)
        title = Prompt(tokens(2 * GRID, 50 + n), "chat", kind="title", answer_max=9)
        for _ in turn(box, title, forced(tokens(9, 4)), limit=9):
            pass
        lot.slots.used(box)
    assert choose(lot, joined(chat, tokens(9, 4), tokens(30, 5)), {0}, "chat") == side
    assert choose(lot, chat, {0, 1, 2}, "chat") is None


def test_a_turn_that_the_main_slot_holds_waits_for_it_and_a_title_does_not() -> None:
    lot = Lot("witness", sides=2, park_rows=2_000)
    lot.send(tokens(9 * GRID, 1), tokens(9, 2), "a")
    lot.send(tokens(9 * GRID, 3), tokens(9, 4), "b")
    parked = joined(tokens(9 * GRID, 1), tokens(9, 2), tokens(20, 5))
    small = Lot("witness", sides=2, window=16 * GRID, park_rows=2_000)
    small.send(tokens(9 * GRID, 1), tokens(9, 2), "a")
    small.send(tokens(9 * GRID, 3), tokens(9, 4), "b")
    assert choose(small, parked, {0}, "a") is None
    assert choose(small, parked, {0}, "a", "title") in (1, 2)
    assert choose(small, tokens(9 * GRID, 9), {0}, "c") in (1, 2)
    assert choose(lot, parked, set(), "a") == 0
