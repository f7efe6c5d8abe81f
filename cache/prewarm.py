"""Prewarming: a conversation comes back from the drive before its next request asks for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cache.plan import Plan
from cache.ports import Model, Stop, never
from cache.source import in_place
from cache.spill.names import NAME as SPILL
from cache.spill.names import YIELDED
from cache.stack import Stack
from cache.types import COLD, Ask, Line
from cache.visit import base_of

READ_S_MAX = 3.0
"""A longer reading is left to the request, which may not come (the seed's figure)."""
IN_USE_S = 120.0
"""For so long after its last turn the conversation in place is not pushed out for a guess (the
seed's figure)."""

Why = Literal["", "not_on_nvme", "resident_in_use", "too_long", "yielded", "failed"]


@dataclass(frozen=True, slots=True)
class Prewarmed:
    """What came of it; without a `why` the conversation is in place and resumes at `line`."""

    why: Why = ""
    line: Line = COLD
    read_s: float = 0.0
    """What its reading was expected to take."""


def prewarm(stack: Stack, model: Model, ask: Ask, rested_s: float, stop: Stop = never) -> Prewarmed:
    """Bring back what a prompt goes on with, as its request would; nothing is served meanwhile.

    The conversation in place was used `rested_s` ago. It goes to the drive first when it is worth
    keeping. `stop` ends the writing and the reading between two files: then the entry stays on the
    drive. What was in place stays, or what of it was overwritten by then is in the pool or on the
    drive, as for any request that takes its rows.
    """
    stack.leave()
    spill, plan = stack.spill, stack.plan(ask)
    if spill is None or plan.best is None or plan.best.tier != SPILL:
        return Prewarmed("not_on_nvme")
    read_s, account = plan.best.read_s, stack.resident.account
    mine = ask.session is not None and account.session == ask.session
    if account.valid and not mine and rested_s < IN_USE_S:
        return Prewarmed("resident_in_use", read_s=read_s)
    if read_s > READ_S_MAX:
        return Prewarmed("too_long", read_s=read_s)
    if account.goes_on and account.valid >= spill.config.tokens_min:
        saved = spill.writer.save(in_place(account, model), "evict", stop)
        if saved.why == YIELDED:
            return Prewarmed("yielded", read_s=read_s)
        # What it is and where it lies may be another matter now.
        plan = stack.plan(ask)
        if plan.best is None or plan.best.tier != SPILL:
            return Prewarmed("not_on_nvme")
    if stop():
        return Prewarmed("yielded", read_s=read_s)
    spill.stop = stop
    try:
        came = _warm(stack, plan)
    finally:
        spill.stop = never
    if came:
        return Prewarmed("", plan.line, read_s)
    return Prewarmed("yielded" if stop() else "failed", read_s=read_s)


def _warm(stack: Stack, plan: Plan) -> bool:
    """Bring back what a plan wants from the drive."""
    assert stack.spill is not None
    stack.park.next_turn()
    stack.using = plan.best
    stack.fence(base_of(plan.best))
    stack.spill.serves(plan, stack.resident.account)
    came = stack.exchange.warm(plan)
    stack.using = None
    stack.spill.served()
    return came
