"""Workers and the right of way in virtual time: when work is done, and how long one waits for it.

Method: random work and waits against the times of one queue, computed apart; the way against
every instant of random times, one after the other. Canaries: no queue, and no end to giving way.
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.ports import Way, Workers
from sim.clock import VirtualClock
from sim.timed_workers import GIVES_MOST_S, TimedWay, TimedWorkers

RATES = {"pack": 2.0, "unpack": 8.0}
WORK = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from(["pack", "unpack"]), st.integers(0, 40)),
    max_size=8,
)


def naive(work: list[tuple[int, str, int]]) -> list[float]:
    """When each is done: (pause before it starts, kind, bytes)."""
    now_s, free_s, done = 0.0, 0.0, list[float]()
    for pause, kind, nbytes in work:
        now_s += pause
        free_s = max(now_s, free_s) + nbytes / RATES[kind]
        done.append(free_s)
    return done


@given(WORK, st.randoms(use_true_random=False))
def test_work_is_done_when_one_processor_would_have_it_done(
    work: list[tuple[int, str, int]], order: object
) -> None:
    clock = VirtualClock()
    workers: Workers = TimedWorkers(clock, RATES)
    pending = []
    for pause, kind, nbytes in work:
        clock.charge(pause)
        now_s = clock.mono_s()
        pending.append(workers.start(kind, nbytes, lambda n=nbytes: n))
        assert clock.mono_s() == now_s, "starting takes no time"
    now_s, done = clock.mono_s(), naive(work)
    numbers = list(range(len(work)))
    order.shuffle(numbers)  # type: ignore[attr-defined]
    for number in numbers:
        assert pending[number].wait() == work[number][2]
        now_s = max(now_s, done[number])
        assert clock.mono_s() == now_s


def test_other_kinds_are_free_even_behind_others() -> None:
    clock = VirtualClock()
    workers = TimedWorkers(clock, RATES)
    slow = workers.start("pack", 20, lambda: "slow")
    assert workers.start("copy", 10**9, lambda: "free").wait() == "free"
    assert clock.mono_s() == 0.0
    assert slow.wait() == "slow" and clock.mono_s() == 10.0


def test_work_is_done_at_once_and_its_error_waits() -> None:
    clock, seen = VirtualClock(), list[int]()
    workers = TimedWorkers(clock, RATES)

    def breaks() -> None:
        seen.append(1)
        raise ValueError("bad")

    pending = workers.start("unpack", 16, breaks)
    assert seen == [1]
    for _ in range(2):
        with pytest.raises(ValueError, match="bad"):
            pending.wait()
        assert clock.mono_s() == 2.0
    assert seen == [1]


def test_whoever_waits_aside_waits_alone() -> None:
    clock = VirtualClock()
    workers = TimedWorkers(clock, RATES)
    with clock.aside(5.0):
        workers.start("pack", 8, lambda: None).wait()
        assert clock.mono_s() == 9.0
    assert clock.mono_s() == 0.0
    workers.start("pack", 2, lambda: None).wait()
    assert clock.mono_s() == 10.0, "one processor for all"


def test_canary_without_a_queue_two_would_be_done_at_once() -> None:
    clock = VirtualClock()
    workers = TimedWorkers(clock, RATES)
    for one in [workers.start("pack", 8, lambda: None) for _ in range(2)]:
        one.wait()
    assert clock.mono_s() == 8.0 != 4.0


# the right of way


def held(clock: VirtualClock, way: TimedWay, times: list[tuple[int, int]]) -> None:
    """Somebody goes first for each (pause, seconds)."""
    for pause, seconds in times:
        clock.charge(pause)
        with way.first():
            clock.charge(seconds)


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 50)), max_size=5),
    st.lists(st.integers(0, 120), max_size=8),
)
def test_a_job_waits_out_the_times_it_falls_into(
    times: list[tuple[int, int]], asked: list[int]
) -> None:
    clock = VirtualClock()
    way: Way = TimedWay(clock)
    assert isinstance(way, TimedWay)
    held(clock, way, times)
    ends = list(itertools.accumulate(pause + seconds for pause, seconds in times))
    busy = {
        second
        for end, (_, seconds) in zip(ends, times, strict=True)
        for second in range(end - seconds, end)
    }
    given_s = 0
    for at in asked:
        wait = next(n for n in itertools.count() if at + n not in busy or n == GIVES_MOST_S)
        with clock.aside(at):
            way.give()
            assert clock.mono_s() == at + wait
        given_s += wait
    assert way.given_s == given_s and clock.mono_s() == (ends[-1] if ends else 0)


def test_it_may_be_held_twice_and_ends_with_the_outer_one() -> None:
    clock = VirtualClock()
    way = TimedWay(clock)
    with way.first():
        clock.charge(2)
        with pytest.raises(OSError), way.first():
            clock.charge(2)
            raise OSError
        clock.charge(2)
    for at, until in ((1.0, 6.0), (5.5, 6.0), (6.0, 6.0)):
        with clock.aside(at):
            way.give()
            assert clock.mono_s() == until


def test_where_the_end_is_not_known_the_most_is_given() -> None:
    clock = VirtualClock()
    way = TimedWay(clock)
    clock.charge(4)
    with way.first():
        with clock.aside(3.0):
            way.give()
            assert clock.mono_s() == 3.0, "before it began"
        with clock.aside(4.0):
            way.give()
            assert clock.mono_s() == 4.0 + GIVES_MOST_S
        with clock.aside(4.0), pytest.raises(AssertionError), way.first():
            pass


def test_canary_a_long_time_is_not_waited_out() -> None:
    clock = VirtualClock()
    way = TimedWay(clock)
    held(clock, way, [(0, 100)])
    with clock.aside(10.0):
        way.give()
        assert clock.mono_s() == 40.0 < 100.0
