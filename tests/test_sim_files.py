"""Simulated files: direct I/O's rules, a log of what a power cut may part, a drive's time.

Method: direct; random calls, whose log is played again by a plain loop over the state at the start,
and whose room is summed anew after every call. Faults: tests/test_sim_faults.py. Covers
sim.directory, sim.moved and sim.micro.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cache.ports import PAGE
from sim.files import SimFiles
from sim.micro import (
    PIECE,
    Create,
    Data,
    Fsync,
    FsyncDir,
    Grow,
    Note,
    Op,
    Rename,
    Truncate,
    Unlink,
)
from sim.moved import SPOILED


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
    assert bytes(into[PAGE : PAGE + 5]) == b"hello" and into[2 * PAGE :] == SPOILED * 2 * PAGE
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
        lambda: files.start_write(handle, 0, buffer[512 : 512 + PAGE]).wait(),
        lambda: files.start_read(handle, 1, buffer).wait(),
        lambda: files.start_read(handle, 0, buffer[: PAGE + 1]).wait(),
        lambda: files.start_read(handle, 0, buffer[64 : 64 + PAGE]).wait(),
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
    assert quiet.create("a") and quiet.log == []


def replayed(state: Mapping[str, bytes], log: list[Op]) -> dict[str, bytes]:
    """The names' bytes after every step of the log, none lost."""
    files = {number: bytearray(data) for number, (_, data) in enumerate(sorted(state.items()), 1)}
    names = {name: number for number, name in enumerate(sorted(state), 1)}
    for step in log:
        match step:
            case Create(name, inode):
                names[name], files[inode] = inode, bytearray()
            case Truncate(inode):
                files[inode].clear()
            case Data(inode, offset, piece, old_size):
                assert len(files[inode]) == old_size and 0 < len(piece) <= PIECE
                assert offset // PIECE == (offset + len(piece) - 1) // PIECE
                files[inode].extend(bytes(max(0, offset + len(piece) - old_size)))
                files[inode][offset : offset + len(piece)] = piece
            case Grow(inode, size):
                files[inode].extend(bytes(max(0, size - len(files[inode]))))
            case Rename(old, new, inode):
                assert names.pop(old) == inode
                names[new] = inode
            case Unlink(name, inode):
                assert names.pop(name) == inode
            case _:
                pass
    return {name: bytes(files[number]) for name, number in sorted(names.items())}


def summed(files: SimFiles) -> int:
    """Bytes that the names hold."""
    return sum(map(len, files.snapshot().values()))


START = {"a": b"old" * 2_000, "b": b""}
NAME = st.sampled_from(["a", "b", "a.tmp"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["create", "open", "unlink"]), NAME),
        st.tuples(st.just("rename"), NAME, NAME),
        st.tuples(
            st.just("write"), st.integers(0, 2), st.integers(0, 9_000), st.integers(0, 9_000)
        ),
        st.tuples(st.just("preallocate"), st.integers(0, 2), st.integers(0, 20_000)),
        st.tuples(st.sampled_from(["fsync", "close"]), st.integers(0, 2)),
    ),
    max_size=25,
)


def play(files: SimFiles, steps: list[tuple[Any, ...]], capacity: int) -> list[str]:
    """Take the steps; what was wrong after any of them."""
    handles, wrong, before = list[int](), list[str](), capacity
    for number, (what, *of) in enumerate(steps):
        try:
            if what in ("create", "open"):
                handles.append(getattr(files, what)(*of))
            elif what in ("rename", "unlink"):
                getattr(files, what)(*of)
            elif of[0] < len(handles):
                handle = handles.pop(of[0]) if what == "close" else handles[of[0]]
                if what == "write":
                    files.write(handle, of[1], bytes([number + 1]) * of[2])
                else:
                    getattr(files, what)(handle, *of[1:])
        except OSError as error:
            assert error.errno in (errno.ENOENT, errno.ENOSPC)
        if files.snapshot() != replayed(START, files.log):
            wrong.append(f"{number}: the log tells another state")
        left = files.free_bytes()
        if left != capacity - summed(files) or left < min(0, before):
            wrong.append(f"{number}: {left} left of {capacity}, {summed(files)} held")
        before = left
    return wrong


@settings(max_examples=300)
@given(STEPS, st.sampled_from([30_000, 1 << 40]))
@example([("rename", "a", "b")], 1 << 40)
@example([("open", "a"), ("unlink", "a"), ("write", 0, 0, 9_000)], 1 << 40)
@example([("open", "b"), ("rename", "a", "b"), ("write", 0, 0, 9_000)], 1 << 40)
@example([("create", "b"), ("write", 0, 0, 4_001), ("rename", "b", "a.tmp")], 30_000)
def test_the_log_tells_the_state_and_the_room_is_what_the_names_hold(
    steps: list[tuple[Any, ...]], capacity: int
) -> None:
    files = SimFiles(START, direct=False, capacity_bytes=capacity)
    assert play(files, steps, capacity) == []


def test_canary_a_directory_that_forgets_a_step_is_seen() -> None:
    steps = [("create", "a.tmp"), ("write", 0, 0, 5_000), ("rename", "a.tmp", "b"), ("open", "b")]
    for forgotten in (Truncate, Create, Data, Rename):
        files = SimFiles(START, direct=False)
        did = files._directory.did

        def deaf(step: Op, forgotten: type = forgotten, did: Any = did) -> None:
            if not isinstance(step, forgotten):
                did(step)

        files._directory.did = deaf  # type: ignore[method-assign]
        with pytest.raises((AssertionError, KeyError)):
            assert play(files, [*steps, ("create", "a")], 1 << 40) == []


def test_a_full_drive_takes_what_fits_and_no_more() -> None:
    files = SimFiles(capacity_bytes=3 * PAGE)
    handle = files.create("a")
    with pytest.raises(OSError) as error:
        files.preallocate(handle, 4 * PAGE)
    assert error.value.errno == errno.ENOSPC and files.size("a") == 0
    with pytest.raises(OSError) as error:
        files.write(handle, 0, pages(files, b"", 4))
    assert error.value.errno == errno.ENOSPC and files.size("a") == 3 * PAGE
    files.write(handle, 0, pages(files, b"over", 3))
    files.unlink("a")
    assert files.free_bytes() == 3 * PAGE
    files.free = lambda: 7
    assert files.free_bytes() == 7


def test_nobody_sees_a_transfer_before_its_end_or_touches_its_buffer() -> None:
    files = SimFiles({"a": b"x" * PAGE})
    handle, buffer = files.open("a"), files.buffer(1)
    moving = files.start_read(handle, 0, buffer)
    assert bytes(buffer) == SPOILED * PAGE
    with pytest.raises(AssertionError, match="two transfers"):
        files.start_write(handle, 0, buffer)
    with pytest.raises(AssertionError, match="under a transfer"):
        files.close(handle)
    assert moving.wait() == moving.wait() == PAGE and bytes(buffer) == b"x" * PAGE
    for start in (files.start_read, files.start_write):
        moving = start(handle, 0, buffer)
        buffer[7] ^= 1
        with pytest.raises(AssertionError, match="touched"):
            moving.wait()
    files.close(handle)
