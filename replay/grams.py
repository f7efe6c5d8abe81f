"""Where stretches of a few tokens stand in earlier sequences: hashes in sorted arrays."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cache.types import Ids

Words = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]
"""Where a gram stands: sequence << 32 | offset; -1 is nowhere."""

_GOLDEN = 0x9E3779B97F4A7C15
"""2^64 over the golden ratio: multiples of it lie far apart."""


def gram_hashes(ids: Ids, width: int) -> Words:
    """Hash of the `width` tokens from each position on, shape (max(0, len - width + 1),).

    Built by doubling: the hash of 2n tokens from those of n, so `width` is a power of two.
    """
    assert width > 0 and width & (width - 1) == 0
    if len(ids) < width:
        return np.empty(0, np.uint64)
    hashes = (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN)
    have = 1
    while have < width:
        hashes ^= hashes >> np.uint64(29)
        factor = np.uint64((_GOLDEN * (2 * have + 1)) & 0xFFFF_FFFF_FFFF_FFFF)
        hashes = hashes[:-have] * factor + hashes[have:]
        have *= 2
    return hashes


class GramIndex:
    """Grams by hash. A lookup is a hint: it compares no tokens."""

    def __init__(self) -> None:
        self._levels: list[tuple[Words, Places]] = []

    def add(self, hashes: Words, places: Places) -> None:
        """Index grams; of those equal here the first stays.

        Levels at least double in size from the newest to the oldest, so that a gram is moved
        log(n) times and a lookup asks log(n) arrays.
        """
        if len(hashes) == 0:
            return
        hashes, first = np.unique(hashes, return_index=True)
        places = places[first]
        while self._levels and len(self._levels[-1][0]) <= 2 * len(hashes):
            older, older_places = self._levels.pop()
            hashes = np.concatenate([older, hashes])
            places = np.concatenate([older_places, places])
            order = np.argsort(hashes, kind="stable")
            hashes, places = hashes[order], places[order]
        self._levels.append((hashes, places))

    def find(self, hashes: Words) -> npt.NDArray[np.int64]:
        """Places of each hash, newest first, shape (levels, len(hashes))."""
        found = np.full((len(self._levels), len(hashes)), -1, np.int64)
        for row, (known, places) in enumerate(reversed(self._levels)):
            # Of equal hashes the last was added last.
            at = np.maximum(np.searchsorted(known, hashes, side="right") - 1, 0)
            found[row] = np.where(known[at] == hashes, places[at], -1)
        return found
