"""Suffix array over the store's text: a context's longest match, and what followed it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pydivsufsort import divsufsort

from cache.suffix_format import SEPARATOR

_NOTHING = int.from_bytes(SEPARATOR, "big")
_VOTERS = 64
"""Places that are asked what followed; of more, every so many-th."""
_LOOKED_AT = 1 << 14
"""Places among which the newest is looked for."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where a match of `length` tokens stands: ranks [low, high) of the array."""

    length: int
    low: int
    high: int


class SuffixArray:
    """Never changes once built. The text is big-endian 32-bit ids with a separator after each
    document, so that the order of its bytes is the order of its tokens.
    """

    def __init__(self, text: bytes, order: npt.NDArray[np.int32]) -> None:
        """`order`: token positions in the order of the suffixes that begin there."""
        self.text = text
        self._order = order
        self._places = memoryview(order.data)

    @classmethod
    def build(cls, text: bytes) -> SuffixArray:
        """Sort the text's suffixes; for the time it takes holds some 20 bytes for each of its own.

        The sort is libdivsufsort's, over bytes, and runs without the interpreter's lock; of its
        order those places stay that begin a token. MemoryError where there is no room.
        """
        if not text:
            return cls(b"", np.empty(0, np.int32))
        try:
            order = divsufsort(text)
        except Exception as error:
            # The library's own error, which has no class; it has no other cause.
            raise MemoryError("no room for a suffix array") from error
        order = order[order % 4 == 0]
        order //= 4
        # The same numbers under numpy's own name of their type, which a memoryview can read.
        return cls(text, order.view(np.int32))

    @property
    def tokens(self) -> int:
        """Of the text, separators counted."""
        return len(self.text) // 4

    def held_bytes(self) -> int:
        """Text and order."""
        return len(self.text) + self._order.nbytes

    def find(self, pattern: bytes) -> Places:
        """Where these tokens stand; an empty range when nowhere. O(log n) comparisons."""
        text, size = self.text, len(pattern)

        def at(place: int) -> bytes:
            return text[4 * place : 4 * place + size]

        low = bisect_left(self._places, pattern, key=at)
        high = bisect_right(self._places, pattern, lo=low, key=at)
        return Places(size // 4, low, high)

    def longest(self, context: bytes, shortest: int) -> Places | None:
        """The longest end of `context` that stands in the text, of `shortest` tokens at least.

        An end of an end that stands somewhere stands there too, so the length is halved into.
        """
        low, high = shortest, len(context) // 4
        if high < low:
            return None
        best = self._end(context, low)
        if best.high == best.low or low == high:
            return best if best.high > best.low else None
        # The longest next: in copied text it is there, and all has been asked.
        whole = self._end(context, high)
        if whole.high > whole.low:
            return whole
        while high - low > 1:
            middle = (low + high) // 2
            found = self._end(context, middle)
            if found.high > found.low:
                best, low = found, middle
            else:
                high = middle
        return best

    def _end(self, context: bytes, tokens: int) -> Places:
        return self.find(context[len(context) - 4 * tokens :])

    def newest(self, places: Places, count: int) -> list[int]:
        """Up to `count` tokens after the match that stands last in the text."""
        found = self._order[places.low : places.high]
        step = -(-len(found) // _LOOKED_AT)
        return self._after(int(found[::step].max()) + places.length, count)

    def most_frequent(self, places: Places, count: int) -> list[int]:
        """Up to `count` tokens, each the one that mostly follows those before it."""
        found = self._order[places.low : places.high]
        step = -(-len(found) // _VOTERS)
        voters = sorted((4 * int(at) for at in found[::step]), reverse=True)
        text, out = self.text, list[int]()
        at = 4 * places.length
        while len(out) < count:
            votes = Counter(text[voter + at : voter + at + 4] for voter in voters)
            # Of equals the first counted: the one that stands last in the text.
            token = votes.most_common(1)[0][0]
            if token in (SEPARATOR, b""):
                break
            voters = [voter for voter in voters if text[voter + at : voter + at + 4] == token]
            out.append(int.from_bytes(token, "big"))
            at += 4
        return out

    def _after(self, place: int, count: int) -> list[int]:
        out: list[int] = np.frombuffer(
            self.text[4 * place : 4 * (place + count)], dtype=">u4"
        ).tolist()
        return out[: out.index(_NOTHING)] if _NOTHING in out else out
