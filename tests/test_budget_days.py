"""Days of writes under a budget: each level, what the codec leaves, and what is read again.

Covers sim.budget_days, sim.write_days, sim.budget_scan, experiments.budget_settings and
experiments.budget_sweep.

Method: the real guard and a drive booked write by write as the oracle of the plain step; the plain
step as the oracle of the scan; the seed's days against their sums; rules broken on purpose.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache.writeguard import GuardConfig, WriteGuard
from experiments import budget_settings, budget_sweep
from experiments.budget_settings import at, difference, drawn, held, looped, setting_of, sizes_of
from experiments.figure import Figure
from experiments.traffic import GateFailed
from sim import budget_days
from sim.budget_days import DRAIN, EVICT, SLOTS, TIER, Days, Event, Setting, Sizes, lived
from sim.clock import VirtualClock
from sim.drive import Drive, Rates
from sim.profile import load
from sim.write_days import DAYS, GB, LAST_GB, MEAN_GB, by_day, events

BOARD = load("spark-27b")
SIZES = sizes_of(BOARD)
HAPPENED = events(SIZES)
SMALL = Sizes(100.0, 1_000.0, 10.0)
WHO = {TIER: "tier", EVICT: "evict", DRAIN: "drain"}


class Day(VirtualClock):
    """Only its day counts."""

    today = 0

    def day(self) -> int:
        return self.today


class Oracle:
    """The same days with the real guard, a drive, and a dictionary of what is on it."""

    def __init__(self, setting: Setting, sizes: Sizes) -> None:
        self.setting, self.sizes, self.clock = setting, sizes, Day()
        config = GuardConfig(
            int(setting.budget_bytes), setting.hard_factor, int(setting.evict_tokens)
        )
        self.guard = WriteGuard(self.clock, config)
        self.drive = Drive(Rates(**setting.drive._asdict()))
        self.saved: dict[int, float] = {}
        self.tier = self.spill = self.reread = self.waited = self.longest = 0.0
        self.skips = {"tier": 0, "spill": 0}

    def happen(self, event: Event) -> None:
        self.clock.today += bool(event.new_day)
        tier, who = event.kind == TIER, WHO[event.kind]
        if not tier and not event.came_tokens:
            self.saved.pop(event.slot, None)
        there = self.saved.get(event.slot, 0)
        self.reread += max(0, event.came_tokens - there)
        if tier:
            nbytes = event.tokens * self.sizes.row_bytes + self.sizes.anchor_bytes
        else:
            nbytes = self._session_bytes(event, event.tokens - there)
        if not nbytes:
            return
        if not self.guard.allows(who, int(event.tokens)):  # type: ignore[arg-type]
            self.skips["tier" if tier else "spill"] += 1
            return
        end_s = self.drive.book(event.at_s, nbytes, write=True)
        self.guard.wrote("tier" if tier else "spill", round(nbytes))
        if tier:
            self.tier += nbytes
            return
        self.spill += nbytes
        self.saved[event.slot] = event.tokens
        if event.kind == EVICT:
            self.waited += end_s - event.at_s
            self.longest = max(self.longest, end_s - event.at_s)

    def _session_bytes(self, event: Event, new: float) -> float:
        short = event.kind == EVICT and event.tokens < self.setting.tokens_min
        if short or new <= 0:
            return 0
        anchors = 1 + min(4, int(new / self.sizes.grid))
        rows, state = new * self.sizes.row_bytes, anchors * self.sizes.anchor_bytes
        return (rows + state) * self.setting.ratio


def agrees(setting: Setting, sizes: Sizes, happened: list[Event]) -> Days:
    """Both give the same days."""
    ours, oracle = lived(setting, sizes, happened), Oracle(setting, sizes)
    for event in happened:
        oracle.happen(event)
    assert ours.tier_bytes == pytest.approx(oracle.tier, rel=1e-9)
    assert ours.spill_bytes == pytest.approx(oracle.spill, rel=1e-9)
    assert (ours.tier_skips, ours.spill_skips) == (oracle.skips["tier"], oracle.skips["spill"])
    assert ours.reread_tokens == oracle.reread
    assert ours.waited_s == pytest.approx(oracle.waited, rel=1e-9, abs=1e-9)
    assert ours.longest_s == pytest.approx(oracle.longest, rel=1e-9, abs=1e-9)
    assert ours.drive.busy_until_s == pytest.approx(oracle.drive.busy_until_s, rel=1e-9)
    return ours


SLOW = Rates(1e4, 1e4, 0.0, 30_000.0, 1e3, 100.0, 5.0, 10.0).params
"""A drive that a conversation of SMALL's fills."""
SETTING = st.builds(
    Setting,
    drive=st.just(SLOW),
    budget_bytes=st.sampled_from((0.0, 20_000.0, 60_000.0, 1e12)),
    hard_factor=st.sampled_from((1.0, 1.5, 2.0)),
    evict_tokens=st.sampled_from((0.0, 120.0)),
    tokens_min=st.sampled_from((1.0, 80.0)),
    # Halves, so that the guard's whole bytes are the same as ours.
    ratio=st.sampled_from((0.5, 1.0)),
)
DRAWS = st.lists(
    st.tuples(
        st.sampled_from((TIER, EVICT, EVICT, DRAIN)),
        st.integers(0, 2),
        st.integers(0, 200),
        st.booleans(),
        st.booleans(),
    ),
    max_size=30,
)


def made(draws: list[tuple[int, int, int, bool, bool]]) -> Iterator[Event]:
    """Events of a few slots: conversations that grow by what is drawn, or are new ones."""
    there = [0.0] * SLOTS
    for number, (kind, slot, more, fresh, new_day) in enumerate(draws):
        if kind == TIER:
            yield Event(10.0 * number, new_day, TIER, SLOTS, float(more + 1), 0.0)
            continue
        came = 0.0 if fresh else there[slot]
        there[slot] = came + more if came else more + 20.0
        yield Event(10.0 * number, new_day, kind, slot, there[slot], came)


@settings(max_examples=150)
@given(SETTING, DRAWS)
def test_the_real_guard_and_a_drive_give_the_same_days(
    setting: Setting, draws: list[tuple[int, int, int, bool, bool]]
) -> None:
    agrees(setting, SMALL, list(made(draws)))


@pytest.mark.parametrize(("budget", "ratio"), [(1e18, 1.0), (200e9, 1.0), (120e9, 0.5), (0, 1.0)])
def test_the_seeds_days_are_the_same_too(budget: float, ratio: float) -> None:
    days = agrees(setting_of(BOARD, budget, ratio), SIZES, HAPPENED)
    if budget == 0:
        assert days.tier_bytes == 0 and days.days_hard == DAYS
        assert days.spill_bytes == pytest.approx(sum(by_day(HAPPENED, SIZES, DRAIN)))


def test_levels_are_counted_once_a_day() -> None:
    def head(at_s: float, new_day: bool) -> Event:
        return Event(at_s, new_day, TIER, SLOTS, 90.0, 0.0)

    week = [head(10.0 * n, n % 3 == 0) for n in range(9)]
    days = lived(Setting(SLOW, 15_000.0, 2.0, 0.0, 1.0, 1.0), SMALL, week)
    # 10,000 bytes a head: the second one passes the budget, the third one is not written.
    assert (days.days_over, days.days_hard, days.tier_skips) == (3, 0, 3)
    assert (days.tier_bytes, days.worst_day_bytes) == (60_000, 20_000)
    drains = [event._replace(kind=DRAIN, slot=0) for event in week]
    days = lived(Setting(SLOW, 15_000.0, 2.0, 0.0, 1.0, 1.0), SMALL, drains)
    assert (days.days_over, days.days_hard, days.spill_skips) == (3, 3, 0)


def test_what_was_not_written_is_read_again_and_then_written_whole() -> None:
    tight = Setting(SLOW, 5_000.0, 1.0, 0.0, 1.0, 1.0)
    filled = Event(0.0, True, TIER, SLOTS, 90.0, 0.0)
    first = Event(10.0, False, EVICT, 3, 50.0, 0.0)
    later = Event(20.0, True, EVICT, 3, 60.0, 50.0)
    days = lived(tight, SMALL, [filled, first, later])
    assert (days.spill_skips, days.reread_tokens, days.saved[3]) == (1, 50, 60)
    assert days.spill_bytes == 60 * 100 + 5 * 1_000
    roomy = lived(tight._replace(budget_bytes=1e9), SMALL, [filled, first, later])
    assert (roomy.spill_skips, roomy.reread_tokens) == (0, 0)
    assert roomy.spill_bytes == (50 * 100 + 5 * 1_000) + (10 * 100 + 2 * 1_000)


# the seed's days


def test_every_day_comes_to_its_sum() -> None:
    kinds = [by_day(HAPPENED, SIZES, kind) for kind in (TIER, EVICT, DRAIN)]
    days = [sum(parts) / GB for parts in zip(*kinds, strict=True)]
    assert days[-len(LAST_GB) :] == pytest.approx(LAST_GB, rel=1e-9)
    assert sum(days) / DAYS == pytest.approx(MEAN_GB, rel=1e-9)
    assert kinds[2][-1] / GB == pytest.approx(69, abs=1.8) and max(kinds[2][:-1]) / GB < 7
    assert all(event.tokens > 4_096 for event in HAPPENED if event.kind == TIER)
    assert events(SIZES) == HAPPENED != events(SIZES, seed=1)
    in_time = [event.at_s for event in HAPPENED]
    assert in_time == sorted(in_time) and sum(event.new_day for event in HAPPENED) == DAYS


def test_conversations_come_back_as_they_were() -> None:
    there: dict[int, float] = {}
    for event in HAPPENED:
        if event.kind == TIER:
            assert (event.slot, event.came_tokens) == (SLOTS, 0)
            continue
        assert event.came_tokens in (0.0, there.get(event.slot)) and 0 <= event.slot < SLOTS
        assert event.tokens >= max(event.came_tokens, 16_384)
        there[event.slot] = event.tokens
    saves = [e.tokens - e.came_tokens for e in HAPPENED if e.kind == EVICT]
    same, grown = (sum(new == 0 for new in saves), sum(0 < new < 16_384 for new in saves))
    # The seed's shares of 186 saves.
    assert same / len(saves) == pytest.approx(52 / 186, abs=0.07)
    assert grown / len(saves) == pytest.approx(81 / 186, abs=0.07)


# the scan


@pytest.fixture(scope="module")
def done() -> budget_settings.Sweep:
    return budget_settings.sweep(BOARD)


def test_the_scan_gives_what_a_plain_loop_does(done: budget_settings.Sweep) -> None:
    assert done.apart < 1e-9 and done.steps == len(HAPPENED)
    assert len(done.ends.tier_bytes) == budget_settings.SETTINGS
    # Not one of those that the sweep itself looks at.
    number = budget_settings.SETTINGS - 1
    plain = lived(at(done.settings, number), SIZES, HAPPENED)
    last: Any = Days(
        drive=type(done.ends.drive)(*(values[-1:] for values in done.ends.drive)),
        saved=tuple(values[-1:] for values in done.ends.saved),
        **{k: v[-1:] for k, v in done.ends._asdict().items() if k not in ("drive", "saved")},
    )
    assert difference([plain], last) < 1e-9


def test_canary_a_plain_loop_of_another_rule_is_seen(
    done: budget_settings.Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heads written over the budget, in the loop alone: what was scanned is compiled already."""
    real = budget_days.happen
    mild = lambda setting, *rest: real(setting._replace(hard_factor=1.01), *rest)  # noqa: E731
    monkeypatch.setattr(budget_days, "happen", mild)
    with pytest.raises(GateFailed, match="a plain loop gives other days"):
        held(looped(done.settings, SIZES, HAPPENED), done.ends)


def test_canary_a_step_without_the_levels_is_no_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget_days, "_levels", lambda setting, day_bytes: (True, True))
    with pytest.raises(AssertionError):
        agrees(setting_of(BOARD, 120e9, 0.5), SIZES, HAPPENED)


# the experiment


def by_key(figures: list[Figure]) -> dict[str, float]:
    return {figure.key: figure.ours for figure in figures}


def test_the_sweeps_figures(done: budget_settings.Sweep) -> None:
    figures = budget_sweep.run(BOARD)
    ours = by_key(figures)
    seeds = {f.key: f.ours / f.seed - 1 for f in figures if f.seed}
    assert seeds.pop("smart.used") == pytest.approx(0.93, abs=0.01), "rated otherwise there"
    assert all(abs(off) < 0.03 for off in seeds.values()), seeds
    assert ours["none.mean"] == pytest.approx(203) and ours["none.days_over"] == 0
    assert ours["none.reread"] == ours["codec.reread"] == 0 < ours["budget.reread"]
    assert ours["budget.worst_day"] < ours["none.worst_day"]
    assert ours["codec.years"] > ours["budget.years"] > ours["none.years"] > 8
    assert ours["sweep.written.ratio"] > 0.2 and ours["sweep.reread_tokens.budget_bytes"] < -0.2
    assert ours["here.ratio"] > 1
    tables = budget_sweep.tables(BOARD)
    assert len(tables["settings"]) == 10_000 and len(tables["days"]) == DAYS
    assert set(tables["settings"][0]) >= {"budget_bytes", "drive_cache_bytes", "written"}
    for curve in budget_sweep.curves(BOARD)[:1]:
        for line in curve.lines.values():
            values = [y for _, y in line]
            assert all(b >= 0.99 * a for a, b in pairwise(values))


def test_another_drive_is_swept_as_it_is() -> None:
    slow = setting_of(replace(BOARD, drive_cache_bytes=0), 1e18, 1.0)
    fast = setting_of(BOARD, 1e18, 1.0)
    waits = [lived(one, SIZES, HAPPENED).longest_s for one in (slow, fast)]
    assert waits[0] > 4 * waits[1]
    many = drawn(BOARD)
    assert np.ptp(many.budget_bytes) > 300e9 and np.ptp(many.drive.write_bytes_s) == 0
