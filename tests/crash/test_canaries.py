"""Goal: every gate of the crash suites turns red on the fault that it is there for.

Method: one fault a test is planted in the tier or beneath it, and the suite that must see it runs
until it has found a violation of the right kind. The other suites here are the same runs without.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping

import numpy as np
import pytest
import rig as rigs
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from rig import A, B, Rig
from scenarios import BY_NAME, saved
from test_damage import cuts, directory, flips, swept
from test_errors import READS, After, Oracle, calls, struck
from test_power_machine import Power

from cache.disk import open as opening
from cache.disk import reader, tier, work, writer
from cache.disk.index import Entry, Index
from cache.disk.keeper import Keeper
from cache.disk.plan import Plan
from cache.disk.work import Work
from cache.disk.writer import DiskWriter
from cache.format import Header, read_header
from cache.ports import Files, Job
from cache.resident import Resident
from cache.saving import Saving
from cache.types import Ids
from cache.writeguard import WriteGuard
from sim.faults import Fault
from sim.files import SimFiles

Patch = pytest.MonkeyPatch
State = Mapping[str, bytes]


def crashed(
    name: str, start: State, word: str = "", fault: Fault | None = None, seed: int | None = None
) -> str:
    """What the crash suite finds, up to the first violation that has the word."""
    scenario, files = BY_NAME[name], SimFiles(start)
    files.fault = fault
    try:
        log = scenario.run(files, scenario.seed if seed is None else seed)
    except Exception as error:
        return f"{type(error).__name__} {error}"
    return "; ".join(scenario.oracle().crashes(name, start, log, until=word).violations)


# plants


def unsynced(kind: str) -> Callable[[Patch], None]:
    """Files of a kind are not synced."""

    def plant(patch: Patch) -> None:
        sync = SimFiles.fsync

        def deaf(files: SimFiles, handle: int) -> None:
            if not files._open[handle].name.endswith(kind + ".tmp"):
                sync(files, handle)

        patch.setattr(SimFiles, "fsync", deaf)

    return plant


def no_directory_sync(patch: Patch) -> None:
    patch.setattr(SimFiles, "fsyncdir", lambda files: None)


def tmp_kept(patch: Patch) -> None:
    patch.setattr(opening, "TMP", ".other")


def counts_lost(patch: Patch) -> None:
    patch.setattr(Keeper, "take_record", lambda keeper, record: None)


def writes_lost(patch: Patch) -> None:
    patch.setattr(WriteGuard, "take", lambda guard, record: None)


def counts_in_place(patch: Patch) -> None:
    """The record is written over the one before."""

    def written(files: Files, name: str, kind: str, meta: Mapping[str, object]) -> str:
        image = work.Layout(kind, meta, ())
        handle = files.create(name)
        files.write(handle, 0, image.seal(files.buffer(image.nbytes)))
        files.fsync(handle)
        files.close(handle)
        files.fsyncdir()
        return ""

    patch.setattr(work, "write_record", written)


def anchor_before_its_chunks(patch: Patch) -> None:
    whole, publish = Work._anchor, Saving.publish

    def early(self: Work, plan: Plan, staged: work.Staged, *rest: object) -> Job:
        yield from whole(self, plan, staged, *rest)  # type: ignore[arg-type]
        if staged.saving is not None:
            staged.saving.publish()

    patch.setattr(Work, "_anchor", early)
    patch.setattr(Saving, "publish", lambda saving: saving._gone or publish(saving))


def anchor_without_its_chunks(patch: Patch) -> None:
    """Counted, and published, although some are not there."""

    def add(index: Index, entry: Entry) -> bool:
        index.entries[entry.hash] = entry
        index._readers.update(entry.chunks)
        return True

    patch.setattr(Index, "add", add)
    whole, missing = Work._publish, Work._missing

    def publish(self: Work, *rest: object) -> None:
        patch.setattr(Work, "_missing", lambda *_: [])
        whole(self, *rest)  # type: ignore[arg-type]
        patch.setattr(Work, "_missing", missing)

    patch.setattr(Work, "_publish", publish)


def no_fence(patch: Patch) -> None:
    patch.setattr(DiskWriter, "fence", lambda writer, row: writer.prefilled())


def foreign_deleted(patch: Patch) -> None:
    sweep = opening._sweep

    def sweep_all(files: Files, of: tier.DiskTier, found: opening._Found) -> None:
        found.useless.update(dict.fromkeys(found.foreign, "foreign"))
        sweep(files, of, found)

    patch.setattr(opening, "_sweep", sweep_all)


def rows_kept(patch: Patch) -> None:
    """Where reading fails, the rows that were in place are taken for whole."""
    arrived = Resident.arrived
    patch.setattr(Resident, "cut", lambda resident, rows: None)
    patch.setattr(
        Resident,
        "arrived",
        lambda resident, account: account.anchors and arrived(resident, account),
    )


def expired_kept(patch: Patch) -> None:
    """What goes leaves its file."""
    patch.setattr(Work, "unlink", lambda work, names: None)


@pytest.mark.parametrize(
    ("plant", "name", "word"),
    [
        (unsynced(".rows"), "longer save", "lost"),
        (unsynced(".anchor"), "longer save", "lost"),
        (unsynced("counts"), "longer save", "counts of"),
        (unsynced("moorage-disk"), "first save", "Refused"),
        (no_directory_sync, "longer save", "lost"),
        (tmp_kept, "save that shares chunks", ".tmp is left"),
        (counts_lost, "counts", "lost"),
        (counts_in_place, "counts", "counts of"),
        (unsynced("writes"), "longer save", "bytes written of"),
        (writes_lost, "counts", "bytes written of"),
        (counts_in_place, "counts", "bytes written of"),
        (anchor_before_its_chunks, "fenced", ".anchor is left"),
        (anchor_without_its_chunks, "fenced", "lost"),
        (foreign_deleted, "others' files", "was touched"),
        (rows_kept, "damage over rows", "AssertionError"),
        (expired_kept, "too old", "is left"),
        (expired_kept, "budget", "is left"),
        (expired_kept, "cleared", "is left"),
    ],
)
def test_canary_crashes(
    plant: Callable[[Patch], None], name: str, word: str, monkeypatch: Patch
) -> None:
    start = BY_NAME[name].start()
    plant(monkeypatch)
    assert word in crashed(name, start, word)


def test_canary_no_fence(monkeypatch: Patch) -> None:
    """Whether rows are overwritten before they are copied is the jobs' order."""
    no_fence(monkeypatch)
    word = "stands for other tokens"
    assert any(word in crashed("fenced", {}, word, seed=seed) for seed in range(6))


# a sync that failed


def syncs() -> list[int]:
    """Calls that sync a file while a prompt is saved beside another."""
    files = SimFiles(saved(0))
    made: list[int] = []
    sync = files.fsync

    def noted(handle: int) -> None:
        made.append(files.calls)
        sync(handle)

    files.fsync = noted  # type: ignore[method-assign]
    BY_NAME["save that shares chunks"].run(files)
    return made


def failing(number: int, *, reverts: bool, word: str = "") -> str:
    fault = Fault(number, errno.EIO, reverts=reverts)
    return crashed("save that shares chunks", saved(0), word, fault)


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_what_failed_to_sync_is_not_acknowledged(step: int) -> None:
    for number in syncs()[::step]:
        assert failing(number, reverts=bool(number % 2)) == ""


def test_canary_a_sync_is_tried_again(monkeypatch: Patch) -> None:
    anchor, rows, *_, counts, writes = syncs()[2:]
    finish = Saving.finish

    def twice(saving: Saving) -> None:
        try:
            finish(saving)
        except OSError:
            assert saving._handle is not None
            saving._files.fsync(saving._handle)
            saving._close()

    monkeypatch.setattr(Saving, "finish", twice)
    assert "lost" in failing(anchor, reverts=True, word="lost")
    assert "lost" in failing(rows, reverts=False, word="lost")
    assert "counts of" in failing(counts, reverts=False, word="counts of")
    assert "written of" in failing(writes, reverts=False, word="written of")


# damage


def test_canary_checksums_unread(monkeypatch: Patch) -> None:
    files = directory()
    monkeypatch.setattr(reader, "unsealed", lambda *_: "")
    word = "stands for other tokens"
    found = swept("checksums unread", flips(files, every=False), until=word).violations
    assert any(word in why for why in found)


def sizes_unread(files: Files, name: str) -> object:
    """The header alone decides."""

    class Blind:
        def __getattr__(self, of: str) -> object:
            return getattr(files, of)

        def size(self, of: str) -> int:
            handle = files.open(of)
            try:
                found = Header.parse(files.read(handle, 0, 4_096))
            finally:
                files.close(handle)
            return found.nbytes if isinstance(found, Header) else files.size(of)

    return read_header(Blind(), name)  # type: ignore[arg-type]


def test_canary_sizes_unread(monkeypatch: Patch) -> None:
    files = directory()
    monkeypatch.setattr(opening, "read_header", sizes_unread)
    assert swept("sizes unread", cuts(files), until="bytes, not").violations


# two prompts of one hash


def collide(patch: Patch) -> None:
    """A line's hash says where it is and nothing else."""

    def places(ids: Ids, grid: int) -> list[int]:
        return list(range(1, len(ids) // grid + 1))

    for module in (tier, writer, rigs):
        patch.setattr(module, "lines_of", places)


def collisions() -> list[str]:
    """Prompts that differ in every line and have one name on the drive."""
    rig = Rig(SimFiles())
    other = np.roll(np.concatenate([A, B]), 3)[: len(A)].astype(np.int32)
    for ids in (A, other, A, B, other):
        rig.ask(ids)
        rig.reset()
    rig.close()
    return rig.wrong


def test_a_collision_serves_nothing(monkeypatch: Patch) -> None:
    collide(monkeypatch)
    assert collisions() == []


def test_canary_ids_unread(monkeypatch: Patch) -> None:
    collide(monkeypatch)
    monkeypatch.setattr(reader, "has_ids", lambda *_: True)
    assert any("stands for other tokens" in why for why in collisions())


# errors


def at_the_opening() -> list[int]:
    """Calls that read while the directory is opened the second time."""
    kinds = calls()
    first = len(kinds) - kinds[::-1].index("list")
    return [at for at in range(first, first + 12) if kinds[at] in READS]


def opened_badly() -> list[str]:
    found: list[str] = []
    for at in at_the_opening():
        after: After = struck(Fault(at, errno.EIO))
        found += after.wrong(Oracle(), strict=False)
    return found


def test_what_cannot_be_read_at_an_opening_is_there_at_the_next() -> None:
    assert opened_badly() == []


def test_canary_judged_by_what_could_not_be_read(monkeypatch: Patch) -> None:
    index = opening._index

    def judged(found: opening._Found, shapes: opening.Shapes) -> Index:
        found.unread.clear()
        return index(found, shapes)

    monkeypatch.setattr(opening, "_index", judged)
    assert any("lost" in why for why in opened_badly())


# the machine whose power fails


@pytest.mark.parametrize("plant", [no_directory_sync, unsynced(".rows"), unsynced(".anchor")])
def test_canary_power(plant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    plant(monkeypatch)
    some = settings(Power.TestCase.settings, max_examples=100, phases=[Phase.generate])
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Power, settings=some)
