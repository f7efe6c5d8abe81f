"""Saving files and reading their headers back, on a drive that may refuse any call.

Goal: a name holds the old file or the whole new one, never a part; every failure is a value; no
handle and, where the drive lets it, no half-written file is left; a failed fsync is not retried.
Method: a directory in memory that keeps the rules of direct I/O (sim.files), and one around it
that fails a chosen call. Covers cache.saving and the reading half of cache.format. Canaries: a
saver that syncs again, and one that leaves its leftovers, must go red.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cache import saving as saving_module
from cache.direct import DirectFiles
from cache.format import (
    Bad,
    Header,
    Layout,
    Part,
    Saving,
    read_header,
    read_record,
    save_now,
    unsealed,
    write_record,
)
from cache.host import OsFiles
from cache.ports import PAGE, Files
from sim.files import SimFiles

PARTS = (Part("a", torch.float32, (1_500,)), Part("b", torch.uint8, (3,)))


def image_of(files: Files, value: int, meta: dict[str, Any] | None = None) -> memoryview:
    layout = Layout("rows", meta or {"value": value}, PARTS)
    buffer = files.buffer(layout.nbytes)
    for tensor in layout.tensors(buffer):
        tensor.fill_(value)
    return layout.seal(buffer)


class Refusing:
    """Passes calls on to a directory, but the `at`-th one fails; `wait` counts as one."""

    def __init__(self, inner: SimFiles, at: int, *, for_ever: bool = False) -> None:
        self.inner, self.at, self.for_ever = inner, at, for_ever
        self.calls: list[str] = []

    def _fails(self, name: str) -> None:
        self.calls.append(name)
        number = len(self.calls) - 1
        if number == self.at or (self.for_ever and number > self.at):
            raise OSError(errno.EIO, f"refused {name}")

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self.inner, name)

        def refusable(*arguments: Any) -> Any:
            if name == "close":
                call(*arguments)  # A handle is gone, whatever close says.
                self._fails(name)
                return None
            self._fails(name)
            given = call(*arguments)
            return Waits(given, self) if name.startswith("start_") else given

        return refusable


class Waits:
    """A transfer whose wait may be refused."""

    def __init__(self, inner: Any, files: Refusing) -> None:
        self._inner, self._files = inner, files

    def wait(self) -> int:
        done = self._inner.wait()
        self._files._fails("wait")
        return done


def names(files: SimFiles) -> set[str]:
    return set(files.list())


# without failures


def test_a_saved_file_is_whole_under_its_name_alone() -> None:
    files = SimFiles()
    image = image_of(files, 3)
    assert save_now(files, "x.rows", image) == ""
    assert files.snapshot() == {"x.rows": bytes(image)} and not files.handles
    header = read_header(files, "x.rows")
    assert isinstance(header, Header)
    assert unsealed(header, image, Layout("rows", header.meta, PARTS)) == ""


@pytest.mark.parametrize("kind", [OsFiles, DirectFiles, lambda _: SimFiles()])
def test_any_files_give_back_what_was_saved(kind: Callable[[Path], Files], tmp_path: Path) -> None:
    files = kind(tmp_path / "d")
    image = image_of(files, 5, {"chunks": ["f" * 16] * 900})
    assert save_now(files, "x.rows", image) == "" == write_record(files, "counts", "counts", {})
    header = read_header(files, "x.rows")
    assert isinstance(header, Header)
    into = files.buffer(header.nbytes)
    handle = files.open("x.rows")
    assert files.start_read(handle, 0, into[: header.nbytes]).wait() == header.nbytes
    files.close(handle)
    layout = Layout("rows", header.meta, PARTS)
    assert unsealed(header, into, layout) == "" and into[: header.nbytes] == image
    assert layout.tensors(into)[0].eq(5).all()
    assert read_record(files, "counts", "counts") == {} and files.list() == ["counts", "x.rows"]


def test_every_step_reaches_the_drive_before_the_next_may_count_on_it() -> None:
    files = SimFiles(logs=True)
    save_now(files, "x.rows", image_of(files, 3))
    steps = [type(step).__name__ for step in files.log]
    assert steps[-3:] == ["Fsync", "Rename", "FsyncDir"]
    assert steps.index("Grow") < steps.index("Data"), "a full drive shows before the data"


def test_a_saving_is_seen_only_once_published() -> None:
    files = SimFiles()
    saving = Saving.begin(files, "x.rows", image_of(files, 3))
    assert names(files) == {"x.rows.tmp"}
    saving.finish()
    assert names(files) == {"x.rows.tmp"} and not files.handles
    saving.publish()
    assert names(files) == {"x.rows"}
    saving.abandon()
    assert names(files) == {"x.rows"}, "what is published stays"


@pytest.mark.parametrize("finished", [False, True])
def test_an_abandoned_saving_leaves_nothing(finished: bool) -> None:
    files = SimFiles({"x.rows": b"old"})
    saving = Saving.begin(files, "x.rows", image_of(files, 3))
    if finished:
        saving.finish()
    saving.abandon()
    saving.abandon()
    assert files.snapshot() == {"x.rows": b"old"} and not files.handles


def test_a_header_of_several_lines_is_read_and_nothing_after_it() -> None:
    files = SimFiles()
    image = image_of(files, 1, {"chunks": ["f" * 16] * 900})
    save_now(files, "x.anchor", image)
    header = read_header(files, "x.anchor")
    assert isinstance(header, Header) and header.header_bytes > 4 * PAGE
    assert header == Header.parse(image)


# what is read


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda image: image[:PAGE], "bytes"),
        (lambda image: image[:100], "cut off"),
        (lambda image: image + bytes(PAGE), "bytes"),
        (lambda image: image[:-1], "bytes"),
        (lambda image: b"", "no file"),
    ],
)
def test_a_file_of_another_size_is_refused(change: Callable[[bytes], bytes], why: str) -> None:
    whole = bytes(image_of(SimFiles(), 1))
    files = SimFiles({"x": change(whole)})
    found = read_header(files, "x")
    assert isinstance(found, Bad) and why in found.why and not found.error
    assert not files.handles


def test_a_header_longer_than_its_file_is_refused() -> None:
    files = SimFiles()
    image = bytes(image_of(files, 1, {"chunks": ["f" * 16] * 900}))
    found = read_header(SimFiles({"x": image[:PAGE]}), "x")
    assert isinstance(found, Bad) and "cut off" in found.why


def test_a_missing_file_and_a_failing_drive_are_told_from_damage() -> None:
    found = read_header(SimFiles(), "x")
    assert isinstance(found, Bad) and found.error
    whole = SimFiles({"x": bytes(image_of(SimFiles(), 1))})
    for at in range(4):
        files = Refusing(whole, at)
        found = read_header(files, "x")
        assert isinstance(found, Bad) and found.error == f"refused {files.calls[at]}"
        assert not whole.handles
    assert isinstance(read_header(Refusing(whole, 4), "x"), Header), "and no further call"


# records


def test_a_record_is_a_header_alone() -> None:
    files = SimFiles()
    assert write_record(files, "equal", "equal", {"2": {"a": "b"}}) == ""
    assert read_record(files, "equal", "equal") == {"2": {"a": "b"}}
    assert files.size("equal") == PAGE
    found = read_record(files, "equal", "counts")
    assert isinstance(found, Bad) and "kind" in found.why
    assert isinstance(read_record(files, "none", "counts"), Bad)


def test_a_large_record() -> None:
    files = SimFiles()
    meta = {f"{n:016x}": n for n in range(20_000)}
    assert write_record(files, "counts", "counts", meta) == ""
    assert read_record(files, "counts", "counts") == meta


def test_a_file_with_sections_is_no_record() -> None:
    files = SimFiles()
    save_now(files, "x", image_of(files, 1))
    assert isinstance(read_record(files, "x", "rows"), Bad)


# failures


def rounds(for_ever: bool) -> list[tuple[Refusing, SimFiles, str]]:
    """A file replaced by another, with every call of it refused in turn; the last goes through."""
    done = []
    for at in range(40):
        inner = SimFiles({"x": bytes(image_of(SimFiles(), 1))})
        files = Refusing(inner, at, for_ever=for_ever)
        why = save_now(files, "x", image_of(inner, 2))
        done.append((files, inner, why))
        if len(files.calls) <= at:
            return done
    raise AssertionError("it never went through")


def leftovers(for_ever: bool) -> list[str]:
    """What is wrong after any refused call."""
    found = []
    whole = {bytes(image_of(SimFiles(), n)) for n in (1, 2)}
    for files, inner, why in rounds(for_ever)[:-1]:
        call = files.calls[files.at]
        if inner.handles:
            found.append(f"{call}: a handle")
        if inner.snapshot()["x"] not in whole:
            found.append(f"{call}: a part of a file")
        # Once renamed, a failed fsyncdir leaves the new one; it may or may not last.
        if call != "fsyncdir" and inner.snapshot()["x"] != bytes(image_of(inner, 1)):
            found.append(f"{call}: replaced all the same")
        if not for_ever and "x.tmp" in names(inner):
            found.append(f"{call}: a leftover")
        if why != f"refused {call}":
            found.append(f"{call}: said {why!r}")
        if files.calls.count("fsync") > 1:
            found.append(f"{call}: synced again")
    return found


@pytest.mark.parametrize("for_ever", [False, True])
def test_any_refused_call_leaves_the_old_file_and_nothing_else(for_ever: bool) -> None:
    assert leftovers(for_ever) == []
    files, inner, why = rounds(for_ever)[-1]
    assert why == "" and inner.snapshot() == {"x": bytes(image_of(inner, 2))}
    calls = "create preallocate start_write wait fsync close rename fsyncdir"
    assert files.calls == calls.split()


def test_a_record_that_cannot_be_written_says_why() -> None:
    inner = SimFiles()
    assert write_record(Refusing(inner, 0), "counts", "counts", {}) == "refused buffer"
    assert write_record(Refusing(inner, 5), "counts", "counts", {}) == "refused fsync"
    assert names(inner) == set()


def test_a_write_that_took_less_is_a_failure() -> None:
    class Short(SimFiles):
        def start_write(self, handle: int, offset: int, data: memoryview) -> Any:
            return super().start_write(handle, offset, data[:PAGE])

    files = Short()
    assert "of" in save_now(files, "x", image_of(files, 1))
    assert names(files) == set() and not files.handles


def test_canary_a_saver_that_syncs_again(monkeypatch: pytest.MonkeyPatch) -> None:
    finish = Saving.finish

    def again(self: Saving) -> None:
        transfer = self._transfer
        try:
            finish(self)
        except OSError:
            if self._handle is None:
                raise
            self._transfer = transfer
            finish(self)

    monkeypatch.setattr(saving_module.Saving, "finish", again)
    assert any("synced again" in said or "replaced" in said for said in leftovers(False))


def test_canary_a_saver_that_leaves_its_leftovers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving_module.Saving, "_unlink", lambda self: None)
    assert any("a leftover" in said for said in leftovers(False))


def test_canary_a_saver_that_writes_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving_module, "TMP", "")
    assert any("replaced" in said or "part" in said for said in leftovers(True))
