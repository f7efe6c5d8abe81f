"""The n-gram table from the drive: direct reads of the sectors needed, behind a hot-row cache"""

from __future__ import annotations

import errno
import os
import threading
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from cache.ports import PAGE
from engine.bad import BadInput
from engine.flash.table_file import SECTOR, Header, TableUnreadable
from engine.flash.table_handle import TableFile
from engine.flash.table_hot import HotRows
from engine.flash.table_lane import Lane

LANE_BYTES = 4 << 20
"""What is read at a time. Every call that reads at once with others has as much of its own."""
LANES_KEPT = 2

Offsets = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Reads:
    """What is read for some rows: pieces of the file, and where each row lies in their bytes."""

    offsets: Offsets
    sizes: Offsets
    places: Offsets
    """One a row, in the pieces laid end to end."""


def reads_of(keys: Offsets, header: Header, unit: int) -> Reads:
    """The reads for these keys, ascending: whole units, each once, neighbours as one piece."""
    first = PAGE + keys * header.stride
    low = first // unit * unit
    high = -(-(first + header.row_bytes) // unit) * unit
    begins = np.ones(len(keys), np.bool_)
    begins[1:] = low[1:] > high[:-1]
    starts = np.flatnonzero(begins)
    last = np.append(starts[1:], len(keys)) - 1
    offsets, sizes = low[starts], high[last] - low[starts]
    piece = np.cumsum(begins) - 1
    return Reads(offsets, sizes, (np.cumsum(sizes) - sizes)[piece] + first - offsets[piece])


class ColdTable:
    """Rows around the page cache. Any thread may ask; twins share one."""

    def __init__(self, path: str, cache_bytes: int, lane_bytes: int = LANE_BYTES) -> None:
        """Raises BadInput. Beside the cache it takes `lane_bytes` for each call that reads at
        once with others, two of which stay."""
        self.file = TableFile(path)
        self.header = self.file.header
        self.said = ""
        """Why rows go through the page cache after all, or one by one; "" while they don't."""
        with ExitStack() as undo:
            undo.callback(self.file.close)
            self._handle, self.unit = self._open()
            undo.pop_all()
        self.file.drop()
        self.hot = HotRows(self.header.rows, self.header.row_bytes, cache_bytes)
        # A row may begin within a unit and end within another.
        most = self.header.row_bytes + 2 * self.unit
        self._lane_bytes = -(-max(lane_bytes, most) // PAGE) * PAGE
        self._step = self._lane_bytes // (-(-self.header.row_bytes // self.unit) + 1) // self.unit
        self._lanes: list[Lane] = []
        self._lock = threading.Lock()
        # Made now, so that all is said before the first call.
        self._give_lane(self._take_lane())
        self.counters: Counter[str] = Counter()
        """Rows asked for, other rows, of these found and read; reads and their bytes."""

    def rows(self, keys: torch.Tensor) -> torch.Tensor:
        """Rows [n, width] of int64 keys [n] in [0, rows). Raises TableUnreadable."""
        asked = keys.numpy()
        assert asked.ndim == 1 and asked.dtype == np.int64, (asked.ndim, asked.dtype)
        unique, where = np.unique(asked, return_inverse=True)
        if not len(unique):
            return torch.empty(0, self.header.width, dtype=self.header.dtype)
        assert unique[0] >= 0 and unique[-1] < self.header.rows, "a key that is no row"
        found = np.empty((len(unique), self.header.row_bytes), np.uint8)
        with self._lock:
            here = self.hot.take(unique, found)
            self.counters.update(asked=len(asked), other=len(unique), found=int(here.sum()))
        missing = np.flatnonzero(~here)
        for at in range(0, len(missing), self._step):
            some = missing[at : at + self._step]
            found[some] = self._read(unique[some])
            with self._lock:
                self.hot.put(unique[some], found[some])
        return torch.from_numpy(found[where]).view(self.header.dtype)

    def resident_bytes(self) -> int:
        """Page cache that these reads leave: none, but where the file system wants it."""
        return self.file.resident_bytes() if self._handle == self.file.handle else 0

    def digest(self) -> str:
        """Size and content, as of any file of weights. Raises TableUnreadable."""
        try:
            return self.file.digest()
        finally:
            self.file.drop()

    def close(self) -> None:
        """No rows any more."""
        for lane in self._lanes:
            lane.close()
        self._lanes.clear()
        if self._handle != self.file.handle:
            os.close(self._handle)
        self.file.close()

    def _read(self, keys: Offsets) -> NDArray[np.uint8]:
        """Rows of ascending keys, as many as a lane has room for."""
        reads = reads_of(keys, self.header, self.unit)
        lane = self._take_lane()
        try:
            moved = lane.read(self._handle, reads.offsets, reads.sizes)
        except OSError as error:
            # What is under way may still write to the lane: it goes.
            raise TableUnreadable(self.file.path, error.strerror or str(error)) from error
        rows = _gathered(lane.bytes, reads.places, self.header)
        self._give_lane(lane)
        with self._lock:
            nbytes = int(reads.sizes.sum())
            self.counters.update(read=len(keys), reads=len(moved), read_bytes=nbytes)
        if self._handle == self.file.handle:
            self.file.drop()
        if (failed := moved[moved < 0]).size:
            raise TableUnreadable(self.file.path, os.strerror(-int(failed[0])))
        if (moved != reads.sizes).any():
            raise TableUnreadable(self.file.path, "the file ends before its last row")
        self.file.check_unchanged()
        return rows

    def _take_lane(self) -> Lane:
        with self._lock:
            if self._lanes:
                return self._lanes.pop()
        lane = Lane(self._lane_bytes)
        if not (lane.queued or self.said):
            self.said = "the kernel has no asynchronous reads to give; rows are read one by one"
        return lane

    def _give_lane(self, lane: Lane) -> None:
        with self._lock:
            if len(self._lanes) < LANES_KEPT:
                self._lanes.append(lane)
                return
        lane.close()

    def _open(self) -> tuple[int, int]:
        """A handle, and the bytes that a read of it is a multiple of; raises BadInput."""
        path = self.file.path
        try:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_DIRECT)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise BadInput(path, None, f"cannot be opened: {error.strerror}") from None
            handle = -1
        if handle >= 0:
            if os.path.sameopenfile(handle, self.file.handle):
                for unit in (SECTOR, PAGE):
                    if _takes(handle, unit):
                        return handle, unit
                os.close(handle)
            else:
                os.close(handle)
                raise BadInput(path, None, "was replaced while it was opened")
        self.said = "the file system refuses O_DIRECT; pages are dropped after use"
        with suppress(OSError):  # Without it a read takes its neighbours along.
            os.posix_fadvise(self.file.handle, 0, 0, os.POSIX_FADV_RANDOM)
        return self.file.handle, SECTOR


def _takes(handle: int, unit: int) -> bool:
    """Whether direct reads of this size are served."""
    lane = Lane(PAGE)
    try:
        offset, size = np.array([PAGE]), np.array([unit])
        return int(lane.read(handle, offset, size)[0]) == unit
    finally:
        lane.close()


def _gathered(memory: NDArray[np.uint8], places: Offsets, header: Header) -> NDArray[np.uint8]:
    """Copies of the rows that begin at these places."""
    size = header.row_bytes
    # A window of a row's size at every byte.
    windows = np.ndarray((len(memory) - size + 1, size), np.uint8, memory, strides=(1, 1))
    return windows[places]
