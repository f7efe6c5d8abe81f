"""Hot rows of a table in memory: sets of a few slots, where the row of fewest uses gives way

A key belongs to one set, by a hash. What a set evicts is its row of fewest uses (a few are counted,
no more), of equals the one that rested longest. Where that row had uses, all others of the set lose
as many; and a row that rested long loses one at every eviction of its set, so that what was hot
yesterday goes as well.

Why: n-grams are Zipf-like, and LRU spends its slots on keys that come once. On Zipf streams of
200,000 keys (exponents 0.7, 0.9, 1.1) with slots for a hundredth of them this served 26, 11 and 2 %
more than an exact LRU of all slots, with a tenth 12, 4 and 0 %. When all keys changed at once it
had caught up, at the latest, after ten lookups a slot. Everything is an array, so a call costs a
few vector operations however many keys it has.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

WAYS = 16
"""Slots of a set. LRU in such sets served 1 % less than in one of all slots, with 8 another 1 %."""
USES_MAX = 3
"""What is counted of a row's uses; with 7 it served no more."""
REST = 4
"""Lookups a slot after which a row that none of them found begins to lose its uses. With 16 and
more the gain was up to twice as large, and a change of all keys cost a third of the hits for long.
"""
_MIX = np.uint64(0x9E3779B97F4A7C15)
"""2^64 over the golden ratio: spreads keys that follow one another (Knuth, TAOCP 3, 6.4)."""
_HALF = np.uint64(32)
_EMPTY = -1

Keys = NDArray[np.int64]
Bytes = NDArray[np.uint8]


class HotRows:
    """Rows by key, in at most `budget_bytes`, bookkeeping included. One caller at a time."""

    def __init__(self, rows: int, row_bytes: int, budget_bytes: int) -> None:
        """For a table of `rows`; one that has room for all of them never evicts."""
        assert budget_bytes >= 0
        # What the fields below take for a slot.
        slots = budget_bytes // (row_bytes + 8 + 8 + 1)
        if slots >= rows:
            self.sets, self.ways = rows, 1
        else:
            self.ways = min(WAYS, slots)
            self.sets = slots // self.ways if slots else 0
        shape = (self.sets, self.ways)
        self._keys = np.full(shape, _EMPTY, np.int64)
        self._used = np.zeros(shape, np.int64)
        """The number of the lookup that used a slot last; 0 in one that is empty."""
        self._uses = np.zeros(shape, np.uint8)
        self._rows = np.empty((self.sets * self.ways, row_bytes), np.uint8)
        self._all = slots >= rows
        self._now = 1
        self.evictions = 0

    def held_bytes(self) -> int:
        """What it takes: the same from its making to its end."""
        arrays = (self._keys, self._used, self._uses, self._rows)
        return sum(array.nbytes for array in arrays)

    def take(self, keys: Keys, into: Bytes) -> NDArray[np.bool_]:
        """Copy the rows of these keys, no two the same, that are here; says which."""
        if not self.sets:
            return np.zeros(len(keys), np.bool_)
        self._now += len(keys)
        found, at = self._find(keys)
        places = at[found]
        into[found] = self._rows[places]
        self._used.reshape(-1)[places] = self._now
        uses = self._uses.reshape(-1)
        uses[places] = np.minimum(uses[places] + 1, USES_MAX)
        return found

    def put(self, keys: Keys, rows: Bytes) -> None:
        """Keep these rows, no two keys the same; of one set the last WAYS at most."""
        if not self.sets:
            return
        fresh = ~self._find(keys)[0]
        keys, rows = keys[fresh], rows[fresh]
        sets = self._set_of(keys)
        order = np.argsort(sets, kind="stable")
        # How many keys of the same set come behind each.
        ends = np.searchsorted(sets[order], sets[order], side="right")
        behind = ends - 1 - np.arange(len(order))
        for rank in range(min(self.ways, int(behind.max(initial=-1)) + 1))[::-1]:
            chosen = order[behind == rank]
            self._put_one_a_set(sets[chosen], keys[chosen], rows[chosen])

    def _put_one_a_set(self, sets: Keys, keys: Keys, rows: Bytes) -> None:
        uses, used = self._uses[sets], self._used[sets]
        # Fewest uses first, then the longest rest; an empty slot has had neither.
        ways = np.argmin((uses.astype(np.int64) << 56) | used, axis=1)
        self.evictions += int(np.count_nonzero(self._keys[sets, ways] != _EMPTY))
        uses -= uses[np.arange(len(sets)), ways][:, None]
        rested = self._now - used > REST * self._uses.size
        self._uses[sets] = np.where(rested & (uses > 0), uses - 1, uses)
        self._keys[sets, ways], self._used[sets, ways] = keys, self._now
        self._uses[sets, ways] = 0
        self._rows[sets * self.ways + ways] = rows

    def _find(self, keys: Keys) -> tuple[NDArray[np.bool_], Keys]:
        """Which keys are here, and the slot of each; of one that is not, any."""
        sets = self._set_of(keys)
        same = self._keys[sets] == keys[:, None]
        return same.any(axis=1), sets * self.ways + np.argmax(same, axis=1)

    def _set_of(self, keys: Keys) -> Keys:
        if self._all:
            return keys
        mixed = (keys.astype(np.uint64) * _MIX) >> _HALF
        return ((mixed * np.uint64(self.sets)) >> _HALF).astype(np.int64)
