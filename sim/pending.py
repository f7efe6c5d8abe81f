"""What of a log of file operations may have reached the drive at a crash, and what must have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from sim.micro import (
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

NEVER = 1 << 60
"""An index past every log's end."""


class Part(IntEnum):
    """How much of one operation arrived."""

    NONE = 0
    ALL = 1
    TORN = 2
    """The first half of a piece."""
    ZEROS = 3
    """The room that a piece grew the file by, without the bytes."""


@dataclass(frozen=True, slots=True)
class Start:
    """Files before the log begins; all of them durable."""

    names: Mapping[str, int]
    """Name to inode."""
    contents: Mapping[int, bytes]
    """Inode to bytes."""

    @classmethod
    def of(cls, state: Mapping[str, bytes]) -> Start:
        """What SimFiles(state) begins with: its files are numbered from 1 in the names' order."""
        names = {name: number for number, name in enumerate(sorted(state), 1)}
        return cls(names, {number: state[name] for name, number in names.items()})


@dataclass(frozen=True, slots=True)
class Entry:
    """What a directory operation does to names: `gone` goes, `name` becomes the inode's."""

    index: int
    durable: int
    """Index of the sync that covers it."""
    gone: str = ""
    name: str = ""
    inode: int = -1

    def onto(self, names: dict[str, int]) -> None:
        """Change the names."""
        if self.gone:
            names.pop(self.gone, None)
        if self.name:
            names[self.name] = self.inode


@dataclass(frozen=True, slots=True)
class Piece:
    """What a data operation does to an inode."""

    index: int
    durable: int
    """Index of the sync that covers it."""
    op: Data | Grow | Truncate

    @property
    def parts(self) -> tuple[Part, ...]:
        """What of it may have arrived."""
        if not isinstance(self.op, Data):
            return (Part.NONE, Part.ALL)
        grows = self.op.offset + len(self.op.piece) > self.op.old_size
        return (Part.NONE, Part.ALL, Part.TORN, *((Part.ZEROS,) if grows else ()))

    def onto(self, data: bytearray, part: Part) -> None:
        """Change a file's bytes."""
        op = self.op
        if part is Part.NONE:
            return
        if isinstance(op, Truncate):
            data.clear()
        elif isinstance(op, Grow):
            _grow(data, op.size)
        elif part is Part.ZEROS:
            _grow(data, op.offset + len(op.piece))
        else:
            piece = op.piece[: len(op.piece) // 2] if part is Part.TORN else op.piece
            _grow(data, op.offset)
            data[op.offset : op.offset + len(piece)] = piece


def _grow(data: bytearray, size: int) -> None:
    data.extend(bytes(max(0, size - len(data))))


@dataclass(slots=True)
class Point:
    """One crash point: what is durable there, and which operations are open."""

    names: dict[str, int]
    contents: dict[int, bytes]
    entries: list[Entry] = field(default_factory=list)
    pieces: dict[int, list[Piece]] = field(default_factory=dict)
    """By inode."""

    def named(self, arrived: Sequence[bool]) -> dict[str, int]:
        """The directory when these of the open entries arrived."""
        names = dict(self.names)
        for entry, there in zip(self.entries, arrived, strict=True):
            if there:
                entry.onto(names)
        return names

    def content(self, inode: int, parts: Sequence[Part]) -> bytes:
        """A file's bytes when these parts of its open pieces arrived."""
        held = self.contents.get(inode, b"")
        if inode not in self.pieces:
            return held
        data = bytearray(held)
        for piece, part in zip(self.pieces[inode], parts, strict=True):
            piece.onto(data, part)
        return bytes(data)


@dataclass(frozen=True, slots=True)
class Resolved:
    """A log by what it does: to names, as inodes, and to inodes."""

    start: Start
    entries: tuple[Entry, ...]
    pieces: tuple[Piece, ...]

    @classmethod
    def of(cls, start: Start, log: Sequence[Op]) -> Resolved:
        """Read a log backwards, to know of each operation which sync covers it."""
        entries, pieces = list[Entry](), list[Piece]()
        dir_at, file_at = NEVER, dict[int, int]()
        for index in range(len(log) - 1, -1, -1):
            op = log[index]
            match op:
                case FsyncDir():
                    dir_at = index
                case Fsync():
                    file_at[op.inode] = index
                case FsyncFailed():
                    # What was open then no later sync covers.
                    file_at[op.inode] = NEVER
                case Create():
                    entries.append(Entry(index, dir_at, name=op.name, inode=op.inode))
                case Rename():
                    entries.append(Entry(index, dir_at, op.old, op.new, op.inode))
                case Unlink():
                    entries.append(Entry(index, dir_at, op.name))
                case Data() | Grow() | Truncate():
                    pieces.append(Piece(index, file_at.get(op.inode, NEVER), op))
        return cls(start, tuple(reversed(entries)), tuple(reversed(pieces)))

    def point(self, index: int) -> Point:
        """A crash when the first `index` operations had been issued."""
        point = Point(dict(self.start.names), {})
        for entry in self.entries:
            if entry.durable < index:
                entry.onto(point.names)
            elif entry.index < index:
                point.entries.append(entry)
        data = {inode: bytearray(held) for inode, held in self.start.contents.items()}
        for piece in self.pieces:
            inode = piece.op.inode
            if piece.durable < index:
                piece.onto(data.setdefault(inode, bytearray()), Part.ALL)
            elif piece.index < index:
                point.pieces.setdefault(inode, []).append(piece)
        point.contents = {inode: bytes(held) for inode, held in data.items()}
        return point

    def before(self, index: int) -> list[Entry | Piece]:
        """Every operation issued before, in order."""
        done = [op for op in (*self.entries, *self.pieces) if op.index < index]
        return sorted(done, key=lambda op: op.index)
