"""A directory in memory that keeps the rules of direct I/O, and a log of its smallest steps."""

from __future__ import annotations

import errno
import mmap
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from cache.ports import PAGE, Transfer
from sim.micro import (
    PIECE,
    Create,
    Data,
    Fsync,
    FsyncDir,
    Grow,
    Note,
    Op,
    Rename,
    Truncate,
    Unlink,
)


@dataclass
class Inode:
    """A file: its bytes as a reader sees them."""

    number: int
    data: bytearray = field(default_factory=bytearray)


class Moved:
    """A transfer that has been made."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes

    def wait(self) -> int:
        """Bytes moved."""
        return self._nbytes


class SimFiles:
    """Files of one machine. Reads and writes that are not whole pages fail with EINVAL.

    What a power cut may leave is found from `log` and the state at the start (sim.crash).
    """

    def __init__(
        self, state: Mapping[str, bytes] | None = None, *, direct: bool = True, logs: bool = True
    ) -> None:
        """`state` is durable. Without `direct` any offset and length will do."""
        self._direct, self._logs = direct, logs
        self.log: list[Op] = []
        self.free = 1 << 40
        """Bytes that `free_bytes` gives."""
        self._names: dict[str, Inode] = {}
        self._open: dict[int, Inode] = {}
        self._locked: dict[int, int] = {}
        self._last_inode = self._last_handle = 0
        for name, data in sorted((state or {}).items()):
            self._make(name).data[:] = data

    # what a test asks

    def snapshot(self) -> dict[str, bytes]:
        """Every name's bytes, as a process sees them now."""
        return {name: bytes(inode.data) for name, inode in sorted(self._names.items())}

    def note(self, what: str) -> None:
        """Put into the log what somebody was told."""
        self._did(Note(what))

    @property
    def handles(self) -> frozenset[int]:
        """Handles not given back."""
        return frozenset(self._open)

    # the port

    def lock(self, name: str) -> int | None:
        """A handle that holds the name's lock until it is closed; None when another has it."""
        inode = self._names.get(_checked(name)) or self._created(name)
        if inode.number in self._locked.values():
            return None
        handle = self._handle(inode)
        self._locked[handle] = inode.number
        return handle

    def create(self, name: str) -> int:
        """A new empty file; an existing one is emptied."""
        inode = self._names.get(_checked(name))
        if inode is None:
            inode = self._created(name)
        elif inode.data:
            inode.data.clear()
            self._did(Truncate(inode.number))
        return self._handle(inode)

    def open(self, name: str) -> int:
        """A handle of an existing file."""
        return self._handle(self._named(name))

    def write(self, handle: int, offset: int, data: bytes | memoryview) -> None:
        """Write all of `data` at `offset`."""
        self.start_write(handle, offset, memoryview(data)).wait()

    def read(self, handle: int, offset: int, nbytes: int) -> bytes:
        """Up to `nbytes` from `offset`; fewer only at the file's end."""
        inode = self._inode(handle)
        self._check(offset, nbytes)
        return bytes(inode.data[offset : offset + nbytes])

    def buffer(self, nbytes: int) -> memoryview:
        """Page-aligned memory of whole pages, at least `nbytes`."""
        return memoryview(mmap.mmap(-1, max(1, -(-nbytes // PAGE)) * PAGE))

    def start_write(self, handle: int, offset: int, data: memoryview) -> Transfer:
        """Write all of `data` at `offset`."""
        inode = self._inode(handle)
        self._check(offset, data.nbytes, data)
        self._put(inode, offset, data.cast("B"))
        return Moved(data.nbytes)

    def start_read(self, handle: int, offset: int, into: memoryview) -> Transfer:
        """Fill `into` from `offset`."""
        inode = self._inode(handle)
        self._check(offset, into.nbytes, into)
        found = inode.data[offset : offset + into.nbytes]
        into.cast("B")[: len(found)] = found
        return Moved(len(found))

    def fsync(self, handle: int) -> None:
        """The file's bytes are on the drive."""
        self._did(Fsync(self._inode(handle).number))

    def close(self, handle: int) -> None:
        """Give the handle back."""
        self._inode(handle)
        del self._open[handle]
        self._locked.pop(handle, None)

    def fsyncdir(self) -> None:
        """The names are on the drive."""
        self._did(FsyncDir())

    def rename(self, old: str, new: str) -> None:
        """Atomically take `new`'s place."""
        inode = self._named(old)
        if _checked(new) != old:
            del self._names[old]
            self._names[new] = inode
            self._did(Rename(old, new, inode.number))

    def unlink(self, name: str) -> None:
        """Remove a name."""
        inode = self._named(name)
        del self._names[name]
        self._did(Unlink(name, inode.number))

    def size(self, name: str) -> int:
        """Bytes in a file."""
        return len(self._named(name).data)

    def exists(self, name: str) -> bool:
        """Whether the name is there."""
        return _checked(name) in self._names

    def list(self) -> list[str]:
        """All names, sorted."""
        return sorted(self._names)

    def free_bytes(self) -> int:
        """Bytes the drive has left."""
        return self.free

    def preallocate(self, handle: int, nbytes: int) -> None:
        """Reserve room: a shorter file becomes `nbytes` long."""
        inode = self._inode(handle)
        if nbytes:
            self._grow(inode, nbytes)
            self._did(Grow(inode.number, nbytes))

    # inside

    def _make(self, name: str) -> Inode:
        self._last_inode += 1
        inode = self._names[_checked(name)] = Inode(self._last_inode)
        return inode

    def _created(self, name: str) -> Inode:
        inode = self._make(name)
        self._did(Create(name, inode.number))
        return inode

    def _named(self, name: str) -> Inode:
        inode = self._names.get(_checked(name))
        if inode is None:
            raise OSError(errno.ENOENT, "no such file", name)
        return inode

    def _handle(self, inode: Inode) -> int:
        self._last_handle += 1
        self._open[self._last_handle] = inode
        return self._last_handle

    def _inode(self, handle: int) -> Inode:
        inode = self._open.get(handle)
        if inode is None:
            raise OSError(errno.EBADF, f"no open handle {handle}")
        return inode

    def _check(self, offset: int, nbytes: int, data: memoryview | None = None) -> None:
        address = np.frombuffer(data, np.uint8).ctypes.data if data is not None and nbytes else 0
        if offset < 0 or (self._direct and (offset % PAGE or nbytes % PAGE or address % PAGE)):
            raise OSError(
                errno.EINVAL, f"not whole pages: {nbytes} bytes at {offset}, {address:#x}"
            )

    def _grow(self, inode: Inode, nbytes: int) -> None:
        inode.data.extend(bytes(max(0, nbytes - len(inode.data))))

    def _put(self, inode: Inode, offset: int, data: memoryview) -> None:
        """Write, a piece at a time: none goes across a multiple of PIECE."""
        while data:
            piece = bytes(data[: PIECE - offset % PIECE])
            self._did(Data(inode.number, offset, piece, len(inode.data)))
            self._grow(inode, offset)
            inode.data[offset : offset + len(piece)] = piece
            data, offset = data[len(piece) :], offset + len(piece)

    def _did(self, step: Op) -> None:
        if self._logs:
            self.log.append(step)


def _checked(name: str) -> str:
    assert name and "/" not in name and name not in (".", ".."), name
    return name
