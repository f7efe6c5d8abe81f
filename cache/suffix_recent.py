"""What the last requests have added already, so that a growing prompt is stored once."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from cache.types import Ids, common_prefix

Span = tuple[int, int]
"""(start, length)"""
Piece = tuple[int, int]
"""[start, stop)"""


class Recent:
    """The last requests' tokens, prompt and output, images' ids and all."""

    def __init__(self, remembered: int = 4, lead_in: int = 8) -> None:
        assert remembered >= 0 and lead_in >= 0
        self._sequences: deque[Ids] = deque(maxlen=remembered)
        self._lead_in = lead_in

    def added(self, ids: Ids, first: int = 0, left_out: Sequence[Span] = ()) -> list[Piece]:
        """The pieces of a request that are new, and remember it. Nothing below `first` is one.

        A request that begins like a remembered one is new from where the two part, and comes with
        the tokens before that place, so that every n-gram across it is stored as well (of up to
        `lead_in` + 1 tokens). Negative ids stand for rows of pictures, and `left_out` for tokens
        that are not to be stored: a piece ends before them and the next begins after.
        """
        shared = max((common_prefix(ids, other) for other in self._sequences), default=0)
        self._sequences.append(ids)
        start = max(first, shared - self._lead_in)
        return pieces(ids, start, max(first, shared), left_out)

    def forget(self) -> None:
        """Remember nobody: the next request is new as a whole."""
        self._sequences.clear()


def pieces(ids: Ids, start: int, new_from: int, left_out: Sequence[Span] = ()) -> list[Piece]:
    """Runs of `ids[start:]` without what is left out, those that reach past `new_from`."""
    stored = ids >= 0
    for at, size in left_out:
        stored[at : at + size] = False
    stored[:start] = False
    edges = np.flatnonzero(np.diff(stored, prepend=False, append=False))
    runs = zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
    return [run for run in runs if run[1] > new_from]


def newest_of(pieces: Sequence[Piece], tokens_max: int) -> list[Piece]:
    """The last `tokens_max` tokens of the pieces."""
    room, kept = tokens_max, list[Piece]()
    for start, stop in reversed(pieces):
        if room <= 0:
            break
        kept.append((max(start, stop - room), stop))
        room -= stop - kept[-1][0]
    return kept[::-1]
