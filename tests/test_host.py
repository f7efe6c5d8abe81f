"""The real ports: a private directory of files, the system's clocks, one worker thread,
transfers on threads of their own (cache.transfers).

Method: the real things; short writes and reads by wrapping the system calls.
"""

import datetime
import gc
import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cache.host import OsFiles, SystemClock, ThreadJobs
from cache.ports import PAGE


def test_a_file_lives_through_every_call(tmp_path: Path) -> None:
    files = OsFiles(tmp_path / "private")
    assert (tmp_path / "private").stat().st_mode & 0o777 == 0o700
    handle = files.create("a.tmp")
    files.preallocate(handle, 4_096)
    assert files.size("a.tmp") == 4_096
    files.write(handle, 2, b"hello")
    files.write(handle, 0, memoryview(b"xy"))
    files.fsync(handle)
    files.close(handle)
    files.rename("a.tmp", "a")
    files.fsyncdir()
    assert files.list() == ["a"] and files.exists("a") and not files.exists("a.tmp")
    assert (tmp_path / "private" / "a").stat().st_mode & 0o777 == 0o600
    handle = files.open("a")
    assert files.read(handle, 0, 7) == b"xyhello"
    assert len(files.read(handle, 4_000, 1_000)) == 96
    files.close(handle)
    assert files.free_bytes() > 0
    files.unlink("a")
    with pytest.raises(FileNotFoundError):
        files.size("a")


@pytest.mark.parametrize("name", ["", ".", "..", "../a", "a/b", "/etc/passwd"])
def test_a_name_never_leaves_the_directory(tmp_path: Path, name: str) -> None:
    with pytest.raises(AssertionError):
        OsFiles(tmp_path).create(name)


def test_what_is_no_file_of_ours_is_neither_followed_nor_opened(tmp_path: Path) -> None:
    files, outside = OsFiles(tmp_path / "ours"), tmp_path / "outside"
    outside.write_bytes(b"somebody's")
    (files.root / "link").symlink_to(outside)
    (files.root / "nowhere").symlink_to(tmp_path / "made")
    (files.root / "folder").mkdir()
    os.mkfifo(files.root / "pipe")
    readonly = OsFiles(files.root, readonly=True)
    before = len(os.listdir("/proc/self/fd"))
    for name in ("link", "nowhere", "folder", "pipe"):
        for call in (files.open, files.create, files.lock, files.size, readonly.open):
            with pytest.raises(OSError):
                call(name)
        assert files.exists(name)
    assert len(os.listdir("/proc/self/fd")) == before, "a handle leaked"
    assert outside.read_bytes() == b"somebody's" and not (tmp_path / "made").exists()
    files.unlink("link")
    assert outside.exists() and not files.exists("link")


def test_a_file_left_open_to_others_is_closed_to_them_when_it_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "a").touch(mode=0o644)
    files = OsFiles(tmp_path)
    files.close(files.create("a"))
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600


def test_exists_raises_where_it_cannot_tell(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(NotADirectoryError):
        OsFiles(tmp_path / "a", readonly=True).exists("b")


def test_whether_a_directory_can_be_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir(mode=0o755)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (tmp_path / "file").touch()
    files = OsFiles(tmp_path / "link")
    assert files.unfit() == ""
    files.make_private()
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700
    assert OsFiles(tmp_path / "file", readonly=True).unfit() == "not a directory"
    assert "No such file" in OsFiles(tmp_path / "b", readonly=True).unfit()
    with monkeypatch.context() as patched:
        patched.setattr(os, "geteuid", lambda: os.getuid() + 1)
        assert files.unfit() == f"belongs to another user (uid {os.getuid()})"
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    assert files.unfit() == "cannot be written by this user"


def test_short_writes_and_reads_are_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite, pread, preadv = os.pwrite, os.pread, os.preadv
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[:3], at))
    monkeypatch.setattr(os, "pread", lambda fd, n, at: pread(fd, min(n, 2), at))
    files = OsFiles(tmp_path)
    handle = files.create("a")
    files.write(handle, 0, b"0123456789")
    assert files.read(handle, 0, 100) == b"0123456789"
    buffer = files.buffer(PAGE)
    buffer[:] = bytes(range(256)) * 16
    assert files.start_write(handle, 0, buffer[:100]).wait() == 100
    monkeypatch.setattr(os, "preadv", lambda fd, into, at: preadv(fd, [into[0][:7]], at))
    buffer[:] = bytes(PAGE)
    assert files.start_read(handle, 0, buffer).wait() == 100
    assert bytes(buffer) == bytes(range(100)) + bytes(PAGE - 100)
    files.close(handle)


def test_a_drive_that_takes_nothing_is_an_error_not_a_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pwrite", lambda *_: 0)
    files = OsFiles(tmp_path)
    handle = files.create("a")
    with pytest.raises(OSError, match="takes nothing"):
        files.write(handle, 0, b"x")
    files.close(handle)


def test_a_transfer_runs_beside_the_caller_and_beside_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are inside the system call at once, while the caller is here."""
    both, pwrite = threading.Barrier(3, timeout=20), os.pwrite

    def meet(handle: int, data: memoryview, at: int) -> int:
        both.wait()
        return pwrite(handle, data, at)

    monkeypatch.setattr(os, "pwrite", meet)
    files = OsFiles(tmp_path)
    handles = [files.create(name) for name in "ab"]
    data = files.buffer(3 * PAGE)
    data[:] = b"x" * len(data)
    transfers = [files.start_write(handle, 0, data) for handle in handles]
    both.wait()
    assert [transfer.wait() for transfer in transfers] == [len(data)] * 2
    assert [files.size(name) for name in "ab"] == [len(data)] * 2
    for handle in handles:
        files.close(handle)
    files.close_all()


def test_a_failed_transfer_says_so_to_whoever_waits_and_stops_no_other(tmp_path: Path) -> None:
    files = OsFiles(tmp_path)
    handle, data = files.create("a"), files.buffer(1)
    files.close(handle)
    broken = [files.start_write(handle, 0, data), files.start_read(handle, 0, data)]
    for transfer in broken * 2:
        with pytest.raises(OSError, match="Bad file descriptor"):
            transfer.wait()
    handle = files.open("a")
    assert files.start_write(handle, 0, data).wait() == len(data)
    files.close(handle)


def test_a_failed_transfer_holds_nothing_of_whoever_waited(tmp_path: Path) -> None:
    class Image:
        """In memory of its own until nobody holds it."""

    files = OsFiles(tmp_path)
    handle = files.create("a")

    def waits() -> weakref.ref[Image]:
        image, moving = Image(), files.start_read(handle, -PAGE, files.buffer(1))
        with suppress(OSError):
            moving.wait()
        return weakref.ref(image)

    gc.collect()
    gc.disable()
    try:
        assert waits()() is None
    finally:
        gc.enable()
    files.close(handle)
    files.close_all()


def test_the_threads_of_transfers_end_with_them(tmp_path: Path) -> None:
    def names() -> set[str]:
        return {t.name for t in threading.enumerate() if t.name.startswith("transfer-")}

    def ended() -> bool:
        for _ in range(1_000):
            if not names():
                return True
            time.sleep(0.01)
        return False

    gc.collect()  # Other tests' files.
    assert ended()
    files = OsFiles(tmp_path)
    assert not names(), "made before a transfer"
    handle, data = files.create("a"), files.buffer(1)
    files.start_write(handle, 0, data).wait()
    assert names() == {"transfer-0", "transfer-1"}
    files.close_all()
    assert not names()
    with pytest.raises(AssertionError, match="closed"):
        files.start_write(handle, 0, data)
    files.close_all()
    other = OsFiles(tmp_path)
    other.start_read(handle, 0, data).wait()
    with pytest.raises(OSError):
        other.start_read(handle, -PAGE, data).wait()
    del other
    assert ended(), "garbage left threads"
    files.close(handle)


def test_the_clock_runs_forward() -> None:
    clock = SystemClock()
    before = clock.mono_s()
    assert clock.mono_s() >= before
    assert abs(clock.wall_s() - time.time()) < 5


@pytest.mark.parametrize(
    ("zone", "wall_s", "date"),
    [
        ("UTC0", 0.0, "1970-01-01"),
        ("EST5", 0.0, "1969-12-31"),
        ("JST-9", 86_399.0, "1970-01-02"),
        # Summer time ends at 2026-10-25T01:00Z: 23:59 local is 21:59Z before that, 22:59Z after.
        ("CET-1CEST,M3.5.0,M10.5.0/3", 1_792_879_199.0, "2026-10-24"),
        ("CET-1CEST,M3.5.0,M10.5.0/3", 1_792_879_200.0, "2026-10-25"),
        ("CET-1CEST,M3.5.0,M10.5.0/3", 1_792_969_199.0, "2026-10-25"),
        ("CET-1CEST,M3.5.0,M10.5.0/3", 1_792_969_200.0, "2026-10-26"),
    ],
)
def test_a_date_is_the_local_one(
    zone: str, wall_s: float, date: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", zone)
        time.tzset()
        patch.setattr(SystemClock, "wall_s", lambda self: wall_s)
        day = SystemClock().day()
    time.tzset()
    assert datetime.date.fromordinal(719_163 + day).isoformat() == date


def test_jobs_run_on_another_thread_in_order() -> None:
    jobs, seen = ThreadJobs(), list[tuple[int, int]]()

    def job(number: int) -> Iterator[None]:
        for _ in range(3):
            seen.append((number, threading.get_ident()))
            yield

    for number in range(4):
        jobs.start(f"job {number}", job(number))
        jobs.pump()
    jobs.close()
    assert [number for number, _ in seen] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert threading.get_ident() not in {thread for _, thread in seen}


def test_a_broken_job_reaches_whoever_waits_and_no_other_job() -> None:
    jobs, seen = ThreadJobs(), list[str]()

    def broken() -> Iterator[None]:
        yield
        raise ValueError("no")

    def sound() -> Iterator[None]:
        seen.append("ran")
        yield

    jobs.start("broken", broken())
    jobs.start("sound", sound())
    with pytest.raises(RuntimeError, match="job broken failed"):
        jobs.drain()
    assert seen == ["ran"]
    jobs.close()
