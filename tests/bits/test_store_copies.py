"""Goal: a snapshot holds its own copies, serves any slot, and a chat's end never makes a head.

Method: conversations through the real turn with forced answers on every kind of model, the rows in
place taken by others between them; the verifier compares everything after each prefill. The
canaries plant one fault in what a snapshot holds or brings, and a gate must turn red. Covers
cache.snapshot, beside tests/bits/test_store_gates.py.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support import CANARIES, GRID, MODELS, box, engine, joined, serve, tokens, verifier

from cache import store
from cache.account import Account
from cache.anchors import Tensors
from cache.journal import TurnRow
from cache.snapshot import Snapshot, Standing
from cache.types import CacheState, Gate, Ids, Offer
from engine.turn import Box
from replay.verify import Verdict

HEAD = tokens(3 * GRID + 10, 50)
"""A system prompt that many begin with."""
ROOM = 4_000
"""Rows of the store."""


class Desk:
    """One engine whose rows in place are all that it has beside the store."""

    def __init__(self, model: str, **room: object) -> None:
        self.model = model
        of = engine(model)
        room = {"store_bytes": ROOM * of.cost().row_bytes, "session_trim": True} | room
        self.on: Box = box(of, **room)  # type: ignore[arg-type]
        self.check = verifier(of)
        self.count = 0

    def asks(self, ids: Ids, who: str = "a", answer: int = 9, **how: object) -> TurnRow:
        """A turn whose gate must hold."""
        row, verdict = self.seen(ids, who, answer, **how)
        assert verdict.ok, verdict
        return row

    def seen(
        self, ids: Ids, who: str = "a", answer: int = 9, **how: object
    ) -> tuple[TurnRow, Verdict]:
        """A turn, and what its gate says; the answer is `self.said`."""
        self.count += 1
        self.said = tokens(answer, 1_000 + self.count)
        row, verdict = serve(self.on, ids, self.said, check=self.check, session=who, **how)  # type: ignore[arg-type]
        assert verdict is not None
        return row, verdict

    def replaced(self, size: int = 4 * GRID) -> None:
        """An unrelated request takes all the rows in place."""
        self.count += 1
        self.asks(tokens(size, 2_000 + self.count), f"other{self.count}", kind="title")


def with_head(seed: int, more: int = 40) -> Ids:
    """A short chat's first prompt."""
    return joined(HEAD, tokens(more, seed))


def first_turn(desk: Desk) -> Ids:
    """A chat's first turn: its prompt and answer."""
    ids = with_head(1)
    desk.asks(ids)
    return joined(ids, desk.said)


# prefix use


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("boundaries", [2, 0])
def test_a_shared_head_comes_back_with_a_cold_prefills_bits(model: str, boundaries: int) -> None:
    desk = Desk(model, boundaries=boundaries)
    assert desk.asks(with_head(1), "a").source == "cold"
    for seed in (2, 3):
        desk.replaced()
        row = desk.asks(with_head(seed), f"user{seed}")
        assert (row.source, row.cached, row.gate) == ("store.grid", 3 * GRID, "bits")


@pytest.mark.parametrize("model", MODELS)
def test_a_shorter_prompt_takes_a_shorter_snapshot(model: str) -> None:
    """With every boundary kept, a prompt that parts early resumes at the line below."""
    desk = Desk(model, boundaries=0)
    desk.asks(with_head(1))
    for at in (1, 2):
        desk.replaced()
        row = desk.asks(joined(HEAD[: at * GRID + 9], tokens(60, 7 + at)), "b")
        assert (row.source, row.cached, row.gate) == ("store.grid", at * GRID, "bits")
    longest = Desk(model, boundaries=1)
    longest.asks(with_head(1))
    longest.replaced()
    assert longest.asks(joined(HEAD[: 2 * GRID + 9], tokens(60, 9)), "b").source == "cold"


@pytest.mark.parametrize("model", MODELS)
def test_what_is_replaced_by_a_snapshot_is_parked_whole(model: str) -> None:
    desk = Desk(model, park_rows=4_000)
    desk.asks(with_head(1), kind="title")
    other = tokens(5 * GRID, 3)
    desk.asks(other, "long")
    end, text = desk.on.stack.end, joined(other, desk.said)
    assert desk.asks(with_head(2), "b").source == "store.grid"
    desk.on.stack.store.clear()
    row = desk.asks(joined(text, tokens(20, 4)), "long")
    assert (row.source, row.cached) == ("park.end", end)


@pytest.mark.parametrize("model", MODELS)
def test_a_snapshot_serves_a_slot_of_another_window(model: str) -> None:
    """Slots of one model share a store, and the rows lie elsewhere in a shorter buffer."""
    desk = Desk(model)
    desk.asks(with_head(1))
    of = desk.on.engine.twin(8 * GRID)
    side = box(of, store=desk.on.stack.store)
    row, verdict = serve(side, with_head(2), tokens(9, 3), check=verifier(of), session="b")
    assert (row.source, row.cached) == ("store.grid", 3 * GRID)
    assert verdict is not None and verdict.gate is Gate.BITS and verdict.ok


# session use


@pytest.mark.parametrize("model", MODELS)
def test_after_a_chats_end_lines_are_tainted_and_below_it_they_are_not(model: str) -> None:
    """No head is kept that a generation's state is in; a prompt that parts before it is bits."""
    desk = Desk(model, boundaries=1)
    text = first_turn(desk)
    desk.replaced()
    row = desk.asks(joined(text, tokens(4 * GRID, 7)))
    assert row.source == "store.end" and desk.on.stack.store.declines["tainted"] == 1
    assert all(s.tokens <= 6 * GRID for s in desk.on.stack.store if s.gate is Gate.BITS)
    desk.replaced()
    row, verdict = desk.seen(joined(text[: 3 * GRID + 20], tokens(30, 8)), "b")
    assert (row.source, row.cached) == ("store.grid", 3 * GRID)
    assert verdict.gate is Gate.BITS and verdict.ok


def test_nobody_writes_to_a_snapshot() -> None:
    desk = Desk("hybrid-float32", boundaries=0, park_rows=2_000)
    text = first_turn(desk)
    held = {id(t): (t, t.clone()) for s in desk.on.stack.store for t in tensors(s)}
    for seed in range(3):
        desk.replaced()
        desk.asks(joined(text, tokens(10, seed)))
        desk.asks(with_head(70 + seed), "b")
    assert held and all(torch.equal(t, was) for t, was in held.values())


def tensors(snapshot: Snapshot) -> list[torch.Tensor]:
    """Everything that a snapshot holds."""
    (anchor,) = snapshot.account.anchors
    return [*(t for block in snapshot.blocks for t in block.tensors), *anchor.tensors]


# canaries


@pytest.mark.parametrize("model", CANARIES)
def test_canary_compare_hashes_only(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    desk, real = Desk(model), store.prefix_hashes
    monkeypatch.setattr(store, "prefix_hashes", lambda ids: real(ids) & np.uint64(15))
    texts = [tokens(GRID + 5, 300 + seed) for seed in range(40)]
    hints = [int(store.prefix_hashes(ids[:GRID])[-1]) for ids in texts]
    # Forty hashes of four bits: two of them collide.
    second = next(at for at, hint in enumerate(hints) if hint in hints[:at])
    first = hints.index(hints[second])
    desk.asks(texts[first], kind="title")
    desk.replaced(GRID - 1)
    monkeypatch.setattr(store, "common_prefix", lambda a, b: min(len(a), len(b)))
    monkeypatch.setattr(store.Store, "_offer", plain_offer)
    row, verdict = desk.seen(joined(texts[second], tokens(9, 3)), "b", check_accounts=False)
    assert row.source == "store.grid" and not verdict.ok


def plain_offer(self: store.Store, met: store.Met, snapshot: Snapshot, in_place: Account) -> Offer:
    """The offer as if nothing were in place, so that the tokens decide alone."""
    line = snapshot.account.best_line(snapshot.tokens)
    assert line is not None
    return Offer("store", line, met, Standing(snapshot, 0))


@pytest.mark.parametrize("model", CANARIES)
def test_canary_rows_that_are_not_the_snapshots_stay(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(model)
    desk.asks(with_head(1))
    desk.replaced()
    monkeypatch.setattr(Standing, "blocks", [])
    row, verdict = desk.seen(with_head(2), "b", check_accounts=False)
    assert row.source == "store.grid" and not verdict.ok


@pytest.mark.parametrize("model", CANARIES)
def test_canary_a_snapshot_that_shares_the_live_sections(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def live(state: CacheState, into: Tensors | None = None) -> Tensors:
        return tuple(section.tensor for section in state.sections)

    monkeypatch.setattr(store, "copy_sections", live)
    desk = Desk(model)
    desk.asks(with_head(1))
    desk.replaced()
    row, verdict = desk.seen(with_head(2), "b")
    assert row.source == "store.grid" and not verdict.ok


@pytest.mark.parametrize("model", CANARIES)
def test_canary_a_snapshot_with_the_state_of_the_line_before(model: str) -> None:
    desk = Desk(model, boundaries=0)
    desk.asks(with_head(1))
    two, three = (s for s in desk.on.stack.store if s.tokens in (2 * GRID, 3 * GRID))
    (earlier,), (later,) = two.account.anchors, three.account.anchors
    for tensor, wrong in zip(later.tensors, earlier.tensors, strict=True):
        tensor.copy_(wrong)
    desk.replaced()
    row, verdict = desk.seen(with_head(2), "b")
    assert row.cached == 3 * GRID and not verdict.ok
