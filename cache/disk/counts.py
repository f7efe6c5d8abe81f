"""Counts of cold reads by line: they decide what is written, never what is read."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any


class Counts:
    """How often each line, named by the hash of the prefix up to it, was read cold."""

    def __init__(self, lines_max: int) -> None:
        self._lines_max = lines_max
        self._counts: OrderedDict[int, int] = OrderedDict()

    @property
    def lines_max(self) -> int:
        """Lines that are remembered at most."""
        return self._lines_max

    @lines_max.setter
    def lines_max(self, lines_max: int) -> None:
        self._lines_max = lines_max
        self._trim()

    def __len__(self) -> int:
        return len(self._counts)

    def __getitem__(self, line: int) -> int:
        return self._counts.get(line, 0)

    def add(self, line: int) -> None:
        """It was read cold once more; the least recently read are forgotten over the cap."""
        self._counts[line] = self._counts.get(line, 0) + 1
        self._counts.move_to_end(line)
        self._trim()

    def with_one_more(self, lines: Sequence[int]) -> list[int]:
        """What the counts of these lines would be after one more read. Changes nothing."""
        return [self._counts.get(line, 0) + 1 for line in lines]

    def clear(self) -> None:
        """Forget all; only a person's wish does that."""
        self._counts.clear()

    def _trim(self) -> None:
        while len(self._counts) > self._lines_max:
            self._counts.popitem(last=False)

    # as it lies on the drive

    def plain(self) -> dict[str, int]:
        """Counts by hash, as text, the least recently read first."""
        return {f"{line:016x}": count for line, count in self._counts.items()}

    def take(self, plain: Mapping[str, Any]) -> None:
        """Take in what `plain` gave once; anything else among it is passed over."""
        for name, count in plain.items():
            try:
                line = int(name, 16)
            except ValueError:
                continue
            if type(count) is int and count > 0 and 0 <= line < 1 << 64:
                self._counts[line] = count
        self._trim()
