"""Scratch leaves engine and caches as they were, bit for bit, wherever it is stopped.

Goal: after a run of any length the rows, the anchors, the end anchor, the taint, the engine's
length and sections, the pool and the next turn are what they were; what it wrote is what a turn
would have written. Method: every tensor and every account compared before and after, on every
model; a state machine mixes turns of three sessions, guests and runs that stop anywhere, beside a
twin in which nothing ran in scratch. Canaries: sections that do not come back, others' rows that do
not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from pictured import Wall, ids_of, picture, prompt_of
from support import GRID, MODELS, box, engine, forced, joined, serve, tokens

from cache.budget import Budget
from cache.types import Ids, Limits
from engine import scratch
from engine.box import Box
from engine.events import Chunk, Tokens
from engine.prompt import Prompt
from engine.sampling import Greedy
from engine.scratch import Scratch
from engine.turn import turn

TAIL = tokens(2 * GRID + 20, 77)
MORE = tokens(11 * GRID, 78)
"""Enough to reach the rows that a pooled conversation has above the margin."""


def state(on: Box) -> dict[str, Any]:
    """All that must be as it was: copies of tensors, and plain values."""
    account, live = on.stack.resident.account, on.engine.cache_state()
    found: dict[str, Any] = {s.name: s.tensor.clone() for s in live.sections}
    found |= {v.name: v.rows(0, account.valid).clone() for v in live.views}
    for anchor in account.anchors:
        found |= {f"{anchor.tokens}.{n}": t.clone() for n, t in enumerate(anchor.tensors)}
    end = account.end.tensors if account.end is not None else ()
    found |= {f"end.{n}": tensor.clone() for n, tensor in enumerate(end)}
    for n, entry in enumerate(on.stack.park.entries):
        rows = [v.rows(entry.high, max(entry.high, entry.top)).clone() for v in live.views]
        found |= {f"pooled.{n}.{at}": tensor for at, tensor in enumerate(rows)}
        found[f"pooled.{n}"] = (entry.base, entry.high, entry.top, entry.account.session)
    found["ids"] = torch.from_numpy(account.ids.copy())
    found["plain"] = (
        on.engine.length,
        account.valid,
        account.taint,
        account.anchors.lines,
        on.stack.end,
        account.session,
        list(account.generations),
        on.stack.held_bytes(),
        len(on.journal.rows),
    )
    return found


def same(before: dict[str, Any], now: dict[str, Any]) -> bool:
    assert before.keys() == now.keys()
    return all(
        torch.equal(value, now[name]) if isinstance(value, torch.Tensor) else value == now[name]
        for name, value in before.items()
    )


def runs(on: Box, ids: Ids, limit: int, stop: int | None = None) -> list[int]:
    """A run of greedy tokens, closed after `stop` events."""
    written: list[int] = []
    events = Scratch(on).run(ids, (), Greedy(), limit)
    for count, event in enumerate(events):
        if isinstance(event, Tokens):
            written += event.ids
        if stop is not None and count >= stop:
            events.close()
    return written


def settled(model: str, **room: Any) -> tuple[Box, Ids]:
    """A box after a turn, and its conversation."""
    on = box(engine(model), checkpoint_tokens=GRID, **room)
    ids, answer = tokens(3 * GRID + 7, 1), tokens(30, 2)
    serve(on, ids, answer, session="a")
    return on, joined(ids, answer)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("stop", [None, 0, 1, 3, 5])
def test_nothing_is_left_of_a_run(model: str, stop: int | None) -> None:
    on, said = settled(model)
    before = state(on)
    runs(on, joined(said, TAIL), 20, stop)
    assert same(before, state(on))
    on.stack.check()
    row, _ = serve(on, joined(said, tokens(9, 3)), tokens(5, 4), session="a")
    assert row.source == "end"


@pytest.mark.parametrize("model", MODELS)
def test_it_writes_what_a_turn_writes(model: str) -> None:
    on, said = settled(model)
    ids = joined(said, TAIL)
    written = runs(on, ids, 20)
    again = []
    for event in turn(on, Prompt(ids, "a"), Greedy(), 20):
        if isinstance(event, Tokens):
            again += event.ids
    assert written == again and len(written) == 20


def test_with_pictures_it_is_as_before_too() -> None:
    wall = Wall("hybrid-float32")
    one, two = picture(seed=1), picture(seed=2)
    parts = (tokens(50, 1), one, tokens(70, 2))
    wall.shows(*parts, answer=tokens(9, 5))
    said = joined(ids_of(*parts), tokens(9, 5))
    prompt = prompt_of(said[:50], one, said[98:], two, tokens(80, 6))
    before, pictures = state(wall.on), wall.of.pictures
    written = []
    for event in Scratch(wall.on).run(prompt.ids, prompt.pictures, Greedy(), 9):
        written += event.ids if isinstance(event, Tokens) else []
    assert same(before, state(wall.on)) and wall.of.pictures == pictures
    shown = wall.shows(said[:50], one, said[98:], two, tokens(80, 6), rule=Greedy(), limit=9)
    assert shown.row.source == "end" and shown.written == written


def test_an_engine_that_fails_leaves_them_too(monkeypatch: pytest.MonkeyPatch) -> None:
    on, said = settled("hybrid-float32")
    before = state(on)

    def breaks(ids: Ids) -> torch.Tensor:
        raise RuntimeError("no more memory")

    with monkeypatch.context() as broken:
        broken.setattr(on.engine, "verify", breaks)
        with pytest.raises(RuntimeError, match="no more memory"):
            runs(on, joined(said, TAIL), 20)
    assert same(before, state(on))


# when it does not run


def test_it_stands_still_for_a_guest_and_a_turn() -> None:
    on, said = settled("witness", guest_tokens=40, stash_rows=1_000)
    ids = joined(said, TAIL)
    assert Scratch(on).why_not(ids, 20) is None
    assert Scratch(on).why_not(said[:-1], 20) == "another conversation"
    assert Scratch(on).why_not(joined(tokens(5, 9), ids), 20) == "another conversation"
    assert Scratch(on).why_not(ids, on.engine.window) == "window"
    events = turn(on, Prompt(tokens(30, 8)), forced(tokens(5)), 5)
    next(events)
    assert Scratch(on).why_not(ids, 20) == "the engine serves"
    events.close()
    assert on.stack.has_guest and Scratch(on).why_not(ids, 20) == "the engine serves"
    on.stack.leave()
    assert Scratch(on).why_not(ids, 20) is None


def test_one_at_a_time_and_only_from_an_end() -> None:
    on, said = settled("witness")
    ids, one = joined(said, TAIL), Scratch(on)
    events = one.run(ids, (), Greedy(), 20)
    assert isinstance(next(events), Chunk) and one.running
    assert one.why_not(ids, 20) == "the engine serves"
    events.close()
    assert not one.running
    on.stack.resident.account.end = None
    assert one.why_not(ids, 20) == "no end anchor"


class Board:
    """Memory of which only so much is left."""

    def __init__(self, left: int) -> None:
        self.left = left

    def allocated_bytes(self) -> int:
        return 10**9 - self.left

    def reserve_bytes(self) -> int:
        return 0

    def give_back(self, keep_bytes: int) -> None: ...

    def mark(self) -> None: ...

    def peak_bytes(self) -> int:
        return self.allocated_bytes()


def test_no_cache_gives_anything_for_it() -> None:
    on, said = settled("hybrid-float32")
    need = on.engine.cost().workspace_bytes(1_000) + on.engine.cost().anchor_bytes
    for left, why in ((need, None), (need - 1, "memory")):
        limits = Limits(10**9, 10**9, 0)
        on.budget = Budget(limits, Board(left), on.engine.cost)
        before = state(on)
        assert Scratch(on).why_not(joined(said, TAIL), 20) == why
        assert same(before, state(on)) and on.budget.shed_bytes == 0


# others' rows above the end


def crowded(model: str) -> tuple[Box, Ids]:
    """A conversation in place whose rows end below where a pooled one still has some of its own."""
    on = box(engine(model), park_rows=4_000, checkpoint_tokens=0)
    head = tokens(GRID, 1)
    long = joined(head, tokens(20 * GRID, 2))
    serve(on, long, tokens(9, 3), session="b")
    ids = joined(head, tokens(GRID + 9, 4))
    serve(on, ids, tokens(5, 5), session="a")
    return on, joined(ids, tokens(5, 5))


@pytest.mark.parametrize("model", ["witness", "hybrid-float32"])
@pytest.mark.parametrize("stop", [None, 11, 15])
def test_a_pooled_conversations_rows_above_the_end_come_back(model: str, stop: int | None) -> None:
    on, said = crowded(model)
    assert any(entry.high < entry.top for entry in on.stack.park.entries), "none lie there"
    before = state(on)
    runs(on, joined(said, MORE), 40, stop)
    assert same(before, state(on))


# any order


class Machine(RuleBasedStateMachine):
    """Turns of three sessions; runs in scratch in between, beside a twin that has none."""

    def __init__(self) -> None:
        super().__init__()
        room = {"park_rows": 900, "guest_tokens": 60, "stash_rows": 500, "checkpoint_tokens": GRID}
        self.on = box(engine("witness"), anchors=6, **room)
        self.twin = box(engine("witness"), anchors=6, **room)
        self.said: dict[str, Ids] = {}
        self.count = 0

    @rule(session=st.sampled_from("abc"), more=st.integers(3, 200), answer=st.integers(1, 90))
    def asks(self, session: str, more: int, answer: int) -> None:
        self.count += 1
        before = self.said.get(session, tokens(GRID, ord(session)))
        if len(before) > 1_200:
            before = before[:GRID]
        ids, written = joined(before, tokens(more, self.count)), tokens(answer, 500 + self.count)
        rows = [serve(at, ids, written, session=session)[0] for at in (self.on, self.twin)]
        assert (rows[0].cached, rows[0].source) == (rows[1].cached, rows[1].source)
        self.said[session] = joined(ids, written)

    @rule(size=st.integers(2, 59))
    def a_short_one(self, size: int) -> None:
        self.count += 1
        for at in (self.on, self.twin):
            serve(at, tokens(size, self.count), tokens(3, 1), kind="title")

    @precondition(lambda self: self.on.stack.end is not None)
    @rule(more=st.integers(1, 150), limit=st.integers(1, 60), stop=st.integers(0, 40))
    def scratches(self, more: int, limit: int, stop: int) -> None:
        for at in (self.on, self.twin):
            at.stack.leave()
        ids = joined(self.on.stack.rows, tokens(more, 9_000 + self.count))
        if Scratch(self.on).why_not(ids, limit) is None:
            before = state(self.on)
            runs(self.on, ids, limit, stop)
            assert same(before, state(self.on))

    @invariant()
    def both_hold_the_same(self) -> None:
        self.on.stack.check()
        assert self.on.stack.held_bytes() == self.twin.stack.held_bytes()
        assert np.array_equal(self.on.stack.rows, self.twin.stack.rows)


Machine.TestCase.settings = settings(max_examples=25, stateful_step_count=12, deadline=None)
TestMachine = Machine.TestCase


# canaries


def test_canary_sections_that_do_not_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    on, said = settled("hybrid-float32")
    before, write, calls = state(on), scratch.write_sections, []

    def once(live: Any, tensors: Any) -> None:
        if not calls:
            write(live, tensors)
        calls.append(1)

    monkeypatch.setattr(scratch, "write_sections", once)
    runs(on, joined(said, TAIL), 20)
    assert not same(before, state(on))


def test_canary_others_rows_that_do_not_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    on, said = crowded("witness")
    before = state(on)
    monkeypatch.setattr(scratch, "write_blocks", lambda live, blocks: None)
    runs(on, joined(said, MORE), 40)
    assert not same(before, state(on))
