"""The ideal: what an unlimited cache would reuse, at token resolution and in blocks

Both find the longest known prefix through hashes of whole blocks: the known ones are closed under
taking prefixes, so a binary search over the block count is enough.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from cache.hashing import Hashes, block_hashes, prefix_hashes
from cache.types import Ids, common_prefix
from replay.tokens import Tokens
from replay.trace import Trace

_BLOCK = 64
_SLAB = 1 << 22
"""Tokens of a slab of storage, 16 MiB."""
_ROOT = 0
"""Key of the empty prefix."""


@dataclass(slots=True)
class _Path:
    """Where a sequence's tokens lie: pieces of slabs, each from `starts[i]` of the sequence on."""

    length: int
    starts: list[int] = field(default_factory=list)
    slabs: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)


class Ideal:
    """An unlimited, token-exact cache of sequences: every row ever held can be reused.

    Only tokens that no earlier sequence began with are stored. A hash only says where to look: the
    tokens are compared, so the answers are exact whatever the hash does.
    """

    def __init__(self, hashes: Callable[[Ids, int], Hashes] = block_hashes) -> None:
        self._hashes = hashes
        self._paths: list[_Path] = []
        self._slabs: list[Ids] = []
        self._used = _SLAB
        self._first: dict[int, int] = {}
        """Hash of a prefix of whole blocks to the first sequence that had it."""
        self._parted: dict[int, list[tuple[bytes, int]]] = {}
        """The same hash to the sequences that left the known ones in the block after it, in the
        order of their tokens there."""

    @property
    def stored_tokens(self) -> int:
        """Tokens held."""
        return max(0, len(self._slabs) - 1) * _SLAB + (self._used if self._slabs else 0)

    def reusable(self, ids: Ids) -> int:
        """Tokens of the longest prefix of `ids` that an added sequence began with."""
        return self._longest(ids, self._hashes(ids, _BLOCK).tolist())[0]

    def add(self, ids: Ids) -> None:
        """Add a request's rows: prompt and output as they were forwarded."""
        hashes = self._hashes(ids, _BLOCK).tolist()
        length, near = self._longest(ids, hashes)
        if length == len(ids):
            return
        number = len(self._paths)
        self._paths.append(self._store(ids, length, near))
        known = length // _BLOCK
        for key in hashes[known:]:
            self._first.setdefault(key, number)
        entry = (_key(ids, known), number)
        insort(self._parted.setdefault(hashes[known - 1] if known else _ROOT, []), entry)

    def _longest(self, ids: Ids, hashes: list[int]) -> tuple[int, int]:
        """(length, sequence) of the longest prefix of `ids` that a sequence begins with."""
        known = bisect_left(hashes, True, key=lambda h: h not in self._first)
        node = hashes[known - 1] if known else _ROOT
        near = [self._first[node]] if known else []
        parted = self._parted.get(node, [])
        # Among sequences in order, the longest common prefix is with a neighbour.
        at = bisect_left(parted, (_key(ids, known), -1))
        near += [number for _, number in parted[max(0, at - 1) : at + 1]]
        best = (0, -1)
        for number in near:
            length = self._common(number, ids)
            if length < known * _BLOCK:  # two prefixes under one hash: look at every sequence
                every = range(len(self._paths))
                return max((self._common(number, ids), number) for number in every)
            best = max(best, (length, number))
        return best

    def _common(self, number: int, ids: Ids) -> int:
        """Leading tokens that `ids` and a sequence share."""
        path = self._paths[number]
        limit = min(path.length, len(ids))
        ends = [*path.starts[1:], path.length]
        for start, end, slab, place in zip(path.starts, ends, path.slabs, path.places, strict=True):
            if start >= limit:
                break
            stop = min(end, limit)
            held = self._slabs[slab][place : place + stop - start]
            if not np.array_equal(held, ids[start:stop]):
                return start + common_prefix(held, ids[start:stop])
        return limit

    def _store(self, ids: Ids, length: int, near: int) -> _Path:
        """Keep ids[length:], and the path of the whole: `near`'s up to `length`, then those."""
        path = _Path(len(ids))
        if length:
            old = self._paths[near]
            count = bisect_left(old.starts, length)
            path.starts, path.slabs = old.starts[:count], old.slabs[:count]
            path.places = old.places[:count]
        at = length
        while at < len(ids):
            if self._used == _SLAB:
                self._slabs.append(np.empty(_SLAB, dtype=np.int32))
                self._used = 0
            size = min(_SLAB - self._used, len(ids) - at)
            self._slabs[-1][self._used : self._used + size] = ids[at : at + size]
            slab = len(self._slabs) - 1
            joins = path.starts and path.slabs[-1] == slab
            if not (joins and path.places[-1] + at - path.starts[-1] == self._used):
                path.starts.append(at)
                path.slabs.append(slab)
                path.places.append(self._used)
            self._used += size
            at += size
        return path


def _key(ids: Ids, known: int) -> bytes:
    """The tokens of the block after `known` blocks, as bytes. Any fixed order of tokens will do."""
    return ids[known * _BLOCK : (known + 1) * _BLOCK].tobytes()


class BlockIdeal:
    """An unlimited cache of prompts in blocks, a block found only with all before it.

    Whole blocks and a prompt's last, partial one are each found as they are: a partial block by
    prompts that end in the same tokens at the same length. This is the counting of Mooncake's
    published figure: 37.36 % of the conversation trace's input tokens at 512.
    """

    def __init__(self, block: int) -> None:
        self._block = block
        self._known: set[int] = set()
        self._ends: set[tuple[int, int]] = set()
        """Prompts with a partial last block, by hash and its length: the two families of hashes
        must not be mixed."""
        self.reusable = 0
        """Prompt tokens that earlier prompts had left in the cache."""
        self.total = 0
        """Prompt tokens."""

    def add(self, ids: Ids) -> None:
        """Count a prompt, then cache it."""
        hashes = block_hashes(ids, self._block).tolist()
        known = bisect_left(hashes, True, key=lambda h: h not in self._known)
        reusable = known * self._block
        rest = ids[len(hashes) * self._block :]
        if len(rest):
            start = hashes[-1] if hashes else 0
            end = (int(prefix_hashes(rest, start)[-1]), len(rest))
            if end in self._ends:
                reusable = len(ids)
            self._ends.add(end)
        self._known.update(hashes[known:])
        self.reusable += reusable
        self.total += len(ids)


def ideal_by_blocks(trace: Trace, block: int) -> tuple[int, int]:
    """(reusable, total) prompt tokens of a trace, with an unlimited cache of prompts in blocks."""
    tokens = Tokens(trace)
    ideal = BlockIdeal(block)
    for request in trace.requests:
        ideal.add(tokens.prompt(request.number))
    return ideal.reusable, ideal.total
