"""Direct files: around the page cache where the file system lets them, cleared out of it where not.

Method: real files; a refusing file system, short transfers and the cache's state by wrapping the
system calls; random sequences of calls on OsFiles, DirectFiles and SimFiles side by side.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cache.direct import DirectFiles
from cache.host import OsFiles
from cache.ports import PAGE
from sim.files import SimFiles


def refusing(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A file system that refuses O_DIRECT; gives the flags of what was opened after all."""
    opened, flags_of = os.open, list[int]()

    def refuse(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument", path)
        flags_of.append(flags)
        return opened(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", refuse)
    return flags_of


def whole(files: Any, count: int, fill: int) -> memoryview:
    buffer = files.buffer(count * PAGE)
    buffer[:] = bytes([fill]) * len(buffer)
    return buffer


def round_trip(files: DirectFiles) -> None:
    """Three pages written by both calls and read by both."""
    handle = files.create("a")
    files.preallocate(handle, 3 * PAGE)
    files.write(handle, 0, whole(files, 1, 7))
    assert files.start_write(handle, PAGE, whole(files, 2, 8)).wait() == 2 * PAGE
    files.fsync(handle)
    wanted = bytes([7]) * PAGE + bytes([8]) * 2 * PAGE
    assert files.read(handle, 0, 8 * PAGE) == wanted
    into = files.buffer(4 * PAGE)
    assert files.start_read(handle, PAGE, into[: 2 * PAGE]).wait() == 2 * PAGE
    assert bytes(into) == wanted[PAGE:] + bytes(2 * PAGE)
    assert files.read(handle, 3 * PAGE, PAGE) == b""
    files.close(handle)


def test_a_round_trip(tmp_path: Path) -> None:
    round_trip(DirectFiles(tmp_path))


def test_where_direct_is_refused_nothing_stays_in_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    advice, dropped = os.posix_fadvise, list[tuple[int, int]]()

    def advise(handle: int, offset: int, nbytes: int, what: int) -> None:
        assert what == os.POSIX_FADV_DONTNEED
        dropped.append((offset, nbytes))
        advice(handle, offset, nbytes, what)

    monkeypatch.setattr(os, "posix_fadvise", advise)
    files = DirectFiles(tmp_path)
    round_trip(files)
    assert files.said == "" and not dropped, "this test needs a file system that takes O_DIRECT"
    flags = refusing(monkeypatch)
    files = DirectFiles(tmp_path)
    round_trip(files)
    assert "refuses O_DIRECT" in files.said and len(flags) == 1
    assert dropped == [(0, 0), (0, 8 * PAGE), (PAGE, 2 * PAGE), (3 * PAGE, PAGE)]


def test_a_name_that_cannot_be_opened_says_nothing_of_the_file_system(tmp_path: Path) -> None:
    files = DirectFiles(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path)
    for name, number in (("pipe", errno.EINVAL), ("link", errno.ELOOP), ("no", errno.ENOENT)):
        with pytest.raises(OSError) as error:
            files.open(name)
        assert error.value.errno == number and files.said == ""


@pytest.mark.parametrize("refused", [False, True])
def test_what_is_not_whole_pages_fails_on_every_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    if refused:
        refusing(monkeypatch)
    files, sim = DirectFiles(tmp_path), SimFiles({"a": bytes(4 * PAGE)})
    (tmp_path / "a").write_bytes(bytes(4 * PAGE))
    for kind in (files, sim):
        handle, buffer = kind.open("a"), kind.buffer(2 * PAGE)
        buffer[:] = b"x" * len(buffer)
        wrong: list[Callable[[], object]] = [
            lambda k=kind, h=handle, b=buffer: k.write(h, 512, b[:PAGE]),
            lambda k=kind, h=handle, b=buffer: k.write(h, 0, b[:512]),
            lambda k=kind, h=handle, b=buffer: k.start_write(h, 0, b[512 : 512 + PAGE]).wait(),
            lambda k=kind, h=handle, b=buffer: k.start_read(h, 1, b).wait(),
            lambda k=kind, h=handle, b=buffer: k.start_read(h, 0, b[64 : 64 + PAGE]).wait(),
            lambda k=kind, h=handle, b=buffer: k.start_read(h, 0, b[: PAGE + 1]).wait(),
            lambda k=kind, h=handle: k.read(h, 0, 100),
            lambda k=kind, h=handle: k.read(h, 8, PAGE),
        ]
        for call in wrong:
            with pytest.raises(OSError) as error:
                call()
            assert error.value.errno == errno.EINVAL
        kind.close(handle)
    assert (tmp_path / "a").read_bytes() == sim.snapshot()["a"] == bytes(4 * PAGE)


def test_transfers_cut_short_inside_a_page_are_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite, preadv = os.pwrite, os.preadv
    files = DirectFiles(tmp_path)
    handle = files.create("a")
    with monkeypatch.context() as short:
        short.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[: PAGE + 512], at))
        short.setattr(os, "preadv", lambda fd, into, at: preadv(fd, [into[0][: PAGE + 512]], at))
        data = files.buffer(5 * PAGE)
        data[:] = bytes(range(256)) * 80
        files.write(handle, 0, data)
        assert files.read(handle, 0, 8 * PAGE) == bytes(data)
    with monkeypatch.context() as stuck:
        stuck.setattr(os, "pwrite", lambda fd, data, at: 512)
        stuck.setattr(os, "preadv", lambda fd, into, at: 512)
        for moving in (files.start_write(handle, 0, data), files.start_read(handle, 0, data)):
            with pytest.raises(OSError) as error:
                moving.wait()
            assert error.value.errno == errno.EIO
    files.close(handle)
    (tmp_path / "odd").write_bytes(b"y" * (PAGE + 100))
    handle = files.open("odd")
    assert files.read(handle, 0, 8 * PAGE) == b"y" * (PAGE + 100)
    assert files.read(handle, PAGE, PAGE) == b"y" * 100
    files.close(handle)


# three kinds of files, one sequence of calls

NAMES = st.sampled_from(["a", "b", "c.tmp"])
CALLS = st.one_of(
    st.tuples(st.sampled_from(["create", "open", "lock", "unlink", "size", "exists"]), NAMES),
    st.tuples(st.just("rename"), NAMES, NAMES),
    st.tuples(st.sampled_from(["fsync", "close"]), st.integers(0, 3)),
    st.tuples(
        st.sampled_from(["write", "start_write", "read", "start_read", "preallocate"]),
        st.integers(0, 3),
        st.integers(0, 3),
        st.integers(0, 3),
    ),
    st.tuples(st.sampled_from(["list", "fsyncdir"])),
)


class Driven:
    """Files of one kind, and the handles a sequence has taken from them."""

    def __init__(self, files: Any) -> None:
        self.files, self.handles, self.fill = files, list[int](), 0

    def did(self, call: tuple[Any, ...]) -> object:
        """What the call gave, or its error's number."""
        try:
            return self._do(*call)
        except OSError as error:
            return errno.errorcode[error.errno or 0]

    def _do(self, what: str, *of: Any) -> object:
        files, self.fill = self.files, self.fill + 1
        if what in ("create", "open", "lock"):
            handle = getattr(files, what)(*of)
            self.handles += [] if handle is None else [handle]
            return handle is None
        if what in ("unlink", "size", "exists", "rename", "list", "fsyncdir"):
            return getattr(files, what)(*of)
        if of[0] >= len(self.handles):
            return "no such handle"
        if what == "close":
            return files.close(self.handles.pop(of[0]))
        handle = self.handles[of[0]]
        return files.fsync(handle) if what == "fsync" else self._move(what, handle, *of[1:])

    def _move(self, what: str, handle: int, page: int, count: int) -> object:
        files, offset = self.files, page * PAGE
        buffer = whole(files, count, self.fill % 256)[: count * PAGE]
        if what == "write":
            return files.write(handle, offset, buffer)
        if what == "read":
            return files.read(handle, offset, count * PAGE)
        if what == "preallocate":
            return files.preallocate(handle, count * PAGE)
        moved = getattr(files, what)(handle, offset, buffer).wait()
        # Direct reads may change what lies behind the file's end.
        return moved, bytes(buffer[:moved])

    def contents(self) -> dict[str, bytes]:
        """Every file, read through the port."""
        found = {}
        for name in self.files.list():
            handle = self.files.open(name)
            found[name] = self.files.read(handle, 0, 16 * PAGE)
            self.files.close(handle)
        return found


def disagreements(calls: list[tuple[Any, ...]], sim: Any) -> list[str]:
    """Calls in which three kinds of files part, from an empty directory."""
    root = Path(tempfile.mkdtemp())
    kinds = [Driven(OsFiles(root / "os")), Driven(DirectFiles(root / "direct")), Driven(sim)]
    try:
        found = []
        for call in calls:
            gave = [kind.did(call) for kind in kinds]
            if any(other != gave[0] for other in gave):
                found.append(f"{call}: {gave}")
        contents = [kind.contents() for kind in kinds]
        if any(other != contents[0] for other in contents) or contents[2] != sim.snapshot():
            found.append("contents")
        return found
    finally:
        for kind in kinds[:2]:
            for handle in kind.handles:
                kind.files.close(handle)
            kind.files.close_all()
        shutil.rmtree(root)


EVERY = [
    *[("create", "a"), ("preallocate", 0, 0, 2), ("size", "a"), ("create", "b"), ("open", "a")],
    *[("write", 0, 0, 1), ("start_write", 1, 2, 3), ("fsync", 1), ("rename", "a", "b"), ("list",)],
    *[("read", 1, 1, 3), ("start_read", 2, 0, 3), ("read", 0, 0, 3), ("create", "b"), ("list",)],
    *[("lock", "c.tmp"), ("lock", "c.tmp"), ("close", 4), ("lock", "c.tmp"), ("unlink", "c.tmp")],
    *[("lock", "c.tmp"), ("unlink", "a"), ("unlink", "b"), ("read", 0, 0, 3), ("fsyncdir",)],
]


@settings(max_examples=200)
@given(st.lists(CALLS, max_size=30))
@example(EVERY)
def test_three_kinds_of_files_agree(calls: list[tuple[Any, ...]]) -> None:
    assert disagreements(calls, SimFiles()) == []


def test_canary_files_that_differ_are_seen() -> None:
    class Renames(SimFiles):
        def rename(self, old: str, new: str) -> None:
            if not self.exists(new):
                super().rename(old, new)

    class Grows(SimFiles):
        def preallocate(self, handle: int, nbytes: int) -> None:
            super().preallocate(handle, nbytes + PAGE)

    class Ends(SimFiles):
        def unlink(self, name: str) -> None:
            if self.exists(name):
                super().unlink(name)

    calls = [("create", "a"), ("preallocate", 0, 0, 2), ("size", "a"), ("create", "b")]
    calls += [("write", 0, 0, 1), ("rename", "a", "b"), ("list",), ("unlink", "a")]
    assert disagreements(calls, SimFiles()) == []
    for broken in (Renames, Grows, Ends):
        assert disagreements(calls, broken())
