"""The process's memory as the kernel counts it: what the memory budget asks on a CPU"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from cache.budget import Budget, Level
from cache.types import Limits
from engine.adapter import Engine

_STATM, _STATUS, _CLEAR = (Path("/proc/self") / name for name in ("statm", "status", "clear_refs"))
_M_MMAP_THRESHOLD = -3
"""glibc's mallopt: allocations from this size on are mapped, and go back when they are freed."""
MAPPED_BYTES = 1 << 20
_RESET_PEAK = b"5"
"""Written to clear_refs: the peak starts anew (proc(5))."""


COUNT_S, COUNT_SHARE = 1.0, 0.02
"""Page cache is counted again after so long, and takes no more than this share of the time: the
kernel walks the pages, a millisecond a GiB."""
SAME_S = 0.1
"""A peak, and what is in use just after it, have the same page cache in them."""


class HostMemory:
    """Memory of this process, engine, caches and everything else in it, with the page cache that
    the engine keeps on purpose: the kernel takes that for free, and gives it to whoever asks.

    Copies of rows and sections are large, so they are mapped and freed for good: nothing is in
    reserve. Without a fixed threshold glibc raises its own up to 32 MiB and keeps what is freed.
    """

    def __init__(
        self, files: Callable[[], int] = lambda: 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`files` counts the engine's page cache, in bytes that are not the process's own."""
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._files, self._clock = files, clock
        self._files_bytes, self._due_s = 0, float("-inf")
        self.files_most: Callable[[int], int] = lambda own_bytes: self._files_bytes
        """How much of the page cache may be counted beside so many bytes of the process."""
        with suppress(OSError, AttributeError):  # Another C library returns memory as it will.
            ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES)

    def own_bytes(self) -> int:
        """Resident bytes of the process."""
        return int(_STATM.read_bytes().split()[1]) * self._page_bytes

    def files_bytes(self) -> int:
        """The engine's page cache, when it was last counted."""
        now_s = self._clock()
        if now_s >= self._due_s:
            self._files_bytes = self._files()
            end_s = self._clock()
            self._due_s = end_s + max(COUNT_S, (end_s - now_s) / COUNT_SHARE)
        return self._files_bytes

    def allocated_bytes(self) -> int:
        """What the process has resident, and of the page cache what counts."""
        own, files = self.own_bytes(), self.files_bytes()
        return own + max(0, min(files, self.files_most(own))) if files else own

    def reserve_bytes(self) -> int:
        """Nothing is in reserve."""
        return 0

    def give_back(self, keep_bytes: int) -> None:
        """There is nothing to give back."""

    def mark(self) -> None:
        """`peak_bytes` starts anew from here."""
        with suppress(OSError):  # Where the kernel refuses, the peak is that since the start.
            _CLEAR.write_bytes(_RESET_PEAK)

    def peak_bytes(self) -> int:
        """The most that was in use at once since the mark."""
        own, now = self.own_bytes(), self.allocated_bytes()
        self._due_s = max(self._due_s, self._clock() + SAME_S)
        for line in _STATUS.read_bytes().splitlines():
            if line.startswith(b"VmHWM:"):
                return now - own + int(line.split()[1]) * 1024
        return now


class HostBudget(Budget):
    """A budget over this process's memory and the page cache that the engine keeps.

    Of that counts at most what the limits leave beside the engine and a prompt of the whole window.
    The caches give way to it, and turns start colder; but no prompt is refused for it, as the
    kernel gives page cache to whoever needs memory.
    """

    def __init__(self, limits: Limits, engine: Engine) -> None:
        memory = HostMemory(engine.resident_files)
        super().__init__(limits, memory, engine.cost)
        self._window = engine.window
        memory.files_most = self._files_most

    def over(self, levels: Sequence[Level]) -> None:
        """These are the caches, the cheapest to lose first."""
        self._caches = tuple(levels)
        super().over(levels)

    def _files_most(self, own_bytes: int) -> int:
        limits = self.limits
        loaded = own_bytes - sum(level.held_bytes() for level in self._caches)
        prompt = self.workspace.bytes(self._window)
        room = min(limits.ceiling_bytes, limits.peak_bytes - prompt) - limits.slack_bytes
        return room - loaded


def total_bytes() -> int:
    """The machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
