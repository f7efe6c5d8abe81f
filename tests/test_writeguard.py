"""The write guard: bytes by local day, three levels, and no clock that goes back makes room.

Method: random writes, jumps of the date and restarts against a list of every write with its date;
single jumps by hand; records that are damaged, foreign or from the future; the settings. Plants: a
guard that forgets at a restart, and one that begins anew when the clock goes back.
"""

from __future__ import annotations

import errno
import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.checksum import crc32
from cache.format import Layout, read_record, write_record
from cache.saving import save_now
from cache.writeguard import WRITES, GuardConfig, WriteGuard
from sim.clock import DAY_S, VirtualClock
from sim.faults import Fault
from sim.files import SimFiles

TODAY = 20_000
SMALL = GuardConfig(budget_bytes=100)


class Dated(VirtualClock):
    """A clock whose date is set by hand."""

    def __init__(self, day: int = TODAY) -> None:
        super().__init__(day * DAY_S + 1.0)

    def to(self, day: int) -> None:
        self._wall_start_s += (day - self.day()) * DAY_S


def guard(clock: Dated | None = None, config: GuardConfig = SMALL) -> WriteGuard:
    return WriteGuard(clock or Dated(), config)


def again(had: WriteGuard, clock: Dated) -> WriteGuard:
    """The next process, with the record of the last one."""
    fresh = type(had)(clock, had.config)
    fresh.take(json.loads(json.dumps(had.plain())))
    return fresh


# levels


def test_levels_and_who_may_write() -> None:
    held = guard()
    every = [(who, n) for who in ("tier", "drain", "evict", "park", "idle") for n in (1, 32_768)]
    may = lambda: [(who, n) for who, n in every if held.allows(who, n)]  # noqa: E731
    assert held.level() == "ok" and may() == every
    held.wrote("tier", 49)
    assert may() == every
    held.wrote("spill", 1)
    assert held.level() == "ok" and may() == every[:-2], "half of it is spent"
    held.wrote("spill", 49)
    assert held.level() == "ok"
    held.wrote("tier", 1)
    drains = [("drain", 1), ("drain", 32_768)]
    assert held.level() == "over" and may() == [*drains, ("evict", 32_768), ("park", 32_768)]
    held.wrote("tier", 49)
    assert held.level() == "over"
    held.wrote("tier", 1)
    assert held.level() == "hard" and may() == drains
    held.config = GuardConfig(budget_bytes=1_000)
    assert held.level() == "ok" and may() == every
    held.config = GuardConfig(budget_bytes=0)
    assert held.level() == "hard" and may() == drains
    held.config = GuardConfig(budget_bytes=1_000, evict_tokens=0, idle_share=0.0)
    assert ("idle", 1) not in may() and len(may()) == 8
    assert not held.events() and held.stats()["skips"] == 0, "asking counts nothing"


def test_nothing_written_is_over_no_budget_but_none() -> None:
    assert guard().level() == "ok"
    assert guard(config=GuardConfig(budget_bytes=0)).level() == "hard"


def test_a_skip_is_noted_with_its_level_and_counted_by_day() -> None:
    clock = Dated()
    held = guard(clock)
    held.wrote("tier", 120)
    held.skipped("tier", "s", 5_000)
    held.wrote("tier", 120)
    held.skipped("evict", None, 40_000)
    first, second = held.events()
    assert (first.tier, first.event, first.session, first.tokens) == ("guard", "skip", "s", 5_000)
    assert (first.why, second.why, second.tokens) == ("over tier", "hard evict", 40_000)
    assert held.events() == []
    clock.to(TODAY + 1)
    held.skipped("park", None, 7)
    assert held.days() == [(TODAY, 240, 0, 2), (TODAY + 1, 0, 0, 1)]
    stats = held.stats()
    assert json.loads(json.dumps(stats)) == stats
    assert stats["skipped"] == {"over tier": 1, "hard evict": 1, "ok park": 1}
    assert (stats["level"], stats["skips"], stats["tier_bytes"]) == ("ok", 1, 0)
    assert [day["date"] for day in stats["days"]] == ["2024-10-04", "2024-10-05"]
    assert stats["days"][0]["tier_bytes"] == 240 and stats["budget_bytes"] == 100


@pytest.mark.parametrize(
    "settings",
    [
        {"budget_bytes": -1},
        {"hard_factor": 0.9},
        {"hard_factor": float("nan")},
        {"hard_factor": float("inf")},
        {"evict_tokens": -1},
        {"days_kept": 0},
        {"idle_share": 1.1},
        {"idle_share": -0.1},
        {"idle_share": float("nan")},
    ],
)
def test_a_setting_that_makes_no_sense_is_named(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(settings))} must") as error:
        GuardConfig(**settings)
    assert "\n" not in str(error.value)


def test_the_seeds_figures_are_the_defaults() -> None:
    config = GuardConfig()
    gb = 10**9
    at = [config.level_of(nbytes) for nbytes in (0, 200 * gb - 1, 200 * gb, 300 * gb - 1, 300 * gb)]
    assert at == ["ok", "ok", "over", "over", "hard"]
    assert (config.budget_bytes, config.hard_factor) == (200 * 10**9, 1.5)
    assert (config.evict_tokens, config.days_kept) == (32_768, 14)


# the list of every write, as the oracle


class Naive:
    """Every write with its date; a clock that goes back takes the running date's writes along."""

    def __init__(self, kept: int) -> None:
        self.kept = kept
        self.writes: list[tuple[int, str, int]] = []
        self.came = [TODAY]
        self.left = TODAY

    def at(self, today: int) -> None:
        day = self.came[-1]
        if today < day:
            self.relabel(day, today)
            self.left = max(self.left, day)
        elif today > day and self.left > day + 1 and today >= self.left:
            self.relabel(day, self.left)
            self.at(today)
        elif today > day:
            self.came = [d for d in self.came if d != today] + [today]
            self.left = today
        self.came = self.came[-self.kept :]
        self.writes = [write for write in self.writes if write[0] in self.came]

    def relabel(self, old: int, new: int) -> None:
        self.writes = [(new if d == old else d, who, n) for d, who, n in self.writes]
        self.came = [d for d in self.came if d not in (old, new)] + [new]

    def days(self) -> list[tuple[int, int, int]]:
        def total(day: int, who: str) -> int:
            return sum(n for d, name, n in self.writes if (d, name) == (day, who))

        return [(day, total(day, "tier"), total(day, "spill")) for day in self.came]


STEPS = st.lists(
    st.tuples(
        st.one_of(st.just(0), st.integers(-3, 3), st.sampled_from((-TODAY, 365, -365, TODAY))),
        st.sampled_from(("tier", "spill")),
        st.integers(0, 60),
        st.booleans(),
    ),
    max_size=30,
)


def plays(kind: type[WriteGuard], steps: Sequence[tuple[int, str, int, bool]], kept: int) -> None:
    """Days jump, bytes are written, the process is started again: held to the list."""
    clock, naive = Dated(), Naive(kept)
    held = kind(clock, GuardConfig(budget_bytes=100, days_kept=kept))
    for jump, who, nbytes, restarts in steps:
        before = clock.day(), sum(held.days()[-1][1:3])
        clock.to(min(max(clock.day() + jump, -10), 3 * TODAY))
        if restarts:
            held = again(held, clock)
        naive.at(clock.day())
        if clock.day() <= before[0]:
            assert sum(held.days()[-1][1:3]) >= before[1], "the clock went back and made room"
        held.wrote(who, nbytes)  # type: ignore[arg-type]
        naive.writes.append((clock.day(), who, nbytes))
        assert [day[:3] for day in held.days()] == naive.days()
        today = sum(naive.days()[-1][1:])
        assert held.level() == ("hard" if today >= 150 else "over" if today >= 100 else "ok")
        plain = held.plain()
        held.allows("evict", nbytes)
        assert held.plain() == plain and not held.events()


@given(STEPS, st.integers(1, 5))
def test_the_days_are_those_of_a_list_of_every_write(
    steps: list[tuple[int, str, int, bool]], kept: int
) -> None:
    plays(WriteGuard, steps, kept)


@given(STEPS)
def test_nothing_is_ever_lost(steps: list[tuple[int, str, int, bool]]) -> None:
    clock = Dated()
    held = guard(clock, GuardConfig(days_kept=100))
    for number, (jump, who, nbytes, restarts) in enumerate(steps):
        clock.to(clock.day() + jump)
        held = again(held, clock) if restarts else held
        held.wrote(who, nbytes)  # type: ignore[arg-type]
        total = sum(tier + spill for _, tier, spill, _ in held.days())
        assert total == sum(step[2] for step in steps[: number + 1])


class Forgets(WriteGuard):
    """The plant: a restart begins with nothing."""

    def take(self, record: Any) -> None:
        super().take({})


class Frees(WriteGuard):
    """The plant: every other date is a new day."""

    def _move(self, today: int) -> None:
        if today != self._day:
            self._left = 0
            self._days[today] = type(self._days[self._day])()
            self._days.move_to_end(today)


PLAYED = [(0, "tier", 60, False), (0, "spill", 60, True), (-1, "tier", 5, False)]


def test_what_the_plants_are_shown_is_right() -> None:
    plays(WriteGuard, PLAYED, 3)
    plays(WriteGuard, [PLAYED[0], PLAYED[2]], 3)


def test_canary_a_guard_that_forgets_at_a_restart() -> None:
    with pytest.raises(AssertionError):
        plays(Forgets, PLAYED, 3)


def test_canary_a_guard_that_begins_anew_when_the_clock_goes_back() -> None:
    with pytest.raises(AssertionError, match="made room"):
        plays(Frees, [PLAYED[0], PLAYED[2]], 3)


# clocks


def spent(held: WriteGuard) -> int:
    """Today's bytes."""
    return sum(held.days()[-1][1:3])


def test_a_day_forward_begins_anew_and_a_day_back_does_not() -> None:
    clock = Dated()
    held = guard(clock)
    held.wrote("tier", 120)
    clock.to(TODAY - 1)
    assert held.level() == "over" and held.days() == [(TODAY - 1, 120, 0, 0)]
    # A date line or a summer hour: the day comes when it comes.
    clock.to(TODAY)
    assert held.level() == "ok" and held.days() == [(TODAY - 1, 120, 0, 0), (TODAY, 0, 0, 0)]


def test_a_hop_forward_and_back_goes_on_where_it_was() -> None:
    clock = Dated()
    held = guard(clock)
    held.wrote("tier", 90)
    clock.to(TODAY + 1)
    held.wrote("spill", 20)
    assert held.level() == "ok"
    clock.to(TODAY)
    assert held.level() == "over" and held.days() == [(TODAY, 90, 20, 0)]


def test_a_clock_that_starts_in_1970_at_every_boot_makes_no_room() -> None:
    clock = Dated()
    held = guard(clock)
    for boot in range(3):
        held.wrote("tier", 40)
        clock.to(-1 + boot)
        held = again(held, clock)
        assert spent(held) == 40 * (boot + 1)
        clock.to(TODAY)
        assert spent(held) == 40 * (boot + 1)
    assert held.days() == [(TODAY, 120, 0, 0)]
    # It finds the right time only after midnight.
    clock.to(0)
    assert spent(held) == 120
    clock.to(TODAY + 1)
    assert held.days() == [(TODAY, 120, 0, 0), (TODAY + 1, 0, 0, 0)]


@pytest.mark.parametrize("ahead", [2, 365, 10_000])
def test_a_clock_that_was_ahead_blocks_one_day_at_most(ahead: int) -> None:
    clock = Dated(TODAY + ahead)
    held = guard(clock)
    for _ in range(5):
        held.wrote("tier", 500)
        assert held.level() == "hard"
        clock.to(clock.day() + 1)
    held.wrote("tier", 500)
    assert held.level() == "hard"
    clock.to(TODAY)
    held = again(held, clock)
    assert held.level() == "hard" and spent(held) == 500, "not fresh, and one day's alone"
    clock.to(TODAY + 1)
    assert held.level() == "ok"
    for day in range(2, 20):
        if day < ahead or day > ahead + 5:
            clock.to(TODAY + day)
            held = again(held, clock)
            assert held.level() == "ok"
    assert all(day < TODAY + 20 for day, *_ in held.days()) and len(held.days()) == 14


def test_48_hours_asleep_are_one_new_day() -> None:
    clock = Dated()
    held = guard(clock)
    held.wrote("tier", 120)
    clock.charge(48 * 3_600.0)
    assert held.level() == "ok"
    assert held.days() == [(TODAY, 120, 0, 0), (TODAY + 2, 0, 0, 0)]


def test_an_hour_more_or_less_at_midnight() -> None:
    for hour in (-3_600.0, 3_600.0):
        clock = Dated()
        held = guard(clock)
        held.wrote("tier", 120)
        clock.charge(DAY_S - 2.0)  # One second before midnight.
        clock._wall_start_s += hour
        assert held.level() == ("over" if hour < 0 else "ok")
        clock.charge(3_601.0)
        assert held.level() == "ok" and spent(held) == 0
        assert [had[1] for had in held.days()] == [120, 0]


def test_what_is_told_after_midnight_counts_for_the_day_it_was_written() -> None:
    clock = Dated()
    held = guard(clock)
    held.wrote("tier", 30)
    clock.to(TODAY + 1)
    held.wrote("tier", 4)
    assert held.days() == [(TODAY, 30, 0, 0), (TODAY + 1, 4, 0, 0)]
    # Of a day that nobody asked on, and of one that never was.
    for day in (2, 5, 3):
        clock.to(TODAY + day)
        held.wrote("tier", day)
    assert held.days()[2:] == [(TODAY + 2, 7, 0, 0), (TODAY + 3, 3, 0, 0)]


def test_any_thread_may_say_what_it_wrote() -> None:
    held = guard()

    def writes() -> None:
        for _ in range(2_000):
            held.wrote("spill", 1)

    threads = [threading.Thread(target=writes) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        held.level()
    for thread in threads:
        thread.join()
    assert held.days() == [(TODAY, 0, 8_000, 0)]


# records


def test_the_record_goes_through_a_directory_and_is_taken_once() -> None:
    clock, files = Dated(), SimFiles()
    held = guard(clock)
    held.wrote("tier", 70), held.skipped("tier", None, 1)
    assert held.save(files) == ""
    held.wrote("tier", 5)
    assert held.load(files) == "" and held.days() == [(TODAY, 75, 0, 1)], "memory is newer"
    fresh = guard(clock)
    fresh.wrote("spill", 3)
    assert fresh.load(files) == "" and fresh.days() == [(TODAY, 70, 3, 1)]
    assert fresh.load(files) == "" and fresh.days() == [(TODAY, 70, 3, 1)]
    assert fresh.load(SimFiles()) == "" and fresh.keeps_record


def test_fourteen_days_are_kept() -> None:
    clock = Dated()
    held = guard(clock)
    for day in range(20):
        clock.to(TODAY + day)
        held.wrote("tier", day)
    assert [day for day, *_ in held.days()] == list(range(TODAY + 6, TODAY + 20))
    assert again(held, clock).days() == held.days()
    held.config = GuardConfig(days_kept=2)
    assert [day for day, *_ in held.days()] == [TODAY + 18, TODAY + 19]


@pytest.mark.parametrize(
    "days",
    [
        None,
        7,
        {},
        [7],
        [None],
        [[]],
        [[TODAY]],
        [[TODAY, 1, 1]],
        [[TODAY, 1, 1, 1, 1]],
        [[TODAY, -1, 1, 1]],
        [[TODAY, 1 << 53, 1, 1]],
        [[TODAY, 1.5, 1, 1]],
        [[TODAY, "1", 1, 1]],
        [[TODAY, True, 1, 1]],
        [[10**9, 1, 1, 1]],
        [[-(10**9), 1, 1, 1]],
        [[True, 1, 1, 1]],
        [[str(TODAY), 1, 1, 1]],
    ],
)
def test_what_makes_no_sense_is_passed_over(days: Any) -> None:
    for left in (None, "x", 10**12, True, [1]):
        held = guard()
        held.take({"days": days, "left": left})
        assert held.days() == [(TODAY, 0, 0, 0)] and held.level() == "ok"
        both = guard()
        known = [[TODAY, 5, 6, 7]]
        both.take({"days": [*(days if isinstance(days, list) else []), *known], "left": left})
        assert both.days() == [(TODAY, 5, 6, 7)]


def test_a_day_named_twice_counts_twice_and_many_are_cut() -> None:
    held = guard()
    held.take({"days": [[TODAY, 1, 0, 0], [TODAY, 2, 0, 0]]})
    assert held.days() == [(TODAY, 3, 0, 0)]
    held = guard()
    held.take({"days": [[n, 1, 0, 0] for n in range(1_000)]})
    assert len(held.days()) == 14 and held.days()[-1] == (TODAY, 0, 0, 0)
    held = guard()
    held.wrote("tier", (1 << 60))
    assert again(held, Dated()).level() == "hard"


def later(files: SimFiles) -> None:
    """A record as a later version writes it."""
    write_record(files, WRITES, WRITES, {"days": [[TODAY, 120, 0, 0]]})
    data = files.snapshot()[WRITES]
    head = data[:8] + (99).to_bytes(4, "little") + data[12:24]
    put(files, head + crc32(head).to_bytes(4, "little") + data[28:])


def put(files: SimFiles, data: bytes) -> None:
    handle, buffer = files.create(WRITES), files.buffer(len(data))
    whole = len(buffer)
    buffer[: len(data)] = data
    files.write(handle, 0, buffer[:whole])
    files.close(handle)


def damaged(files: SimFiles) -> None:
    write_record(files, WRITES, WRITES, {"days": [[TODAY, 120, 0, 0]]})
    data = bytearray(files.snapshot()[WRITES])
    data[100] ^= 1
    put(files, bytes(data))


def of_another_kind(files: SimFiles) -> None:
    layout = Layout("counts", {}, ())
    save_now(files, WRITES, layout.seal(files.buffer(layout.nbytes)))


@pytest.mark.parametrize(
    ("spoil", "written_over"),
    [
        (later, False),
        (lambda files: put(files, b"somebody else's"), False),
        (damaged, True),
        (of_another_kind, True),
    ],
)
def test_a_record_that_cannot_be_read(
    spoil: Callable[[SimFiles], None], written_over: bool
) -> None:
    files = SimFiles()
    spoil(files)
    before = files.snapshot()
    held = guard()
    assert held.load(files) and held.level() == "ok" and held.keeps_record == written_over
    held.wrote("tier", 1)
    assert held.save(files) == ""
    assert (files.snapshot() != before) == written_over


def test_a_drive_that_fails_is_a_value() -> None:
    files = SimFiles()
    assert guard().save(files) == ""
    held = guard()
    files.fault = Fault(files.calls, errno.EIO, for_ever=True)
    assert "planted" in held.load(files) and not held.keeps_record
    fresh = guard()
    assert "planted" in fresh.save(files)
    files.fault = None
    before = files.snapshot()
    assert held.save(files) == "" and files.snapshot() == before, "it may be read another time"
    assert isinstance(read_record(files, WRITES, WRITES), dict)
