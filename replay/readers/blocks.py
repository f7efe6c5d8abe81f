"""Block ids to runs: equal ids are equal tokens, copied from the last that had them"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from replay.fields import shown
from replay.open import Malformed
from replay.trace import FRESH, TEXT, Run

BlockIds = npt.NDArray[np.int64]
"""Ids of a prompt's blocks in order, shape (blocks,)."""


def block_ids(values: list[Any]) -> BlockIds:
    """A list of whole numbers as an array. Raises Malformed."""
    if not set(map(type, values)) <= {int}:
        wrong = next(v for v in values if type(v) is not int)
        raise Malformed(f"a block id is not a whole number: {shown(wrong)}")
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError:
        raise Malformed("a block id does not fit in 64 bits") from None


def small_ids(rows: Sequence[BlockIds]) -> tuple[list[BlockIds], int]:
    """The rows with ids in [0, count), equal where they were equal; and the count."""
    if not rows:
        return [], 0
    every = np.concatenate(rows)
    if not len(every):
        return list(rows), 0
    if every.min() >= 0 and every.max() < 4 * len(every) + 1024:
        return list(rows), int(every.max()) + 1
    known, small = np.unique(every, return_inverse=True)
    cuts = np.cumsum([len(row) for row in rows])[:-1]
    return np.split(small.astype(np.int64), cuts), len(known)


def left_numbers(bad: Iterable[int], total: int) -> list[int]:
    """Request numbers for what is left of `total` pieces when those at places `bad` are not."""
    gone = set(bad)
    return [number for number in range(total) if number not in gone]


def joined(runs: Iterable[Run]) -> tuple[Run, ...]:
    """The runs with neighbours that continue each other made one, and empty ones left out."""
    out: list[Run] = []
    for run in runs:
        last = out[-1] if out else None
        if last and last.src == run.src and run.length:
            follows = last.offset if run.src == FRESH else last.offset + last.length
            if run.offset == follows:
                out[-1] = last._replace(length=last.length + run.length)
                continue
        if run.length:
            out.append(run)
    return tuple(out)


@dataclass(slots=True)
class _Row:
    ids: BlockIds
    tokens: int
    base: int


class Blocks:
    """What the requests so far held, by block id."""

    def __init__(self, block: int, count: int) -> None:
        """For blocks of `block` tokens with ids in [0, count)."""
        self._block = block
        self._rows: dict[int, _Row] = {}
        self._holder = np.full(count, -1, dtype=np.int32)
        self._offset = np.zeros(count, dtype=np.int32)
        self._held = np.zeros(count, dtype=np.int32)

    def add(self, number: int, ids: BlockIds, tokens: int, base: int = 0) -> None:
        """Request `number` holds these blocks from `base` of its sequence on.

        The blocks hold `tokens` in all: a last one that is not full holds the rest, and a rest
        that has no id is nobody's.
        """
        full = tokens // self._block
        offsets = base + self._block * np.arange(len(ids), dtype=np.int32)
        head = ids[:full]
        self._holder[head], self._offset[head] = number, offsets[:full]
        self._held[head] = self._block
        rest = tokens - full * self._block
        # A block that was seen fuller stays with who had it fuller.
        if full < len(ids) and rest >= self._held[ids[full]]:
            last = ids[full]
            self._holder[last], self._offset[last] = number, offsets[full]
            self._held[last] = rest
        self._rows[number] = _Row(ids, min(tokens, len(ids) * self._block), base)

    def prefix(self, ids: BlockIds, tokens: int) -> Run | None:
        """The longest prefix of the blocks that one earlier request began with, as a run of it."""
        known = self._holder[ids] >= 0
        count = len(ids) if known.all() else int(known.argmin())
        if not count:
            return None
        number = int(self._holder[ids[count - 1]])
        row = self._rows[number]
        # An id that names its whole prefix stands at one place only; one that names just its own
        # tokens may have stood anywhere.
        if not np.array_equal(row.ids[:count], ids[:count]):
            return None
        return Run(number, row.base, min(count * self._block, tokens, row.tokens))

    def runs(self, ids: BlockIds, tokens: int) -> tuple[Run, ...]:
        """`tokens` tokens as runs: known blocks copied, the others and what has no id fresh."""
        shared = self.prefix(ids, tokens)
        if shared:
            start = -(-shared.length // self._block)
            runs = [shared]
        else:
            start, runs = 0, []
        filled = shared.length if shared else 0
        rest = ids[start:]
        if not (self._holder[rest] >= 0).any():
            return joined([*runs, Run(FRESH, TEXT, tokens - filled)])
        runs.append(Run(FRESH, TEXT, min(start * self._block, tokens) - filled))
        for i, block_id in enumerate(rest.tolist(), start):
            size = min(self._block, tokens - i * self._block)
            held = min(size, int(self._held[block_id]))
            runs.append(Run(int(self._holder[block_id]), int(self._offset[block_id]), held))
            runs.append(Run(FRESH, TEXT, size - held))
        runs.append(Run(FRESH, TEXT, tokens - min(tokens, len(ids) * self._block)))
        return joined(runs)
