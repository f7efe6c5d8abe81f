"""Counted files: every byte handed to the drive is reported, weighed by its file; all else passes.

Method: random calls beside a list of what was written; a file that is abandoned, a write that
fails; every port call through the wrapper. The plant: a counter that waits until a file is whole.
"""

from __future__ import annotations

import errno
import inspect
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.counted import CountedFiles
from cache.direct import DirectFiles
from cache.host import OsFiles
from cache.ports import PAGE, Files
from cache.saving import Saving, save_now
from sim.faults import Fault
from sim.files import SimFiles


def weigh(name: str, nbytes: int) -> int:
    return nbytes * (10 if name.endswith(".rows.tmp") else 1)


def image(files: Files, pages: int) -> memoryview:
    return files.buffer(pages * PAGE)[: pages * PAGE]


@given(st.lists(st.tuples(st.sampled_from(("a.rows.tmp", "b")), st.integers(0, 3), st.booleans())))
def test_every_byte_is_reported_by_its_name(writes: list[tuple[str, int, bool]]) -> None:
    told: list[int] = []
    files = CountedFiles(SimFiles(), told.append, weigh)
    for name, pages, starts in writes:
        handle = files.create(name)
        data = image(files, pages)
        if starts:
            files.start_write(handle, 0, data).wait()
        else:
            files.write(handle, 0, data)
        files.close(handle)
    assert told == [weigh(name, pages * PAGE) for name, pages, _ in writes]


def test_names_of_opened_and_locked_files_count_too() -> None:
    told: list[int] = []
    files = CountedFiles(SimFiles({"old.rows.tmp": b""}, direct=False), told.append, weigh)
    handle, lock = files.open("old.rows.tmp"), files.lock("lock")
    assert lock is not None and files.lock("lock") is None
    files.write(handle, 0, b"ab")
    files.write(lock, 0, b"abc")
    files.close(handle), files.close(lock)
    assert told == [20, 3]
    # The number is somebody else's now.
    files = CountedFiles(OneNumber({"b": b""}, direct=False), told.append, weigh)
    for name in ("a.rows.tmp", "b"):
        handle = files.create(name) if name != "b" else files.open(name)
        files.write(handle, 0, b"x")
        files.close(handle)
    assert told[2:] == [10, 1]


class OneNumber(SimFiles):
    """Handles are numbers that come again, as a system's are."""

    def close(self, handle: int) -> None:
        super().close(handle)
        self._last_handle = 0


def spoilt(files: Files, hurt: SimFiles) -> None:
    """A file given up half way, one whose write fails, one that could not be synced, and one whole.

    A page, then two, three and four; whatever is reported, the drive took most of it.
    """
    Saving.begin(files, "a", image(files, 1)).abandon()
    for pages, call in ((2, 2), (3, 3)):
        hurt.fault = Fault(hurt.calls + call, errno.EIO, half=True)
        assert save_now(files, "a", image(files, pages))
    hurt.fault = None
    assert save_now(files, "a", image(files, 4)) == ""
    assert hurt.list() == ["a"]


def counts_all(kind: type[CountedFiles]) -> bool:
    told, inner = list[int](), SimFiles()
    spoilt(kind(inner, told.append), inner)
    return sum(told) == 10 * PAGE


def test_files_that_come_to_nothing_count() -> None:
    assert counts_all(CountedFiles)


class AtTheEnd(CountedFiles):
    """The plant: a file counts when it gets its name."""

    def _count(self, handle: int, nbytes: int) -> None:
        return

    def rename(self, old: str, new: str) -> None:
        super().rename(old, new)
        self._wrote(self.size(new))


def test_canary_a_counter_that_misses_abandoned_files() -> None:
    assert not counts_all(AtTheEnd)


def test_all_else_is_the_other_files_own(tmp_path: Path) -> None:
    for inner in (OsFiles(tmp_path / "os"), DirectFiles(tmp_path / "direct"), SimFiles()):
        told: list[int] = []
        files = CountedFiles(inner, told.append)
        data = image(files, 1)
        data[:5] = b"hello"
        assert save_now(files, "a", data) == ""
        handle = files.open("a")
        assert files.read(handle, 0, PAGE)[:5] == b"hello"
        assert files.start_read(handle, 0, into := image(files, 1)).wait() == PAGE
        assert bytes(into) == bytes(data)
        files.preallocate(handle, 3 * PAGE)
        files.close(handle)
        assert files.size("a") == 3 * PAGE and files.exists("a") and files.free_bytes() > 0
        files.rename("a", "b"), files.fsyncdir()
        assert files.list() == inner.list() == ["b"]
        files.unlink("b")
        assert inner.list() == [] and told == [PAGE]
    direct = DirectFiles(tmp_path / "direct")
    assert CountedFiles(direct, told.append).said == direct.said
    with pytest.raises(AttributeError, match="nothing_such"):
        CountedFiles(direct, told.append).nothing_such  # noqa: B018


def test_it_has_every_call_of_the_port() -> None:
    calls = {name: call for name, call in vars(Files).items() if not name.startswith("_")}
    for name, call in calls.items():
        if callable(call):
            wanted = inspect.signature(call).parameters
            assert list(inspect.signature(getattr(CountedFiles, name)).parameters) == list(wanted)
