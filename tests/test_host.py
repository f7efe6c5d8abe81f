"""The real ports: a private directory of files, the system's clocks, one worker thread.

Method: the real things; short writes and reads by wrapping the system calls.
"""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cache.host import OsFiles, SystemClock, ThreadJobs


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


def test_short_writes_and_reads_are_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite, pread = os.pwrite, os.pread
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[:3], at))
    monkeypatch.setattr(os, "pread", lambda fd, n, at: pread(fd, min(n, 2), at))
    files = OsFiles(tmp_path)
    handle = files.create("a")
    files.write(handle, 0, b"0123456789")
    assert files.read(handle, 0, 100) == b"0123456789"
    files.close(handle)


def test_the_clock_runs_forward() -> None:
    clock = SystemClock()
    before = clock.mono_s()
    assert clock.mono_s() >= before
    assert abs(clock.wall_s() - time.time()) < 5


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
