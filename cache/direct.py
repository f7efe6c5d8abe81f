"""Files around the page cache: whole pages between page-aligned memory and the drive."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np

from cache.host import OsFiles
from cache.ports import PAGE


class DirectFiles(OsFiles):
    """OsFiles by O_DIRECT, so that a tier's traffic pushes nothing out of the page cache.

    Whatever the file system, an offset, a length or an address that is no multiple of PAGE fails
    with EINVAL: some would take it, some take it apart.
    """

    def __init__(self, root: Path) -> None:
        """Makes the directory."""
        super().__init__(root)
        self.said = ""
        """Why these files go through the page cache after all; "" while none had to."""

    def _open(self, name: str, flags: int) -> int:
        if not self.said:
            try:
                return super()._open(name, flags | os.O_DIRECT)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
        handle = super()._open(name, flags)
        # What cannot be opened either way says nothing of the file system.
        self.said = "the file system refuses O_DIRECT; pages are dropped after use"
        return handle

    def read(self, handle: int, offset: int, nbytes: int) -> bytes:
        """Up to `nbytes` from `offset`, both multiples of PAGE; fewer only at the file's end."""
        _check(offset, nbytes)
        into = self.buffer(nbytes)[:nbytes]
        return bytes(into[: self._read(handle, offset, into)])

    def fsync(self, handle: int) -> None:
        """The file's bytes are on the drive."""
        super().fsync(handle)
        self._drop(handle, 0, 0)

    def _write(self, handle: int, offset: int, rest: memoryview) -> int:
        asked = len(rest)
        _check(offset, asked, rest)
        while rest:
            done = os.pwrite(handle, rest, offset) // PAGE * PAGE
            if not done:
                raise OSError(errno.EIO, "the drive took less than a page")
            rest, offset = rest[done:], offset + done
        return asked

    def _read(self, handle: int, offset: int, rest: memoryview) -> int:
        asked, start = len(rest), offset
        _check(offset, asked, rest)
        while rest and (done := os.preadv(handle, [rest], offset)):
            if done % PAGE and offset + done >= os.fstat(handle).st_size:
                rest, offset = rest[done:], offset + done
                break  # The end of a file that is no whole pages.
            done = done // PAGE * PAGE
            if not done:
                raise OSError(errno.EIO, "the drive gave less than a page")
            rest, offset = rest[done:], offset + done
        self._drop(handle, start, asked)
        return asked - len(rest)

    def _drop(self, handle: int, offset: int, nbytes: int) -> None:
        """Where pages went through the cache, leave none there; 0 bytes are all."""
        if self.said:
            os.posix_fadvise(handle, offset, nbytes, os.POSIX_FADV_DONTNEED)


def _check(offset: int, nbytes: int, memory: memoryview | None = None) -> None:
    address = np.frombuffer(memory, np.uint8).ctypes.data if memory and nbytes else 0
    if offset % PAGE or nbytes % PAGE or address % PAGE:
        what = f"{nbytes} bytes at {offset}, memory at {address:#x}"
        raise OSError(errno.EINVAL, f"not whole pages: {what}")
