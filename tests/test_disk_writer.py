"""The writer of one sequence: what is copied out of rows that somebody is about to write to.

Method: a prefill's lines by hand, with jobs that run when a test says so. Windows close at every
kind of row, once and again; the files that are left are those that end below the lowest one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import pytest
from support import GRID, engine, joined, tier, tokens

from cache.disk import work as work_module
from cache.disk.index import anchor_name, chunk_name
from cache.disk.tier import lines_of
from cache.disk.writer import DiskWriter
from cache.keys import KEY_ROWS, key_ids
from cache.types import Ask, Ids
from sim.files import SimFiles

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

    def reads(self, session: str = "a", ids: Ids = IDS, line: int = 0) -> None:
        """Every line above one is passed, and its anchor is under way."""
        self.writer.begin(Ask(ids, session), ids, line, clean=True)
        for stop in range(line + GRID, len(ids), GRID):
            self.writer.passed(stop)
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


def test_a_window_that_has_closed_stays_closed_beside_a_younger_write() -> None:
    """Two writes are under way; what the second may still copy the first may not."""
    prefill, first = Prefill(), lines_of(IDS, GRID)
    other = joined(IDS[: 3 * GRID], tokens(2 * GRID + 20, 81))
    second = lines_of(other, GRID)
    prefill.reads()
    prefill.writer.fence(3 * GRID)
    prefill.reads("b", other, 3 * GRID)
    prefill.writer.fence(4 * GRID)
    prefill.settle()
    anchors = [anchor_name(name) for name in (first[1], first[2], second[3])]
    assert prefill.names() == sorted([*map(chunk_name, second[:4]), *anchors])
    window = [(4 * GRID, "window"), (5 * GRID, "window"), (5 * GRID, "window")]
    assert prefill.drops() == window


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
