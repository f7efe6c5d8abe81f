"""One turn, start to end, for serving and replay alike: read this first."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from cache.account import Answer
from cache.journal import Journal, TurnRow
from cache.plan import Plan
from cache.ports import Clock, Jobs
from cache.responses import Asked, Response, Responses
from cache.stack import Stack
from cache.types import Ask, Ids, Line, Valued
from engine.adapter import Engine
from engine.decode import Rule, decode
from engine.pictures.picture import Picture


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request as the engine reads it."""

    ids: Ids
    session: str | None = None
    client: str = ""
    kind: str = "turn"
    tools: int = 0
    system: int = 0
    """Tokens of the tool block, which comes first, and of the system text after it."""
    answer_max: int = 0
    """Tokens its answer may have."""
    valued: tuple[Valued, ...] = ()
    """Where its tool calls stand, with what they say."""
    answer_min: int = 0
    """Tokens its answer will have at least, where that is known."""
    pictures: tuple[Picture, ...] = ()
    """Its images, in the order of their rows: each run of negative ids is the next one's."""

    @property
    def ask(self) -> Ask:
        """What the caches are asked."""
        return Ask(self.ids, self.session, self.kind, self.answer_max, self.answer_min, self.valued)


class Meter(Protocol):
    """What a turn's work costs; a simulated board charges its clock here."""

    def prefilled(self, start: int, stop: int) -> None:
        """Rows [start, stop) of a prompt were forwarded."""

    def decoded(self, tokens: int) -> None:
        """A verify round gave this many tokens."""


class NoMeter:
    """Work takes the time it takes."""

    def prefilled(self, start: int, stop: int) -> None:
        """Charge nothing."""

    def decoded(self, tokens: int) -> None:
        """Charge nothing."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """The cache has chosen: the prefill starts at `line`."""

    line: Line
    plan: Plan


@dataclass(frozen=True, slots=True)
class Chunk:
    """The prefill has come to `done` tokens; closing the turn here cancels it."""

    done: int


@dataclass(frozen=True, slots=True)
class Ready:
    """The whole prompt is in place as it was served; `logits` are its last position's."""

    ids: Ids
    logits: torch.Tensor


@dataclass(frozen=True, slots=True)
class Tokens:
    """New tokens of the answer; closing the turn here ends it after them."""

    ids: list[int]


Event = Resumed | Chunk | Ready | Tokens


@dataclass(slots=True)
class Box:
    """What a turn runs on: one engine with its caches, and the ports."""

    engine: Engine
    stack: Stack
    clock: Clock
    jobs: Jobs
    journal: Journal
    meter: Meter = field(default_factory=NoMeter)
    slot: int = 0
    """0 is the main slot."""
    responses: Responses | None = None
    """Answers to identical greedy requests, which slots share; off unless somebody makes one."""


Reader = Callable[[Sequence[int]], Answer]
"""Says of an answer's tokens how many are thinking, and which the client never sees."""


def plainly(answer: Sequence[int]) -> Answer:
    """An answer without thinking, of which the client sees all."""
    return Answer()


@dataclass(slots=True)
class Progress:
    """How far a turn has come; what its journal row is made of."""

    begun_s: float
    ready_s: float
    line: Line
    done: int
    guest: bool
    answer: list[int] = field(default_factory=list)
    rounds: int = 0
    finish: str = "failed"
    end: str = "none"


def turn(
    box: Box,
    prompt: Prompt,
    rule: Rule,
    limit: int,
    stop_ids: frozenset[int] = frozenset(),
    read: Reader = plainly,
) -> Generator[Event, None, None]:
    """Serve one prompt. Closing the iterator at any event cancels; what was computed is kept.

    The prompt must fit the window with one row to spare. Ends with a row in the journal. An answer
    that is known already comes as its `Tokens` alone.
    """
    engine, stack, clock = box.engine, box.stack, box.clock
    assert 0 < len(prompt.ids) < engine.window
    asked = _asked(box, prompt, rule, limit, stop_ids)
    known = box.responses.find(asked) if box.responses and asked else None
    if known:
        yield from _remembered(box, prompt, known)
        return
    begun_s = clock.mono_s()
    stack.leave()
    plan = stack.plan(prompt.ask)
    line = stack.restore(plan, prompt.tools, prompt.system)
    ids, size = plan.served, len(plan.served)
    at = Progress(begun_s, begun_s, line, line.tokens, stack.has_guest)
    try:
        yield Resumed(line, plan)
        engine.look(ids, prompt.pictures, line.tokens)
        logits = torch.empty(0)
        while at.done < size:
            stop = min(size, (at.done // engine.grid + 1) * engine.grid)
            logits = engine.prefill(ids[at.done : stop])
            box.meter.prefilled(at.done, stop)
            stack.passed(ids, stop)
            at.done, at.ready_s = stop, clock.mono_s()
            box.jobs.pump()
            yield Chunk(stop)
        yield Ready(ids, logits)
        stack.generates(ids, ())
        for new in decode(engine, logits, rule, limit, stop_ids):
            at.rounds += bool(at.answer)
            at.answer += new
            box.meter.decoded(len(new))
            stack.generates(ids, at.answer)
            box.jobs.pump()
            yield Tokens(new)
        at.finish = "stop" if at.answer[-1] in stop_ids else "length"
    except GeneratorExit:
        at.finish = "cancelled"
        raise
    finally:
        if at.finish == "failed":
            stack.forget()
        elif at.done == size:
            said = read(at.answer)
            kept = stack.keep(ids, at.answer, said)
            at.end = "kept" if kept.ok else kept.why
            if box.responses is not None and asked is not None:
                box.responses.put(asked, ids, at.answer, said, at.finish, line.gate)
        _report(box, _row(box, prompt, plan, at))


def _report(box: Box, row: TurnRow) -> None:
    box.journal.add(row, box.jobs)
    for event in box.stack.events():
        box.journal.note(event, row.wall_s, box.jobs)


def _asked(
    box: Box, prompt: Prompt, rule: Rule, limit: int, stop_ids: frozenset[int]
) -> Asked | None:
    """What decides the answer; None when chance does, or nobody wants to know."""
    if box.responses is None or rule.key is None:
        return None
    return Asked(prompt.ids, limit, stop_ids, rule.key)


def _remembered(box: Box, prompt: Prompt, known: Response) -> Generator[Event, None, None]:
    """Give an answer that was written before; neither the engine nor its caches are touched."""
    finish = "cancelled"
    try:
        yield Tokens(known.tokens.tolist())
        finish = known.finish
    finally:
        row = known.row(
            wall_s=box.clock.wall_s(),
            session=prompt.session,
            client=prompt.client,
            kind=prompt.kind,
            slot=box.slot,
            finish=finish,
            taint=box.stack.taint,
            held_bytes=_held_bytes(box),
        )
        box.journal.add(row, box.jobs)


def _held_bytes(box: Box) -> dict[str, int]:
    held = box.stack.held_bytes()
    return held | {"responses": box.responses.held_bytes()} if box.responses is not None else held


def _row(box: Box, prompt: Prompt, plan: Plan, at: Progress) -> TurnRow:
    line, reason = at.line, plan.reason
    return TurnRow(
        wall_s=box.clock.wall_s(),
        session=prompt.session,
        client=prompt.client,
        kind=prompt.kind,
        prompt=len(plan.served),
        asked=len(prompt.ids),
        cached=line.tokens,
        source=plan.source if line == plan.line else line.kind,
        guest=at.guest,
        slot=box.slot,
        gate=line.gate.name.lower(),
        why=reason.code,
        parted_at=reason.shared,
        parted_in=reason.region,
        lost=dict(reason.lost),
        forwarded=at.done - line.tokens,
        output=len(at.answer),
        rounds=at.rounds,
        finish=at.finish,
        end=at.end,
        taint=box.stack.taint,
        prefill_s=at.ready_s - at.begun_s,
        decode_s=box.clock.mono_s() - at.ready_s,
        held_bytes=_held_bytes(box),
    )
