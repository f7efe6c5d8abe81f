"""The n-gram table through the page cache, which keeps what is free to be kept

Rows are read, not touched in a mapping: there a file that was cut short, or a bad sector, ends the
whole process (SIGBUS), and what was touched counts as this process's memory a second time.
"""

from __future__ import annotations

import errno
import os

import numpy as np
import torch
from numpy.typing import NDArray

from cache.ports import PAGE
from engine.flash.table_file import TableUnreadable
from engine.flash.table_handle import TableFile


class WarmTable:
    """Rows by buffered reads. Any thread may ask; twins share one."""

    def __init__(self, path: str) -> None:
        """Raises BadInput."""
        self.file = TableFile(path)
        self.header = self.file.header
        self.said = ""
        self._flags = os.RWF_NOWAIT

    def rows(self, keys: torch.Tensor) -> torch.Tensor:
        """Rows [n, width] of int64 keys [n] in [0, rows). Raises TableUnreadable."""
        assert keys.ndim == 1 and keys.dtype == torch.int64, (keys.ndim, keys.dtype)
        header, count = self.header, len(keys)
        if not count:
            return torch.empty(0, header.width, dtype=header.dtype)
        assert int(keys.min()) >= 0 and int(keys.max()) < header.rows, "a key that is no row"
        found, offsets = np.empty((count, header.row_bytes), np.uint8), PAGE + keys * header.stride
        self.file.note(offsets.numpy(), header.row_bytes)
        try:
            self._fill(found, offsets.tolist())
            self.file.check_unchanged()
        except OSError as error:
            raise TableUnreadable(self.file.path, error.strerror or str(error)) from error
        return torch.from_numpy(found).view(header.dtype)

    def _fill(self, found: NDArray[np.uint8], offsets: list[int]) -> None:
        size, view, late = self.header.row_bytes, found.reshape(-1).data, []
        for row, offset in enumerate(offsets):
            piece = view[row * size : (row + 1) * size]
            if self._at_once(piece, offset) != size:
                # All that the drive must give is under way before anything is waited for.
                os.posix_fadvise(self.file.handle, offset, size, os.POSIX_FADV_WILLNEED)
                late.append((piece, offset))
        for piece, offset in late:
            if os.preadv(self.file.handle, [piece], offset) != size:
                raise TableUnreadable(self.file.path, "the file ends before its last row")

    def _at_once(self, piece: memoryview, offset: int) -> int:
        """Read what the page cache has; how many bytes, which may be none."""
        try:
            return os.preadv(self.file.handle, [piece], offset, self._flags)
        except BlockingIOError:
            return 0
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP or not self._flags:
                raise
            self._flags = 0  # A file system that can't say what it has.
            return os.preadv(self.file.handle, [piece], offset)

    def resident_bytes(self) -> int:
        """Bytes of the table that the page cache holds, as far as the kernel says."""
        return self.file.resident_bytes()

    def digest(self) -> str:
        """Size and content, as of any file of weights. Raises TableUnreadable."""
        return self.file.digest()

    def close(self) -> None:
        """No rows any more."""
        self.file.close()
