"""Peek: where a prompt's rows are and what reading it would cost, without reading it"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Any

from cache.journal import TurnRow
from cache.plan import Plan
from engine.prompt import Prompt
from serve.house import House
from serve.prepare import SOURCE as PREPARED
from serve.summaries import Instead
from serve.usage import tier_of

RATES = 8
"""Long prefills whose rates count."""


def peek(house: House, prompt: Prompt, instead: Instead | None = None) -> dict[str, Any]:
    """What the prompt's request would report, or what is served `instead`; on the engine's thread,
    with no turn under way.

    It asks what a turn asks, so the two can't disagree. Whoever was served last as a guest leaves,
    as it would before any request; else nothing changes, and nothing is counted.
    """
    if instead is not None:
        return _continued(house, prompt, instead)
    house.box.stack.leave()
    box = house.slots.choose(prompt)
    assert box is not None
    plan = box.stack.plan(prompt.ask)
    return told(plan, prompt, prefill_rate(house), box.slot)


def _continued(house: House, prompt: Prompt, instead: Instead) -> dict[str, Any]:
    """The same of what is served in a prompt's place."""
    plan = house.box.stack.plan(instead.prompt.ask)
    found = told(plan, prompt, prefill_rate(house))
    found |= {"source": instead.source, "tier": tier_of(instead.source)}
    if instead.source == PREPARED:
        size = len(instead.prompt.ids)
        found |= {"cached_tokens": size, "served_tokens": size, "parted_at": size, "lost": {}}
        found |= {"reread_tokens": 0, "reread_eta_ms": 0.0, "restore_ms": 0.0}
        found |= {"why": PREPARED, "parted_in": None}
    return found


def told(plan: Plan, prompt: Prompt, tokens_s: float, slot: int = 0) -> dict[str, Any]:
    """A plan in plain values; positions are the served prompt's, as in the usage frame."""
    read_s = plan.best.read_s if plan.best is not None else 0.0
    reason = plan.reason
    return {
        "tier": tier_of(plan.source),
        "source": plan.source,
        "cached_tokens": plan.line.tokens,
        "reread_tokens": plan.forwarded,
        "reread_eta_ms": round(1e3 * (plan.forwarded / tokens_s + read_s), 3),
        "tokens": len(prompt.ids),
        "served_tokens": len(plan.served),
        "restore_ms": round(1e3 * read_s, 3),
        # Half a surrogate pair, which a name may have in JSON, has no UTF-8 to go out in.
        "session": prompt.session and prompt.session.encode("utf-8", "replace").decode(),
        "slot": slot,
        "why": reason.code,
        "parted_at": reason.shared,
        "parted_in": reason.region,
        "lost": dict(reason.lost),
    }


def prefill_rate(house: House) -> float:
    """Tokens a second: the median of the last long prefills, else what the caches count with."""
    rates = list(_rates(reversed(house.journal.rows), house.engine.grid))
    return median(rates) if rates else house.engine.cost().prefill_tokens_s


def _rates(rows: Iterable[TurnRow], least: int) -> Iterable[float]:
    """Rates of the newest prefills of at least so many tokens that no drive had a part in."""
    count = 0
    for row in rows:
        read = row.source.startswith(("disk", "spill"))
        if row.forwarded >= least and row.prefill_s > 0 and not read:
            yield row.forwarded / row.prefill_s
            count += 1
        if count == RATES:
            return
