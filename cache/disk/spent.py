"""Where the time of saves and restores goes: seconds by what they were spent on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

from cache.ports import Clock

What = Literal["copy", "checksum", "drive", "fsync", "names"]
"""Copies between engine and buffers; sums; waits for transfers; syncs of files; and the calls that
make, open, reserve and rename files, syncs of the directory among them."""


class Spent:
    """Seconds that one thread spent, by what on; of overlapping work only what it waited for."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.seconds: dict[What, float] = dict.fromkeys(get_args(What), 0.0)

    @contextmanager
    def on(self, what: What) -> Iterator[None]:
        """What happens meanwhile counts as this."""
        begun_s = self._clock.mono_s()
        try:
            yield
        finally:
            self.seconds[what] += self._clock.mono_s() - begun_s
