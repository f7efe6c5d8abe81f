"""Staging buffers: a few of one size, allocated before their first use and never given back."""

from __future__ import annotations

from collections import deque

from cache.budget import DRIVE, Grow
from cache.ports import Files


class Staging:
    """Buffers between an engine and a drive.

    The engine's thread makes them; that and the writer's take them and give them back.
    """

    def __init__(self, files: Files, count: int, nbytes: int, weight: int) -> None:
        """`weight` is what one counts for among the engine's memory, in bytes."""
        self._files = files
        self._count = count
        self._nbytes = nbytes
        self._weight = weight
        self._made = 0
        self._free: deque[memoryview] = deque()

    def make(self, grow: Grow) -> bool:
        """Allocate all that are not there yet; False when the machine has no memory for one."""
        while self._made < self._count:
            if not grow(DRIVE, self._weight):
                return False
            try:
                buffer = self._files.buffer(self._nbytes)
            except (OSError, MemoryError):
                return False
            self._made += 1
            self._free.append(buffer)
        return True

    def take(self) -> memoryview | None:
        """A free buffer; None when all are in use."""
        try:
            return self._free.popleft()
        except IndexError:
            return None

    def give(self, buffer: memoryview) -> None:
        """It is free again."""
        self._free.append(buffer)

    def most_bytes(self) -> int:
        """Bytes when all are there."""
        return self._count * self._weight

    def held_bytes(self) -> int:
        """Bytes of all that were allocated."""
        return self._made * self._weight
