"""Claiming a directory: marked, locked, and refused in one line where it is somebody else's.

Method: files in memory; each refusal is provoked. Crashes around the marker are tests/crash's.
"""

from __future__ import annotations

import errno
import os

import pytest

from cache.claim import Claimed, claim
from cache.format import read_record, write_record
from cache.types import Refusal
from sim.files import SimFiles


def claimed(files: SimFiles) -> Claimed | Refusal:
    return claim(files, "marker", "lock", "tier", "tier", lambda name: name != "passing")


def why(files: SimFiles) -> tuple[str, str]:
    found = claimed(files)
    assert isinstance(found, Refusal)
    return found.name, found.why


def test_an_empty_one_is_marked_and_locked_and_taken_again_when_it_is_let_go() -> None:
    files = SimFiles()
    own = claimed(files)
    assert isinstance(own, Claimed) and own.names == files.list()
    assert read_record(files, "marker", "marker") == {"tier": "tier"}
    assert why(files) == ("lock", "another process uses this directory")
    files.close(own.lock)
    assert isinstance(claimed(files), Claimed)


def test_what_counts_for_nothing_and_a_marker_half_written_leave_it_empty() -> None:
    files = SimFiles()
    for name in ("passing", "marker.tmp"):
        files.close(files.create(name))
    assert isinstance(claimed(files), Claimed)


@pytest.mark.parametrize("name", ["notes.txt", "new\nline"])
def test_a_strangers_is_refused_and_nothing_in_it_is_touched(name: str) -> None:
    files = SimFiles()
    files.close(files.create(name))
    where, said = why(files)
    assert where == "" and "is no tier's: give it a folder of its own" in said
    assert said.isprintable() and files.list() == [name]


def test_a_later_versions_marker_and_somebody_elses_are_refused() -> None:
    files = SimFiles()
    handle = files.create("marker")
    page = files.buffer(4_096)
    page[:5] = b"hello"
    files.write(handle, 0, page)
    files.close(handle)
    assert why(files)[0] == "marker" and "is no tier's marker" in why(files)[1]


def test_a_damaged_marker_is_written_again() -> None:
    files = SimFiles()
    assert write_record(files, "marker", "marker", {"tier": "tier"}) == ""
    handle, page = files.open("marker"), files.buffer(4_096)
    files.start_read(handle, 0, page).wait()
    page[50] ^= 1
    files.write(handle, 0, page)
    files.close(handle)
    assert isinstance(claimed(files), Claimed)
    assert read_record(files, "marker", "marker") == {"tier": "tier"}


def test_where_no_marker_can_be_written_the_lock_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = SimFiles()
    create = files.create
    monkeypatch.setattr(files, "create", _fails)
    assert why(files) == ("marker", "cannot be written: Read-only file system")
    monkeypatch.setattr(files, "create", create)
    assert isinstance(claimed(files), Claimed)


def _fails(name: str) -> int:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def test_what_can_not_be_listed_is_refused_and_the_lock_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listed = SimFiles.list
    for calls in (0, 1):
        files, left = SimFiles(), [calls]

        def fails(files: SimFiles, left: list[int] = left) -> list[str]:
            if not left[0]:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            left[0] -= 1
            return listed(files)

        monkeypatch.setattr(SimFiles, "list", fails)
        said = why(files)
        monkeypatch.setattr(SimFiles, "list", listed)
        assert said == ("", f"cannot be {('used', 'listed')[calls]}: Input/output error")
        assert isinstance(claimed(files), Claimed)
