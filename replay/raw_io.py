"""Raw direct I/O: one file written and read a piece at a time, with nothing in the way"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from cache.direct import DirectFiles
from cache.ports import Clock
from replay.rounds import Parts

RAW = "raw"
"""Name of the one file."""


class RawFile:
    """What a drive takes and gives by itself."""

    def __init__(self, files: DirectFiles, clock: Clock, step: int, seed: int) -> None:
        """Moves `step` bytes, whole pages, a call. Raises OSError and MemoryError."""
        self._files, self._clock, self._step = files, clock, step
        self._buffer = files.buffer(step)
        random = torch.Generator().manual_seed(seed)
        torch.frombuffer(self._buffer, dtype=torch.int64).random_(generator=random)

    def write(self, nbytes: int) -> Parts:
        """One file, reserved before, a piece a call, one sync. Raises OSError."""
        clock, files, handle = self._clock, self._files, self._files.create(RAW)
        try:
            files.preallocate(handle, nbytes)
            begun_s = clock.mono_s()
            for start, stop in self._pieces(nbytes):
                files.write(handle, start, self._buffer[: stop - start])
            taken_s = clock.mono_s()
            files.fsync(handle)
            ended_s = clock.mono_s()
        finally:
            files.close(handle)
        parts = {"drive": taken_s - begun_s, "fsync": ended_s - taken_s}
        return parts | {"all": ended_s - begun_s}

    def read(self, nbytes: int) -> Parts:
        """The file, from its start, a piece a call. Raises OSError."""
        files, handle = self._files, self._files.open(RAW)
        try:
            begun_s = self._clock.mono_s()
            for start, stop in self._pieces(nbytes):
                files.start_read(handle, start, self._buffer[: stop - start]).wait()
            all_s = self._clock.mono_s() - begun_s
        finally:
            files.close(handle)
        return {"drive": all_s, "all": all_s}

    def remove(self) -> None:
        """It is gone, its name as well. Raises OSError."""
        self._files.unlink(RAW)
        self._files.fsyncdir()

    def _pieces(self, nbytes: int) -> Iterator[tuple[int, int]]:
        for start in range(0, nbytes, self._step):
            yield start, min(start + self._step, nbytes)
