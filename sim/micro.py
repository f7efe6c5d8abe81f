"""What a directory's log is made of: the smallest steps that a power cut may part."""

from __future__ import annotations

from dataclasses import dataclass

PIECE = 4_096
"""Bytes of a write that reach the drive together or torn; a write is as many steps as pieces."""


@dataclass(frozen=True, slots=True)
class Create:
    """A new name for a new, empty file. Durable with the next FsyncDir."""

    name: str
    inode: int


@dataclass(frozen=True, slots=True)
class Truncate:
    """A file that was there is emptied, its name kept. Durable with its next Fsync."""

    inode: int


@dataclass(frozen=True, slots=True)
class Data:
    """At most PIECE bytes of a write, never across a multiple of PIECE."""

    inode: int
    offset: int
    piece: bytes
    old_size: int
    """Bytes the file had before: what lies behind them may read as zeros after a power cut."""


@dataclass(frozen=True, slots=True)
class Grow:
    """Room is reserved: a file shorter than `size` is `size` bytes long, zeros at its end."""

    inode: int
    size: int


@dataclass(frozen=True, slots=True)
class Rename:
    """The file of `old` takes the name `new`, whatever had it. Durable with the next FsyncDir."""

    old: str
    new: str
    inode: int


@dataclass(frozen=True, slots=True)
class Unlink:
    """The name is gone. Durable with the next FsyncDir."""

    name: str
    inode: int


@dataclass(frozen=True, slots=True)
class Fsync:
    """All that was written to the file before is on the drive."""

    inode: int


@dataclass(frozen=True, slots=True)
class FsyncFailed:
    """What was written since the file's last Fsync may never reach the drive.

    The system has marked those pages clean: a later Fsync says nothing about them.
    """

    inode: int


@dataclass(frozen=True, slots=True)
class FsyncDir:
    """All names made, moved and removed before are on the drive."""


@dataclass(frozen=True, slots=True)
class Note:
    """Somebody was told `what`."""

    what: str


Op = Create | Truncate | Data | Grow | Rename | Unlink | Fsync | FsyncFailed | FsyncDir | Note
