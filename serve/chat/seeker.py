"""Fixed strings found in a text that comes in pieces, as soon as they are whole"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache


@lru_cache(maxsize=64)
def _beginnings(needles: tuple[str, ...]) -> tuple[frozenset[str], int]:
    """What the needles begin with and are more than, and the longest of it."""
    each = frozenset(needle[:size] for needle in needles for size in range(1, len(needle)))
    return each, max(map(len, each), default=0)


def partial(text: str, needles: tuple[str, ...]) -> int:
    """Characters at the end of `text` that may become one of the needles; 0 when none can."""
    beginnings, longest = _beginnings(needles)
    for size in range(min(longest, len(text)), 0, -1):
        if text[-size:] in beginnings:
            return size
    return 0


class Seeker:
    """Looks for needles; holds back no more than what may be the beginning of one.

    The needle that is complete first counts; of two that end with the same character the longer
    one. So it does not matter how the text was cut.
    """

    def __init__(self, needles: Sequence[str]) -> None:
        self._needles = tuple(needle for needle in needles if needle)
        self._held = ""

    def feed(self, text: str) -> tuple[str, str | None, str]:
        """(what comes before, the needle that is complete or None, what comes after it)."""
        if not self._needles:
            return text, None, ""
        text = self._held + text
        found = [(at + len(n), at, n) for n in self._needles if (at := text.find(n)) >= 0]
        if found:
            stop, start, needle = min(found)
            self._held = ""
            return text[:start], needle, text[stop:]
        size = partial(text, self._needles)
        self._held = text[len(text) - size :]
        return text[: len(text) - size], None, ""

    def end(self) -> str:
        """What is held back, when it is no needle."""
        held, self._held = self._held, ""
        return held
