"""The writer of one sequence: what is copied out of rows that somebody is about to write to.

Method: a prefill's lines by hand, with jobs that run when a test says so. Windows close at every
kind of row, once and again; the files that are left are those that end below the lowest one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import pytest
from support import GRID, engine, tier, tokens

from cache.disk import work as work_module
from cache.disk.index import anchor_name, chunk_name
from cache.disk.tier import lines_of
from cache.disk.writer import DiskWriter
from cache.types import Ask
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
    """A writer that a prefill of IDS has passed."""

    def __init__(self, **settings: Any) -> None:
        self.files, self.of, self.lock = SimFiles(), engine("witness"), Lock()
        self.of.device_lock = self.lock
        self.tier = tier(self.files, self.of, **settings)
        self.writer = DiskWriter(self.tier, self.of)
        self.reads()

    def reads(self, session: str = "a") -> None:
        """Every line is passed, and its anchor is under way."""
        self.writer.begin(Ask(IDS, session), IDS, 0, clean=True)
        for stop in range(GRID, len(IDS), GRID):
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
    for row in rows:
        prefill.writer.fence(row)
    prefill.settle()
    held = [line for line in LINES if line <= min(rows)]
    below = hashes[: max(held, default=0) // GRID]
    anchors = [anchor_name(hashes[line // GRID - 1]) for line in held]
    assert prefill.names() == sorted([*map(chunk_name, below), *anchors])
    assert prefill.drops() == [(line, "window") for line in LINES if line > min(rows)]


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
