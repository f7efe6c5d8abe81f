"""Files that kill their own process before a chosen call, or with a write half done."""

from __future__ import annotations

import signal
from collections.abc import Callable

from cache.ports import PAGE, Files, Transfer


def sigkill() -> None:
    """End this process as a crash does: nothing is flushed, no handler runs."""
    signal.raise_signal(signal.SIGKILL)


class KillFiles:
    """Passes calls on, and kills at point `at`: one before every call, one inside every write
    or start of one.

    What the system was given before survives, synced or not: a killed process loses no page cache.
    So this sees half-written files and names, never a missing fsync.
    """

    def __init__(self, inner: Files, at: int | None, kill: Callable[[], None] = sigkill) -> None:
        self._inner = inner
        self._at = at
        self._kill = kill
        self.points = 0
        """Points passed so far."""

    def _point(self) -> None:
        if self.points == self._at:
            self._kill()
        self.points += 1

    def create(self, name: str) -> int:
        """A new empty file."""
        self._point()
        return self._inner.create(name)

    def open(self, name: str) -> int:
        """A handle of an existing file."""
        self._point()
        return self._inner.open(name)

    def lock(self, name: str) -> int | None:
        """The lock."""
        self._point()
        return self._inner.lock(name)

    def write(self, handle: int, offset: int, data: bytes | memoryview) -> None:
        """All of `data`, or its first half."""
        self._point()
        if self.points == self._at:
            self._inner.write(handle, offset, data[: _half(len(data))])
        self._point()
        self._inner.write(handle, offset, data)

    def read(self, handle: int, offset: int, nbytes: int) -> bytes:
        """Bytes of a file."""
        self._point()
        return self._inner.read(handle, offset, nbytes)

    def buffer(self, nbytes: int) -> memoryview:
        """Page-aligned memory."""
        self._point()
        return self._inner.buffer(nbytes)

    def start_write(self, handle: int, offset: int, data: memoryview) -> Transfer:
        """All of `data`, or its first half and the end."""
        self._point()
        if self.points == self._at:
            self._inner.start_write(handle, offset, data[: _half(len(data))]).wait()
        self._point()
        return self._inner.start_write(handle, offset, data)

    def start_read(self, handle: int, offset: int, into: memoryview) -> Transfer:
        """Bytes of a file."""
        self._point()
        return self._inner.start_read(handle, offset, into)

    def fsync(self, handle: int) -> None:
        """The file is on the drive."""
        self._point()
        self._inner.fsync(handle)

    def close(self, handle: int) -> None:
        """Give the handle back."""
        self._point()
        self._inner.close(handle)

    def fsyncdir(self) -> None:
        """The names are on the drive."""
        self._point()
        self._inner.fsyncdir()

    def rename(self, old: str, new: str) -> None:
        """Take `new`'s place."""
        self._point()
        self._inner.rename(old, new)

    def unlink(self, name: str) -> None:
        """Remove a name."""
        self._point()
        self._inner.unlink(name)

    def size(self, name: str) -> int:
        """Bytes in a file."""
        self._point()
        return self._inner.size(name)

    def exists(self, name: str) -> bool:
        """Whether the name is there."""
        self._point()
        return self._inner.exists(name)

    def list(self) -> list[str]:
        """All names."""
        self._point()
        return self._inner.list()

    def free_bytes(self) -> int:
        """Bytes the file system leaves."""
        self._point()
        return self._inner.free_bytes()

    def preallocate(self, handle: int, nbytes: int) -> None:
        """Reserve room."""
        self._point()
        self._inner.preallocate(handle, nbytes)


def _half(nbytes: int) -> int:
    """Bytes of the first half; of whole pages as many whole ones, as direct I/O takes no other."""
    return nbytes // 2 if nbytes % PAGE else nbytes // PAGE // 2 * PAGE
