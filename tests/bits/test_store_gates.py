"""Every resume from a snapshot against a cold prefill, on every kind of model.

Method: conversations through the real turn with forced answers; the verifier compares everything
after each prefill. A prefix snapshot must give a cold prefill's bits, a session snapshot is held to
the greedy gate. Long strangers overwrite the rows in place, and there is no pool, so that nothing
but the store can serve. The canaries plant one fault each, and a gate must turn red.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support import CANARIES, GRID, MODELS, box, engine, joined, serve, tokens, verifier

from cache import rows as rows_module
from cache import store as store_module
from cache.hashing import Hashes, prefix_hashes
from cache.journal import TurnRow
from cache.rows import RowBlock
from cache.store import Store
from cache.types import Gate, Ids, common_prefix
from engine.turn import Box
from replay.verify import Verdict

ROOM = 64
"""Snapshots of a few hundred rows, roughly."""
SYSTEM = tokens(4 * GRID + 10, 50)
"""What many chats begin with."""


class Desk:
    """One engine with a store and nothing else beside the rows in place."""

    def __init__(self, model: str, *, rows: int = 8_000, **room: int) -> None:
        self.model = model
        of = engine(model)
        cost = of.cost()
        size = rows * cost.row_bytes + ROOM * cost.anchor_bytes
        self.on: Box = box(of, store_bytes=size, **room)
        self.check = verifier(of)
        self.count = 0

    @property
    def store(self) -> Store:
        return self.on.stack.store

    def sends(self, ids: Ids, answer: int = 9, **how: object) -> tuple[TurnRow, Verdict]:
        """A prompt; whatever served it, its gate must hold."""
        self.count += 1
        written = tokens(answer, 1_000 + self.count)
        row, verdict = serve(self.on, ids, written, check=self.check, **how)  # type: ignore[arg-type]
        assert verdict is not None
        assert verdict.ok, verdict
        self.answered = joined(ids, written)
        return row, verdict

    def stranger(self) -> None:
        """Nothing of the rows in place is left."""
        self.count += 1
        self.sends(tokens(9 * GRID + 5, 2_000 + self.count), kind="title")


@pytest.mark.parametrize("model", MODELS)
def test_a_shared_head_is_a_cold_prefills_bits(model: str) -> None:
    desk = Desk(model)
    desk.sends(joined(SYSTEM, tokens(30, 1)), session="a")
    desk.stranger()
    row, verdict = desk.sends(joined(SYSTEM, tokens(40, 2)), session="b")
    assert (row.source, row.cached, row.gate) == ("store.grid", 4 * GRID, "bits")
    assert verdict.gate is Gate.BITS and verdict.ok


@pytest.mark.parametrize("model", MODELS)
def test_a_short_chat_goes_on_where_it_ended(model: str) -> None:
    desk = Desk(model, session_trim=True)
    for turn in range(4):
        before = desk.answered if turn else tokens(100, 3)
        row, verdict = desk.sends(joined(before, tokens(30, 10 + turn)), session="a")
        if turn:
            assert (row.source, row.gate) == ("store.end", "greedy")
            assert row.cached >= len(before) - 1 and verdict.gate is Gate.GREEDY
        text = desk.answered
        desk.stranger()
        desk.answered = text


@pytest.mark.parametrize("model", MODELS)
def test_below_a_session_snapshots_taint_all_is_clean_again(model: str) -> None:
    """A chat is brought back at its end, then a copy parts inside its first prompt."""
    desk = Desk(model, session_trim=True, boundaries=0)
    first = tokens(5 * GRID + 9, 4)
    desk.sends(first, session="a")
    text = desk.answered
    desk.stranger()
    row, _ = desk.sends(joined(text, tokens(30, 5)), session="a")
    assert row.source == "store.end"
    row, verdict = desk.sends(joined(first[: 3 * GRID + 4], tokens(50, 6)), session="a")
    assert row.cached == 3 * GRID and verdict.gate is Gate.BITS


@pytest.mark.parametrize("model", MODELS)
def test_rows_in_place_that_are_the_snapshots_stay_and_its_lines_with_them(model: str) -> None:
    """Half of the head is in place already, with its anchors."""
    desk = Desk(model, boundaries=1)
    head = tokens(6 * GRID + 3, 7)
    desk.sends(joined(head, tokens(20, 8)), session="a")
    desk.sends(joined(head[: 3 * GRID], tokens(4 * GRID, 9)), session="b", kind="title")
    row, _ = desk.sends(joined(head, tokens(20, 10)), session="a")
    assert (row.source, row.cached) == ("store.grid", 6 * GRID)
    row, verdict = desk.sends(joined(head[: 2 * GRID + 5], tokens(20, 11)), session="a")
    assert (row.source, row.cached) == ("grid", 2 * GRID) and verdict.gate is Gate.BITS


@pytest.mark.parametrize("model", MODELS)
def test_a_tainted_head_in_place_is_written_over(model: str) -> None:
    """The rows in place are the same tokens, but an answer's: the snapshot's own come back."""
    desk = Desk(model, boundaries=1)
    text = tokens(6 * GRID + 3, 12)
    desk.sends(joined(text, tokens(20, 13)), session="a")
    desk.stranger()
    # Now an answer writes what the prompt had.
    written = text[2 * GRID + 5 : 5 * GRID]
    start = text[: 2 * GRID + 5]
    # With no lookup by the store: the answer is forced from a prompt that parts before it.
    row, _ = serve(desk.on, start, written, session="b")
    assert row.cached == 0
    row, verdict = desk.sends(joined(text, tokens(20, 14)), session="a")
    assert (row.source, row.gate) == ("store.grid", "bits") and verdict.gate is Gate.BITS


@pytest.mark.parametrize("model", MODELS)
def test_a_guest_comes_from_the_store_and_the_rows_are_put_back(model: str) -> None:
    desk = Desk(model, guest_tokens=6 * GRID, stash_rows=12 * GRID, park_rows=0)
    desk.sends(joined(SYSTEM, tokens(20, 15)), session="a")
    large = tokens(25 * GRID + 5, 16)
    desk.sends(large, session="b")
    text = desk.answered
    row, verdict = desk.sends(joined(SYSTEM, tokens(25, 17)), session="c")
    assert row.guest and (row.source, row.cached) == ("store.grid", 4 * GRID)
    assert verdict.gate is Gate.BITS
    row, _ = desk.sends(joined(text, tokens(10, 18)), session="b")
    assert row.cached >= len(large)


def test_the_pool_stands_on_rows_that_the_store_replaces() -> None:
    """Parked conversations share the rows in place; a snapshot writes over those."""
    desk = Desk("witness", park_rows=6_000, checkpoint_tokens=16)
    texts: dict[str, Ids] = {}
    for who in "abc":
        desk.sends(joined(SYSTEM, tokens(5 * GRID + ord(who), ord(who))), session=who)
        texts[who] = desk.answered
        desk.on.stack.check()
    other = tokens(3 * GRID + 9, 60)
    desk.sends(joined(other, tokens(20, 61)), session="d")
    desk.sends(joined(SYSTEM, tokens(20, 62)), session="e")
    for who in "abcba":
        row, _ = desk.sends(joined(texts[who], tokens(30, 70 + ord(who))), session=who)
        assert row.cached >= len(SYSTEM)
        texts[who] = desk.answered
        desk.on.stack.check()


def test_a_copy_without_its_hidden_tokens_is_no_match_for_a_plain_meeting() -> None:
    """Only a meeting that puts hidden spans back may serve it; tokens are compared."""
    desk = Desk("witness", session_trim=True)
    desk.sends(tokens(100, 80), session="a")
    text = desk.answered
    desk.stranger()
    ids = np.delete(text, 50)
    row, _ = desk.sends(joined(ids, tokens(5, 81)), session="a")
    assert row.source == "cold"


def four_bits(ids: Ids) -> Hashes:
    """The real hashes, cut down so that they collide all the time."""
    return prefix_hashes(ids) & np.uint64(15)


@pytest.mark.parametrize("model", MODELS)
def test_colliding_hashes_never_serve_another_prompts_state(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 4 bits left about one stranger in sixteen has an entry's hash."""
    monkeypatch.setattr(store_module, "prefix_hashes", four_bits)
    collisions(Desk(model, rows=20_000))


def collisions(desk: Desk) -> None:
    """Many heads of one length; half of the prompts meet one that was stored."""
    heads = [tokens(2 * GRID, 500 + at) for at in range(24 if desk.model == "witness" else 10)]
    hints = {int(four_bits(head)[-1]) for head in heads}
    assert len(hints) < len(heads), "no two collide"
    for round_ in range(2):
        for at, head in enumerate(heads):
            row, _ = desk.sends(joined(head, tokens(20, 600 + at)), kind="title", answer=2)
            assert row.cached in (0, 2 * GRID) and (round_ or row.cached == 0)
    assert desk.store.evictions == 0


def test_canary_comparing_hashes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "prefix_hashes", four_bits)

    def trusting(stored: Ids, asked: Ids) -> int:
        return len(stored) if len(stored) <= len(asked) else common_prefix(stored, asked)

    monkeypatch.setattr(store_module, "common_prefix", trusting)
    with pytest.raises(AssertionError):
        collisions(Desk("witness", rows=20_000))


@pytest.mark.parametrize("model", CANARIES)
def test_canary_one_row_short(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot whose last row is not brought back."""
    write = rows_module.write_rows

    def short(state: object, block: RowBlock) -> None:
        if block.stop == 4 * GRID:
            tensors = tuple(t.clone() for t in block.tensors)
            for view, tensor in zip(state.views, tensors, strict=True):  # type: ignore[attr-defined]
                tensor.narrow(view.axis, block.rows - 1, 1).zero_()
            block = replace(block, tensors=tensors)
        write(state, block)  # type: ignore[arg-type]

    monkeypatch.setattr(rows_module, "write_rows", short)
    with pytest.raises(AssertionError):
        test_a_shared_head_is_a_cold_prefills_bits(model)


def test_canary_tainted_rows_taken_for_the_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of the same tokens stay in place whoever wrote them."""
    offer = Store._offer

    def careless(self: Store, met: object, snapshot: object, in_place: object) -> object:
        clean = replace(in_place, taint=None)  # type: ignore[type-var]
        return offer(self, met, snapshot, clean)  # type: ignore[arg-type]

    monkeypatch.setattr(Store, "_offer", careless)
    with pytest.raises(AssertionError):
        test_a_tainted_head_in_place_is_written_over("witness")


@pytest.mark.parametrize("model", CANARIES)
def test_canary_a_session_snapshot_under_the_bit_gate(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = Store.put

    def as_prefix(self: Store, use: str, account: object, model: object) -> object:
        account.taint = None  # type: ignore[attr-defined]
        return put(self, "prefix", account, model)  # type: ignore[arg-type]

    monkeypatch.setattr(Store, "put", as_prefix)
    with pytest.raises(AssertionError):
        test_a_short_chat_goes_on_where_it_ended(model)
