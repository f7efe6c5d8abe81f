"""Columns of a ledger row: memory, the drive, and what was re-read, by cause"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cache.journal import TurnRow
from cache.why import Why
from replay.diskseen import DiskUse
from replay.spillseen import SpillUse
from sim.board import Usage

CAUSES = (Why.GRID, Why.EVICTED, Why.UNANCHORED, Why.SLOW, Why.REPLACED)


def disk_columns(use: DiskUse | None) -> dict[str, Any]:
    """What the disk tier did for a request and before it."""
    if use is None:
        return {}
    names = ("read", "written", "held", "anchors", "drops", "gone")
    return {f"disk_{name}": getattr(use, name) for name in names}


def spill_columns(use: SpillUse | None) -> dict[str, Any]:
    """What the spill did for a request and before it."""
    if use is None:
        return {}
    names = ("read", "written", "held", "saves", "gone")
    return {"save_s": use.save_s} | {f"spill_{name}": getattr(use, name) for name in names}


def memory_columns(usage: Usage | None) -> dict[str, Any]:
    """What a request did to the board's memory."""
    if usage is None:
        return {}
    return {
        "reserve": usage.after.reserve_bytes,
        "workspace": usage.highest.workspace_bytes,
        "peak": usage.highest.total_bytes,
        "over_peak_s": usage.over_peak_s,
        "over_board_s": usage.over_board_s,
        "over_ceiling_s": usage.over_ceiling_s,
    }


def reread_by_cause(turn: TurnRow, ideal: int) -> Mapping[Why, int]:
    """Share `ideal - cached` out to its causes, adding up exactly.

    The cache knows what it lost among the rows in place. What an unlimited cache held beyond them
    was replaced; at most one token is not, the last one of a prompt sent again, which must be
    forwarded for its logits and counts as the grid's.
    """
    left = ideal - turn.cached
    assert left >= 0, f"resumed at {turn.cached}, past the {ideal} tokens ever held"
    causes = dict.fromkeys(CAUSES, 0)
    for cause in (Why.GRID, Why.EVICTED, Why.UNANCHORED, Why.SLOW):
        causes[cause] = min(left, turn.lost.get(cause, 0))
        left -= causes[cause]
    causes[Why.GRID if turn.parted_at >= ideal else Why.REPLACED] += left
    return causes
