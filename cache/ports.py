"""The ports through which the caches touch the world: Model, Clock, Files, Jobs, Memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from cache.types import CacheState, Cost, Manifest

Job = Iterator[None]
"""Background work made of steps: each next() is one step, the end of the iterator is its end."""

Stop = Callable[[], bool]
"""Whether somebody wants the engine: what may wait ends at its next step."""


def never() -> bool:
    """Nobody waits."""
    return False


PAGE = 4_096
"""Bytes. What goes around the page cache is written and read in whole pages of page-aligned memory,
at multiples of them."""


class Model(Protocol):
    """One sequence of a model: rows that stay where they are, sections that are copied.

    `length` tokens are committed. Of those the last few may be *pending*: their rows are written,
    the sections have not absorbed them yet.
    """

    grid: int
    """Prefill chunk: sections are comparable bit for bit only at multiples of it."""
    window: int
    """Rows the buffers hold."""

    @property
    def length(self) -> int:
        """Committed tokens, pending ones included. Changes nothing."""

    def cache_state(self) -> CacheState:
        """The live tensors. Ask again for every copy: an engine may move them. Changes nothing."""

    def settle(self) -> None:
        """Land a pending commit, so that the sections have absorbed all `length` tokens."""

    def trim_pending(self, length: int) -> bool:
        """Cut a pending commit back to `length` tokens.

        False, with nothing changed, when the sections have already absorbed more than that.
        """

    def resume_at(self, length: int) -> None:
        """Continue at `length` after sections and rows were written back; 0 starts empty.

        Drops a pending commit and rebuilds what is derived from rows (a drafter's marks).
        """

    def cost(self) -> Cost:
        """Bytes and rates the budgets count with. Changes nothing."""

    def manifest(self) -> Manifest:
        """What computes stored rows. Changes nothing."""

    def device_calls(self) -> AbstractContextManager[object]:
        """Held around calls to the device from any other thread than the engine's, and by the
        engine where such a call must not come in between. Never held over a wait for a drive.
        """


class Clock(Protocol):
    """Time. Durations come from `mono_s`, dates from `wall_s`."""

    def mono_s(self) -> float:
        """Seconds from an arbitrary start; never falls."""

    def wall_s(self) -> float:
        """Seconds since the epoch; may jump."""

    def day(self) -> int:
        """The local date, as days since 1970-01-01; may jump, back too."""


class Transfer(Protocol):
    """Bytes on their way between a file and a buffer, which nobody touches before `wait`."""

    def wait(self) -> int:
        """Bytes moved, fewer than asked only at a file's end. Raises OSError when it failed."""


class Files(Protocol):
    """A directory's files by relative name. Failures are OSError, to be caught beside the call.

    Files around the page cache take whole pages only (see PAGE) for every read and write.
    """

    def lock(self, name: str) -> int | None:
        """A handle that holds the name's lock until it is closed; None when another has it."""

    def create(self, name: str) -> int:
        """A new empty file, mode 0600; an existing one is emptied. Returns a handle."""

    def open(self, name: str) -> int:
        """A handle for reading and writing an existing file."""

    def write(self, handle: int, offset: int, data: bytes | memoryview) -> None:
        """Write all of `data` at `offset`; loops over short writes."""

    def read(self, handle: int, offset: int, nbytes: int) -> bytes:
        """Up to `nbytes` from `offset`; fewer only at the file's end."""

    def buffer(self, nbytes: int) -> memoryview:
        """Page-aligned memory of whole pages, at least `nbytes`, for transfers to work on."""

    def start_write(self, handle: int, offset: int, data: memoryview) -> Transfer:
        """Begin to write all of `data` at `offset`; one transfer at a time on a handle."""

    def start_read(self, handle: int, offset: int, into: memoryview) -> Transfer:
        """Begin to fill `into` from `offset`; one transfer at a time on a handle.

        What `into` holds behind the bytes moved may have changed too.
        """

    def fsync(self, handle: int) -> None:
        """The file's bytes are on the drive. A failure must not be retried: drop the file."""

    def close(self, handle: int) -> None:
        """Give the handle back."""

    def fsyncdir(self) -> None:
        """The directory's names are on the drive."""

    def rename(self, old: str, new: str) -> None:
        """Atomically take `new`'s place."""

    def unlink(self, name: str) -> None:
        """Remove a name."""

    def size(self, name: str) -> int:
        """Bytes in a file; EINVAL for a link, a directory and whatever else is no file."""

    def exists(self, name: str) -> bool:
        """Whether the name is there."""

    def list(self) -> list[str]:
        """All names, sorted."""

    def free_bytes(self) -> int:
        """Bytes the file system leaves to this user."""

    def preallocate(self, handle: int, nbytes: int) -> None:
        """Reserve room, so that a full drive shows before the data is written."""


class Jobs(Protocol):
    """Background work. The turn pumps between chunks and blocks; an adapter decides what runs."""

    def start(self, name: str, job: Job) -> None:
        """Take a job on."""

    def pump(self) -> None:
        """A point where jobs may take steps on the caller's thread."""

    def drain(self) -> None:
        """Return when every job has ended; raises what a job raised."""


Result = TypeVar("Result")
Given = TypeVar("Given", covariant=True)


class Pending(Protocol[Given]):
    """Work in a worker's hands."""

    def wait(self) -> Given:
        """What it gave; raises what it raised."""


class Workers(Protocol):
    """Threads for pure work on memory, which nobody else touches meanwhile."""

    def start(self, kind: str, nbytes: int, work: Callable[[], Result]) -> Pending[Result]:
        """Begin; `kind` and `nbytes` say what a modelled processor charges for it."""


class Way(Protocol):
    """The right of way on a drive: a save goes first, what is written in the background waits."""

    def first(self) -> AbstractContextManager[object]:
        """Held by whoever a request waits for."""

    def give(self) -> None:
        """Called between two files of the background: return when nobody goes first, or when that
        has lasted long enough."""


class Memory(Protocol):
    """The memory an engine holds, as its allocator counts it. Asking changes nothing."""

    def allocated_bytes(self) -> int:
        """All that is in use: weights, buffers, caches, a running prefill's workspace."""

    def reserve_bytes(self) -> int:
        """Freed blocks that the allocator keeps, to be used again without asking the driver."""

    def give_back(self, keep_bytes: int) -> None:
        """Freed blocks above `keep_bytes` go back to the driver; the device waits meanwhile."""

    def mark(self) -> None:
        """`peak_bytes` starts anew from here."""

    def peak_bytes(self) -> int:
        """The most that was allocated at once since the mark."""
