"""Where the n-grams of a growing sequence stand: hash chains, the newest place first."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cache.types import Ids

BREAK = -1
"""Stands between documents, and for what is no token of text; no match reaches over it."""
_MASK = (1 << 64) - 1
_ODD = 0x9E3779B97F4A7C15
"""2^64 over the golden ratio (Knuth's multiplicative hash); its powers weigh an n-gram's tokens."""


@dataclass(frozen=True, slots=True)
class Found:
    """The longest match, and the tokens that followed it."""

    length: int
    tokens: list[int]


class Chains:
    """Tokens that only grow, and an index of their n-grams of one length.

    A table by hash holds the last place of a gram, each place the one before with the same hash, as
    in a zip compressor. A hash is a hint: tokens are compared. A lookup follows at most `walk`
    places, so that it takes bounded time. One thread may add while another looks up: what is read
    half-way is no match, or one that was compared.
    """

    def __init__(self, gram: int, *, bits: int = 16, walk: int = 16) -> None:
        assert gram > 0 and 0 < bits <= 30 and walk > 0
        self._gram = gram
        self._walk = walk
        self._shift = 64 - bits
        self._weights = [pow(_ODD, at + 1, 1 << 64) for at in range(gram)]
        self._table = array("i", [-1]) * (1 << bits)
        self._tokens = array("i")
        self._before = array("i")
        """To a place (that of the token after a gram), the one before of the same hash, or -1."""

    def __len__(self) -> int:
        return len(self._tokens)

    def held_bytes(self) -> int:
        """Tokens, places and table."""
        return 4 * (len(self._tokens) + len(self._before) + len(self._table))

    def tokens(self, start: int = 0) -> Ids:
        """What was added from a place on, as a copy."""
        return np.array(self._tokens[start:], dtype=np.int32)

    def extend(self, ids: Ids) -> None:
        """Add many tokens at once."""
        start = len(self._tokens)
        self._tokens.frombytes(np.ascontiguousarray(ids, np.int32).tobytes())
        self._before.frombytes(np.full(len(ids), -1, np.int32).tobytes())
        first = max(start, self._gram)
        if first >= len(self._tokens):
            return
        places = np.arange(first, len(self._tokens), dtype=np.int32)
        window = np.array(self._tokens[first - self._gram : -1], dtype=np.int64).view(np.uint64)
        hashes = self._hashes(window)
        order = np.argsort(hashes, kind="stable")
        hashes, places = hashes[order], places[order]
        again = np.flatnonzero(hashes[1:] == hashes[:-1]) + 1
        heads = np.setdiff1d(np.arange(len(hashes)), again, assume_unique=True)
        before = np.empty(len(hashes), np.int32)
        before[again] = places[again - 1]
        # Views of the arrays' own memory: they cannot grow as long as one is alive.
        table = np.frombuffer(self._table, np.int32)
        before[heads] = table[hashes[heads]]
        np.frombuffer(self._before, np.int32)[places] = before
        lasts = np.append(heads[1:] - 1, len(hashes) - 1)
        table[hashes[lasts]] = places[lasts]

    def append(self, token: int) -> None:
        """Add one token."""
        tokens, place = self._tokens, len(self._tokens)
        slot = self._slot(tokens[-self._gram :]) if place >= self._gram else -1
        tokens.append(token)
        self._before.append(self._table[slot] if slot >= 0 else -1)
        if slot >= 0:
            self._table[slot] = place

    def longest(self, context: Sequence[int], longest: int, count: int) -> Found | None:
        """The longest end of `context` found, up to `longest` tokens, and up to `count` after it.

        Of equally long ones the newest. `context` holds token ids only, no BREAK.
        """
        gram, tokens, before = self._gram, self._tokens, self._before
        most = min(longest, len(context))
        if most < gram:
            return None
        place = self._table[self._slot(context[-gram:])]
        best, best_at, size = 0, 0, len(tokens)
        for _ in range(self._walk):
            if not 0 <= place < size:
                break
            if tokens[place] != BREAK:
                length, reach = 0, min(most, place)
                while length < reach and tokens[place - 1 - length] == context[-1 - length]:
                    length += 1
                if length > best:
                    best, best_at = length, place
                    if best == most:
                        break
            place = before[place]
        if best < gram:
            return None
        after = tokens[best_at : best_at + count].tolist()
        return Found(best, after[: after.index(BREAK)] if BREAK in after else after)

    def _slot(self, gram: Sequence[int]) -> int:
        total = 0
        for token, weight in zip(gram, self._weights, strict=True):
            total += (token & _MASK) * weight
        return (total & _MASK) >> self._shift

    def _hashes(self, tokens: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Slots of the grams that begin at each token."""
        count = len(tokens) - self._gram + 1
        total = np.zeros(count, np.uint64)
        for at, weight in enumerate(self._weights):
            total += tokens[at : at + count] * np.uint64(weight)
        return (total >> np.uint64(self._shift)).astype(np.int64)
