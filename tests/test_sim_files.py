"""Simulated files: they keep direct I/O's rules, log what a power cut may part, and fail as told.

Method: direct; the log is played again over the state at the start.
"""

from __future__ import annotations

import errno

import pytest

from cache.ports import PAGE
from sim.files import SimFiles
from sim.micro import PIECE, Create, Data, Fsync, FsyncDir, Grow, Note, Rename, Truncate, Unlink


def pages(files: SimFiles, text: bytes, count: int = 1) -> memoryview:
    """A buffer of whole pages that begins with the text."""
    buffer = files.buffer(count * PAGE)
    buffer[: len(text)] = text
    return buffer


def test_a_file_lives_through_every_call() -> None:
    files = SimFiles()
    handle = files.create("a.tmp")
    files.preallocate(handle, 2 * PAGE)
    assert files.size("a.tmp") == 2 * PAGE
    files.write(handle, PAGE, pages(files, b"hello"))
    files.fsync(handle)
    files.close(handle)
    files.rename("a.tmp", "a")
    files.fsyncdir()
    assert files.list() == ["a"] and files.exists("a") and not files.exists("a.tmp")
    handle = files.open("a")
    assert files.read(handle, PAGE, PAGE).startswith(b"hello")
    assert files.read(handle, PAGE, 4 * PAGE).startswith(b"hello")
    assert files.read(handle, 2 * PAGE, PAGE) == b""
    into = files.buffer(4 * PAGE)
    assert files.start_read(handle, 0, into).wait() == 2 * PAGE
    assert bytes(into[PAGE : PAGE + 5]) == b"hello"
    assert files.handles == {handle}
    files.close(handle)
    files.unlink("a")
    assert files.snapshot() == {} and not files.handles


@pytest.mark.parametrize("name", ["", ".", "..", "../a", "a/b", "/etc/passwd"])
def test_a_name_never_leaves_the_directory(name: str) -> None:
    with pytest.raises(AssertionError):
        SimFiles().create(name)


def test_what_is_not_whole_pages_fails() -> None:
    files = SimFiles({"a": bytes(4 * PAGE)})
    handle, buffer = files.open("a"), files.buffer(2 * PAGE)
    wrong = [
        lambda: files.write(handle, 512, buffer[:PAGE]),
        lambda: files.write(handle, 0, buffer[: PAGE // 2]),
        lambda: files.start_write(handle, 0, buffer[512 : 512 + PAGE]),
        lambda: files.start_read(handle, 1, buffer),
        lambda: files.start_read(handle, 0, buffer[: PAGE + 1]),
        lambda: files.start_read(handle, 0, buffer[64 : 64 + PAGE]),
        lambda: files.read(handle, 0, 100),
        lambda: files.read(handle, -PAGE, PAGE),
    ]
    for call in wrong:
        with pytest.raises(OSError) as error:
            call()
        assert error.value.errno == errno.EINVAL
    assert files.snapshot() == {"a": bytes(4 * PAGE)} and files.log == []
    loose = SimFiles(direct=False)
    loose.write(loose.create("b"), 3, b"xyz")
    assert loose.snapshot() == {"b": b"\0\0\0xyz"}


def test_the_lock_is_one_machines_until_it_is_closed() -> None:
    files = SimFiles({"lock": b""})
    handle = files.lock("lock")
    assert handle is not None and files.lock("lock") is None
    assert SimFiles(files.snapshot()).lock("lock") is not None
    files.close(handle)
    assert files.lock("lock") is not None and files.lock("other") is not None
    with pytest.raises(OSError) as error:
        files.close(handle)
    assert error.value.errno == errno.EBADF


def test_the_log_has_every_step() -> None:
    files = SimFiles({"old": b"x"})
    handle = files.create("a")
    files.preallocate(handle, PAGE)
    files.start_write(handle, 0, pages(files, b"12", 2)).wait()
    files.fsync(handle)
    files.rename("a", "b")
    files.fsyncdir()
    files.note("saved b")
    files.unlink("b")
    files.create("old")
    data = [step.piece for step in files.log if isinstance(step, Data)]
    assert data == [b"12" + bytes(PIECE - 2), bytes(PIECE)]
    assert files.log == [
        Create("a", 2),
        Grow(2, PAGE),
        Data(2, 0, data[0], PAGE),
        Data(2, PIECE, data[1], PAGE),
        Fsync(2),
        Rename("a", "b", 2),
        FsyncDir(),
        Note("saved b"),
        Unlink("b", 2),
        Truncate(1),
    ]
    quiet = SimFiles(logs=False)
    quiet.create("a")
    assert quiet.log == []
