"""The process's memory as the kernel counts it: what the memory budget asks on a CPU"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path

_STATM, _STATUS, _CLEAR = (Path("/proc/self") / name for name in ("statm", "status", "clear_refs"))
_M_MMAP_THRESHOLD = -3
"""glibc's mallopt: allocations from this size on are mapped, and go back when they are freed."""
MAPPED_BYTES = 1 << 20
_RESET_PEAK = b"5"
"""Written to clear_refs: the peak starts anew (proc(5))."""


class HostMemory:
    """Resident memory of this process: engine, caches, and everything else in it.

    Copies of rows and sections are large, so they are mapped and freed for good: nothing is in
    reserve. Without a fixed threshold glibc raises its own up to 32 MiB and keeps what is freed.
    """

    def __init__(self) -> None:
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        with suppress(OSError, AttributeError):  # Another C library returns memory as it will.
            ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES)

    def allocated_bytes(self) -> int:
        """Resident bytes."""
        return int(_STATM.read_bytes().split()[1]) * self._page_bytes

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
        """The most that was resident at once since the mark."""
        for line in _STATUS.read_bytes().splitlines():
            if line.startswith(b"VmHWM:"):
                return int(line.split()[1]) * 1024
        return self.allocated_bytes()


def total_bytes() -> int:
    """The machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
