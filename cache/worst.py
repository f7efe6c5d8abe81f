"""The worst case: every cache full, the largest copies under way, a prefill to the window's end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cache.config import StackConfig
from cache.types import Cost, Limits

Claims = Mapping[str, int]
"""What takes memory, and how many bytes at most."""


@dataclass(frozen=True, slots=True)
class WorstCase:
    """What an engine and its caches would take if nobody held them to the limits, and with them."""

    limits: Limits
    resting: Claims
    """Between requests."""
    passing: Claims
    """On top of that, while a prompt is read."""

    @property
    def resting_bytes(self) -> int:
        """Between requests, with the freed blocks that the allocator may keep."""
        return sum(self.resting.values()) + self.limits.slack_bytes

    @property
    def passing_bytes(self) -> int:
        """While a prompt is read; freed blocks are given back for it as far as needed."""
        return sum(self.resting.values()) + sum(self.passing.values())

    @property
    def most_bytes(self) -> int:
        """What it comes to under the limits: caches give back, or the prompt is refused."""
        loaded = next(iter(self.resting.values()))
        held = max(self.resting_bytes, self.passing_bytes)
        return max(loaded, min(held, self.limits.peak_bytes))


GUEST_COPIES = 2
"""A guest's one anchor and its end."""


def caches_of(config: StackConfig, cost: Cost, window: int, grid: int) -> dict[str, int]:
    """The most that each cache of a slot with these settings holds."""
    copy, guest = cost.anchor_bytes, config.guest
    anchors = max(config.anchors.newest_kept, config.anchors.budget_bytes // copy)
    if config.anchors.rule == "every":
        anchors = window // min(grid, config.checkpoint_tokens or grid)
    copies = GUEST_COPIES if guest.tokens_max and guest.stash_bytes else 0
    return {
        "state store": config.store.budget_bytes,
        "anchors": anchors * copy,
        "end anchor": config.keeps_end * copy,
        "a guest's copies": copies * copy,
        "stash": guest.stash_bytes,
        "pool: parked and pinned": config.park.budget_bytes,
    }


def copies_of(config: StackConfig, cost: Cost, window: int) -> dict[str, int]:
    """What a slot holds for a moment, beside what it replaces."""
    block = min(config.park.block_rows, window)
    return {
        "a block in a swap": block * cost.row_bytes,
        "a second end anchor": config.keeps_end * cost.anchor_bytes,
    }


def worst_case(
    limits: Limits, cost: Cost, window: int, loaded_bytes: int, caches: Claims, copies: Claims
) -> WorstCase:
    """The worst case of an engine that holds `loaded_bytes` with empty caches.

    `caches` may hold so much each; `copies` are made for a moment, beside all that.
    """
    return WorstCase(
        limits,
        {"weights and buffers": loaded_bytes, **caches},
        {**copies, "a prefill's workspace": cost.workspace_bytes(window)},
    )
