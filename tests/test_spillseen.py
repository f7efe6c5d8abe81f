"""What the spill did, as a report has it: counts from the journal, days, and lines for a person.

Method: a journal that is told events by hand, beside a naive count of them; the days' levels beside
the guard's own; the report of a small night with the spill and without.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from nights import small_night
from test_lives import BOARD

from cache.journal import CacheEvent, Journal
from cache.spill.names import NAME
from cache.writeguard import GuardConfig, WriteGuard
from replay.driver import Options, Replay
from replay.ledger import to_frame
from replay.page import render
from replay.restarts import Restart
from replay.spillseen import GONE, SpillSeen, level_of, saved_line, spill_lines, writes_lines
from replay.summary import summarise
from sim.clock import DAY_S, VirtualClock
from sim.driven_files import Moved


@pytest.fixture(scope="module")
def replay() -> Replay:
    made = Replay([small_night(3, 20)], Options(BOARD, restarts=(Restart(8),)))
    made.rows = to_frame(made)  # type: ignore[attr-defined]
    return made


EVENTS = (
    ("write", "evict written=7 kept=2 12.5ms: copy=1.0ms sums=0.0ms"),
    ("write", "park written=0 kept=9 0.5ms: copy=0.0ms sums=0.0ms"),
    ("hit", "blocks_read=5 blocks_in_place=3"),
    ("skip", "evict: floor"),
    ("refused", "eid=1 owner=a tokens=9 shares=8 offer=0 ram=1 why=end_no_align"),
    ("fail", "memory"),
    ("fail", "its sums are others"),
    ("damage", "its sums are others"),
    ("evict", "budget"),
    ("yield", "idle"),
)


def test_each_request_gets_what_was_noted_since_the_last(replay: Replay) -> None:
    journal, moved, spill = Journal(), Moved(), replay.box.stack.spill
    assert spill is not None
    seen, told = SpillSeen(journal, moved), Counter[str]()
    for at, some in enumerate((EVENTS[:4], (), EVENTS[4:], EVENTS)):
        for event, why in some:
            journal.note(CacheEvent(NAME, event, "a", 64, 10, why), 0.0)
            journal.note(CacheEvent("disk", event, "a", 64, 10, why), 0.0)
        moved.written_bytes += 100 * at
        moved.read_bytes += 10 * at
        use, new = seen.use(spill, 0.5), Counter(event for event, _ in some)
        told += new
        assert (use.saves, use.gone) == (new["write"], sum(new[event] for event in GONE))
        assert (use.written, use.read, use.save_s) == (100 * at, 10 * at, 0.5)
        assert use.held == spill.shelf.held_bytes() > 0
    figures = seen.figures(spill)
    assert figures["saves"] == {"evict": 2, "park": 2} and figures["saved_bytes"]["park"] == 20
    assert (figures["files_written"], figures["files_kept"]) == (14, 22)
    assert (figures["blocks_read"], figures["blocks_in_place"]) == (10, 6)
    assert figures["hits"] == told["hit"] and figures["yields"] == told["yield"]
    assert figures["skips"] == {"evict: floor": 2} and figures["refused"] == {"end_no_align": 2}
    assert figures["failed_restores"] == {"its sums are others": 2, "memory": 2}
    assert (figures["written_bytes"], figures["read_bytes"]) == (600, 60)


def test_days_have_the_level_that_the_guard_gave_them() -> None:
    clock, config = VirtualClock(), GuardConfig(budget_bytes=100)
    guard, seen, levels = WriteGuard(clock, config), SpillSeen(Journal(), Moved()), []
    for nbytes in (40, 99, 100, 149, 150, 900):
        guard.wrote("tier", nbytes // 2)
        guard.wrote("spill", nbytes - nbytes // 2)
        levels.append(guard.level())
        clock.charge(DAY_S)
        assert guard.level() == "ok", "a day that comes is a new one"
    writes = seen.writes(guard)
    assert [day["level"] for day in writes["days"]][:-1] == levels
    assert levels == ["ok", "ok", "over", "over", "hard", "hard"]
    assert level_of(replace(config, budget_bytes=0), 0) == "hard"


def test_what_the_budget_stopped_is_counted() -> None:
    journal, clock = Journal(), VirtualClock()
    guard = WriteGuard(clock, GuardConfig(budget_bytes=0))
    for _ in range(3):
        assert not guard.allows("evict", 40_000)
        guard.skipped("evict", "a", 40_000)
    for event in guard.events():
        journal.note(event, 0.0)
    writes = SpillSeen(journal, Moved()).writes(guard)
    assert writes["skipped"] == {"hard evict": 3}
    ((_, text),) = writes_lines(writes)
    assert "hard" in text and "skipped: hard evict 3" in text


def test_a_person_is_told_what_came_back_and_what_failed(replay: Replay) -> None:
    seen = replay.spill
    assert seen is not None
    said = dict(spill_lines(seen))
    assert {"conversations", "kept there", "planned stops"} <= set(said)
    assert f"{seen['hits']:,} brought back" in said["conversations"] and "drain" in str(said)
    assert "could not be read" not in said
    bad = seen | {
        "failed_restores": {"EIO": 1, "memory": 2},
        "skips": {"evict: floor": 4},
        "refused": {"slow": 5},
        "evict": 3,
    }
    said = dict(spill_lines(bad))
    assert said["not saved"] == "evict: floor 4" and said["served by none"] == "slow 5"
    assert said["conversations gone"] == "evict 3" and "EIO 1" in said["could not be read"]
    assert said["no memory for them"] == "2"
    assert saved_line({"saved_s": 1_200.0, "saved_s_per_gb": 3.0}).endswith(
        "3.0 s for every GB written"
    )
    assert "GB" not in saved_line({"saved_s": 0.0, "saved_s_per_gb": None})


def test_the_page_shows_them_and_only_when_they_are_there(replay: Replay) -> None:
    rows: Any = replay.rows  # type: ignore[attr-defined]
    summary = summarise(rows, wall_s=1.0, seed=0, board=BOARD, **replay.drive)
    page = render("a night", "a board", summary, rows)
    assert "Whole conversations on the drive" in page and "conversations brought back" in page
    without = render("a night", "a board", summary | {"spill": None}, rows)
    assert "onversations" not in without.replace("How the conversations grow", "")
