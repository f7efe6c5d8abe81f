"""Rounds of a check on a drive: the same bytes moved by the caches and raw, and their medians"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

from cache.ports import Clock
from engine.bad import BadInput

ROUNDS_MAX = 1_000
WARM_UP = 2
"""Rounds after which each of a tier's buffers, two of a kind, has been used."""
RATES = (
    *("read_ratio", "write_ratio", "read_bytes_s", "write_bytes_s"),
    *("raw_read_bytes_s", "raw_write_bytes_s"),
)
Parts = Mapping[str, float]
"""Seconds by what they were spent on, `all` among them."""


@dataclass(frozen=True, slots=True)
class Round:
    """The same bytes saved and restored by the caches and written and read raw."""

    ours_first: bool
    nbytes: int
    write: Parts
    raw_write: Parts
    read: Parts
    raw_read: Parts

    @property
    def write_ratio(self) -> float:
        """What the caches save a second, of what the drive takes."""
        return self.raw_write["all"] / self.write["all"]

    @property
    def read_ratio(self) -> float:
        """What the caches restore a second, of what the drive gives."""
        return self.raw_read["all"] / self.read["all"]

    def figures(self) -> dict[str, Any]:
        """In plain numbers."""
        figures: dict[str, Any] = {"first": "ours" if self.ours_first else "raw"}
        for name in ("write", "read"):
            ours, raw = getattr(self, name), getattr(self, f"raw_{name}")
            figures[f"{name}_ratio"] = raw["all"] / ours["all"]
            figures[f"{name}_bytes_s"] = self.nbytes / ours["all"]
            figures[f"raw_{name}_bytes_s"] = self.nbytes / raw["all"]
            figures[f"{name}_s"], figures[f"raw_{name}_s"] = dict(ours), dict(raw)
        return figures


def medians(rounds: Sequence[Round]) -> dict[str, float]:
    """Of the paired ratios, and of each rate."""
    figures = [one.figures() for one in rounds]
    names = [name for name in figures[0] if name.endswith(("_ratio", "_bytes_s"))]
    return {name: median(one[name] for one in figures) for name in names}


class Changed(Exception):
    """Bytes came back from the drive that are not those that were saved."""


def in_order(
    ours: Callable[[], Parts], raw: Callable[[], Parts], ours_first: bool
) -> tuple[Parts, Parts]:
    """Both, ours before raw or after it."""
    if ours_first:
        parts = ours()
        return parts, raw()
    parts = raw()
    return ours(), parts


@contextmanager
def timed(clock: Clock, spent: Callable[[], Parts]) -> Iterator[dict[str, float]]:
    """Fills in what the caches `spent` meanwhile, and `all`."""
    parts: dict[str, float] = {}
    before, begun_s = dict(spent()), clock.mono_s()
    yield parts
    all_s = clock.mono_s() - begun_s
    after = spent()
    parts |= {what: after[what] - before[what] for what in after} | {"all": all_s}


def refuse_rounds(gib: float, rounds: int) -> None:
    """Raise BadInput for what is no amount to move, or no number of times."""
    if not 0 < gib < math.inf:
        raise BadInput("--gib", None, f"{gib} is no amount to write")
    if not 0 < rounds <= ROUNDS_MAX:
        raise BadInput("--rounds", None, f"{rounds} is not within 1 and {ROUNDS_MAX:,}")
