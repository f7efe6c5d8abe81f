"""Files that report every byte they are given to write, also of files that come to nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cache.ports import Files, Transfer

Weigh = Callable[[str, int], int]
"""What so many bytes of a file count for, by its name."""


def really(name: str, nbytes: int) -> int:
    """Bytes as they are."""
    return nbytes


class CountedFiles:
    """Other files, with a count of the writing: a drive wears by what it is handed, used or not.

    What is no call of the port is the other files' own.
    """

    def __init__(self, files: Files, wrote: Callable[[int], None], weigh: Weigh = really) -> None:
        """`wrote` is called on whatever thread writes, before each write, whatever becomes of it.

        `weigh` is asked with the name that the file was made or opened under.
        """
        self._files = files
        self._wrote = wrote
        self._weigh = weigh
        self._names: dict[int, str] = {}

    def __getattr__(self, name: str) -> Any:
        if name == "_files":  # Not made yet: a copy or a pickle asks before there is anything.
            raise AttributeError(name)
        return getattr(self._files, name)

    # the port

    def lock(self, name: str) -> int | None:
        """A handle that holds the name's lock until it is closed; None when another has it."""
        handle = self._files.lock(name)
        return None if handle is None else self._opened(handle, name)

    def create(self, name: str) -> int:
        """A new empty file, mode 0600; an existing one is emptied. Returns a handle."""
        return self._opened(self._files.create(name), name)

    def open(self, name: str) -> int:
        """A handle for reading and writing an existing file."""
        return self._opened(self._files.open(name), name)

    def write(self, handle: int, offset: int, data: bytes | memoryview) -> None:
        """Write all of `data` at `offset`."""
        self._count(handle, memoryview(data).nbytes)
        self._files.write(handle, offset, data)

    def read(self, handle: int, offset: int, nbytes: int) -> bytes:
        """Up to `nbytes` from `offset`; fewer only at the file's end."""
        return self._files.read(handle, offset, nbytes)

    def buffer(self, nbytes: int) -> memoryview:
        """Page-aligned memory of whole pages, at least `nbytes`, that transfers work on."""
        return self._files.buffer(nbytes)

    def start_write(self, handle: int, offset: int, data: memoryview) -> Transfer:
        """Begin to write all of `data` at `offset`; one transfer at a time on a handle."""
        self._count(handle, data.nbytes)
        return self._files.start_write(handle, offset, data)

    def start_read(self, handle: int, offset: int, into: memoryview) -> Transfer:
        """Begin to fill `into` from `offset`; one transfer at a time on a handle."""
        return self._files.start_read(handle, offset, into)

    def fsync(self, handle: int) -> None:
        """The file's bytes are on the drive."""
        self._files.fsync(handle)

    def close(self, handle: int) -> None:
        """Give the handle back."""
        # First: another thread may be given the same number the moment it is free.
        self._names.pop(handle, None)
        self._files.close(handle)

    def fsyncdir(self) -> None:
        """The directory's names are on the drive."""
        self._files.fsyncdir()

    def rename(self, old: str, new: str) -> None:
        """Atomically take `new`'s place."""
        self._files.rename(old, new)

    def unlink(self, name: str) -> None:
        """Remove a name."""
        self._files.unlink(name)

    def size(self, name: str) -> int:
        """Bytes in a file."""
        return self._files.size(name)

    def exists(self, name: str) -> bool:
        """Whether the name is there."""
        return self._files.exists(name)

    def list(self) -> list[str]:
        """All names, sorted."""
        return self._files.list()

    def free_bytes(self) -> int:
        """Bytes the file system leaves to this user."""
        return self._files.free_bytes()

    def preallocate(self, handle: int, nbytes: int) -> None:
        """Reserve room, so that a full drive shows before the data is written."""
        self._files.preallocate(handle, nbytes)

    # inside

    def _opened(self, handle: int, name: str) -> int:
        self._names[handle] = name
        return handle

    def _count(self, handle: int, nbytes: int) -> None:
        self._wrote(self._weigh(self._names.get(handle, ""), nbytes))
