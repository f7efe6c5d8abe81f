"""The real world behind the ports: wall clock, files on a drive, a worker thread."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import queue
import signal
import stat
import threading
import time
from calendar import timegm
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cache.ports import PAGE, Job
from cache.transfers import Moving, Transfers


class SystemClock:
    """Clock over the machine's clocks; asserts that monotonic time never falls."""

    def __init__(self) -> None:
        self._last_s = time.monotonic()

    def mono_s(self) -> float:
        """Seconds from an arbitrary start; never falls."""
        last_s = self._last_s  # Read first: another thread may ask meanwhile.
        now = time.monotonic()
        assert now >= last_s, "the monotonic clock fell"
        self._last_s = now
        return now

    def wall_s(self) -> float:
        """Seconds since the epoch; may jump."""
        return time.time()

    def day(self) -> int:
        """The date in the machine's time zone, as days since 1970-01-01; may jump, back too."""
        return timegm(time.localtime(self.wall_s())) // 86_400


class OsFiles:
    """Files in one private directory (mode 0700); names are relative and stay inside it."""

    def __init__(self, root: Path, *, readonly: bool = False) -> None:
        """Makes the directory, unless `readonly`: then files are opened for reading alone."""
        self.root = root
        self._access = os.O_RDONLY if readonly else os.O_RDWR
        self._transfers = Transfers()
        if not readonly:
            os.makedirs(root, mode=0o700, exist_ok=True)

    def _path(self, name: str) -> str:
        assert name and name == os.path.basename(name) and name not in (".", ".."), name
        return str(self.root / name)

    def create(self, name: str) -> int:
        """A new empty file, mode 0600; an existing one is emptied."""
        handle = self._open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        if os.fstat(handle).st_mode & 0o077:
            with suppress(OSError):  # A file system without modes has the mount's.
                os.fchmod(handle, 0o600)
        return handle

    def open(self, name: str) -> int:
        """A handle for reading and writing an existing file."""
        return self._open(name, self._access)

    def _open(self, name: str, flags: int) -> int:
        """A handle of a regular file of this directory; anything else raises."""
        # Without O_NONBLOCK, opening a FIFO waits for a writer for ever.
        flags |= os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        handle = os.open(self._path(name), flags, 0o600)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise OSError(errno.EINVAL, "not a regular file", self._path(name))
        return handle

    def lock(self, name: str) -> int | None:
        """A handle that holds the name's lock until it is closed; None when another has it."""
        handle = self._open(name, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        except OSError:
            os.close(handle)
            raise
        return handle

    def unfit(self) -> str:
        """Why this directory cannot be this user's own; "" when it can.

        A link to a directory is as good as one. Other users' rights are `make_private`'s matter.
        """
        try:
            found = os.stat(self.root)
        except OSError as error:
            return error.strerror or str(error)
        if not stat.S_ISDIR(found.st_mode):
            return "not a directory"
        if found.st_uid != os.geteuid():
            return f"belongs to another user (uid {found.st_uid})"
        if not os.access(self.root, os.R_OK | os.W_OK | os.X_OK, effective_ids=True):
            return "cannot be written by this user"
        return ""

    def make_private(self) -> None:
        """The directory's mode becomes 0700, whoever made it."""
        os.chmod(self.root, 0o700)

    def write(self, handle: int, offset: int, data: bytes | memoryview) -> None:
        """Write all of `data` at `offset`; the system may take less than it was given."""
        self._write(handle, offset, memoryview(data).cast("B"))

    def _write(self, handle: int, offset: int, rest: memoryview) -> int:
        asked = len(rest)
        while rest:
            done = os.pwrite(handle, rest, offset)
            if not done:
                raise OSError(errno.EIO, "the drive takes nothing")
            rest, offset = rest[done:], offset + done
        return asked

    def read(self, handle: int, offset: int, nbytes: int) -> bytes:
        """Up to `nbytes` from `offset`; fewer only at the file's end."""
        pieces: list[bytes] = []
        while nbytes > 0:
            piece = os.pread(handle, nbytes, offset)
            if not piece:
                break
            pieces.append(piece)
            offset, nbytes = offset + len(piece), nbytes - len(piece)
        return b"".join(pieces)

    def _read(self, handle: int, offset: int, rest: memoryview) -> int:
        asked = len(rest)
        while rest and (done := os.preadv(handle, [rest], offset)):
            rest, offset = rest[done:], offset + done
        return asked - len(rest)

    def buffer(self, nbytes: int) -> memoryview:
        """Page-aligned memory of whole pages, at least `nbytes`, for transfers to work on."""
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        made = mmap.mmap(-1, max(1, -(-nbytes // PAGE)) * PAGE, flags=private)
        with suppress(OSError):  # A kernel without huge pages.
            # A transfer pins every page: with huge ones a drive was read up to twice as fast.
            made.madvise(mmap.MADV_HUGEPAGE)
        return memoryview(made)

    def start_write(self, handle: int, offset: int, data: memoryview) -> Moving:
        """Begin to write all of `data` at `offset`, on a thread of these files."""
        rest = data.cast("B")
        return self._transfers.start(lambda: self._write(handle, offset, rest))

    def start_read(self, handle: int, offset: int, into: memoryview) -> Moving:
        """Begin to fill `into` from `offset`, on a thread of these files."""
        rest = into.cast("B")
        return self._transfers.start(lambda: self._read(handle, offset, rest))

    def close_all(self) -> None:
        """Let started transfers end, and their threads; handles stay as they are."""
        self._transfers.close()

    def fsync(self, handle: int) -> None:
        """The file's bytes are on the drive."""
        os.fsync(handle)

    def close(self, handle: int) -> None:
        """Give the handle back."""
        os.close(handle)

    def fsyncdir(self) -> None:
        """The directory's names are on the drive."""
        handle = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def rename(self, old: str, new: str) -> None:
        """Atomically take `new`'s place."""
        os.rename(self._path(old), self._path(new))

    def unlink(self, name: str) -> None:
        """Remove a name."""
        os.unlink(self._path(name))

    def size(self, name: str) -> int:
        """Bytes in a file."""
        found = os.lstat(self._path(name))
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", self._path(name))
        return found.st_size

    def exists(self, name: str) -> bool:
        """Whether the name is there, a link to nowhere too. Raises OSError when it can't tell."""
        try:
            os.lstat(self._path(name))
        except FileNotFoundError:
            return False
        return True

    def list(self) -> list[str]:
        """All names, sorted."""
        return sorted(os.listdir(self.root))

    def free_bytes(self) -> int:
        """Bytes the file system leaves to this user."""
        status = os.statvfs(self.root)
        return status.f_bavail * status.f_frsize

    def preallocate(self, handle: int, nbytes: int) -> None:
        """Reserve room, so that a full drive shows before the data is written."""
        if nbytes:
            os.posix_fallocate(handle, 0, nbytes)


class ThreadJobs:
    """Jobs on one worker thread, each run to its end in the order they came."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[str, Job] | None] = queue.SimpleQueue()
        self._idle = threading.Condition()
        self._open = 0
        self._failed: list[tuple[str, BaseException]] = []
        self._thread = threading.Thread(target=self._work, name="cache-jobs", daemon=True)
        self._thread.start()

    def start(self, name: str, job: Job) -> None:
        """Take a job on."""
        with self._idle:
            self._open += 1
        self._queue.put((name, job))

    def pump(self) -> None:
        """Nothing to do here: the worker steps the jobs."""

    def drain(self) -> None:
        """Wait until every job has ended; raise what one raised."""
        with self._idle:
            self._idle.wait_for(lambda: self._open == 0)
            if self._failed:
                name, error = self._failed.pop(0)
                raise RuntimeError(f"job {name} failed") from error

    def close(self) -> None:
        """Drain, then end the worker."""
        self.drain()
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            name, job = item
            failed = self._run(job)
            with self._idle:
                if failed is not None:
                    self._failed.append((name, failed))
                self._open -= 1
                self._idle.notify_all()

    @staticmethod
    def _run(job: Iterator[None]) -> BaseException | None:
        # The thread must outlive a broken job; drain hands the error to whoever waits.
        try:
            for _ in job:
                pass
        except BaseException as error:
            return error
        return None


@contextmanager
def sigterm_unwinds() -> Iterator[None]:
    """Meanwhile SIGTERM raises SystemExit(143), unless somebody has a handler for it already.

    Without one a process ends on the spot, and what it meant to remove stays. Only the main
    thread may set handlers; on another this does nothing.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def leave(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # A second one must not stop the unwinding.
        raise SystemExit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
