"""An open table file: its header, whether it is still the same, what the page cache has of it"""

from __future__ import annotations

import ctypes
import mmap
import os
import stat

import numpy as np
from numpy.typing import NDArray

from cache.fingerprint import weight_digest
from cache.ports import PAGE
from engine.bad import BadInput
from engine.flash.table_file import TableUnreadable, unpacked

_WINDOW_BYTES = 1 << 30
"""What the kernel is asked about at a time."""
_LIBC = ctypes.CDLL(None, use_errno=True)


class TableFile:
    """A table's file, open for reading through the page cache."""

    def __init__(self, path: str) -> None:
        """Raises BadInput for what is no sound table."""
        self.path = path
        try:
            # Without O_NONBLOCK, opening a FIFO waits for a writer for ever.
            self.handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise BadInput(path, None, f"cannot be opened: {error.strerror}") from None
        try:
            found = os.fstat(self.handle)
            if not stat.S_ISREG(found.st_mode):
                raise BadInput(path, None, "not a regular file")
            self.header = unpacked(path, os.pread(self.handle, PAGE, 0), found.st_size)
        except OSError as error:
            os.close(self.handle)
            raise BadInput(path, None, f"cannot be read: {error.strerror}") from None
        except BadInput:
            os.close(self.handle)
            raise
        self._was = _mark(found)
        self._read_pages: NDArray[np.bool_] | None = None
        """Pages that were read through the page cache, where the kernel won't say which it has."""
        if not _told(self.handle, found):
            self._read_pages = np.zeros(-(-found.st_size // mmap.PAGESIZE), np.bool_)

    def check_unchanged(self) -> None:
        """Raise TableUnreadable when somebody has cut or rewritten the file since it was opened:
        what was read is no row then, whatever the drive says."""
        if _mark(os.fstat(self.handle)) != self._was:
            raise TableUnreadable(self.path, "the file was changed after it was opened")

    def digest(self) -> str:
        """Size and content, as of any file of weights. Raises TableUnreadable."""
        try:
            found = weight_digest(self.header.file_bytes, self._read)
        except OSError as error:
            raise TableUnreadable(self.path, error.strerror or str(error)) from error
        self.check_unchanged()
        return found

    def _read(self, offset: int, nbytes: int) -> bytes:
        self.note(np.array([offset]), nbytes)
        return os.pread(self.handle, nbytes, offset)

    def note(self, offsets: NDArray[np.int64], nbytes: int) -> None:
        """So many bytes at each of these offsets come through the page cache, which may keep them.

        To be told before they are read.
        """
        if self._read_pages is None:
            return
        first, last = offsets // mmap.PAGESIZE, (offsets + nbytes - 1) // mmap.PAGESIZE
        for more in range(-(-nbytes // mmap.PAGESIZE) + 1):
            self._read_pages[np.minimum(first + more, last)] = True

    def drop(self) -> None:
        """Leave nothing of the file in the page cache."""
        os.posix_fadvise(self.handle, 0, 0, os.POSIX_FADV_DONTNEED)
        if self._read_pages is not None:
            self._read_pages.fill(False)

    def resident_bytes(self) -> int:
        """Bytes of the file that the page cache holds.

        Where the kernel doesn't say, at most what was read here: it may hold less by now, and what
        somebody else has read is not kept for this process.
        """
        if self._read_pages is None:
            return page_cache_bytes(self.handle, self.header.file_bytes)
        return int(np.count_nonzero(self._read_pages)) * mmap.PAGESIZE

    def close(self) -> None:
        """Give the handle back."""
        os.close(self.handle)


def _told(handle: int, found: os.stat_result) -> bool:
    """Whether the kernel says what it has of a file: to its owner, and to who may write it. To all
    others it says, since Linux 5.2, that it has every page.
    """
    path = f"/proc/self/fd/{handle}"
    return found.st_uid == os.geteuid() or os.access(path, os.W_OK, effective_ids=True)


def _mark(found: os.stat_result) -> tuple[int, int]:
    return found.st_size, found.st_mtime_ns


def page_cache_bytes(handle: int, nbytes: int) -> int:
    """Bytes of an open file's first `nbytes` that the page cache holds, by mincore(2).

    The mapping it takes is never touched. True for whoever `_told` is true.
    """
    pages, end = 0, min(nbytes, os.fstat(handle).st_size)
    for at in range(0, end, _WINDOW_BYTES):
        size = min(_WINDOW_BYTES, end - at)
        with mmap.mmap(handle, size, prot=mmap.PROT_READ, offset=at) as mapping:
            state = np.empty(-(-size // mmap.PAGESIZE), np.uint8)
            # No reference to the array may stay: a mapping that has one can't be closed.
            address = np.frombuffer(mapping, np.uint8).ctypes.data
            failed = _LIBC.mincore(
                ctypes.c_void_p(address), ctypes.c_size_t(size), ctypes.c_void_p(state.ctypes.data)
            )
        if failed:
            raise OSError(ctypes.get_errno(), "mincore")
        pages += int(np.count_nonzero(state & 1))
    return min(end, pages * mmap.PAGESIZE)
