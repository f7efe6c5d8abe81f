"""Goal: in the spill's directory nothing is touched that is not the spill's, whatever its name.

Method: real files. A link, a pipe or a directory takes the name of each kind of file in turn, a
directory is another's, a later version's or nobody's; it is opened and used, and what was there is
compared with what is.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from kills import OnDrive, prepared
from rig import Refused, later
from spill_rig import PLANES, SpillRig
from spill_scenarios import saved
from test_disk_open import WHATS, linked

from cache.spill.names import LAST, MARKER

KINDS = (".block", ".anchor", ".manifest", LAST, MARKER)


def directory(folder: Path) -> Path:
    """Where a conversation was kept."""
    root = folder / "sessions"
    prepared(root, saved(PLANES, "a").files)
    return root


def works(root: Path) -> None:
    """Opened, it keeps a conversation and brings it back, twice."""
    for _ in range(2):
        files = OnDrive(root)
        rig = SpillRig(files)
        rig.comes_back()
        rig.turn("b")
        shot, outcome = rig.shot(), rig.save()
        assert outcome.ok, outcome
        entry = rig.spill.shelf.like(rig.stack.resident.account)
        assert entry is not None
        rig.spill.remember(rig.stack.resident.account)
        back = rig.brings(entry)
        assert back is not None and back.conversation == shot.conversation and not rig.wrong
        rig.close()
        files.close_all()


def kind_of(path: Path) -> str:
    """What a name stands for, without following it."""
    mode = os.lstat(path).st_mode
    return f"{stat.S_IFMT(mode):o}" + (os.readlink(path) if stat.S_ISLNK(mode) else "")


@pytest.mark.parametrize("what", WHATS)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_stays_and_is_not_followed(kind: str, what: str, tmp_path: Path) -> None:
    root = directory(tmp_path)
    name = next(path.name for path in sorted(root.iterdir()) if path.name.endswith(kind))
    linked(root, name, what)
    odd, outside = kind_of(root / name), tmp_path / "outside"
    before = outside.read_bytes() if what == "link" else b""
    if kind == MARKER:
        with pytest.raises(Refused, match=MARKER):
            SpillRig(OnDrive(root))
    else:
        works(root)
    assert kind_of(root / name) == odd
    assert what != "link" or outside.read_bytes() == before
    assert not (tmp_path / "nowhere").exists()


def test_files_are_the_owners_alone(tmp_path: Path) -> None:
    root = tmp_path / "sessions"
    root.mkdir()
    works(root)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in root.iterdir()}
    assert modes == {0o600}


def test_a_directory_of_somebody_else_is_refused_by_a_files_name(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_bytes(b"mine")
    with pytest.raises(Refused, match=r"notes\.txt"):
        SpillRig(OnDrive(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_later_versions_directory_is_refused(tmp_path: Path) -> None:
    root = directory(tmp_path)
    (root / MARKER).write_bytes(later((root / MARKER).read_bytes()))
    before = {path.name: path.read_bytes() for path in root.iterdir()}
    with pytest.raises(Refused, match=MARKER):
        SpillRig(OnDrive(root))
    assert {path.name: path.read_bytes() for path in root.iterdir()} == before


def test_a_later_versions_entry_stays(tmp_path: Path) -> None:
    """All of it: this version can't tell which files its manifest names."""
    root = directory(tmp_path)
    path = next(path for path in root.iterdir() if path.name.endswith(".manifest"))
    path.write_bytes(later(path.read_bytes()))
    before = {path.name: path.read_bytes() for path in root.iterdir() if path.name[0] == "0"}
    works(root)
    after = {path.name: path.read_bytes() for path in root.iterdir()}
    assert len(before) == 5 and before.items() <= after.items()
