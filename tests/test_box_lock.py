"""The box lock between real processes: taken without waiting, given back when somebody waits.

Goal: as long as another process has the lock nothing is begun, and one that waits for it with
`flock -w` is seen; nobody who asks for another file, or who reads, is. Method: `flock` of
util-linux as another process; lines of /proc/locks as the kernel writes them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cache.host import SystemClock
from engine.bad import BadInput
from serve import box_lock
from serve.box_lock import BoxLock, gpu_is_used, waits
from sim.clock import VirtualClock

FLOCK = shutil.which("flock")
needs_flock = pytest.mark.skipif(FLOCK is None, reason="no flock here")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "box.lock"


@pytest.fixture
def lock(path: Path) -> Iterator[BoxLock]:
    made = BoxLock(path, SystemClock())
    yield made
    made.close()


def holder(path: Path, *how: str) -> subprocess.Popen[str]:
    """Another process that takes the lock and keeps it until its input ends."""
    command = [str(FLOCK), *how, str(path), "sh", "-c", "echo got; cat"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def leaves(process: subprocess.Popen[str]) -> None:
    process.communicate(timeout=10)


@needs_flock
def test_taken_by_another_process_it_is_not_waited_for(lock: BoxLock, path: Path) -> None:
    other = holder(path)
    assert other.stdout is not None and other.stdout.readline() == "got\n"
    begun = time.monotonic()
    assert not lock.try_take() and not lock.held and not lock.wanted()
    assert time.monotonic() - begun < 1
    leaves(other)
    assert lock.try_take() and lock.held and lock.try_take()


@needs_flock
def test_who_waits_is_seen_and_gets_it(lock: BoxLock, path: Path) -> None:
    assert lock.try_take() and not lock.wanted()
    other = holder(path, "-w", "20")
    until = time.monotonic() + 10
    while not lock.wanted():
        assert time.monotonic() < until, "a process that waits was not seen"
        time.sleep(0.05)
    lock.release()
    assert other.stdout is not None and other.stdout.readline() == "got\n"
    assert not lock.try_take()
    leaves(other)


@needs_flock
def test_who_waits_for_another_file_is_not(lock: BoxLock, tmp_path: Path) -> None:
    first = holder(tmp_path / "other")
    assert first.stdout is not None and first.stdout.readline() == "got\n"
    second = holder(tmp_path / "other", "-w", "20")
    assert lock.try_take()
    time.sleep(0.3)
    assert not lock.wanted()
    leaves(first)
    leaves(second)


def test_a_file_that_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be locked"):
        BoxLock(tmp_path / "none" / "box.lock", SystemClock())


def test_it_looks_twice_a_second(path: Path, tmp_path: Path) -> None:
    clock, locks = VirtualClock(), tmp_path / "locks"
    lock = BoxLock(path, clock, locks)
    line = f"1: -> FLOCK  ADVISORY  WRITE 77 00:01:{path.stat().st_ino} 0 EOF\n"
    assert not lock.wanted(), "it is not held"
    assert lock.try_take() and not lock.wanted(), "there is no such list"
    locks.write_text(line)
    assert not lock.wanted()
    clock.charge(0.5)
    assert lock.wanted()
    lock.close()


def test_lines_of_the_kernel(path: Path) -> None:
    path.touch()
    file, inode = path.stat(), path.stat().st_ino
    held = f"1: FLOCK  ADVISORY  WRITE 77 fe:00:{inode} 0 EOF\n"
    waiting = f"1: -> FLOCK  ADVISORY  WRITE 78 fe:00:{inode} 0 EOF\n"
    assert not waits(held, file) and waits(held + waiting, file)
    assert not waits(waiting.replace(f":{inode} ", f":{inode}1 "), file)
    assert not waits(waiting.replace("FLOCK ", "POSIX "), file)


def test_a_gpu_is_used_when_somebody_else_is_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def says(text: str, code: int = 0) -> bool:
        return gpu_is_used(lambda *a, **k: subprocess.CompletedProcess(a, code, text, ""))

    monkeypatch.setattr(box_lock.shutil, "which", lambda name: None)
    assert not says("77\n"), "there is no nvidia-smi"
    monkeypatch.setattr(box_lock.shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    assert says("77\n") and not says("") and not says(f"{os.getpid()}\n") and not says("77\n", 9)
