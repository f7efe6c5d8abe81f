"""Whether a store holds a benchmark's tokens: the first long stretch that is in both."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from cache.suffix_array import SuffixArray
from cache.suffix_recent import Recent
from cache.types import Ids


@dataclass(frozen=True, slots=True)
class Overlap:
    """A stretch of a request's prompt and answer that the store holds as well."""

    request: int
    """Which of those that were asked about."""
    at: int
    tokens: int


def overlap(
    array: SuffixArray, requests: Iterable[tuple[Ids, Ids]], stretch: int, whole: int
) -> Overlap | None:
    """The first tokens of a request, prompt and answer, that tell that the text has held it.

    That is `stretch` tokens in a row, wherever they begin and whoever shares them; or, for short
    questions under a shared head, all that is new in a prompt, or an answer, of `whole` tokens at
    least. What one of the last requests had already is not looked up again. Negative ids part a
    request.
    """
    assert stretch >= 2 and whole >= 1
    near, new = Recent(lead_in=stretch - 1), Recent(lead_in=0)
    for number, (prompt, answer) in enumerate(requests):
        ids = np.concatenate([prompt, answer])
        for first, last in near.added(ids):
            at = _stretch(array, ids[first:last], stretch)
            if at is not None:
                return Overlap(number, first + at, stretch)
        for first, last in [*new.added(prompt), (len(prompt), len(ids))]:
            if last - first >= whole and _stands(array, ids[first:last]):
                return Overlap(number, first, last - first)
    return None


def _stretch(array: SuffixArray, ids: Ids, size: int) -> int | None:
    """The first place at which `size` tokens stand in the text.

    A stretch of so many covers a whole block of half as many on the grid of blocks: where a block
    stands in the text, the stretches around it are looked up.
    """
    block = size // 2
    pattern = ids.astype(">i4").tobytes()
    for start in range(0, len(ids) - block + 1, block):
        found = array.find(pattern[4 * start : 4 * (start + block)])
        if found.high == found.low:
            continue
        for at in range(max(0, start + block - size), min(start, len(ids) - size) + 1):
            found = array.find(pattern[4 * at : 4 * (at + size)])
            if found.high > found.low:
                return at
    return None


def _stands(array: SuffixArray, ids: Ids) -> bool:
    found = array.find(ids.astype(">i4").tobytes())
    return found.high > found.low
