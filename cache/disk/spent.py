"""Where the time of saves and restores goes: seconds by what they were spent on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cache.ports import Clock

PARTS = ("copy", "checksum", "drive", "fsync", "names")
"""Copies between engine and buffers; sums; waits for transfers; syncs of files; and the calls that
make, open, reserve and rename files, syncs of the directory among them."""


class Spent:
    """Seconds that one thread spent, by what on; of overlapping work only what it waited for."""

    def __init__(self, clock: Clock, *more: str) -> None:
        """`more` are parts beside PARTS."""
        self._clock = clock
        self.seconds: dict[str, float] = dict.fromkeys((*PARTS, *more), 0.0)

    @contextmanager
    def on(self, what: str) -> Iterator[None]:
        """What happens meanwhile counts as this part."""
        assert what in self.seconds, what
        begun_s = self._clock.mono_s()
        try:
            yield
        finally:
            self.seconds[what] += self._clock.mono_s() - begun_s
