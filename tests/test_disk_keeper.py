"""The keeper: room for what is to be written, what has to go, and what outlives a process.

Method: random writes, uses, days and budgets on a board whose files have sizes of their own, with a
twin that sums files from names alone and sees every file that is given up; then single rules by
hand, and whole processes over files in memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import log2
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import GRID, box, engine, joined, plain, serve, tier, tokens

from cache.disk import work as work_module
from cache.disk.config import DAY_S
from cache.disk.index import Chunk, Entry, anchor_name, chunk_name
from cache.disk.plan import Done, Plan, Staged, Stuck
from cache.disk.shapes import ANCHOR, ROWS
from cache.disk.tier import DiskTier, lines_of
from cache.disk.writer import NEVER
from cache.format import Layout, read_record
from cache.types import Cost, Ids
from engine.witness import Witness
from sim.clock import VirtualClock
from sim.files import SimFiles
from sim.jobs import SeededJobs
from sim.micro import Create

WALL_S = 1.7e9
YEAR_S = 365 * DAY_S
BOARD = Cost(row_bytes=1_000, anchor_bytes=90_000)
LETTERS = {letter: tokens(GRID, ord(letter)) for letter in "abc"}


class Clock(VirtualClock):
    """A clock whose date jumps when somebody sets it."""

    jump_s = 0.0

    def wall_s(self) -> float:
        """The date, right or wrong."""
        return super().wall_s() + self.jump_s


class Kept:
    """A tier's keeper, with writes that land when a test says so."""

    def __init__(self, **settings: Any) -> None:
        self.of = Witness(GRID, 2_048, vocab=499, cost=BOARD)
        self.clock = Clock(WALL_S)
        self.files = SimFiles()
        self.tier: DiskTier = tier(self.files, self.of, clock=self.clock, **settings)
        self.keeper = self.tier.keeper
        self.given_up: list[tuple[Entry, float, str]] = []
        """What was, what it was worth then, and why."""
        give_up = self.keeper._give_up

        def seen(entry: Entry, event: str, why: str) -> None:
            value = self.index.value(entry, self.clock.wall_s())
            others = [self.index.value(e, self.clock.wall_s()) for e in self.index]
            assert event == "expire" or value <= min(others), "the least valuable first"
            self.given_up.append((entry, value, why))
            give_up(entry, event, why)

        self.keeper._give_up = seen  # type: ignore[method-assign]

    @property
    def index(self) -> Any:
        """What is on the drive."""
        return self.tier.index

    def plan(self, prefix: str, lines: Iterable[int] = ()) -> Plan:
        """What a prompt of these chunks would write, by default its last line alone."""
        ids: Ids = joined(*(LETTERS[letter] for letter in prefix))
        at = tuple(n * GRID for n in lines) or (len(ids),)
        hashes = tuple(lines_of(ids, GRID))
        return Plan(self.of, ids, hashes, at, "s", (), 0, NEVER)

    def land(self, plan: Plan, *, chunks: int = 99, anchors: bool = True) -> None:
        """Its job is over, and all of it is on the drive, or the first chunks."""
        done, shapes = Done(plan), self.tier.shapes
        for name, stop in [*plan.below(plan.lines[-1])][:chunks]:
            if name not in self.index.chunks:
                done.chunks.append(Chunk(name, stop, shapes.bytes_of(ROWS)))
        for line in plan.lines if anchors else ():
            below = plan.chunks(line)
            nbytes = shapes.bytes_of(ANCHOR, len(below))
            done.entries.append(Entry(below[-1], line, below, nbytes))
        done.dropped = [] if anchors else [(line, "window") for line in plan.lines]
        self.tier.work.results.append(done)
        self.keeper.absorb()

    def write(self, prefix: str, lines: Iterable[int] = ()) -> bool:
        """A whole write, if there is room."""
        plan = self.plan(prefix, lines)
        admitted = self.keeper.admit(plan)
        if admitted:
            self.land(plan)
        return admitted

    def entry(self, prefix: str) -> Entry:
        """The entry of these chunks."""
        found: Entry = self.index.entries[self.plan(prefix).hashes[-1]]
        return found

    def has(self, prefix: str) -> bool:
        """Whether there is one."""
        return self.plan(prefix).hashes[-1] in self.index.entries

    def events(self, name: str) -> list[tuple[int, str]]:
        """(tokens, why) of the events of a name since the last look."""
        return [(e.tokens, e.why) for e in self.tier.events() if e.event == name]


CHUNK = Kept().tier.shapes.bytes_of(ROWS)
ANCHORED = Kept().tier.shapes.bytes_of(ANCHOR)
"""Bytes of a chunk's file and of a short anchor's: neither divides the other."""

STEP = st.one_of(
    st.tuples(st.just("write"), st.text("ab", min_size=1, max_size=4), st.sampled_from((0, 1, 2))),
    st.tuples(st.just("begin"), st.text("abc", min_size=1, max_size=4), st.just(0)),
    st.tuples(st.just("end"), st.sampled_from(("whole", "none", "some")), st.just(0)),
    st.tuples(st.just("use"), st.just(""), st.integers(0, 5)),
    st.tuples(st.just("wait"), st.just(""), st.sampled_from((1, 3, 40, -40))),
    st.tuples(st.just("budget"), st.just(""), st.integers(0, 9)),
    st.tuples(st.just("damage"), st.text("ab", min_size=1, max_size=3), st.just(0)),
    st.tuples(st.just("clear"), st.just(""), st.just(0)),
)


class Twin:
    """What is on the drive by the names of prefixes, and what a write would add, summed anew."""

    def __init__(self, kept: Kept) -> None:
        self.kept, self.under_way = kept, list[tuple[Plan, int]]()

    def would_fit(self, plan: Plan) -> bool:
        """Whether there is room once all that is worth no more has gone."""
        kept, index = self.kept, self.kept.index
        now_s, shapes = kept.clock.wall_s(), kept.tier.shapes
        worth = 0.0
        for line in plan.lines:
            chunks = plan.chunks(line)
            readers = [sum(c in e.chunks for e in index) for c in chunks]
            alone = shapes.bytes_of(ANCHOR, len(chunks)) + sum(CHUNK / (n + 1) for n in readers)
            worth = max(worth, line / alone)
        dear = [entry for entry in index if index.value(entry, now_s) > worth]
        needed = {chunk for entry in dear for chunk in entry.chunks}
        for other in [plan, *(p for p, _ in self.under_way)]:
            needed |= {*other.hashes} & {*index.chunks}
        stays = sum(index.chunks[c].nbytes for c in needed) + sum(e.nbytes for e in dear)
        return stays + self.need(plan) + sum(n for _, n in self.under_way) <= (
            kept.keeper.config.budget_bytes
        )

    def need(self, plan: Plan) -> int:
        """Bytes that nobody has written or is about to write."""
        coming = {c for other, _ in self.under_way for c in other.hashes}
        lacks = set(plan.hashes) - coming - set(self.kept.index.chunks)
        shapes = self.kept.tier.shapes
        return len(lacks) * CHUNK + sum(
            shapes.bytes_of(ANCHOR, line // GRID) for line in plan.lines
        )


@given(st.lists(STEP, max_size=25), st.integers(1, 9))
def test_nothing_dearer_is_pushed_out_and_the_budget_holds(
    steps: list[tuple[str, str, int]], room: int
) -> None:
    kept = Kept(budget_bytes=room * (CHUNK + ANCHORED))
    twin = Twin(kept)
    for what, text, number in steps:
        if what in ("write", "begin"):
            lines = range(max(1, len(text) - number), len(text) + 1) if number else ()
            admit(kept, twin, kept.plan(text, lines))
        if what == "write" or (what == "end" and twin.under_way):
            land(kept, twin, text if what == "end" else "whole")
        elif what == "use" and kept.index.entries:
            entries = list(kept.index)
            entry = entries[number % len(entries)]
            entry.hits, entry.used_s = entry.hits + 1, kept.clock.wall_s()
        elif what == "wait":
            kept.clock.jump_s += number * DAY_S / 8
            kept.keeper.absorb()
        elif what == "budget":
            before = kept.keeper.config
            kept.tier.configure(replace(before, budget_bytes=number * (CHUNK + ANCHORED) // 2))
        elif what == "damage":
            kept.keeper.remove(kept.index.damaged(kept.plan(text).hashes[-1]))
        elif what == "clear":
            kept.tier.clear()
            assert not kept.index.entries and not kept.index.held_bytes()
        kept.tier.check()
        shrunk = what == "budget"
        if not twin.under_way or shrunk:
            entries = len(kept.index.entries)
            assert kept.index.held_bytes() <= kept.keeper.config.budget_bytes or not entries
    while twin.under_way:
        land(kept, twin, "whole")
    assert kept.index.held_bytes() <= kept.keeper.config.budget_bytes
    kept.keeper.jobs.drain()
    assert not any(isinstance(result, Stuck) for result in kept.tier.work.results)


def admit(kept: Kept, twin: Twin, plan: Plan) -> None:
    """A write is asked for; what it takes and gives up is held to the twin."""
    if not all(kept.keeper.wants(plan.chunks(line)[-1]) for line in plan.lines):
        return
    fits, need = twin.would_fit(plan), twin.need(plan)
    worth = kept.keeper._worth(plan)
    kept.given_up.clear()
    before = (dict(kept.index.chunks), dict(kept.index.entries))
    assert kept.keeper.admit(plan) == fits
    if not fits:
        assert (kept.index.chunks, kept.index.entries) == before and not kept.given_up
        return
    assert plan.need_bytes == need
    assert all(value <= worth for _, value, _ in kept.given_up), "something dearer went"
    twin.under_way.append((plan, need))
    coming = sum(need for _, need in twin.under_way)
    assert kept.index.held_bytes() + coming <= kept.keeper.config.budget_bytes
    assert set(plan.hashes) & set(before[0]) <= set(kept.index.chunks), "it counts on those"


def land(kept: Kept, twin: Twin, how: str) -> None:
    """The oldest write ends."""
    if not twin.under_way:
        return
    plan, _ = twin.under_way.pop(0)
    stopped = plan.stopped
    present = {line for line in plan.lines if plan.chunks(line)[-1] in kept.index.entries}
    assert not present
    kept.land(plan, chunks={"whole": 99, "none": 0, "some": 1}[how], anchors=how == "whole")
    assert plan.finished
    if stopped:
        assert not any(plan.chunks(line)[-1] in kept.index.entries for line in plan.lines)


# single rules


def test_a_write_that_is_worth_less_is_not_admitted_and_nothing_goes() -> None:
    kept = Kept(budget_bytes=2 * CHUNK + ANCHORED)
    assert kept.write("ab")
    kept.entry("ab").hits = 9
    assert not kept.write("ca") and kept.has("ab") and not kept.given_up
    kept.clock.jump_s += 4 * DAY_S
    assert kept.write("ca") and not kept.has("ab"), "ten uses are halved four times by then"
    assert kept.events("evict") == [(2 * GRID, "budget")]


def test_a_write_keeps_the_chunks_that_it_counts_on() -> None:
    kept = Kept(budget_bytes=2 * CHUNK + ANCHORED)
    plan = kept.plan("ab")
    assert kept.write("a") and kept.keeper.admit(plan)
    assert set(kept.index.chunks) == {plan.hashes[0]} and not kept.index.entries
    kept.keeper.jobs.drain()
    kept.land(plan)
    assert [entry.line for entry, _, _ in kept.given_up] == [GRID]
    assert kept.index.held_bytes() == 2 * CHUNK + ANCHORED
    kept.keeper.jobs.drain()
    kept.entry("ab").hits = 9
    assert not kept.write("abc") and not kept.write("aca")
    kept.keeper.remove(kept.index.drop(kept.entry("ab")))
    assert kept.index.held_bytes() == 0, "what was not admitted counts on nothing"
    kept.tier.check()


def test_a_writes_worth_is_its_best_lines() -> None:
    """Of a plan for two lines the longer one decides, no more and no less."""
    kept = Kept(budget_bytes=3 * CHUNK + 2 * ANCHORED)
    assert kept.write("bcc")
    worth = 2 * GRID / (2 * CHUNK + kept.tier.shapes.bytes_of(ANCHOR, 2))
    for factor, admitted in ((1.001, False), (0.999, True)):
        entry = kept.entry("bcc")
        entry.used_s = kept.clock.wall_s()
        value = kept.index.value(entry, entry.used_s)
        # As much worth as that, by the days that nobody used it.
        entry.used_s -= DAY_S * log2(value / (worth * factor))
        assert kept.write("aa", (1, 2)) == admitted
    assert not kept.has("bcc")


def test_what_does_not_fit_at_all_is_not_admitted() -> None:
    kept = Kept(budget_bytes=2 * CHUNK)
    assert not kept.write("ab") and kept.index.held_bytes() == 0
    assert kept.keeper.wants(kept.plan("ab").hashes[-1])


def test_chunks_in_common_are_counted_once() -> None:
    kept = Kept(budget_bytes=3 * CHUNK + 2 * ANCHORED)
    assert kept.write("ab") and kept.write("aa") and not kept.given_up
    assert kept.index.held_bytes() == 3 * CHUNK + 2 * ANCHORED


def test_two_writes_under_way_share_a_budget() -> None:
    kept = Kept(budget_bytes=2 * (CHUNK + ANCHORED))
    first, second, third = kept.plan("a"), kept.plan("b"), kept.plan("c")
    assert kept.keeper.admit(first) and kept.keeper.admit(second)
    assert not kept.keeper.admit(third)
    assert not kept.keeper.wants(first.hashes[-1]), "it is on its way"
    kept.land(first, anchors=False, chunks=0)
    assert kept.keeper.wants(first.hashes[-1]) and kept.keeper.admit(third)
    assert kept.events("drop") == [(GRID, "window")]


def test_an_entry_that_nobody_used_for_long_enough_goes() -> None:
    kept = Kept(ttl_s=7 * DAY_S, budget_bytes=10**9)
    assert kept.write("ab") and kept.write("aa")
    kept.clock.charge(7 * DAY_S)
    kept.entry("aa").used_s = kept.clock.wall_s()
    kept.keeper.absorb()
    assert kept.has("ab")
    kept.clock.charge(1.0)
    kept.keeper.absorb()
    assert not kept.has("ab") and kept.has("aa") and kept.events("expire") == [(2 * GRID, "ttl")]
    assert set(kept.index.chunks) == set(kept.plan("aa").hashes)


@pytest.mark.parametrize("jump_s", [YEAR_S, -YEAR_S])
def test_a_clock_that_jumps_a_year_leaves_a_tier_that_works(jump_s: float) -> None:
    kept = Kept(budget_bytes=2 * CHUNK + ANCHORED)
    assert kept.write("ab")
    kept.clock.jump_s = jump_s
    kept.keeper.absorb()
    kept.tier.check()
    assert kept.has("ab") == (jump_s < 0)
    assert all(kept.index.value(e, kept.clock.wall_s()) > 0 for e in kept.index)
    # A newcomer of equal worth still comes in, and the budget still holds.
    assert kept.write("ba") and kept.has("ba") and not kept.has("ab")
    assert kept.index.held_bytes() <= kept.keeper.config.budget_bytes
    kept.clock.jump_s = 0.0
    kept.keeper.absorb()
    kept.tier.check()
    # What was used a year ago by the right clock is too old; what will be is new.
    assert kept.has("ba") == (jump_s > 0)


def test_a_smaller_budget_holds_from_the_next_request() -> None:
    kept = Kept(budget_bytes=10**9)
    for prefix, hits in (("a", 5), ("b", 1), ("c", 3)):
        kept.write(prefix)
        kept.entry(prefix).hits = hits
    settings = replace(kept.keeper.config, budget_bytes=CHUNK + ANCHORED, ttl_s=DAY_S, lines_max=2)
    for line in range(5):
        kept.keeper.counts.add(line)
    kept.tier.configure(settings)
    assert kept.has("a") and not kept.has("b") and not kept.has("c")
    assert kept.tier.config is settings and len(kept.keeper.counts) == 2
    kept.tier.check()
    kept.clock.charge(2 * DAY_S)
    kept.keeper.absorb()
    assert not kept.has("a"), "the new time to live holds too"
    kept.tier.configure(replace(settings, mode="read"))
    assert [(e.event, e.nbytes, e.why) for e in kept.tier.events()][-1] == (
        "settings",
        settings.budget_bytes,
        "read",
    )


def test_a_smaller_budget_holds_for_what_is_on_its_way() -> None:
    kept = Kept(budget_bytes=10**9)
    kept.write("ab")
    plan = kept.plan("aa")
    assert kept.keeper.admit(plan)
    kept.tier.configure(replace(kept.keeper.config, budget_bytes=2 * CHUNK + ANCHORED))
    kept.land(plan)
    assert kept.index.held_bytes() <= 2 * CHUNK + ANCHORED and len(kept.index.entries) == 1


def test_a_smaller_budget_holds_at_once_beside_what_is_on_its_way() -> None:
    kept = Kept()
    assert kept.write("a")
    coming = kept.plan("b")
    assert kept.keeper.admit(coming)
    kept.tier.configure(replace(kept.tier.config, budget_bytes=1))
    assert not kept.has("a") and kept.events("evict") == [(GRID, "budget")]
    kept.land(coming)
    assert not kept.has("b")
    kept.tier.check()


def test_what_is_written_while_all_is_cleared_does_not_come_back() -> None:
    kept = Kept(budget_bytes=10**9)
    kept.write("ab")
    plan = kept.plan("aa")
    assert kept.keeper.admit(plan)
    kept.keeper.counts.add(5)
    kept.tier.clear()
    assert plan.stopped and len(kept.keeper.counts) == 0 and kept.index.held_bytes() == 0
    kept.land(plan)
    assert kept.index.held_bytes() == 0 and kept.events("drop") == [(2 * GRID, "cleared")]
    kept.tier.check()
    assert kept.write("aa"), "and it may be written again"


def test_an_anchor_whose_chunk_was_lost_meanwhile_is_not_believed() -> None:
    kept = Kept(budget_bytes=10**9)
    kept.write("ab")
    plan = kept.plan("aa")
    assert kept.keeper.admit(plan)
    kept.keeper.remove(kept.index.damaged(plan.hashes[0]))
    done = Done(plan, [Chunk(plan.hashes[1], 2 * GRID, CHUNK)])
    done.entries = [Entry(plan.hashes[1], 2 * GRID, plan.hashes, ANCHORED)]
    kept.tier.work.results.append(done)
    kept.keeper.absorb()
    kept.tier.check()
    assert not kept.has("aa") and kept.index.held_bytes() == 0
    assert kept.events("drop") == [(2 * GRID, "chunk lost")]
    kept.files.close(kept.files.create(anchor_name(plan.hashes[1])))
    kept.keeper.jobs.drain()
    assert not kept.files.exists(anchor_name(plan.hashes[1])), "its file goes"


def test_what_the_drive_would_not_remove_is_told() -> None:
    kept = Kept(budget_bytes=10**9)
    kept.tier.work.results.append(Stuck("x.rows", "EIO"))
    kept.keeper.absorb()
    assert kept.events("stuck") == [(0, "x.rows: EIO")]


NAME = "0000000000000001"
RECORDS: list[Any] = [
    {},
    {"counts": [], "uses": []},
    {"counts": None, "uses": None},
    {"counts": 5, "uses": "x"},
    *(
        {"uses": {NAME: use}}
        for use in (
            [1],
            [-1, 5.0],
            ["1", 5.0],
            [1.5, 5.0],
            [1, None],
            [1, float("nan")],
            [1, float("-inf")],
            [10**400, 5.0],
            {"hits": 1},
            [1, 2.0, 3.0],
            5,
        )
    ),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: str(record)[:60])
def test_a_record_that_makes_no_sense_makes_an_entry_new(record: dict[str, Any]) -> None:
    kept = Kept(budget_bytes=10**9)
    kept.index.add_chunk(Chunk(1, GRID, CHUNK))
    entry = Entry(1, GRID, (1,), ANCHORED)
    assert kept.index.add(entry)
    kept.keeper.take_record(record)
    assert (entry.hits, entry.used_s) == (0, WALL_S)
    assert kept.index.value(entry, WALL_S) > 0


def test_a_record_from_a_clock_that_was_ahead_keeps_no_entry_for_ever() -> None:
    kept = Kept(budget_bytes=10**9)
    kept.write("ab")
    entry = kept.entry("ab")
    uses = {f"{entry.hash:016x}": [3, WALL_S + YEAR_S]}
    kept.keeper.take_record({"uses": uses, "counts": {"00000000000000aa": 7}})
    assert (entry.hits, entry.used_s, kept.keeper.counts[0xAA]) == (3, WALL_S, 7)
    kept.keeper.take_record({"uses": {f"{entry.hash:016x}": [4, WALL_S - 5.0]}})
    assert (entry.hits, entry.used_s) == (4, WALL_S - 5.0)


# whole processes over one directory

PROMPT = joined(tokens(3 * GRID, 70), tokens(20, 71))


class Life:
    """One process after another over the same files."""

    def __init__(self) -> None:
        self.files, self.clock = SimFiles(), Clock(WALL_S)

    def start(self, fingerprint: str = "f" * 64, **settings: Any) -> DiskTier:
        """A process opens the directory with an engine that holds nothing.

        Heads get no anchors, so that a prompt read twice has one, at its last line.
        """
        settings = {"head_anchors": 0} | settings
        self.of = engine("witness")
        identity = plain(fingerprint)
        self.tier = tier(self.files, self.of, clock=self.clock, identity=identity, **settings)
        self.on = box(self.of, disk=self.tier)
        return self.tier

    def ask(self, ids: Ids, session: str | None = None) -> str:
        """A request, and what served it."""
        row, _ = serve(self.on, ids, tokens(3, 72), session=session)
        self.settle()
        return row.source

    def settle(self) -> None:
        """All that is to be done is done, and taken in."""
        for _ in range(3):
            self.tier.keeper.jobs.drain()
            self.tier.keeper.absorb()

    def stop(self) -> None:
        """A process ends in good order."""
        self.settle()
        self.tier.check()
        self.tier.close()
        assert not self.files.handles


def written() -> Life:
    """Two processes have read PROMPT, the second of which wrote it."""
    life = Life()
    for _ in range(2):
        life.start()
        life.ask(PROMPT, "s")
        life.stop()
    names = [name for name in life.files.list() if name.endswith(("rows", "anchor"))]
    hashes = lines_of(PROMPT, GRID)
    assert sorted(names) == sorted([*map(chunk_name, hashes), anchor_name(hashes[-1])])
    return life


def test_uses_outlive_a_restart() -> None:
    life = written()
    life.start()
    life.clock.charge(DAY_S)
    assert life.ask(PROMPT) == "disk.grid"
    entry = next(iter(life.tier.index))
    assert (entry.hits, entry.used_s) == (1, WALL_S + DAY_S)
    life.stop()
    life.clock.charge(2 * DAY_S)
    life.start()
    entry = next(iter(life.tier.index))
    assert (entry.hits, entry.used_s) == (1, WALL_S + DAY_S)
    life.clock.charge(5 * DAY_S)
    life.tier.keeper.absorb()
    assert life.tier.index.entries
    life.clock.charge(1.0)
    life.tier.keeper.absorb()
    assert not life.tier.index.entries, "its time is counted from its last use, restart or not"
    life.stop()
    assert not [name for name in life.files.list() if name.endswith(("rows", "anchor"))]


def test_the_day_of_writing_outlives_a_restart() -> None:
    life = written()
    life.clock.charge(2 * DAY_S)
    life.start()
    entry = next(iter(life.tier.index))
    assert (entry.hits, entry.used_s) == (0, WALL_S)
    life.stop()


def test_counts_outlive_a_new_fingerprint_and_only_a_clear_drops_them() -> None:
    life = written()
    counts = life.tier.keeper.counts.plain()
    assert set(counts.values()) == {2}
    life.start("e" * 64)
    assert not life.tier.index.entries and life.tier.keeper.counts.plain() == counts
    assert not [name for name in life.files.list() if name.endswith(("rows", "anchor"))]
    sweeps = [event for event in life.tier.events() if event.event == "sweep"]
    assert len(sweeps) == 4 and all(event.why.endswith("fingerprint") for event in sweeps)
    assert life.ask(PROMPT) == "cold"
    assert len(life.tier.index.entries) == 1, "the first session after a deploy writes it again"
    life.tier.clear()
    life.stop()
    record = read_record(life.files, "counts", "counts")
    assert record == {"counts": {}, "uses": {}}
    assert not [name for name in life.files.list() if name.endswith(("rows", "anchor"))]
    life.start("e" * 64)
    assert not life.tier.keeper.counts.plain() and not life.tier.index.entries
    assert life.ask(PROMPT) == "cold" and not life.tier.index.entries
    life.stop()


def test_a_directory_over_its_new_budget_is_cut_at_the_start() -> None:
    life = written()
    held = sum(len(data) for name, data in life.files.snapshot().items() if name[:3] != "moo")
    life.start(budget_bytes=held // 2)
    assert not life.tier.index.entries
    life.stop()
    assert not [name for name in life.files.list() if name.endswith(("rows", "anchor"))]


def test_a_mode_holds_from_the_next_request() -> None:
    life = written()
    tier_ = life.start(mode="read")
    counts = tier_.keeper.counts.plain()
    assert life.ask(PROMPT) == "disk.grid"
    life.ask(tokens(4 * GRID, 90)), life.ask(tokens(4 * GRID, 90))
    assert tier_.keeper.counts.plain() == counts and len(tier_.index.entries) == 1
    tier_.configure(replace(tier_.config, mode="off"))
    assert life.ask(PROMPT) == "cold" and tier_.keeper.counts.plain() == counts
    tier_.configure(replace(tier_.config, mode="on"))
    life.ask(tokens(4 * GRID, 91))
    assert life.ask(PROMPT) == "disk.grid" and tier_.keeper.counts.plain() != counts
    life.stop()


@pytest.mark.parametrize("what", ["sections", "first rows", "last rows"])
def test_a_copy_without_memory_costs_an_anchor_and_no_request(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    life, calls = Life(), list[int]()
    life.start(admit_after=1)
    fill = work_module.fill_chunk

    def fails(tensors: Any, ids: Ids, state: Any, start: int, stop: int) -> None:
        calls.append(start)
        if len(calls) == (1 if what == "first rows" else 3):
            raise torch.OutOfMemoryError("out of memory")
        fill(tensors, ids, state, start, stop)

    def nowhere(layout: Layout, slot: memoryview) -> list[torch.Tensor]:
        if layout.kind == ANCHOR:
            raise torch.OutOfMemoryError("out of memory")
        return tensors_of(layout, slot)

    tensors_of = Layout.tensors
    with monkeypatch.context() as patched:
        if what == "sections":
            patched.setattr(Layout, "tensors", nowhere)
        else:
            patched.setattr(work_module, "fill_chunk", fails)
        assert life.ask(PROMPT) == "cold"
    drops = [(e.tokens, e.why) for e in life.on.journal.events if e.event == "drop"]
    drops += [(e.tokens, e.why) for e in life.tier.events() if e.event == "drop"]
    assert drops == [(3 * GRID, "memory")] and not life.tier.index.entries
    assert not [name for name in life.files.list() if name.endswith((".tmp", ".rows"))]
    slots = [slot for _ in range(2) if (slot := life.tier.anchor_slots.take()) is not None]
    assert len(slots) == 2, "a buffer was not given back"
    for slot in slots:
        life.tier.anchor_slots.give(slot)
    life.on.stack.resident.start_cold(life.of)
    assert life.ask(PROMPT) == "cold" and len(life.tier.index.entries) == 1
    life.stop()


def test_a_record_that_waits_is_replaced_by_a_newer_one() -> None:
    life = Life()
    life.start()
    life.settle()
    before = len(life.files.log)
    for _ in range(3):
        life.tier.keeper.counts.add(7)
        life.tier.keeper.save_record()
    life.settle()
    made = [op.name for op in life.files.log[before:] if isinstance(op, Create)]
    assert made == ["counts.tmp"]
    life.stop()
    record = read_record(life.files, "counts", "counts")
    assert isinstance(record, dict) and record["counts"] == {f"{7:016x}": 3}


def test_jobs_may_be_late_by_any_number_of_requests() -> None:
    """Writes of several requests are under way at once; in the end every file is accounted for."""
    for seed in range(6):
        life = Life()
        life.of = engine("witness")
        jobs = SeededJobs(seed, steps_a_pump_max=1)
        life.tier = tier(
            life.files, life.of, jobs=jobs, clock=life.clock, admit_after=1, budget_bytes=40_000
        )
        life.on = box(life.of, disk=life.tier)
        for number in range(6):
            head = PROMPT[: (1 + (number * seed) % 3) * GRID]
            serve(life.on, joined(head, tokens(2 * GRID, number % 3)), tokens(2, 1))
        life.stop()
        held = {c.name: c.nbytes for c in life.tier.index.chunks.values()}
        held |= {e.name: e.nbytes for e in life.tier.index}
        found = life.files.snapshot()
        assert held == {n: len(d) for n, d in found.items() if n.endswith(("rows", "anchor"))}
        assert sum(held.values()) <= 40_000 and held
        assert not any(name.endswith(".tmp") for name in found)


def test_staged_anchors_are_named_where_they_stand() -> None:
    plan = Kept().plan("abca")
    assert plan.chunks(2 * GRID) == plan.hashes[:2]
    assert list(plan.below(2 * GRID)) == [(plan.hashes[0], GRID), (plan.hashes[1], 2 * GRID)]
    packed = replace(plan, packages=((GRID, "one"), (2 * GRID + 1, "two")))
    assert packed.named(GRID) == ("one",) == packed.named(2 * GRID)
    assert packed.named(GRID - 1) == () and packed.named(3 * GRID) == ("one", "two")
    assert Staged(GRID).saving is None and not plan.finished
