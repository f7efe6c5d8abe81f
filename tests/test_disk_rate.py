"""The drive's read rate: a prior, then what restores measured, forgotten after a while.

Method: random restores against a plain running mean of seconds a byte that keeps every sample.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.disk.config import DiskConfig
from cache.disk.rate import ReadRate
from sim.clock import VirtualClock

CONFIG = DiskConfig(read_bytes_s=2e9, rate_memory_s=600.0)


def naive(samples: list[tuple[float, int, float]], now_s: float) -> float:
    """Half the newest, half what was expected before it; (when, bytes, seconds) each."""
    slow = 1 / CONFIG.read_bytes_s
    last_s: float | None = None
    for when_s, nbytes, seconds in samples:
        if last_s is not None and when_s - last_s > CONFIG.rate_memory_s:
            slow = 1 / CONFIG.read_bytes_s
        slow = 0.5 * slow + 0.5 * seconds / nbytes
        last_s = when_s
    forgotten = last_s is None or now_s - last_s > CONFIG.rate_memory_s
    return CONFIG.read_bytes_s if forgotten else 1 / slow


@given(
    st.lists(
        st.tuples(st.integers(0, 900), st.integers(1, 10**10), st.floats(1e-6, 1e3)), max_size=8
    ),
    st.integers(0, 900),
)
def test_restores_move_it_and_time_forgets_them(
    restores: list[tuple[int, int, float]], after_s: int
) -> None:
    clock = VirtualClock()
    rate, samples = ReadRate(clock, CONFIG), list[tuple[float, int, float]]()
    for wait_s, nbytes, seconds in restores:
        clock.charge(wait_s)
        rate.saw(nbytes, seconds)
        samples.append((clock.mono_s(), nbytes, seconds))
        assert (
            rate.bytes_s() == pytest.approx(naive(samples, clock.mono_s())) and rate.bytes_s() > 0
        )
    clock.charge(after_s)
    assert rate.bytes_s() == pytest.approx(naive(samples, clock.mono_s()))
    assert rate.bytes_s() == rate.bytes_s(), "asking changes nothing"


def test_a_restore_of_nothing_or_in_no_time_says_nothing() -> None:
    rate = ReadRate(VirtualClock(), CONFIG)
    for nbytes, seconds in ((0, 1.0), (-1, 1.0), (10, 0.0), (10, -1.0)):
        rate.saw(nbytes, seconds)
    assert rate.bytes_s() == CONFIG.read_bytes_s


def test_a_slow_hour_does_not_end_lookups_for_ever() -> None:
    clock = VirtualClock()
    rate = ReadRate(clock, CONFIG)
    for _ in range(10):
        rate.saw(1_000, 1.0)
    assert rate.bytes_s() < 2_000
    clock.charge(600.0)
    assert rate.bytes_s() < 2_000
    clock.charge(0.1)
    assert rate.bytes_s() == 2e9


def test_other_settings_hold_at_once() -> None:
    clock = VirtualClock()
    rate = ReadRate(clock, CONFIG)
    rate.config = replace(CONFIG, read_bytes_s=5e6)
    assert rate.bytes_s() == 5e6
    rate.saw(1_000, 1.0)
    clock.charge(30.0)
    rate.config = replace(rate.config, rate_memory_s=10.0)
    assert rate.bytes_s() == 5e6
