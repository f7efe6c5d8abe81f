"""Whether a store holds a benchmark's tokens: the first long stretch that is in both."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cache.suffix_array import SuffixArray
from cache.suffix_recent import Recent
from cache.types import Ids


@dataclass(frozen=True, slots=True)
class Overlap:
    """A stretch of a sequence that the store holds as well."""

    sequence: int
    """Which of those that were asked about."""
    at: int
    tokens: int


def overlap(array: SuffixArray, sequences: Iterable[Ids], tokens_min: int) -> Overlap | None:
    """The first `tokens_min` tokens of a sequence that stand in the text, wherever they begin.

    Every place of every sequence counts, shared heads too: a store that never held their text has
    none of it. What one of the last sequences had already is not looked up again. A stretch of so
    many tokens covers a whole block of half as many on the grid of blocks: where a block stands in
    the text, the stretches around it are looked up. Negative ids part a sequence.
    """
    assert tokens_min >= 2
    block = tokens_min // 2
    recent = Recent(lead_in=tokens_min - 1)
    for number, ids in enumerate(sequences):
        for first, last in recent.added(ids):
            pattern = ids[first:last].astype(">i4").tobytes()
            for start in range(0, last - first - block + 1, block):
                found = array.find(pattern[4 * start : 4 * (start + block)])
                if found.high == found.low:
                    continue
                at = _whole(array, pattern, start + block - tokens_min, start, tokens_min)
                if at is not None:
                    return Overlap(number, first + at, tokens_min)
    return None


def _whole(array: SuffixArray, pattern: bytes, first: int, last: int, size: int) -> int | None:
    """The first place in [first, last] at which `size` tokens stand in the text."""
    last = min(last, len(pattern) // 4 - size)
    for start in range(max(0, first), last + 1):
        found = array.find(pattern[4 * start : 4 * (start + size)])
        if found.high > found.low:
            return start
    return None
