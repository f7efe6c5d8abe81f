"""Goal: every gate of the spill's crash suites turns red on the fault that it is there for.

Method: one fault a test is planted in the spill or beneath it, and the suite that must see it runs
until it has found a violation of the right kind. The other suites here are the same runs without.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest
from spill_rig import CONFIG, PLANES, SpillRig, astray
from spill_scenarios import BY_NAME, Scenario, left, talked
from test_canaries import no_directory_sync, unsynced
from test_damage import flips, swept
from test_spill_damage import directory, gone_meanwhile, over_rows, serves, stale
from test_spill_errors import SpillOracle, calls, struck

from cache.saving import Saving
from cache.spill import manifest, reader, saver
from cache.spill import open as opening
from cache.spill.entry import Entry
from cache.spill.names import manifest_name
from cache.spill.saver import Saver
from cache.spill.shelf import Shelf
from sim.faults import Fault
from sim.files import SimFiles
from sim.micro import Rename

Patch = pytest.MonkeyPatch


def crashed(
    of: str | Scenario, word: str = "", fault: Fault | None = None, *, late: bool = False
) -> str:
    """What the crash suite finds, up to the first violation that has the word.

    `late` looks only at what may be found once the last manifest has its name.
    """
    scenario = BY_NAME[of] if isinstance(of, str) else of
    begin = scenario.begin(PLANES)
    files = SimFiles(begin.files)
    files.fault = fault
    try:
        log = scenario.run(files, PLANES)
    except Exception as error:
        return f"{type(error).__name__} {error}"
    named = [n for n, op in enumerate(log) if isinstance(op, Rename) and "manifest" in op.new]
    since = named[-1] if late else len(begin.notes)
    return "; ".join(scenario.crashes(PLANES, log, until=word, since=since).violations)


def caller() -> str:
    """The name of the function that called whoever asks."""
    return sys._getframe(2).f_code.co_name


# plants


def manifest_before_its_blocks(patch: Patch) -> None:
    """Blocks and copies are synced, but only when the manifest has its name."""
    sync, rename, late = SimFiles.fsync, SimFiles.rename, list[Any]()

    def deaf(files: SimFiles, handle: int) -> None:
        inode = files._open[handle]
        if inode.name.endswith((".block.tmp", ".anchor.tmp")):
            late.append(inode)
        else:
            sync(files, handle)

    def renamed(files: SimFiles, old: str, new: str) -> None:
        rename(files, old, new)
        if new.endswith(".manifest"):
            for inode in late:
                files._directory.synced(inode)
            late.clear()

    patch.setattr(SimFiles, "fsync", deaf)
    patch.setattr(SimFiles, "rename", renamed)


def no_names_before_the_manifest(patch: Patch) -> None:
    sync = SimFiles.fsyncdir

    def deaf(files: SimFiles) -> None:
        if caller() != "publish":
            sync(files)

    patch.setattr(SimFiles, "fsyncdir", deaf)


def garbage_first(patch: Patch) -> None:
    """What the older manifest names goes before the newer one's name lasts."""
    lasting = Shelf._lasting
    patch.setattr(Shelf, "_lasting", lambda shelf: "" if caller() == "publish" else lasting(shelf))


def tmp_kept(patch: Patch) -> None:
    patch.setattr(opening, "TMP", ".other")


def never_removed(patch: Patch) -> None:
    patch.setattr(Shelf, "_remove", lambda shelf, names: None)


def blocks_removed_first(patch: Patch) -> None:
    def drop(shelf: Shelf, entry: Entry) -> None:
        shelf._entries.remove(entry)
        shelf._remove(entry.names)
        shelf._remove([manifest_name(entry.key)])

    patch.setattr(Shelf, "drop", drop)


def files_not_looked_at(patch: Patch) -> None:
    """What a manifest names is taken to be there at the opening."""
    patch.setattr(opening, "_lacks", lambda files, entry, found: "")


def both(patch: Patch) -> None:
    blocks_removed_first(patch)
    files_not_looked_at(patch)


def foreign_deleted(patch: Patch) -> None:
    sweep = opening._sweep

    def sweep_all(files: SimFiles, notes: Any, found: Any) -> None:
        found.useless.update(dict.fromkeys(found.foreign, "foreign"))
        found.foreign = set()
        sweep(files, notes, found)

    patch.setattr(opening, "_sweep", sweep_all)


def last_not_written(patch: Patch) -> None:
    patch.setattr("cache.spill.shelf.write_record", lambda *_: "")


def overwritten(patch: Patch) -> None:
    """A file is named by its place alone, whatever it holds."""
    patch.setattr(saver, "copy_name", lambda key, tokens, kind, sums: copied(key, kind))
    patch.setattr(saver, "block_name", lambda key, a, b, ids, sums: blocked(key, a))


def copied(key: int, kind: str) -> str:
    return f"{key:016x}.{0:08d}-{kind}.{0:016x}.anchor"


def blocked(key: int, start: int) -> str:
    return f"{key:016x}.{start:08d}-{start + 8:08d}.{0:016x}.block"


@pytest.mark.parametrize(
    ("plant", "name", "word"),
    [
        (unsynced(".block"), "grown", "could not be read"),
        (unsynced(".anchor"), "grown", "could not be read"),
        (unsynced(".manifest"), "grown", "lost a"),
        (unsynced("moorage-spill"), "first save", "Refused"),
        (unsynced("last"), "first save", "was in place last"),
        (no_directory_sync, "first save", "lost a"),
        (manifest_before_its_blocks, "grown", "could not be read"),
        (no_names_before_the_manifest, "grown", "lost a"),
        (garbage_first, "grown", "lost a"),
        (tmp_kept, "grown", ".tmp is left"),
        (never_removed, "cleared", "is left"),
        (never_removed, "too old", "is left"),
        (both, "cleared", "could not be read"),
        (foreign_deleted, "others' files", "was touched"),
        (last_not_written, "first save", "was in place last"),
    ],
)
def test_canary_crashes(
    plant: Callable[[Patch], None], name: str, word: str, monkeypatch: Patch
) -> None:
    BY_NAME[name].begin(PLANES)
    plant(monkeypatch)
    late = name == "grown" and ("read" in word or plant is no_names_before_the_manifest)
    assert word in crashed(name, word, late=late)


def test_canary_a_file_is_written_over(monkeypatch: Patch) -> None:
    overwritten(monkeypatch)
    begin = left(talked("a"), PLANES)
    over = replace(BY_NAME["grown"], start=lambda codec: begin)
    assert "could not be read" in crashed(over, "could not be read")


def test_canary_files_not_looked_at(monkeypatch: Patch) -> None:
    files_not_looked_at(monkeypatch)
    rig = SpillRig(SimFiles(BY_NAME["block missing"].begin(PLANES).files))
    assert any("is not there" in why for why in astray(rig))


def test_the_order_of_removal_is_a_second_line(monkeypatch: Patch) -> None:
    """An entry whose blocks go first is found lacking at the opening; it takes both faults."""
    blocks_removed_first(monkeypatch)
    assert crashed("cleared") == ""


# a sync that failed


def syncs(kind: str, name: str = "grown") -> list[int]:
    """Calls of a kind while a conversation is saved over an older entry."""
    scenario = BY_NAME[name]
    files = SimFiles(scenario.begin(PLANES).files)
    made: list[int] = []
    sync = getattr(files, kind)

    def noted(*handle: int) -> None:
        made.append(files.calls)
        sync(*handle)

    setattr(files, kind, noted)
    scenario.run(files, PLANES)
    return made


def failing(number: int, *, reverts: bool, word: str = "") -> str:
    return crashed("grown", word, Fault(number, errno.EIO, reverts=reverts))


SOME = pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.slow)])
"""Of so many syncs one fails."""


@SOME
def test_what_failed_to_sync_is_not_acknowledged(step: int) -> None:
    for number in syncs("fsync")[::step]:
        assert failing(number, reverts=bool(number % 2)) == ""


@SOME
def test_nor_are_names_that_failed_to(step: int) -> None:
    for number in syncs("fsyncdir")[::step]:
        assert failing(number, reverts=False) == ""


def test_canary_a_sync_is_tried_again(monkeypatch: Patch) -> None:
    block = syncs("fsync")[0]
    finish = Saving.finish

    def twice(saving: Saving) -> None:
        try:
            finish(saving)
        except OSError:
            assert saving._handle is not None
            saving._files.fsync(saving._handle)
            saving._close()

    monkeypatch.setattr(Saving, "finish", twice)
    word = "could not be read"
    assert word in crashed("grown", word, Fault(block, errno.EIO, reverts=True), late=True)


def test_canary_files_go_although_no_name_is_sure_to_last(monkeypatch: Patch) -> None:
    """The directory's sync fails behind the manifest's new name."""
    number = syncs("fsyncdir")[-3]
    lasting = Shelf._lasting

    def sure(shelf: Shelf) -> str:
        why = lasting(shelf)
        shelf._unsure = False
        return why

    monkeypatch.setattr(Shelf, "_lasting", sure)
    assert "lost a" in failing(number, reverts=False, word="lost a")


# damage


def unsummed(where: str) -> Callable[[Patch], None]:
    """Sums are taken for right in one place."""

    def plant(patch: Patch) -> None:
        sums = reader.sums_of
        patch.setattr(
            reader, "sums_of", lambda rows: [ANY] * len(rows) if caller() == where else sums(rows)
        )

    return plant


@pytest.mark.parametrize(
    ("where", "word"), [("_placed", "other bytes than"), ("_copied", "other tokens")]
)
def test_canary_sums_unread(where: str, word: str, monkeypatch: Patch) -> None:
    damages = list(stale(PLANES))
    unsummed(where)(monkeypatch)
    found = swept("sums unread", iter(damages), until=word, serves=serves).violations
    assert any(word in why for why in found)


def test_canary_a_manifest_is_not_checked(monkeypatch: Patch) -> None:
    files = directory()
    name = next(name for name in files if name.endswith(".manifest"))
    monkeypatch.setattr(manifest, "unsealed", lambda *_: "")
    at = bytes(files[name]).rindex(files[name].rstrip(b"\0")[-8:])
    some = (d for d in flips(files, every=True) if d[1] == name and int(d[0].split()[-1]) >= at)
    found = swept("manifest unread", some, until="a has other bytes", serves=serves).violations
    assert any("a has other bytes" in why for why in found)


def test_the_files_own_checksums_are_a_second_line(monkeypatch: Patch) -> None:
    """Rows and copies are summed where they lie: what differs there is found without them."""
    files = directory()
    monkeypatch.setattr(reader, "unsealed", lambda *_: "")
    some = (d for d in flips(files, every=False, step=151) if d[1].endswith((".block", ".anchor")))
    found = swept("checksums unread", some, serves=serves).violations
    assert not [why for why in found if "other bytes" in why or "other tokens" in why]


def test_canary_a_skip_that_trusts_the_manifest(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Saver, "_there", lambda saver, piece: True)
    assert "it does not come back" in gone_meanwhile()


def test_canary_rows_kept(monkeypatch: Patch) -> None:
    """Where reading fails, the rows that were in place are taken for whole."""
    monkeypatch.setattr("cache.resident.Resident.cut", lambda resident, rows: None)
    try:
        found = over_rows(1, 0)
    except AssertionError:
        return  # The stack's own check sees it first.
    assert any("stand for other tokens" in why or "stands for" in why for why in found)


# two conversations of the same sums


def collide(patch: Patch) -> None:
    """Sums say nothing of what was summed."""
    for module in (saver, reader):
        patch.setattr(module, "sums_of", lambda rows: [(1, 1)] * len(rows))


def collisions() -> list[str]:
    """A conversation is edited: as long as it was, with other tokens."""
    rig = SpillRig(SimFiles())
    first = np.arange(14, dtype=np.int32)
    edited = np.concatenate([first[:10], first[10:] + 100])
    for ids in (first, edited, first):
        rig.reset()
        rig.ask(ids, "a", answer=2)
        shot, outcome = rig.shot(), rig.save()
        assert outcome.ok
        rig.reset()
        back = rig.brings(rig.spill.shelf.whole()[0])
        if back is None or back.digest != shot.digest:
            rig.wrong.append("other rows came back")
    rig.close()
    return rig.wrong


def test_equal_sums_of_other_tokens_are_another_block(monkeypatch: Patch) -> None:
    collide(monkeypatch)
    assert collisions() == []


def test_canary_ids_unread(monkeypatch: Patch) -> None:
    collide(monkeypatch)
    monkeypatch.setattr(saver.np, "array_equal", lambda a, b: True)
    assert "other rows came back" in collisions()


# errors


def opened_badly() -> list[str]:
    """What is found after a call failed that reads while the directory is opened again."""
    kinds, found = calls(), list[str]()
    first = len(kinds) - kinds[::-1].index("list")
    for at in range(first, first + 8):
        found += struck(Fault(at, errno.EIO)).wrong(SpillOracle(CONFIG), strict=False)
    return found


def test_what_cannot_be_read_at_an_opening_costs_nothing() -> None:
    assert opened_badly() == []


def test_canary_a_session_has_two(monkeypatch: Patch) -> None:
    monkeypatch.setattr(opening, "_newest", lambda entries, found: list(entries))
    assert any("two conversations of" in why for why in opened_badly())
