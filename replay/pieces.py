"""What a trace's tokens are made of: the class by the id, and text that no other id has"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cache.types import Ids

SPECIALS_END = 64
WHITESPACE_END = 256
"""Ids [0, 64) are special tokens, [64, 256) whitespace only, the rest text."""

_DIGITS = 4
"""Bytes of every token's text."""
_BLANKS = np.frombuffer(b" \t\n\r", np.uint8)
_LETTERS = np.frombuffer(
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz+-", np.uint8
)


class TracePieces:
    """A trace says which tokens are equal, and nothing of their text: each has one of its own."""

    def structure(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """Which tokens are special or a picture's rows (negative), shape (n,)."""
        return np.less(ids, SPECIALS_END)

    def blank(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """Which tokens are whitespace only, shape (n,)."""
        return np.logical_and(np.less(ids, WHITESPACE_END), np.greater_equal(ids, SPECIALS_END))

    def text(self, ids: Ids) -> bytes:
        """The ids in digits that are letters, or blanks where they stand for whitespace."""
        assert not len(ids) or ids.min() >= 0, "the rows of a picture hold no text"
        out = np.empty((len(ids), _DIGITS), np.uint8)
        blank = self.blank(ids)
        for digits, which in ((_BLANKS, blank), (_LETTERS, ~blank)):
            some = ids[which]
            for place in range(_DIGITS):
                out[which, place] = digits[some // len(digits) ** place % len(digits)]
        return out.tobytes()
