"""The disk tier under the day's write budget, and on a drive whose right of way a save has.

Goal: levels change what is written and never an answer; every byte counts, also after a restart.
Method: real turns on the witness at every level, held to a cold prefill; the bytes that simulated
files took as the oracle of the counts; a way that looks whether anything is held or on its way.
Covers cache.disk.writer, cache.disk.open and cache.disk.work with a guard.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support import GRID, VOCAB, WINDOW, box, engine, joined, plain, serve, tier, tokens, verifier

from cache.counted import CountedFiles
from cache.direct import DirectFiles
from cache.disk.config import SESSIONS, DiskConfig
from cache.disk.open import open_tier
from cache.disk.plan import Plan
from cache.disk.tier import DiskTier
from cache.disk.work import Work
from cache.disk.writer import DiskWriter
from cache.format import write_record
from cache.host import OsFiles
from cache.journal import CacheEvent, TurnRow
from cache.ports import Files, Job
from cache.types import Cost, Ids, Refusal
from cache.writeguard import WRITES, GuardConfig, WriteGuard
from engine.witness import Witness
from sim.clock import DAY_S, VirtualClock
from sim.drive import Drive, Rates
from sim.driven_files import DrivenFiles
from sim.files import SimFiles
from sim.jobs import SeededJobs
from sim.micro import Data

AMPLE = GuardConfig(budget_bytes=1 << 40)
HEAD = tokens(3 * GRID + 5, 1)


def prompt(number: int) -> Ids:
    return joined(HEAD, tokens(GRID + 9, 10 + number))


class Days:
    """Processes over one directory, one after another, each with the guard of its own."""

    def __init__(self, config: GuardConfig = AMPLE, model: str = "witness") -> None:
        self.files, self.model, self.config = SimFiles(), model, config
        self.clock = VirtualClock(100 * DAY_S)
        self.starts()

    def starts(self) -> None:
        self.of = engine(self.model)
        self.guard = WriteGuard(self.clock, self.config)
        self.tier = tier(self.files, self.of, guard=self.guard, clock=self.clock)
        self.on = box(self.of, disk=self.tier)
        self.check = verifier(self.of)

    def asks(self, ids: Ids, session: str | None = None) -> TurnRow:
        row, verdict = serve(self.on, ids, tokens(5), check=self.check, session=session)
        assert verdict is not None and verdict.ok, verdict
        self.rests()
        events = self.on.journal.events
        self.on = box(self.of, disk=self.tier)
        self.on.journal.events.extend(events)
        return row

    def rests(self) -> None:
        for _ in range(3):
            self.tier.keeper.jobs.drain()
            self.tier.keeper.absorb()
        self.on.stack.leave()

    def ends(self) -> None:
        self.rests()
        self.tier.close()

    @property
    def skips(self) -> list[CacheEvent]:
        return [event for event in self.on.journal.events if event.event == "skip"]

    @property
    def today(self) -> int:
        return sum(self.guard.days()[-1][1:3])

    @property
    def taken(self) -> int:
        """Bytes that the files took so far."""
        return sum(len(step.piece) for step in self.files.log if isinstance(step, Data))

    @property
    def data(self) -> set[str]:
        return {name for name in self.files.list() if name.endswith((".rows", ".anchor"))}


def levels(days: Days) -> None:
    """Two prompts at each level: what is written, what is noted, and every answer a cold one's."""
    for config, level in (
        (AMPLE, "ok"),
        (GuardConfig(budget_bytes=1), "hard"),
        (GuardConfig(budget_bytes=1, hard_factor=1e9), "over"),
        (GuardConfig(budget_bytes=0), "hard"),
        (AMPLE, "ok"),
    ):
        days.guard.config = config
        for _ in range(2):
            number = len(days.tier.keeper.counts)
            before, told = days.data, len(days.skips)
            ids = prompt(number)
            assert days.asks(ids, f"s{number}").source == ("disk.grid" if before else "cold")
            assert len(days.tier.keeper.counts) > number, "cold reads are counted at every level"
            new = days.skips[told:]
            if level == "ok":
                assert days.data > before and not new
            else:
                assert days.data == before, f"written at level {level}"
                assert [(e.tier, e.session, e.why) for e in new] == [
                    ("guard", f"s{number}", f"{level} tier")
                ]
                assert 0 < new[0].tokens <= len(ids)
    assert days.guard.stats()["skips"] == 6


@pytest.mark.parametrize("model", ("witness", "hybrid-bfloat16"))
def test_levels_change_what_is_written_and_never_an_answer(model: str) -> None:
    levels(Days(model=model))


def test_canary_a_tier_that_does_not_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DiskWriter, "_skips", lambda *_: False)
    with pytest.raises(AssertionError, match="written at level hard"):
        levels(Days())


def test_a_tomorrow_writes_again_what_was_skipped() -> None:
    days = Days(GuardConfig(budget_bytes=100_000))
    for number in range(8):
        days.asks(prompt(number), f"s{number}")
    assert days.guard.level() != "ok" and days.skips
    asked = prompt(7)
    assert days.asks(asked).cached < len(asked) // GRID * GRID
    days.clock.charge(DAY_S)
    days.asks(asked)
    assert days.asks(asked).cached == len(asked) // GRID * GRID


def test_every_byte_that_the_drive_takes_counts() -> None:
    days = Days(model="hybrid-float32")
    more = days.tier.shapes.bytes_of("rows") - days.tier.shapes.chunk(0, GRID).nbytes
    assert more == 0, "its rows weigh what they are"
    for number in range(3):
        days.asks(prompt(number), f"s{number}")
    assert days.today == days.taken > 20_000
    before = days.taken
    # Files that come to nothing count as well.
    serve(days.on, tokens(4 * GRID + 9, 77), tokens(5), session="z")
    days.tier.clear()
    days.rests()
    assert not days.data and days.tier.notes.counters["drop"]
    assert days.today == days.taken > before


def survives(days: Days) -> None:
    """What was written before is written still for the next process of the day."""
    days.asks(prompt(0), "s0")
    written = days.today
    days.ends()
    assert written > 20_000
    days.starts()
    # The last record says nothing of itself and of what was written after it.
    assert written - 3 * 8_192 <= days.today <= written + 3 * 8_192, "forgotten"
    days.guard.config = GuardConfig(budget_bytes=days.today)
    levels_before = days.data
    days.asks(prompt(5), "s5")
    assert days.data == levels_before and days.skips
    days.ends()
    days.clock.charge(DAY_S)
    days.starts()
    assert [day for day, *_ in days.guard.days()] == [100, 101]
    assert days.guard.days()[0][3] == 1 and days.guard.level() == "ok"


def test_counts_survive_a_restart() -> None:
    survives(Days())


def test_canary_a_tier_that_does_not_load_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WriteGuard, "load", lambda guard, files: "")
    with pytest.raises(AssertionError, match="forgotten"):
        survives(Days())


def test_bytes_of_a_plan_that_came_to_nothing_survive_too() -> None:
    days = Days()
    serve(days.on, prompt(0), tokens(5), session="s0")
    jobs = days.tier.keeper.jobs
    assert isinstance(jobs, SeededJobs)
    while not days.data:
        jobs.pump()
    days.tier.clear()
    days.rests()
    written = days.today
    assert not days.tier.index.entries and written > 20_000
    days.ends()
    days.starts()
    assert days.today >= written - 3 * 8_192


def test_without_a_guard_there_is_no_record_and_one_that_is_there_is_no_strangers() -> None:
    days = Days()
    days.asks(prompt(0), "s0")
    days.ends()
    record = days.files.snapshot()[WRITES]
    held = tier(days.files, days.of)
    assert held.stats()["foreign"] == 0 and "writes" not in held.stats()
    on = box(days.of, disk=held)
    serve(on, prompt(1), tokens(5), session="s1")
    held.keeper.jobs.drain()
    assert days.files.snapshot()[WRITES] == record
    files = SimFiles()
    serve(box(days.of, disk=tier(files, days.of)), prompt(0), tokens(5), session="s0")
    assert WRITES not in files.list()


def test_what_is_told_of_it_is_plain() -> None:
    days = Days(GuardConfig(budget_bytes=1))
    days.asks(prompt(0), "s0")
    told = days.tier.stats()["writes"]
    assert json.loads(json.dumps(told)) == told == days.guard.stats()
    assert told["level"] == "hard" and told["days"][-1]["date"] == "1970-04-11"


# the record in the directory


def damaged(data: bytes) -> bytes:
    return data[:200] + bytes([data[200] ^ 1]) + data[201:]


@pytest.mark.parametrize(
    ("spoil", "ours"),
    [(damaged, True), (lambda data: b"mine".ljust(len(data), b" "), False)],
)
def test_a_record_that_is_no_good_stops_nothing(spoil: Any, ours: bool) -> None:
    days = Days()
    days.asks(prompt(0), "s0")
    days.ends()
    state = days.files.snapshot()
    state[WRITES] = spoil(state[WRITES])
    days.files = SimFiles(state)
    days.starts()
    assert days.tier.notes.counters["unread"] == 1
    assert days.tier.events()[0].why.startswith("writes: ")
    assert days.asks(prompt(0)).source == "disk.grid"
    days.asks(prompt(1), "s1")
    days.ends()
    assert (days.files.snapshot()[WRITES] != state[WRITES]) == ours
    assert not days.tier.notes.counters["stuck"]


def test_a_drive_that_will_not_read_the_record_opens_all_the_same() -> None:
    class Unreadable(SimFiles):
        def open(self, name: str) -> int:
            if name == WRITES:
                raise OSError(errno.EIO, "planted")
            return super().open(name)

    days = Days()
    days.asks(prompt(0), "s0")
    days.ends()
    state = days.files.snapshot()
    days.files = Unreadable(state)
    days.starts()
    days.asks(prompt(1), "s1")
    days.ends()
    assert days.files.snapshot()[WRITES] == state[WRITES], "it may be read another time"


def opened(files: Files, guard: WriteGuard | None = None) -> DiskTier | Refusal:
    clock = VirtualClock()
    return open_tier(files, clock, SeededJobs(0), DiskConfig(), engine("witness"), plain(), guard)


@pytest.mark.parametrize("kind", [OsFiles, DirectFiles])
def test_a_directory_with_a_record_and_the_conversations_folder_is_empty(
    kind: type[OsFiles], tmp_path: Path
) -> None:
    files = kind(tmp_path)
    assert write_record(files, WRITES, WRITES, {}) == ""
    (tmp_path / f"{WRITES}.tmp").write_bytes(b"half")
    (tmp_path / SESSIONS).mkdir()
    (tmp_path / SESSIONS / "theirs").write_bytes(b"x")
    held = opened(files, WriteGuard(VirtualClock(), AMPLE))
    assert isinstance(held, DiskTier), held
    assert held.stats()["foreign"] == 0
    assert not (tmp_path / f"{WRITES}.tmp").exists(), "unfinished"
    held.clear()
    held.keeper.jobs.drain()
    held.close()
    assert (tmp_path / SESSIONS / "theirs").read_bytes() == b"x"
    # And with the tier's own files beside it, on a modelled drive that counts what it holds.
    drive = Drive(Rates(write_bytes_s=1e9, read_bytes_s=1e9, fsync_s=0.0))
    driven = DrivenFiles(kind(tmp_path), drive, VirtualClock(), lambda name, n: n, 1 << 40)
    assert 0 < driven.held_bytes() < 1 << 20 and driven.free_bytes() > 0
    again = opened(driven)
    assert isinstance(again, DiskTier) and again.stats()["foreign"] == 0


@pytest.mark.parametrize("what", ["file", "another folder"])
def test_what_only_looks_like_the_folder_is_a_strangers(what: str, tmp_path: Path) -> None:
    name = SESSIONS if what == "file" else "pictures"
    (tmp_path / name).write_bytes(b"x") if what == "file" else (tmp_path / name).mkdir()
    found = opened(OsFiles(tmp_path))
    assert isinstance(found, Refusal) and name in found.why
    (tmp_path / name).rename(tmp_path.parent / "aside")
    held = opened(OsFiles(tmp_path))
    assert isinstance(held, DiskTier)
    held.close()
    (tmp_path.parent / "aside").rename(tmp_path / name)
    held = opened(OsFiles(tmp_path))
    assert isinstance(held, DiskTier) and held.stats()["foreign"] == 1


def test_files_that_count_already_are_not_counted_twice() -> None:
    told: list[int] = []
    files, guard = CountedFiles(SimFiles(), told.append), WriteGuard(VirtualClock(), AMPLE)
    assert isinstance(opened(files, guard), DiskTier)
    assert told and guard.days() == [(0, 0, 0, 0)]


def test_a_boards_rows_count_as_the_board_writes_them() -> None:
    of = Witness(GRID, WINDOW, vocab=VOCAB, cost=Cost(row_bytes=10_000, anchor_bytes=300_000))
    inner, clock, guard = SimFiles(), VirtualClock(), WriteGuard(VirtualClock(), AMPLE)
    drive = Drive(Rates(write_bytes_s=1e12, read_bytes_s=1e12, fsync_s=0.0))
    weigh = tier(SimFiles(), of).shapes.weigh
    files = DrivenFiles(inner, drive, clock, weigh, 1 << 50)
    held = tier(files, of, clock=clock, guard=guard)
    assert held.shapes.bytes_of("rows") != held.shapes.chunk(0, GRID).nbytes
    serve(box(of, disk=held), prompt(0), tokens(5), session="s0")
    held.keeper.jobs.drain()
    assert guard.days()[-1][1] == drive.written_bytes > GRID * 10_000


# the right of way


class Seen(Witness):
    """Says whether its device is being used."""

    busy = 0

    @contextmanager
    def device_calls(self) -> Iterator[None]:
        with super().device_calls():
            self.busy += 1
            try:
                yield
            finally:
                self.busy -= 1


class Looking:
    """A way that notes what is under way when it is given, and the files that are made."""

    def __init__(self, of: Seen, files: SimFiles) -> None:
        self.of, self.files = of, files
        self.given: list[int] = []

    @contextmanager
    def first(self) -> Iterator[None]:
        yield

    def give(self) -> None:
        assert not self.of.busy, "the device is held"
        assert not self.files._moving, "a transfer is on its way"
        self.given.append(len(self.files.log))


def gives_way() -> None:
    """Before every file the way is given, with nothing held and nothing on its way."""
    of, files = Seen(GRID, WINDOW, vocab=VOCAB), SimFiles()
    way = Looking(of, files)
    held = tier(files, of, way=way)
    on = box(of, disk=held)
    for number in range(3):
        serve(on, prompt(number), tokens(5), session=f"s{number}")
        held.keeper.jobs.drain()
    made = [at for at, step in enumerate(files.log) if _begins(step)]
    assert len(made) == len(way.given) > 5
    for given, at, after in zip(way.given, made, [*way.given[1:], len(files.log)], strict=True):
        assert given <= at < after, "each file has been waited for"


def test_way_is_given_before_every_file_and_nothing_is_held() -> None:
    gives_way()


def test_canary_a_way_that_is_given_once_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, begun = Work._rows, Work._begun

    def once(self: Work, plan: Plan) -> Job:
        self._give_way()
        yield from rows(self, plan)

    def held(self: Work, *of: Any) -> Any:
        give, self._give_way = self._give_way, lambda: None
        try:
            return begun(self, *of)
        finally:
            self._give_way = give

    monkeypatch.setattr(Work, "_rows", once)
    monkeypatch.setattr(Work, "_begun", held)
    with pytest.raises(AssertionError):
        gives_way()


def test_canary_a_way_that_is_given_while_the_device_is_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copied = Work._copied

    def gives(self: Work, plan: Plan, *of: Any) -> Any:
        with plan.model.device_calls():
            self._give_way()
        return copied(self, plan, *of)

    monkeypatch.setattr(Work, "_copied", gives)
    with pytest.raises(RuntimeError) as error:
        gives_way()
    assert "the device is held" in str(error.value.__cause__)


def _begins(step: object) -> bool:
    name = getattr(step, "name", "")
    kinds = (".rows.tmp", ".anchor.tmp")
    return type(step).__name__ == "Create" and str(name).endswith(kinds)
