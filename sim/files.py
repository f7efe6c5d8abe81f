"""Files in memory: direct I/O's rules, faults, and a log for the crash states."""

from __future__ import annotations

import errno
import mmap
from collections.abc import Callable, Mapping

import numpy as np

from cache.ports import PAGE
from sim.directory import Directory, Inode
from sim.faults import Fault, Rot, Short
from sim.micro import Note, Op
from sim.moved import Moved


class SimFiles:
    """Files of one machine. Reads and writes that are not whole pages fail with EINVAL.

    What a power cut may leave is found from `log` and the state at the start (sim.crash). Nothing
    takes any time here: sim.driven_files puts a drive before any files.
    """

    def __init__(
        self,
        state: Mapping[str, bytes] | None = None,
        *,
        direct: bool = True,
        logs: bool = True,
        capacity_bytes: int = 1 << 40,
    ) -> None:
        """`state` is durable. Without `direct` any offset and length will do."""
        self._direct = direct
        self._directory = Directory(capacity_bytes, logs=logs)
        for name, data in sorted((state or {}).items()):
            self._directory.load(_checked(name), data)
        self._open: dict[int, Inode] = {}
        self._locked: dict[int, int] = {}
        self._moving: set[int] = set()
        self._last_handle = 0
        self.fault: Fault | None = None
        self.calls = 0
        """Calls of the port so far, `buffer` and `wait` not among them."""
        self.failed = 0
        """Calls that the fault has hit."""
        self.rot: Rot | None = None
        self.short: Short | None = None
        self.free: Callable[[], int] | None = None
        """What `free_bytes` gives; None for what the capacity leaves."""

    # what a test asks

    @property
    def log(self) -> list[Op]:
        """Every step so far; empty without `logs`."""
        return self._directory.log

    def snapshot(self) -> dict[str, bytes]:
        """Every name's bytes, as a process sees them now."""
        return {name: bytes(inode.data) for name, inode in sorted(self._directory.names.items())}

    def note(self, what: str) -> None:
        """Put into the log what somebody was told."""
        self._directory.did(Note(what))

    @property
    def handles(self) -> frozenset[int]:
        """Handles not given back."""
        return frozenset(self._open)

    # the port

    def lock(self, name: str) -> int | None:
        """A handle that holds the name's lock until it is closed; None when another has it."""
        self._call()
        inode = self._directory.names.get(_checked(name)) or self._directory.create(name)
        if inode.number in self._locked.values():
            return None
        handle = self._handle(inode)
        self._locked[handle] = inode.number
        return handle

    def create(self, name: str) -> int:
        """A new empty file; an existing one is emptied."""
        self._call()
        inode = self._directory.names.get(_checked(name)) or self._directory.create(name)
        self._directory.truncate(inode)
        return self._handle(inode)

    def open(self, name: str) -> int:
        """A handle of an existing file."""
        self._call()
        return self._handle(self._directory.named(_checked(name)))

    def write(self, handle: int, offset: int, data: bytes | memoryview) -> None:
        """Write all of `data` at `offset`."""
        self.start_write(handle, offset, memoryview(data)).wait()

    def read(self, handle: int, offset: int, nbytes: int) -> bytes:
        """Up to `nbytes` from `offset`; fewer only at the file's end."""
        into = self.buffer(nbytes)[:nbytes]
        return bytes(into[: self.start_read(handle, offset, into).wait()])

    def buffer(self, nbytes: int) -> memoryview:
        """Page-aligned memory of whole pages, at least `nbytes`."""
        return memoryview(mmap.mmap(-1, max(1, -(-nbytes // PAGE)) * PAGE))

    def start_write(self, handle: int, offset: int, data: memoryview) -> Moved:
        """Write all of `data` at `offset`; every error comes out of `wait`."""
        data = data.cast("B")
        try:
            failed = self._failure()
            inode = self._for_transfer(handle, offset, data)
            half = len(data) // 2 if self.fault is not None and self.fault.half else 0
            done = bytes(data[:half] if failed else data)
            self._directory.put(inode, offset, done)
        except OSError as error:
            return Moved(data, lambda: None, error=error)
        arrive = self._started(handle)
        return Moved(data, arrive, moved=len(done), error=failed)

    def start_read(self, handle: int, offset: int, into: memoryview) -> Moved:
        """Fill `into` from `offset`, at `wait`; every error comes out of there."""
        into = into.cast("B")
        try:
            failed = self._failure()
            inode = self._for_transfer(handle, offset, into)
        except OSError as error:
            return Moved(into, lambda: None, error=error)
        whole = bytes(inode.data) if self.rot is None else self.rot(inode.name, bytes(inode.data))
        found = whole[offset : offset + len(into)]
        if failed:
            found = found[: len(found) // 2 if self.fault and self.fault.half else 0]
        if self.short is not None:
            found = found[: self.short(inode.name, len(found))]
        arrive = self._started(handle)
        return Moved(into, arrive, found=found, moved=len(found), error=failed)

    def fsync(self, handle: int) -> None:
        """The file's bytes are on the drive."""
        failed = self._failure()
        inode = self._inode(handle)
        if failed and self.fault is not None:
            self._directory.sync_failed(inode, reverts=self.fault.reverts)
            raise failed
        self._directory.synced(inode)

    def close(self, handle: int) -> None:
        """Give the handle back, even where it fails."""
        failed = self._failure()
        self._inode(handle)
        assert handle not in self._moving, "closed under a transfer"
        del self._open[handle]
        self._locked.pop(handle, None)
        if failed:
            raise failed

    def fsyncdir(self) -> None:
        """The names are on the drive."""
        self._call()
        self._directory.names_synced()

    def rename(self, old: str, new: str) -> None:
        """Atomically take `new`'s place."""
        self._call()
        self._directory.rename(_checked(old), _checked(new))

    def unlink(self, name: str) -> None:
        """Remove a name."""
        self._call()
        self._directory.unlink(_checked(name))

    def size(self, name: str) -> int:
        """Bytes in a file."""
        self._call()
        return len(self._directory.named(_checked(name)).data)

    def exists(self, name: str) -> bool:
        """Whether the name is there."""
        self._call()
        return _checked(name) in self._directory.names

    def list(self) -> list[str]:
        """All names, sorted."""
        self._call()
        return sorted(self._directory.names)

    def free_bytes(self) -> int:
        """Bytes the drive has left."""
        self._call()
        return self._directory.room_bytes if self.free is None else self.free()

    def preallocate(self, handle: int, nbytes: int) -> None:
        """Reserve room: a shorter file becomes `nbytes` long."""
        self._call()
        self._directory.grow(self._inode(handle), nbytes)

    # inside

    def _failure(self) -> OSError | None:
        """Count a call; what it is to fail with."""
        number, self.calls = self.calls, self.calls + 1
        if self.fault is None or not self.fault.hits(number):
            return None
        self.failed += 1
        return self.fault.error()

    def _call(self) -> None:
        if failed := self._failure():
            raise failed

    def _handle(self, inode: Inode) -> int:
        self._last_handle += 1
        self._open[self._last_handle] = inode
        return self._last_handle

    def _inode(self, handle: int) -> Inode:
        inode = self._open.get(handle)
        if inode is None:
            raise OSError(errno.EBADF, f"no open handle {handle}")
        return inode

    def _for_transfer(self, handle: int, offset: int, memory: memoryview) -> Inode:
        inode, nbytes = self._inode(handle), len(memory)
        assert handle not in self._moving, "two transfers at a time on a handle"
        address = np.frombuffer(memory, np.uint8).ctypes.data if nbytes else 0
        if offset < 0 or (self._direct and (offset % PAGE or nbytes % PAGE or address % PAGE)):
            raise OSError(
                errno.EINVAL, f"not whole pages: {nbytes} bytes at {offset}, {address:#x}"
            )
        return inode

    def _started(self, handle: int) -> Callable[[], None]:
        """A transfer begins on a handle; what ends it."""
        self._moving.add(handle)
        return lambda: self._moving.discard(handle)


def _checked(name: str) -> str:
    assert name and "/" not in name and name not in (".", ".."), name
    return name
