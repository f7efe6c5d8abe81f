"""What a prefill's chunk costs beside its tokens: a line through one prompt in several sizes"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np


def pieces(start: int, stop: int, grid: int) -> int:
    """Calls that forward rows [start, stop), each ending at a multiple of `grid` or at `stop`."""
    assert 0 <= start <= stop and grid > 0
    return -(-stop // grid) - start // grid if stop > start else 0


@dataclass(frozen=True, slots=True)
class ChunkTimes:
    """One cold prompt, read in chunks of several sizes; ValueError when no line fits them."""

    tokens: int
    fit_grid: int
    """The chunk in which the prefills were read that the board's time model is fitted to."""
    seconds: tuple[tuple[int, float], ...]
    """(chunk in tokens, seconds of the prefill), of two sizes at least."""

    def __post_init__(self) -> None:
        if self.tokens <= 0 or self.fit_grid <= 0 or min(at for at, _ in self.seconds) <= 0:
            raise ValueError("prefill.chunks: tokens and chunks must be positive")
        if len({self.pieces(chunk) for chunk, _ in self.seconds}) < 2:
            raise ValueError("prefill.chunks needs sizes that cut the prompt into unequal numbers")
        if self.chunk_s < 0:
            raise ValueError("prefill.chunks: more chunks can't take less time")

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> ChunkTimes:
        """From a profile's table `prefill.chunks`."""
        seconds = tuple((int(chunk), float(took)) for chunk, took in table["seconds"])
        return cls(int(table["tokens"]), int(table["fit_grid"]), seconds)

    def pieces(self, chunk: int) -> int:
        """Chunks the prompt is read in."""
        return pieces(0, self.tokens, chunk)

    @property
    def line(self) -> tuple[float, float]:
        """(seconds a chunk, seconds of the rest), by least squares.

        A chunk reads all weights, whatever its length. Its price here is more than the read alone:
        products of fewer rows use the machine less well.
        """
        return _line(self)

    @property
    def chunk_s(self) -> float:
        """Seconds of one chunk more."""
        return self.line[0]

    def predicted_s(self, chunk: int) -> float:
        """The prompt's seconds in chunks of this size, as the line has them."""
        chunk_s, rest_s = self.line
        return chunk_s * self.pieces(chunk) + rest_s

    def extra_s(self, start: int, stop: int, grid: int) -> float:
        """Seconds to forward rows [start, stop) in chunks of `grid` beyond what the fit grid takes.

        A finer grid pays for each chunk more. On a coarser one the chunks that fall away give back
        what the fitted curve had charged for them, which is by the row. On the fit grid exactly 0.
        """
        count = pieces(start, stop, grid)
        if grid <= self.fit_grid:
            return self.chunk_s * max(0, count - pieces(start, stop, self.fit_grid))
        return -self.chunk_s * max(0.0, (stop - start) / self.fit_grid - count)


@cache
def _line(times: ChunkTimes) -> tuple[float, float]:
    """Fitted once: every chunk of a replay asks."""
    counts = [times.pieces(chunk) for chunk, _ in times.seconds]
    slope, rest = np.polyfit(counts, [took for _, took in times.seconds], 1)
    return float(slope), float(rest)
