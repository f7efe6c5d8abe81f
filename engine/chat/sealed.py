"""Content that can't forge structure: what looks like a special token is sealed while rendered"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

MARK = "\U0010fffd"
"""Begins and ends a seal; one in content is sealed itself."""
_SEAL = re.compile(f"{MARK}([a-z]?)([0-9]+){MARK}")
START, STOP = f"{MARK}s0{MARK}", f"{MARK}e0{MARK}"
"""Stand in a text for a place in it, and for nothing else."""


class Seals:
    """Seals texts for one set of special tokens, and takes what was rendered apart again.

    A template joins texts as it likes, so that two that are harmless could make a special token
    together, or with what the template writes: the ends of texts are sealed where that may be. A
    seal is no whitespace, so that a template trims and splits a sealed text as it would the text.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(sorted(names, key=len, reverse=True))
        self._found = re.compile("|".join(map(re.escape, (*self._names, MARK))))
        self._split = re.compile("(" + "|".join(map(re.escape, self._names)) + ")")
        self._known = (*self._names, MARK)
        self._number = {text: number for number, text in enumerate(self._known)}

    def text(self, text: str) -> str:
        """A text in which nothing is a special token, and which can't become one by its ends."""
        whole = self._found.sub(lambda m: f"{MARK}{self._number[m.group()]}{MARK}", text)
        if not whole:
            return whole
        start = next((i for i, c in enumerate(whole) if not c.isspace()), 0)
        stop = len(whole) - next((i for i, c in enumerate(reversed(whole)) if not c.isspace()), 0)
        sealed = {
            at
            for a, b in ((0, len(whole)), (start, stop))
            for at, joins in ((a, self._ends(whole[a:b])), (b - 1, self._begins(whole[a:b])))
            if joins
        }
        for at in sorted(sealed, reverse=True):
            if whole[at] != MARK:
                whole = f"{whole[:at]}{MARK}c{ord(whole[at])}{MARK}{whole[at + 1 :]}"
        return whole

    def value(self, value: Any) -> Any:
        """A JSON value with all of its texts sealed, its keys too."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.value(key): self.value(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        return value

    def pieces(self, rendered: str) -> Iterator[tuple[str, bool]]:
        """(text, whether it is a special token) of what was rendered, one after another; the texts
        are still sealed."""
        for number, piece in enumerate(self._split.split(rendered)):
            if piece:
                yield piece, number % 2 == 1

    def opened(self, text: str) -> str:
        """A text with its seals broken, and without places."""
        return _SEAL.sub(self._open, text)

    def _open(self, match: re.Match[str]) -> str:
        kind, number = match[1], int(match[2])
        if kind:
            return chr(number) if kind == "c" else ""
        return self._known[number]

    def _ends(self, text: str) -> bool:
        """Whether the text's beginning may be the rest of a special token."""
        return any(
            text.startswith(name[at:]) or name.startswith(text, at)
            for name in self._names
            for at in range(1, len(name))
            if name[at] == text[0]
        )

    def _begins(self, text: str) -> bool:
        """Whether the text's end may be the beginning of a special token."""
        return any(
            text.endswith(name[:stop])
            for name in self._names
            for stop in range(1, len(name))
            if name[stop - 1] == text[-1]
        )
