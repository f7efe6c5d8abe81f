"""A directory's names and files in memory, the room they take, and every smallest step logged."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field

from sim.micro import (
    PIECE,
    Create,
    Data,
    Fsync,
    FsyncDir,
    FsyncFailed,
    Grow,
    Op,
    Rename,
    Truncate,
    Unlink,
)


@dataclass(slots=True)
class Inode:
    """A file: its bytes as a reader sees them, and as they were at its last sync."""

    number: int
    name: str
    """The last name it had."""
    data: bytearray = field(default_factory=bytearray)
    synced: bytes = b""


class Directory:
    """Names and files. Nothing is checked here but that the drive has room."""

    def __init__(self, capacity_bytes: int, *, logs: bool) -> None:
        self.names: dict[str, Inode] = {}
        self.log: list[Op] = []
        self._capacity, self._logs = capacity_bytes, logs
        self._held = 0
        self._last = 0

    @property
    def room_bytes(self) -> int:
        """Bytes that are left. A file without a name takes none, open or not."""
        return self._capacity - self._held

    def did(self, step: Op) -> None:
        """Put a step into the log."""
        if self._logs:
            self.log.append(step)

    def load(self, name: str, data: bytes) -> None:
        """A file that was there before: durable, and not in the log."""
        inode = self._make(name)
        inode.data[:] = inode.synced = data
        self._held += len(data)

    def create(self, name: str) -> Inode:
        """A new empty file under a name nobody has."""
        inode = self._make(name)
        self.did(Create(name, inode.number))
        return inode

    def named(self, name: str) -> Inode:
        """The file of a name; OSError ENOENT when there is none."""
        inode = self.names.get(name)
        if inode is None:
            raise OSError(errno.ENOENT, "no such file", name)
        return inode

    def truncate(self, inode: Inode) -> None:
        """Empty a file."""
        if inode.data:
            self._resize(inode, 0)
            self.did(Truncate(inode.number))

    def rename(self, old: str, new: str) -> None:
        """Take `new`'s place."""
        inode = self.named(old)
        if new == old:
            return
        self._forget(self.names.pop(old))
        if (replaced := self.names.get(new)) is not None:
            self._forget(replaced)
        self.names[new] = inode
        inode.name = new
        self._held += len(inode.data)
        self.did(Rename(old, new, inode.number))

    def unlink(self, name: str) -> None:
        """Remove a name."""
        inode = self.named(name)
        self._forget(inode)
        del self.names[name]
        self.did(Unlink(name, inode.number))

    def grow(self, inode: Inode, nbytes: int) -> None:
        """Reserve room; OSError ENOSPC, with nothing changed, when there is none."""
        if nbytes > len(inode.data):
            self._resize(inode, nbytes)
        if nbytes:
            self.did(Grow(inode.number, nbytes))

    def put(self, inode: Inode, offset: int, data: bytes) -> None:
        """Write, a piece at a time; OSError ENOSPC at the first that finds no room."""
        for start in _cuts(offset, len(data)):
            piece = data[start : start + PIECE - (offset + start) % PIECE]
            old, end = len(inode.data), offset + start + len(piece)
            if end > old:
                self._resize(inode, end)
            inode.data[end - len(piece) : end] = piece
            self.did(Data(inode.number, offset + start, piece, old))

    def synced(self, inode: Inode) -> None:
        """What the file holds is on the drive."""
        inode.synced = bytes(inode.data)
        self.did(Fsync(inode.number))

    def sync_failed(self, inode: Inode, *, reverts: bool) -> None:
        """What was written since the last sync may be lost; with `reverts` it is, for readers too.

        The file keeps its length either way.
        """
        if reverts:
            nbytes = len(inode.data)
            inode.data[:] = inode.synced[:nbytes].ljust(nbytes, b"\0")
        self.did(FsyncFailed(inode.number))

    def names_synced(self) -> None:
        """The names are on the drive."""
        self.did(FsyncDir())

    def _make(self, name: str) -> Inode:
        self._last += 1
        inode = self.names[name] = Inode(self._last, name)
        return inode

    def _has_name(self, inode: Inode) -> bool:
        return self.names.get(inode.name) is inode

    def _forget(self, inode: Inode) -> None:
        self._held -= len(inode.data)

    def _resize(self, inode: Inode, nbytes: int) -> None:
        more = (nbytes - len(inode.data)) * self._has_name(inode)
        if more > 0 and self._held + more > self._capacity:
            raise OSError(errno.ENOSPC, "no room on the drive", inode.name)
        self._held += more
        if nbytes < len(inode.data):
            del inode.data[nbytes:]
        else:
            inode.data.extend(bytes(nbytes - len(inode.data)))


def _cuts(offset: int, nbytes: int) -> list[int]:
    """Where the pieces of a write begin, counted from its start."""
    first = PIECE - offset % PIECE
    return [0, *range(first, nbytes, PIECE)] if nbytes else []
