"""Days of writes under a day's write budget, on a modelled drive, as one pure step an event

An event is a head of a prompt that the disk tier would write, a conversation that loses its place,
or one at a planned stop. What is written of it follows from the settings: the budget's level, the
shortest conversation worth a write, how far the codec shrinks it, and what of it is on the drive
already; a conversation that comes back and is not there whole is read again, by a prefill.

Written like `sim/nvme.py`: stepped on plain numbers, or scanned and vmapped by JAX
(`sim/budget_scan.py`). `cache/writeguard.py` has the same rule for what is really written.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from sim.nvme import PLAIN, DriveParams, DriveState, Value, rested, step

TIER, EVICT, DRAIN = 0, 1, 2
"""A head of a prompt; a conversation that is replaced; one at a planned stop."""
SLOTS = 8
"""Conversations that are under way at a time."""
ANCHORS = 4
"""Grid anchors that are written with a conversation, beside its end."""


class Setting(NamedTuple):
    """What a sweep goes over."""

    drive: DriveParams
    budget_bytes: Value
    """Of a day."""
    hard_factor: Value
    """Times the budget, from where nothing but a planned stop is written."""
    evict_tokens: Value
    """Over the budget a replaced conversation is still written from so many on."""
    tokens_min: Value
    """And at no time one that is shorter."""
    ratio: Value
    """What the codec leaves of a conversation's bytes."""


class Sizes(NamedTuple):
    """Bytes of a row and of an anchor, rows from one grid line to the next."""

    row_bytes: Value
    anchor_bytes: Value
    grid: Value


class Event(NamedTuple):
    """Something that may be written."""

    at_s: Value
    new_day: Value
    """The first one of its day."""
    kind: Value
    slot: Value
    """Of the conversations under way; SLOTS for a head."""
    tokens: Value
    came_tokens: Value
    """Of the conversation when it was last to be written: it has come back since; 0 for a new one,
    which takes its slot."""


class Days(NamedTuple):
    """What the days have come to; a sweep's carry and its result."""

    drive: DriveState
    saved: tuple[Value, ...]
    """Tokens of each slot's conversation that are on the drive."""
    day_bytes: Value = 0.0
    worst_day_bytes: Value = 0.0
    tier_bytes: Value = 0.0
    spill_bytes: Value = 0.0
    tier_skips: Value = 0.0
    spill_skips: Value = 0.0
    reread_tokens: Value = 0.0
    """Of conversations that came back and were not on the drive."""
    days_over: Value = 0.0
    days_hard: Value = 0.0
    """Days that reached the budget, and that reached its hard limit."""
    waited_s: Value = 0.0
    """For saves of replaced conversations, which the next request waits for."""
    longest_s: Value = 0.0


def begun(setting: Setting) -> Days:
    """Before the first day, the drive rested and empty."""
    return Days(rested(setting.drive), (0.0,) * SLOTS)


def spill_bytes(sizes: Sizes, new_tokens: Value, ratio: Value, xp: Any) -> Value:
    """Of a conversation with so many new rows: those, its end and the grid anchors that are new.

    With none it is on the drive as it is, and nothing is written.
    """
    anchors = xp.where(new_tokens > 0, 1 + xp.minimum(ANCHORS, new_tokens // sizes.grid), 0)
    return (new_tokens * sizes.row_bytes + anchors * sizes.anchor_bytes) * ratio


def happen(setting: Setting, sizes: Sizes, days: Days, event: Event, xp: Any) -> Days:
    """One event later."""
    day_bytes = xp.where(event.new_day, 0.0, days.day_bytes)
    below, below_hard = _levels(setting, day_bytes)
    tier, drain = event.kind == TIER, event.kind == DRAIN
    evict = event.kind == EVICT
    long = event.tokens >= setting.evict_tokens
    allowed = drain | (below_hard & (below | (evict & long)))

    there = _in_slot(days.saved, event.slot, xp)
    there = xp.where(event.came_tokens > 0, there, 0.0)
    new_tokens = xp.maximum(event.tokens - there, 0.0)
    head_bytes = event.tokens * sizes.row_bytes + sizes.anchor_bytes
    worth = xp.where(event.tokens >= setting.tokens_min, 1.0, xp.where(drain, 1.0, 0.0))
    session = worth * spill_bytes(sizes, new_tokens, setting.ratio, xp)
    wanted = xp.where(tier, head_bytes, session)
    nbytes = xp.where(allowed, wanted, 0.0)
    skips = xp.where(wanted > nbytes, 1.0, 0.0)

    moved, end_s = step(setting.drive, days.drive, event.at_s, nbytes, True, xp)
    drive = DriveState(
        *(xp.where(nbytes > 0, a, b) for a, b in zip(moved, days.drive, strict=True))
    )
    wait_s = xp.where(evict & (nbytes > 0), end_s - event.at_s, 0.0)
    kept = xp.where(nbytes > 0, event.tokens, there)
    after = day_bytes + nbytes
    still, still_hard = _levels(setting, after)
    return Days(
        drive=drive,
        saved=tuple(xp.where(event.slot == k, kept, old) for k, old in enumerate(days.saved)),
        day_bytes=after,
        worst_day_bytes=xp.maximum(days.worst_day_bytes, after),
        tier_bytes=days.tier_bytes + xp.where(tier, nbytes, 0.0),
        spill_bytes=days.spill_bytes + xp.where(tier, 0.0, nbytes),
        tier_skips=days.tier_skips + xp.where(tier, skips, 0.0),
        spill_skips=days.spill_skips + xp.where(tier, 0.0, skips),
        reread_tokens=days.reread_tokens + xp.maximum(event.came_tokens - there, 0.0),
        days_over=days.days_over + _passed(event.new_day, below, still, xp),
        days_hard=days.days_hard + _passed(event.new_day, below_hard, still_hard, xp),
        waited_s=days.waited_s + wait_s,
        longest_s=xp.maximum(days.longest_s, wait_s),
    )


def _levels(setting: Setting, day_bytes: Value) -> tuple[Value, Value]:
    """Whether the day is below the budget, and below its hard limit."""
    hard_bytes = setting.hard_factor * setting.budget_bytes
    return day_bytes < setting.budget_bytes, day_bytes < hard_bytes


def _passed(new_day: Value, below: Value, still: Value, xp: Any) -> Value:
    """1 for the event that takes a day to a level, or begins one that is there already."""
    return xp.where(still, 0.0, xp.where(below | new_day, 1.0, 0.0))


def _in_slot(saved: tuple[Value, ...], slot: Value, xp: Any) -> Value:
    """What the slot has; nothing for none of them."""
    found = 0.0
    for number, tokens in enumerate(saved):
        found = xp.where(slot == number, tokens, found)
    return found


def lived(setting: Setting, sizes: Sizes, events: Iterable[Event]) -> Days:
    """All events one after another, on plain numbers."""
    days = begun(setting)
    for event in events:
        days = happen(setting, sizes, days, event, PLAIN)
    return days
