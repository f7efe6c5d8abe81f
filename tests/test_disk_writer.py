"""The writer of one sequence: what is copied out of rows that somebody is about to write to.

Method: a prefill's lines by hand, with jobs that run when a test says so. Windows close at every
kind of row, once and again; the files that are left are those that end below the lowest one.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import pytest
from support import GRID, box, engine, joined, serve, tier, tokens

from cache.disk import work as work_module
from cache.disk.index import anchor_name, chunk_name
from cache.disk.tier import lines_of
from cache.disk.writer import DiskWriter
from cache.keys import KEY_ROWS, key_ids
from cache.types import Ask, Ids
from sim.files import SimFiles
from sim.jobs import SeededJobs

IDS = tokens(5 * GRID + 20, 80)
LINES = (2 * GRID, 3 * GRID, 4 * GRID, 5 * GRID)
"""Where IDS, a session's first long prompt, gets anchors."""


class Lock:
    """A device's lock that counts."""

    def __init__(self) -> None:
        self.taken = self.held = 0

    def __enter__(self) -> Self:
        self.taken, self.held = self.taken + 1, self.held + 1
        return self

    def __exit__(self, *_: object) -> None:
        self.held -= 1


class Prefill:
    """A writer that prefills pass."""

    def __init__(self, **settings: Any) -> None:
        self.files, self.of, self.lock = SimFiles(), engine("witness"), Lock()
        self.of.device_lock = self.lock
        self.tier = tier(self.files, self.of, **settings)
        self.writer = DiskWriter(self.tier, self.of)

    def reads(
        self, session: str = "a", ids: Ids = IDS, line: int = 0, *, late: bool = False
    ) -> None:
        """Every line above one is passed; its anchor is on the drive, unless jobs are late."""
        self.writer.begin(Ask(ids, session), ids, line, clean=True)
        for stop in range(line + GRID, len(ids), GRID):
            self.writer.passed(stop)
            if not late:
                self.tier.keeper.jobs.drain()

    def settle(self) -> None:
        """All that is to be done is done, and taken in."""
        for _ in range(2):
            self.tier.keeper.jobs.drain()
            self.tier.keeper.absorb()
        self.tier.check()

    def names(self) -> list[str]:
        """Chunks and anchors on the drive."""
        return [name for name in self.files.list() if name.endswith(("rows", "anchor", "tmp"))]

    def drops(self) -> list[tuple[int, str]]:
        """(line, why) of anchors that were not written."""
        return sorted((e.tokens, e.why) for e in self.tier.events() if e.event == "drop")


ROWS = (0, 1, GRID, 2 * GRID - 1, 2 * GRID, 3 * GRID, 3 * GRID + 1, 5 * GRID - 1, 5 * GRID)


@pytest.mark.parametrize(
    "rows",
    [*((row,) for row in ROWS), (3 * GRID, 5 * GRID), (3 * GRID, 4 * GRID), (4 * GRID, 2 * GRID)],
    ids=str,
)
def test_rows_from_the_lowest_on_are_not_copied(rows: Sequence[int]) -> None:
    prefill, hashes = Prefill(), lines_of(IDS, GRID)
    prefill.reads()
    for row in rows:
        prefill.writer.fence(row)
    prefill.settle()
    held = [line for line in LINES if line <= min(rows)]
    below = hashes[: max(held, default=0) // GRID]
    anchors = [anchor_name(hashes[line // GRID - 1]) for line in held]
    assert prefill.names() == sorted([*map(chunk_name, below), *anchors])
    assert prefill.drops() == [(line, "window") for line in LINES if line > min(rows)]


@pytest.mark.parametrize("late", [False, True])
def test_a_window_that_has_closed_stays_closed_beside_a_younger_write(late: bool) -> None:
    """Two writes are under way; what the second may still copy the first may not."""
    prefill, first = Prefill(), lines_of(IDS, GRID)
    other = joined(IDS[: 3 * GRID], tokens(2 * GRID + 20, 81))
    second = lines_of(other, GRID)
    prefill.reads()
    prefill.writer.fence(3 * GRID)
    prefill.reads("b", other, 3 * GRID, late=late)
    prefill.writer.fence(4 * GRID)
    prefill.settle()
    anchors = [anchor_name(name) for name in (first[1], first[2], second[3])]
    assert prefill.names() == sorted([*map(chunk_name, second[:4]), *anchors])
    window = [(4 * GRID, "window"), (5 * GRID, "window"), (5 * GRID, "window")]
    assert prefill.drops() == window


def test_a_prefill_that_is_given_up_before_its_first_line_holds_nothing() -> None:
    prefill = Prefill()
    prefill.writer.begin(Ask(IDS, "a"), IDS, 0, clean=True)
    prefill.writer.prefilled()
    prefill.settle()
    assert prefill.drops() == [(line, "cancelled") for line in LINES] and not prefill.names()
    prefill.reads("b")
    prefill.writer.prefilled()
    prefill.settle()
    assert len(prefill.names()) == 5 + len(LINES)


def test_lines_that_the_budget_has_no_room_for_are_told() -> None:
    """The longest go first: the others need fewer chunks."""
    whole = Prefill()
    whole.reads()
    whole.writer.prefilled()
    whole.settle()
    assert whole.tier.notes.counters["written_bytes"] == whole.tier.index.held_bytes()
    for budget_bytes, left in ((1, 0), (whole.tier.index.held_bytes() - 1, 3)):
        prefill = Prefill(budget_bytes=budget_bytes)
        prefill.reads()
        prefill.writer.prefilled()
        prefill.settle()
        assert sorted(entry.line for entry in prefill.tier.index) == list(LINES[:left])
        assert prefill.drops() == [(line, "budget") for line in LINES[left:]]


def test_the_line_that_a_prefill_goes_on_from_is_neither_counted_nor_written() -> None:
    prefill, hashes = Prefill(), lines_of(IDS, GRID)
    prefill.reads(line=3 * GRID)
    prefill.writer.prefilled()
    prefill.settle()
    counted = set(prefill.tier.keeper.counts.plain())
    assert counted == {f"{name:016x}" for name in hashes[3:]}
    assert prefill.drops() == []
    anchors = [name for name in prefill.names() if name.endswith("anchor")]
    assert anchors == sorted(map(anchor_name, hashes[3:]))


@pytest.mark.parametrize("rows", [1, KEY_ROWS - 1, KEY_ROWS])
def test_no_anchor_stands_where_a_picture_has_too_few_rows_to_be_known_by(rows: int) -> None:
    ids, start = IDS.copy(), 4 * GRID - rows
    ids[start : start + 20] = key_ids(bytes(range(32)), 20)
    prefill, hashes = Prefill(), lines_of(ids, GRID)
    prefill.reads(ids=ids)
    prefill.writer.prefilled()
    prefill.settle()
    found = [line for line in LINES if anchor_name(hashes[line // GRID - 1]) in prefill.names()]
    assert found == [n for n in LINES if n != 4 * GRID or rows == KEY_ROWS]


@pytest.mark.parametrize("tokens_min", [2 * GRID, 2 * GRID + 1])
def test_a_sessions_first_long_request_is_remembered_whether_or_not_it_is_written(
    tokens_min: int,
) -> None:
    """One that stands on tainted rows counts as the first; one that is too short does not."""
    prefill = Prefill(tokens_min=tokens_min)
    ids = IDS[: 2 * GRID]
    prefill.writer.begin(Ask(ids, "a"), ids, 0, clean=False)
    prefill.reads("a")
    prefill.writer.prefilled()
    prefill.settle()
    assert bool(prefill.names()) == (len(ids) < tokens_min)


def test_sessions_are_forgotten_in_the_order_of_their_last_long_request() -> None:
    long = Prefill(sessions_max=2).tier.first_long
    assert [long(name, 0) for name in ("a", "b", "a", "c")] == [True, True, False, True]
    assert not long("a", 0) and long("b", 0)
    # Without a session's name a request is the first as long as nothing was answered in it.
    assert long(None, 0) and long(None, 0) and not long(None, 5)


def test_the_window_closes_where_rows_from_files_begin_not_where_they_end() -> None:
    """Another prompt comes from the drive while every row of a cold one is still to be copied."""
    other, of = tokens(5 * GRID + 20, 82), engine("witness")
    files = SimFiles()
    before = tier(files, of, admit_after=1)
    serve(box(of, disk=before), other, tokens(3, 1))
    for _ in range(2):
        before.keeper.jobs.drain()
        before.keeper.absorb()
    before.close()
    of = engine("witness")
    late = SeededJobs(0, steps_a_pump_max=0)
    found = tier(files, of, jobs=late, admit_after=1)
    on = box(of, disk=found)
    serve(on, IDS, tokens(3, 2), check_accounts=False)
    row, _ = serve(on, joined(other, tokens(9, 4)), tokens(3, 3), check_accounts=False)
    assert (row.source, row.cached) == ("disk.grid", 5 * GRID)
    late.drain()
    found.keeper.absorb()
    assert not {chunk_name(name) for name in lines_of(IDS, GRID)} & set(files.list())
    whys = {e.why for e in (*on.journal.events, *found.events()) if e.event == "drop"}
    assert whys == {"window", "staging"}


def test_what_a_person_asks_for_reaches_the_rate_and_the_sessions() -> None:
    found = Prefill().tier
    assert found.first_long("a", 0) and not found.first_long("a", 0)
    found.clear()
    assert found.first_long("a", 0)
    found.configure(replace(found.config, read_bytes_s=7e8))
    assert found.stats()["read_bytes_s"] == 7e8


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("again", [False, True])
def test_what_would_not_be_removed_is_tried_again_unless_it_is_written_anew(
    named: bool, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All is cleared while anchors have passing names, or afterwards; the drive removes nothing."""

    def refuses(self: SimFiles, name: str) -> None:
        raise OSError(errno.EROFS, "planted", name)

    prefill = Prefill()
    prefill.reads()
    with monkeypatch.context() as patched:
        patched.setattr(SimFiles, "unlink", refuses)
        if named:
            prefill.writer.prefilled()
            prefill.settle()
        prefill.tier.clear()
        prefill.writer.prefilled()
        prefill.settle()
        assert len(prefill.names()) == (9 if named else 4)
        if again:
            prefill.reads("b")
            if named:
                prefill.writer.prefilled()
                prefill.settle()
    prefill.writer.prefilled()
    prefill.tier.keeper.save_record()
    prefill.settle()
    prefill.tier.keeper.save_record()
    prefill.settle()
    names = prefill.names()
    assert len(names) == (9 if again else 0) and not any(name.endswith("tmp") for name in names)


def test_the_device_is_held_while_rows_are_given_up_or_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And not held, nor waited for, where no row of a write is at stake."""
    prefill, copied = Prefill(), list[int]()
    lock, fill = prefill.lock, work_module.fill_chunk

    def watched(*arguments: Any) -> None:
        copied.append(lock.held)
        fill(*arguments)

    monkeypatch.setattr(work_module, "fill_chunk", watched)
    prefill.reads()
    prefill.writer.fence(5 * GRID)
    assert lock.taken == 0
    prefill.writer.fence(4 * GRID)
    assert lock.taken == 1
    prefill.writer.fence(4 * GRID + 1)
    assert lock.taken == 1
    prefill.settle()
    assert copied == [1, 1, 1, 1] and lock.held == 0
    taken = lock.taken
    prefill.writer.fence(0)
    assert lock.taken == taken, "nothing of it is under way any more"
    prefill.reads("b")
    prefill.tier.clear()
    assert lock.taken == taken + 1
    prefill.writer.prefilled()
    prefill.settle()
    assert prefill.names() == [] and len(copied) == 4
