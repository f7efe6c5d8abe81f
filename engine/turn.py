"""One turn, start to end, for serving and replay alike: read this first."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch

from cache.account import Answer
from cache.budget import Refused
from cache.journal import TurnRow
from cache.plan import Plan
from cache.responses import Asked, Response
from cache.types import Ids, Line
from engine.box import Box
from engine.decode import Rule, decode
from engine.events import Chunk, Event, Ready, Resumed, Tokens
from engine.prompt import Prompt

Reader = Callable[[Sequence[int]], Answer]
"""Says of an answer's tokens how many are thinking, and which the client never sees."""


Over = Callable[[Sequence[int]], int | None]
"""Asked after every round: how many of an answer's tokens count when it has come to its end."""


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
    over: Over | None = None,
) -> Generator[Event, None, None]:
    """Serve one prompt. Closing the iterator at any event cancels; what was computed is kept.

    The prompt must fit the window with one row to spare. Ends with a row in the journal. An answer
    that is known already comes as its `Tokens` alone. `over` ends an answer by what it says, where
    `stop_ids` do by its tokens.
    """
    engine, stack, clock = box.engine, box.stack, box.clock
    assert 0 < len(prompt.ids) < engine.window
    asked = _asked(box, prompt, rule, limit, stop_ids) if over is None else None
    known = box.responses.find(asked) if box.responses and asked else None
    if known:
        yield from _remembered(box, prompt, known)
        return
    begun_s = clock.mono_s()
    stack.leave()
    plan = _admitted(box, prompt)
    if isinstance(plan, Refused):
        yield from _refused(box, prompt, plan)
        return
    line = stack.restore(plan, prompt.tools, prompt.system)
    ids, size = plan.served, len(plan.served)
    at = Progress(begun_s, begun_s, line, line.tokens, stack.has_guest)
    try:
        yield Resumed(line, plan)
        engine.look(ids, prompt.pictures, line.tokens)
        logits = yield from _read(box, ids, at)
        yield Ready(ids, logits)
        rule.begin(ids)
        yield from _written(box, ids, decode(engine, logits, rule, limit, stop_ids), over, at)
        if at.finish != "stop":
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
            if box.suffixes is not None:
                hidden = [*stack.hidden, *((size + start, n) for start, n in said.hidden)]
                box.suffixes.add(ids, at.answer, hidden)
            if box.responses is not None and asked is not None:
                box.responses.put(asked, ids, at.answer, said, at.finish, line.gate)
        stack.rest()
        if box.budget is not None:
            box.budget.after_request(box.slot)
        _report(box, _row(box, prompt, plan, at))


def _read(box: Box, ids: Ids, at: Progress) -> Generator[Event, None, torch.Tensor]:
    """Forward the prompt from where it resumes, in chunks that end on the grid."""
    grid, logits = box.engine.grid, torch.empty(0)
    while at.done < len(ids):
        stop = min(len(ids), (at.done // grid + 1) * grid)
        logits = _chunk(box, ids, at.done, stop)
        box.stack.passed(ids, stop)
        at.done, at.ready_s = stop, box.clock.mono_s()
        box.jobs.pump()
        yield Chunk(stop)
    return logits


def _written(
    box: Box, ids: Ids, rounds: Iterator[list[int]], over: Over | None, at: Progress
) -> Generator[Event, None, None]:
    """Write the answer, a round at a time, until the rule's tokens end or `over` says it does."""
    stack = box.stack
    stack.generates(ids, ())
    for new in rounds:
        at.rounds += bool(at.answer)
        at.answer += new
        box.meter.decoded(len(new))
        counts = over(at.answer) if over is not None else None
        if counts is not None:
            new = new[: len(new) + counts - len(at.answer)]
            del at.answer[counts:]
        stack.generates(ids, at.answer)
        box.jobs.pump()
        if counts is not None:
            at.finish = "stop"
        yield Tokens(new)
        if counts is not None:
            return


def _admitted(box: Box, prompt: Prompt) -> Plan | Refused:
    """What serves the prompt, with the memory that reading it takes; or why there is not enough."""
    while True:
        plan = box.stack.plan(prompt.ask)
        if box.budget is None:
            return plan
        before = box.budget.shed_bytes
        refused = box.budget.admit(len(plan.served), plan.line.tokens, box.slot)
        if refused is not None:
            return refused
        # What had to be given back may be what would have served.
        if box.budget.shed_bytes == before:
            return plan


def _chunk(box: Box, ids: Ids, start: int, stop: int) -> torch.Tensor:
    """Forward rows [start, stop), and see what it takes; the last one's logits."""
    budget = box.budget
    if budget is not None:
        budget.forwards()
    logits = box.engine.prefill(ids[start:stop])
    box.meter.prefilled(start, stop)
    if budget is not None:
        budget.prefilled(stop, slot=box.slot)
    return logits


def _refused(box: Box, prompt: Prompt, refused: Refused) -> Generator[Event, None, None]:
    """Say that there is no room to read it; engine and caches are as they were."""
    try:
        yield refused
    finally:
        row = replace(_blank(box, prompt), retry_after_s=refused.retry_after_s)
        _report(box, row)


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
        row = known.row(_blank(box, prompt), finish)
        box.journal.add(row, box.jobs)


def _held_bytes(box: Box) -> dict[str, int]:
    held = box.stack.held_bytes()
    if box.responses is not None:
        held["responses"] = box.responses.held_bytes()
    if box.engine.encoded is not None:
        held["encoded"] = box.engine.encoded.held_bytes()
    return held


def _blank(box: Box, prompt: Prompt) -> TurnRow:
    """A row of a prompt of which nothing was read."""
    return TurnRow(
        wall_s=box.clock.wall_s(),
        session=prompt.session,
        client=prompt.client,
        kind=prompt.kind,
        prompt=len(prompt.ids),
        asked=prompt.sent or len(prompt.ids),
        slot=box.slot,
        taint=box.stack.taint,
        held_bytes=_held_bytes(box),
    )


def _row(box: Box, prompt: Prompt, plan: Plan, at: Progress) -> TurnRow:
    line, reason = at.line, plan.reason
    return replace(
        _blank(box, prompt),
        prompt=len(plan.served),
        cached=line.tokens,
        source=prompt.via or box.stack.source + line.kind,
        guest=at.guest,
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
        prefill_s=at.ready_s - at.begun_s,
        decode_s=box.clock.mono_s() - at.ready_s,
    )
