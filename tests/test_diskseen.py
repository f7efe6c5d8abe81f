"""What the disk tier did: per request and in all, as the journal and the drive have it.

Method: a journal that is told events by hand, beside a naive count of them; the report's lines.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from nights import Builder

from cache.disk.notes import NAME
from cache.journal import CacheEvent, Journal
from replay.columns import disk_columns
from replay.diskseen import GONE, DiskSeen, disk_lines
from replay.driver import Options, Replay
from sim.driven_files import Moved
from sim.profile import load

BOARD = replace(load("spark-27b"), grid=64, window=4_096, disk_tokens_min=200, spill=False)


@pytest.fixture(scope="module")
def replay() -> Replay:
    build = Builder()
    build.fresh(700, 20, tools=100, system=500)
    made = Replay([build.trace()], Options(BOARD))
    list(made)
    return made


def test_each_request_gets_what_was_noted_since_the_last(replay: Replay) -> None:
    journal, moved = Journal(), Moved()
    seen, tier = DiskSeen(journal, moved), replay.box.stack.disk
    assert tier is not None
    told: list[Counter[str]] = []
    for at, events in enumerate((["write", "drop"], [], ["evict", "expire", "write", "write"])):
        for event in events:
            journal.note(CacheEvent(NAME, event, "a", 64, 10, "why"), 0.0)
            journal.note(CacheEvent("store", event, "a", 64), 0.0)
        moved.written_bytes += 100 * at
        moved.read_bytes += 10 * at
        told.append(Counter(events))
        use = seen.use(tier)
        assert (use.anchors, use.drops) == (told[-1]["write"], told[-1]["drop"])
        assert use.gone == sum(told[-1][event] for event in GONE)
        assert (use.written, use.read) == (100 * at, 10 * at)
        assert use.held == tier.index.held_bytes() > 0
    figures, total = seen.figures(tier), sum(told, Counter())
    assert figures["drops"] == {"why": total["drop"]}
    assert figures["anchors_written"] == total["write"] and figures["evict"] == 1
    assert (figures["written_bytes"], figures["read_bytes"]) == (300, 30)


def test_the_figures_add_up_with_the_replays_own(replay: Replay) -> None:
    disk = replay.disk
    assert disk is not None
    assert disk["anchors_written"] == disk["entries"] == 4 and disk["chunks"] == 9
    chunk, anchor = BOARD.grid * BOARD.row_bytes, BOARD.anchor_bytes
    assert disk["held_bytes"] == pytest.approx(9 * chunk + 4 * anchor, rel=1e-3)
    # Counts and the marker are written too.
    assert disk["held_bytes"] <= disk["written_bytes"] <= 1.001 * disk["held_bytes"]
    assert disk["counted_lines"] == 700 // BOARD.grid


def test_a_person_is_told_what_went_and_what_failed(replay: Replay) -> None:
    disk = replay.disk
    assert disk is not None
    quiet = dict(disk_lines(disk))
    assert set(quiet) == {"drive", "on the drive"}
    bad = disk | {"drops": {"window": 2}, "evict": 3, "failed_restores": {"EIO": 1, "memory": 2}}
    said = dict(disk_lines(bad))
    assert said["not written"] == "window 2" and said["gone from it"] == "evict 3"
    assert "EIO 1" in said["could not be read"] and "memory" not in said["could not be read"]
    assert said["no memory to read"] == "2"


def test_without_a_tier_the_columns_stay_empty() -> None:
    assert disk_columns(None) == {}
