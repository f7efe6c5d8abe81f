"""What the server tells of its caches: every figure beside a count of its own, and no word of text.

Method: a box with every tier, driven through turns of several sessions; sums beside the journal's
rows and the caches' own accounts; all strings of the JSON against the sessions' names and tokens.
Canary: an id that is told as it is. Covers serve.stats and serve.plan.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from support import GRID, box, engine, joined, serve, spill, tier, tokens

from cache.budget import Budget
from cache.levels import levels_of
from cache.types import Limits
from cache.writeguard import GuardConfig, WriteGuard
from engine.box import Box
from engine.slots import Slots
from serve import stats as module
from serve.settings import Settings
from serve.stats import LAST, Parts, short, stats, tier_of
from sim.clock import VirtualClock
from sim.files import SimFiles

SECRET = "alice's medical history"


class Memory:
    """An allocator that counts a base and what the caches hold."""

    def __init__(self, on: Box) -> None:
        self._on = on

    def allocated_bytes(self) -> int:
        return 1_000_000 + sum(self._on.stack.held_bytes().values())

    def reserve_bytes(self) -> int:
        return 7

    def give_back(self, keep_bytes: int) -> None:
        pass

    def mark(self) -> None:
        pass

    def peak_bytes(self) -> int:
        return self.allocated_bytes()


def parts(*, drive: bool = True, **more: Any) -> Parts:
    """A main slot with everything, and what there is to tell of it."""
    of, clock = engine("witness"), VirtualClock()
    guard = WriteGuard(clock, GuardConfig())
    disk = tier(SimFiles(), of, clock=clock, guard=guard) if drive else None
    kept = spill(SimFiles(), of, clock=clock, guard=guard) if drive else None
    room = {"park_rows": 1_500, "store_bytes": 2**20, "guest_tokens": 200, "stash_rows": 400}
    on = box(of, disk=disk, spill=kept, **(room | more))
    on.clock = clock
    on.budget = Budget(Limits(2**40, 2**41, 9), Memory(on), of.cost)
    on.budget.over(levels_of([(on.stack, of)]))
    return Parts(
        boxes=(on,),
        settings=Settings(),
        salt=b"salt",
        started_s=clock.wall_s(),
        disk=disk,
        spill=kept,
        guard=guard if drive else None,
        model="random",
        waiting=2,
        active=1,
        counters={"aborted": 3},
    )


def talked(on: Parts) -> Parts:
    """A few sessions, taking turns, and a guest."""
    said = {name: tokens(500 + 70 * n, n) for n, name in enumerate([SECRET, "b", "c"])}
    for number in range(3):
        for name, ids in said.items():
            answer = tokens(20, 100 + number)
            serve(on.main, ids, answer, session=name)
            said[name] = joined(ids, answer, tokens(40, 7 * number))
    ids = joined(said["c"], tokens(20, 60))
    serve(on.main, ids, tokens(4), session="c")
    serve(on.main, tokens(90, 50), tokens(4), session="t", kind="title")
    for event in on.main.stack.events():
        on.main.journal.note(event, on.main.clock.wall_s())
    return on


def strings(found: Any) -> Iterator[str]:
    if isinstance(found, dict):
        for key, value in found.items():
            yield str(key)
            yield from strings(value)
    elif isinstance(found, list):
        for value in found:
            yield from strings(value)
    elif isinstance(found, str):
        yield found


def test_it_is_json_of_plain_values() -> None:
    told = stats(talked(parts()))
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    assert told["version"] == module.VERSION and told["revision"] == 0
    assert told["queue"] == {"waiting": 2, "active": 1, "slots": 1}
    assert told["server"] == {"aborted": 3}


def test_an_engine_that_served_nothing_has_no_rates() -> None:
    told = stats(parts())
    assert all(one["hit_rate"] is None for one in told["tiers"])
    assert told["last_turns"] == told["events"] == told["prefixes"] == []
    assert [one["name"] for one in told["tiers"]] == [
        "resident",
        "park",
        "store",
        "disk",
        "spill",
    ]


def test_asking_changes_nothing() -> None:
    on = talked(parts())
    first = stats(on)
    on.main.stack.check()
    assert stats(on) == first


def test_turns_are_the_journals() -> None:
    on = talked(parts())
    rows, told = list(on.main.journal.rows), stats(on)
    turns = told["turns"]
    assert turns["turns"] == len(rows) == sum(turns["by_source"].values())
    assert sum(turns["by_why"].values()) == len(rows)
    assert turns["prompt_tokens"] == sum(row.prompt for row in rows)
    assert turns["cached_tokens"] == sum(row.cached for row in rows)
    assert turns["cached_tokens"] == sum(turns["cached_by_source"].values())
    assert turns["guests"] == sum(row.guest for row in rows)
    for one in told["tiers"]:
        own = [row for row in rows if tier_of(row.source) == one["name"]]
        assert one["turns"] == len(own), one
        assert one["hit_rate"] == len(own) / len(rows)
        assert one["cached_tokens"] == sum(row.cached for row in own)
    served = {one["name"] for one in told["tiers"] if one["turns"]}
    assert len(served) >= 2, served


def test_a_turn_that_read_nothing_is_in_no_rate() -> None:
    on = parts()
    serve(on.main, tokens(200), tokens(5))
    row = on.main.journal.rows[-1]
    for source in ("refused", "response", "known", "prepared"):
        on.main.journal.add(replace(row, source=source, cached=0))
    on.main.journal.add(replace(row, source="end", cached=100))
    tiers = {one["name"]: one for one in stats(on)["tiers"]}
    assert tiers["resident"]["hit_rate"] == 1 / 2
    assert tiers["response"]["turns"] == 1, "what is no cache of rows is listed as well"
    assert "refused" not in tiers and "cold" not in tiers


def test_the_plan_has_what_every_cache_holds() -> None:
    on = talked(parts())
    memory, held = stats(on)["memory"], on.main.stack.held_bytes()
    assert {cache["name"]: cache["held_bytes"] for cache in memory["caches"]} == held
    assert memory["allocated_bytes"] == 1_000_000 + sum(held.values())
    assert memory["limits"] == {
        "ceiling_bytes": 2**40,
        "peak_bytes": 2**41,
        "slack_bytes": 9,
    }
    for cache in memory["caches"]:
        assert 0 <= cache["held_bytes"] <= cache["budget_bytes"], cache
    assert memory["spare"]["park"] == on.main.stack.park.spare_bytes("park")


def test_the_worst_is_every_budget_full() -> None:
    on = talked(parts())
    worst, config = stats(on)["memory"]["worst"], on.main.stack.config
    rows = on.main.stack.held_bytes()["rows"]
    assert worst["resting"]["weights and buffers"] == 1_000_000 + rows
    assert worst["resting"]["pool: parked and pinned"] == config.park.budget_bytes
    assert worst["resting"]["state store"] == config.store.budget_bytes
    assert on.disk is not None
    assert worst["resting"]["the disk tier's buffers"] == on.disk.most_bytes() > 0
    assert worst["resting_bytes"] == sum(worst["resting"].values()) + 9
    assert worst["fits"] is True
    assert on.main.budget is not None
    on.main.budget.limits = Limits(10, 10, 0)
    assert stats(on)["memory"]["worst"]["fits"] is False


def test_side_slots_are_in_the_plan_once() -> None:
    on = parts(drive=False)
    slots = Slots.beside(
        on.main, 2, 512, lambda of: box(of, anchors=4, store=on.main.stack.store).stack
    )
    on = talked(replace(on, boxes=tuple(slots)))
    side = on.boxes[1]
    serve(side, tokens(300, 9), tokens(5))
    memory = stats(on)["memory"]
    held = {cache["name"]: cache["held_bytes"] for cache in memory["caches"]}
    main, others = on.main.stack.held_bytes(), side.stack.held_bytes()
    assert held["rows"] == main["rows"] + others["rows"]
    assert held["store"] == main["store"] == on.main.stack.store.held_bytes()
    cost = side.engine.cost()
    assert memory["worst"]["resting"]["side slots' copies"] == 2 * (4 + 1) * cost.anchor_bytes
    assert stats(on)["queue"]["slots"] == 3


def test_without_a_drive_and_a_budget_there_is_less_to_tell() -> None:
    on = parts(drive=False)
    on.main.budget = None
    told = stats(on)
    assert told["disk"] is told["spill"] is told["writes"] is None
    assert told["memory"]["limits"] is None and told["memory"]["worst"] is None
    assert [one["name"] for one in told["tiers"]] == ["resident", "park", "store"]


def test_the_most_hit_prefixes_come_first() -> None:
    on = parts()
    head = tokens(6 * GRID, 1)
    for number in range(6):
        ids = joined(head, tokens(100, 20 + number))
        serve(on.main, ids, tokens(4), session=f"s{number}")
        on.main.jobs.drain()
        serve(on.main, tokens(700, 90 + number), tokens(4), session=f"o{number}")
        on.main.jobs.drain()
        on.main.stack.park.entries.clear()
        on.main.stack.store.clear()
        on.main.stack.resident.start_cold(on.main.engine)
    found = stats(on)["prefixes"]
    assert found and found[0]["tier"] == "disk"
    assert [p["hits"] for p in found] == sorted((p["hits"] for p in found), reverse=True)
    assert all(p["hits"] > 0 and p["tokens"] > 0 for p in found)


def test_the_last_turns_and_events_come_newest_first_and_not_all() -> None:
    on = parts()
    for number in range(LAST + 5):
        serve(on.main, tokens(30, number), tokens(2), session=str(number))
    told = stats(on)["last_turns"]
    assert len(told) == LAST
    assert told[0]["session"] == short(str(LAST + 4), b"salt")


def test_no_word_of_anybody_is_in_it() -> None:
    on = talked(parts())
    row = on.main.journal.rows[-1]
    on.main.journal.add(replace(row, session=SECRET, client=SECRET * 40))
    assert_silent(on)
    told = stats(on)
    assert told["last_turns"][0]["session"] == short(SECRET, on.salt)
    assert len(told["last_turns"][0]["client"]) <= 40
    assert short(SECRET, b"other") != short(SECRET, on.salt)
    assert short("\ud800", b"") and short(None, b"") is None


def assert_silent(on: Parts) -> None:
    told = stats(on)
    for turn in told["last_turns"]:
        turn.pop("client")
    assert not [text for text in strings(told) if SECRET in text]


def test_canary_a_session_told_as_it_is_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "short", lambda session, salt: session)
    with pytest.raises(AssertionError):
        assert_silent(talked(parts()))
