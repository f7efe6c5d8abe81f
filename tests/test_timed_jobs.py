"""Jobs in virtual time: steps in the order of their times, whose time is nobody else's; the lock.

Method: random jobs against a plain list of all steps sorted by time; direct for the lock.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.clock import VirtualClock
from sim.timed_jobs import TimedJobs, TimedLock

Seen = list[tuple[float, str]]


def job(clock: VirtualClock, seen: Seen, name: str, steps: list[int]) -> Iterator[None]:
    """Says when each step begins, and takes so long over it."""
    for seconds in steps:
        seen.append((clock.mono_s(), name))
        clock.charge(seconds)
        yield


def naive(starts: list[tuple[int, list[int]]]) -> Seen:
    """(time, job) of every step, from each job's start and the seconds of its steps."""
    found: Seen = []
    for number, (start, steps) in enumerate(starts):
        times = itertools.accumulate(steps[:-1], initial=start) if steps else []
        found += [(float(time), f"{number}") for time in times]
    return sorted(found)


STARTS = st.lists(st.tuples(st.integers(0, 9), st.lists(st.integers(0, 5), max_size=5)), max_size=5)


def played(starts: list[tuple[int, list[int]]], pumps: list[int], seed: int) -> tuple[Seen, float]:
    """The jobs started at their times with pumps in between; then drained. (steps, end)."""
    clock, seen = VirtualClock(), Seen()
    jobs = TimedJobs(clock, seed)
    events = [(time, number) for number, (time, _) in enumerate(starts)]
    events += [(time, -1) for time in pumps]
    for time, number in sorted(events):
        clock.advance_to(time)
        if number < 0:
            jobs.pump()
            assert clock.mono_s() == time, "a pump took time"
            done = [step for step in naive(starts[: len(starts)]) if step[0] <= time]
            assert [s for s in sorted(seen) if s[0] < time] == [s for s in done if s[0] < time]
            assert all(at <= time for at, _ in seen), "a step of the future"
        else:
            jobs.start(str(number), job(clock, seen, str(number), starts[number][1]))
    jobs.drain()
    assert jobs.waiting == 0
    return seen, clock.mono_s()


@given(STARTS, st.lists(st.integers(0, 20), max_size=6), st.integers(0, 3))
def test_steps_come_in_the_order_of_their_times(
    starts: list[tuple[int, list[int]]], pumps: list[int], seed: int
) -> None:
    seen, end_s = played(starts, sorted(pumps), seed)
    assert sorted(seen) == naive(starts)
    ends = [time + sum(steps) for time, steps in starts]
    assert end_s == max([0, *ends, *pumps])
    assert (seen, end_s) == played(starts, sorted(pumps), seed), "one seed is one order"


def test_steps_are_in_order_between_two_pumps() -> None:
    starts = [(0, [3, 3]), (0, [2, 2, 2]), (1, [5])]
    clock, seen = VirtualClock(), Seen()
    jobs = TimedJobs(clock, 0)
    for number, (time, steps) in enumerate(starts):
        clock.advance_to(time)
        jobs.start(str(number), job(clock, seen, str(number), steps))
    clock.advance_to(10)
    jobs.pump()
    assert [at for at, _ in seen] == sorted(at for at, _ in seen) and len(seen) == 6


def test_seeds_break_ties() -> None:
    starts = [(0, [1, 1, 1]) for _ in range(3)]
    orders = {tuple(name for _, name in played(starts, [], seed)[0]) for seed in range(20)}
    assert len(orders) > 10


def test_a_step_that_is_not_due_is_not_taken() -> None:
    clock, seen = VirtualClock(), Seen()
    jobs = TimedJobs(clock, 0)
    jobs.start("a", job(clock, seen, "a", [4, 4]))
    assert seen == []
    jobs.pump()
    clock.charge(3.9)
    jobs.pump()
    assert seen == [(0.0, "a")] and clock.mono_s() == 3.9
    clock.charge(0.1)
    jobs.pump()
    assert seen == [(0.0, "a"), (4.0, "a")]
    jobs.drain()
    assert clock.mono_s() == 8.0


def test_a_drain_waits_for_what_comes_after_a_jobs_last_step() -> None:
    clock = VirtualClock()
    jobs = TimedJobs(clock, 0)

    def closes() -> Iterator[None]:
        yield
        clock.charge(3.0)

    jobs.start("closes", closes())
    jobs.drain()
    assert clock.mono_s() == 3.0


def test_a_broken_job_names_itself_and_is_gone() -> None:
    clock = VirtualClock()
    jobs = TimedJobs(clock, 0)

    def broken() -> Iterator[None]:
        clock.charge(1.0)
        yield
        raise ValueError("no")

    jobs.start("broken", broken())
    jobs.start("sound", job(clock, [], "sound", [2, 2]))
    with pytest.raises(RuntimeError, match="job broken failed"):
        jobs.drain()
    assert clock.mono_s() == 1.0 and not clock.is_aside and jobs.waiting == 1
    jobs.drain()
    assert clock.mono_s() == 4.0


@pytest.mark.parametrize("end", [SystemExit(143), KeyboardInterrupt()])
def test_what_ends_the_program_ends_it_from_a_job_too(end: BaseException) -> None:
    def ending() -> Iterator[None]:
        raise end
        yield

    jobs = TimedJobs(VirtualClock(), 0)
    jobs.start("ending", ending())
    with pytest.raises(type(end)):
        jobs.drain()
    jobs.drain()


def test_a_job_does_not_wait_for_the_others() -> None:
    jobs = TimedJobs(VirtualClock(), 0)

    def waits() -> Iterator[None]:
        jobs.pump()
        yield

    jobs.start("waits", waits())
    with pytest.raises(RuntimeError) as failed:
        jobs.drain()
    assert isinstance(failed.value.__cause__, AssertionError)


# the lock


def test_the_engine_waits_for_a_copy_under_way_and_no_longer() -> None:
    clock = VirtualClock()
    jobs, lock = TimedJobs(clock, 0), TimedLock(clock, 0.25)

    def copies() -> Iterator[None]:
        for _ in range(3):
            with lock:
                pass
            clock.charge(1.0)  # The drive's time.
            yield

    jobs.start("copies", copies())
    clock.charge(1.375)
    jobs.pump()  # Copies at 0 and at 1.25, the second until 1.5.
    with lock:
        assert clock.mono_s() == 1.5 and lock.waited_s == 0.125
    with lock, lock:
        assert clock.mono_s() == 1.5
    clock.charge(0.25)
    jobs.pump()
    with lock:
        assert clock.mono_s() == 1.75, "waited although no copy ran"
    jobs.drain()
    assert clock.mono_s() == 3.75 and lock.waited_s == 0.125


def test_copies_of_two_jobs_come_one_after_the_other_and_after_a_long_hold() -> None:
    clock = VirtualClock()
    lock = TimedLock(clock, 2.0)
    ends = []
    for _ in range(2):
        with clock.aside(1.0):
            with lock:
                pass
            ends.append(clock.mono_s())
    assert ends == [3.0, 5.0] and clock.mono_s() == 0.0
    clock.charge(6.0)
    with lock:
        pass  # A fence.
    with clock.aside(5.5), lock:
        assert clock.mono_s() == 5.5, "kept out by a hold of no time"
    clock.charge(2.0)
    with lock:
        clock.charge(2.0)  # A capture.
    with clock.aside(7.0):
        with lock:
            assert clock.mono_s() == 10.0
        assert clock.mono_s() == 12.0


def test_the_lock_is_not_held_across_a_step() -> None:
    clock = VirtualClock()
    jobs, lock = TimedJobs(clock, 0), TimedLock(clock, 0.0)

    def holds() -> Iterator[None]:
        with lock:
            clock.charge(1.0)
            yield

    jobs.start("holds", holds())
    jobs.pump()
    with pytest.raises(AssertionError, match="held across a step"), lock:
        pass


def test_canary_time_of_jobs_charged_to_everybody_is_seen() -> None:
    class Shared(TimedJobs):
        def _step(self, due_s: float, tie: float, number: int) -> None:
            super()._step(due_s, tie, number)
            self._clock.charge(0.5)

    clock = VirtualClock()
    jobs = Shared(clock, 0)
    jobs.start("a", job(clock, [], "a", [1]))
    jobs.pump()
    assert clock.mono_s() != 0.0
