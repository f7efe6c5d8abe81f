"""The worst case: every cache full, the largest copies under way, a prefill to the window's end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
