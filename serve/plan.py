"""The memory plan: what every cache holds beside what it may, and what all comes to at most"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cache.disk.tier import DiskTier
from cache.spill.tier import Spill
from cache.worst import caches_of, copies_of, worst_case
from engine.box import Box

ALWAYS = "rows"
"""They lie in the engine's buffers, which are there from the start."""


def caches_plan(
    boxes: Sequence[Box], disk: DiskTier | None, spill: Spill | None
) -> list[dict[str, Any]]:
    """Bytes by what holds them, over all slots; what slots share counts once."""
    main = boxes[0]
    held = _held(boxes)
    most = [_most(box) for box in boxes]
    # A guest's copies are counted with those in place, half of them its end.
    guest = most[0]["a guest's copies"] // 2
    budgets: dict[str, int | None] = {
        ALWAYS: sum(box.engine.window * box.engine.cost().row_bytes for box in boxes),
        "anchors": sum(one["anchors"] for one in most) + guest,
        "end": sum(one["end anchor"] for one in most) + guest,
        "stash": most[0]["stash"],
        "park": most[0]["pool: parked and pinned"],
        "store": main.stack.store.config.budget_bytes,
        "disk": disk.most_bytes() if disk is not None else None,
        "spill": spill.buffers.most_bytes() if spill is not None else None,
    }
    return [
        {"name": name, "held_bytes": nbytes, "budget_bytes": budgets.get(name)}
        for name, nbytes in held.items()
    ]


def worst_plan(
    boxes: Sequence[Box], disk: DiskTier | None, spill: Spill | None
) -> dict[str, Any] | None:
    """What engine and caches come to if every budget is full; None where nobody counts memory.

    What is allocated now, less what caches hold, is taken for weights and buffers.
    """
    main, budget = boxes[0], boxes[0].budget
    if budget is None:
        return None
    engine, cost = main.engine, main.engine.cost()
    most, sides = _most(main), [_most(box) for box in boxes[1:]]
    if sides:
        most["side slots' copies"] = sum(one["anchors"] + one["end anchor"] for one in sides)
    if disk is not None:
        most["the disk tier's buffers"] = disk.most_bytes()
    if spill is not None:
        most["the spill's buffers"] = spill.buffers.most_bytes()
    held = sum(nbytes for name, nbytes in _held(boxes).items() if name != ALWAYS)
    loaded = max(0, budget.stats()["allocated_bytes"] - held)
    copies = copies_of(main.stack.config, cost, engine.window)
    worst = worst_case(budget.limits, cost, engine.window, loaded, most, copies)
    return {
        "resting": dict(worst.resting),
        "passing": dict(worst.passing),
        "resting_bytes": worst.resting_bytes,
        "passing_bytes": worst.passing_bytes,
        "most_bytes": worst.most_bytes,
        "fits": worst.resting_bytes <= budget.limits.ceiling_bytes
        and worst.passing_bytes <= budget.limits.peak_bytes,
    }


def _most(box: Box) -> dict[str, int]:
    """The most that the caches of a slot hold."""
    engine = box.engine
    return caches_of(box.stack.config, engine.cost(), engine.window, engine.grid)


def _held(boxes: Sequence[Box]) -> dict[str, int]:
    """Bytes by what holds them; the store and the drive's buffers are the main slot's."""
    main = boxes[0]
    held = main.stack.held_bytes()
    for box in boxes[1:]:
        for name, nbytes in box.stack.held_bytes().items():
            if name not in ("store", "disk", "spill"):
                held[name] += nbytes
    if main.responses is not None:
        held["responses"] = main.responses.held_bytes()
    if main.engine.encoded is not None:
        held["encoded"] = main.engine.encoded.held_bytes()
    return held
