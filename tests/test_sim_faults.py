"""Faults of simulated files: a call fails as it was told to, once or for ever, and leaks nothing.

Method: direct; one writer and reader under every call number.
"""

from __future__ import annotations

import errno
from typing import Any

import pytest

from cache.ports import PAGE
from sim.faults import Fault
from sim.files import SimFiles
from sim.micro import PIECE, Data, Fsync, FsyncFailed
from sim.moved import SPOILED

SAVES = [
    *("lock", "create", "preallocate", "start_write", "fsync", "close", "rename", "fsyncdir"),
    *("open", "read", "close", "size", "exists", "list", "free_bytes", "unlink", "close"),
]
"""The calls of `saves`, in their order."""


def saves(files: SimFiles) -> None:
    """Every call of the port once or twice; OSErrors fall through, handles are given back."""
    lock = files.lock("lock")
    assert lock is not None
    try:
        data = files.buffer(2 * PAGE)
        data[:] = b"n" * len(data)
        handle = files.create("a.tmp")
        try:
            files.preallocate(handle, 2 * PAGE)
            files.start_write(handle, 0, data).wait()
            files.fsync(handle)
        finally:
            files.close(handle)
        files.rename("a.tmp", "a")
        files.fsyncdir()
        handle = files.open("a")
        try:
            files.read(handle, 0, 2 * PAGE)
        finally:
            files.close(handle)
        files.size("a"), files.exists("a"), files.list(), files.free_bytes()
        files.unlink("a")
    finally:
        files.close(lock)


@pytest.mark.parametrize("for_ever", [False, True])
@pytest.mark.parametrize("call", range(len(SAVES)))
def test_each_call_fails_when_it_is_its_turn(call: int, for_ever: bool) -> None:
    files = SimFiles({"a": b"o" * PAGE})
    files.fault = Fault(call, errno.EIO, for_ever=for_ever)
    with pytest.raises(OSError, match="planted EIO") as error:
        saves(files)
    assert error.value.errno == errno.EIO and not files.handles
    # Handles are given back after the call that failed, and for ever fails those calls too.
    after = files.calls - call - 1
    assert 0 <= after <= 2 and files.failed == (1 + after if for_ever else 1)
    old = files.snapshot().get("a")
    assert old == (b"o" * PAGE if call <= 6 else b"n" * 2 * PAGE if call <= 15 else None)


def test_without_a_fault_the_calls_are_those() -> None:
    files = SimFiles()
    saves(files)
    assert (files.calls, files.failed) == (len(SAVES), 0)
    files.fault = Fault(files.calls, errno.EMFILE)
    with pytest.raises(OSError) as error:
        files.open("lock")
    assert error.value.errno == errno.EMFILE
    files.close(files.open("lock"))


@pytest.mark.parametrize("half", [False, True])
def test_a_write_that_fails_may_be_half_there(half: bool) -> None:
    files = SimFiles({"a": b"o" * 3 * PAGE})
    handle, data = files.open("a"), files.buffer(3 * PAGE)
    data[:] = b"n" * len(data)
    files.fault = Fault(files.calls, errno.ENOSPC, half=half)
    with pytest.raises(OSError, match="ENOSPC"):
        files.start_write(handle, 0, data).wait()
    done = 3 * PAGE // 2 if half else 0
    assert files.snapshot()["a"] == b"n" * done + b"o" * (3 * PAGE - done)
    pieces = [step for step in files.log if isinstance(step, Data)]
    assert [len(step.piece) for step in pieces] == ([PIECE, PIECE // 2] if half else [])
    into = files.buffer(3 * PAGE)
    files.fault = Fault(files.calls, errno.EIO, half=half)
    with pytest.raises(OSError, match="EIO"):
        files.start_read(handle, 0, into).wait()
    assert bytes(into) == files.snapshot()["a"][:done] + SPOILED * (3 * PAGE - done)


@pytest.mark.parametrize("reverts", [False, True])
def test_a_sync_that_fails_says_nothing_the_second_time(reverts: bool) -> None:
    files = SimFiles({"a": b"o" * PAGE})
    handle, data = files.open("a"), files.buffer(2 * PAGE)
    data[:] = b"n" * len(data)
    files.write(handle, 0, data)
    files.fault = Fault(files.calls, errno.EIO, reverts=reverts)
    with pytest.raises(OSError, match="EIO"):
        files.fsync(handle)
    files.fsync(handle)
    found = files.read(handle, 0, 2 * PAGE)
    assert found == (b"o" * PAGE + bytes(PAGE) if reverts else bytes(data))
    assert files.log[-2:] == [FsyncFailed(1), Fsync(1)]


def test_rot_is_read_again_as_it_was_and_leaves_the_file_alone() -> None:
    def flip(name: str, data: bytes) -> bytes:
        at = sum(data) % len(data)
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] if name == "a" else data

    state = {"a": bytes(range(256)) * 32, "b": b"b" * PAGE}
    files = SimFiles(state)
    files.rot = flip
    a, b = files.open("a"), files.open("b")
    read = files.read(a, 0, 2 * PAGE)
    into = files.buffer(PAGE)
    assert read != state["a"] and len(read) == 2 * PAGE
    for page in range(2):
        files.start_read(a, page * PAGE, into).wait()
        assert bytes(into) == read[page * PAGE : (page + 1) * PAGE]
    assert files.read(b, 0, PAGE) == state["b"] and files.snapshot() == state


def test_a_read_may_give_less_than_there_is() -> None:
    files = SimFiles({"a": b"x" * 2 * PAGE, "b": b"x" * PAGE})
    files.short = lambda name, nbytes: nbytes - 1 if name == "a" else nbytes
    a, b, into = files.open("a"), files.open("b"), files.buffer(2 * PAGE)
    assert len(files.read(a, 0, 2 * PAGE)) == 2 * PAGE - 1
    assert files.start_read(a, 0, into).wait() == 2 * PAGE - 1 and into[-1:] == SPOILED
    assert len(files.read(b, 0, 2 * PAGE)) == PAGE


def test_canary_a_writer_that_leaks_a_handle_is_seen() -> None:
    def leaky(files: SimFiles) -> Any:
        handle = files.create("a")
        files.fsync(handle)
        files.close(handle)

    files = SimFiles()
    files.fault = Fault(1, errno.EIO)
    with pytest.raises(OSError):
        leaky(files)
    assert files.handles
