"""Files whose calls take the time of a modelled drive, wherever their bytes really lie"""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from cache.ports import Files, Transfer
from sim.clock import VirtualClock
from sim.drive import Drive

Weigh = Callable[[str, int], int]
"""Board bytes that so many real bytes of a file stand for, by its name."""


@dataclass(slots=True)
class Moved:
    """Board bytes that a directory's files had moved, over all processes that used them."""

    written_bytes: int = 0
    read_bytes: int = 0


class DrivenFiles:
    """A directory on a modelled drive: a replay's files are small, the board's are what is charged.

    The clock is the caller's own: a job that waits for the drive lets its own time pass. It knows
    which handles are open, so that a process may end without giving them back.
    """

    def __init__(
        self,
        files: Files,
        drive: Drive,
        clock: VirtualClock,
        weigh: Weigh,
        capacity_bytes: int,
        moved: Moved | None = None,
        beside: Callable[[], int] = lambda: 0,
    ) -> None:
        """`capacity_bytes` is what the drive holds in all, and `beside` tells what of it other
        directories hold, in board bytes. What is moved is counted in `moved`, too."""
        self._real = files
        self._drive = drive
        self._clock = clock
        self._weigh = weigh
        self._capacity_bytes = capacity_bytes
        self._moved = moved or Moved()
        self._beside = beside
        self._weights: dict[str, int] | None = None
        """Board bytes by name, once somebody asked; kept up with what is done here."""
        self._names: dict[int, str] = {}
        self._flying: dict[_Timed, Transfer] = {}
        self._dead = False

    def abandon(self) -> None:
        """The process that used them has ended: handles and locks are the system's again.

        Whoever still holds these files can do nothing more: another process may have their handles'
        numbers by now. Bytes that were on their way arrive.
        """
        for transfer in self._flying.values():
            with suppress(OSError):
                transfer.wait()
        for handle in sorted(self._names):
            self._real.close(handle)
        self._names.clear()
        self._flying.clear()
        self._dead = True

    @property
    def _files(self) -> Files:
        if self._dead:
            raise OSError(errno.EBADF, "the process that used these files has ended")
        return self._real

    def held_bytes(self) -> int:
        """Board bytes of everything in the directory."""
        if self._weights is None:
            names = self._files.list()
            self._weights = {name: self._held(name) for name in names}
        return sum(self._weights.values())

    def _held(self, name: str) -> int:
        try:
            return self._weigh(name, self._files.size(name))
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            return 0  # A folder: what lies in it is its owner's.

    def _look(self, name: str) -> None:
        """Something was done to the file of this name."""
        if self._weights is None:
            return
        try:
            self._weights[name] = self._held(name)
        except OSError:
            self._weights.pop(name, None)

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
        self._files.write(handle, offset, data)
        self._look(self._names[handle])
        self._clock.advance_to(self._book(handle, memoryview(data).nbytes, write=True))

    def read(self, handle: int, offset: int, nbytes: int) -> bytes:
        """Up to `nbytes` from `offset`; fewer only at the file's end."""
        data = self._files.read(handle, offset, nbytes)
        self._clock.advance_to(self._book(handle, len(data), write=False))
        return data

    def buffer(self, nbytes: int) -> memoryview:
        """Page-aligned memory of whole pages, at least `nbytes`, that transfers work on."""
        return self._files.buffer(nbytes)

    def start_write(self, handle: int, offset: int, data: memoryview) -> Transfer:
        """Begin to write all of `data` at `offset`; one transfer at a time on a handle."""
        transfer = self._files.start_write(handle, offset, data)
        self._look(self._names[handle])
        return self._flies(transfer, self._book(handle, data.nbytes, write=True))

    def start_read(self, handle: int, offset: int, into: memoryview) -> Transfer:
        """Begin to fill `into` from `offset`; one transfer at a time on a handle."""
        transfer = self._files.start_read(handle, offset, into)
        return self._flies(transfer, self._book(handle, into.nbytes, write=False))

    def fsync(self, handle: int) -> None:
        """The file's bytes are on the drive."""
        self._files.fsync(handle)
        self._clock.advance_to(self._drive.sync(self._clock.mono_s()))

    def close(self, handle: int) -> None:
        """Give the handle back."""
        files = self._files
        self._names.pop(handle, None)
        files.close(handle)

    def fsyncdir(self) -> None:
        """The directory's names are on the drive."""
        self._files.fsyncdir()
        self._clock.advance_to(self._drive.sync(self._clock.mono_s()))

    def rename(self, old: str, new: str) -> None:
        """Atomically take `new`'s place."""
        self._files.rename(old, new)
        self._look(old)
        self._look(new)

    def unlink(self, name: str) -> None:
        """Remove a name."""
        self._files.unlink(name)
        self._look(name)

    def size(self, name: str) -> int:
        """Bytes in a file, as they really are."""
        return self._files.size(name)

    def exists(self, name: str) -> bool:
        """Whether the name is there."""
        return self._files.exists(name)

    def list(self) -> list[str]:
        """All names, sorted."""
        return self._files.list()

    def free_bytes(self) -> int:
        """What the modelled drive has left, or the real one, if that is less."""
        held_bytes = self.held_bytes() + self._beside()
        return min(self._files.free_bytes(), self._capacity_bytes - held_bytes)

    def preallocate(self, handle: int, nbytes: int) -> None:
        """Reserve room, so that a full drive shows before the data is written."""
        self._files.preallocate(handle, nbytes)
        self._look(self._names[handle])

    # time

    def _opened(self, handle: int, name: str) -> int:
        self._names[handle] = name
        self._look(name)
        return handle

    def _flies(self, transfer: Transfer, end_s: float) -> _Timed:
        timed = _Timed(self, end_s)
        self._flying[timed] = transfer
        return timed

    def landed(self, timed: _Timed, end_s: float) -> int:
        """A transfer is over when the bytes are there and the modelled drive says so."""
        assert self._files is self._real, "nobody waits for a process that has ended"
        moved = self._flying.pop(timed).wait()
        self._clock.advance_to(end_s)
        return moved

    def _book(self, handle: int, nbytes: int, *, write: bool) -> float:
        """When the drive will have moved so many real bytes of this file."""
        weight = self._weigh(self._names[handle], nbytes)
        if write:
            self._moved.written_bytes += round(weight)
        else:
            self._moved.read_bytes += round(weight)
        return self._drive.book(self._clock.mono_s(), weight, write=write)


class _Timed:
    """A transfer of these files."""

    def __init__(self, files: DrivenFiles, end_s: float) -> None:
        self._files = files
        self._end_s = end_s

    def wait(self) -> int:
        """Bytes moved. Raises OSError when it failed, or its process has ended."""
        return self._files.landed(self, self._end_s)
