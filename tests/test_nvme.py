"""The drive's step: a cache that fills, recovers only at rest, and is one queue for everybody.

Method: properties over random drives and bookings; a naive drive that moves its bytes in small
pieces; the same steps on plain numbers, numpy's and JAX's; canaries for wrong recoveries.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim import nvme
from sim.drive import Drive, Rates
from sim.nvme import PLAIN, DriveParams, DriveState, free_bytes, rested, step

GB = 1e9
Booking = tuple[float, float, bool]
"""Seconds since the one before, bytes, whether it writes."""

PARAMS = st.builds(
    DriveParams,
    write_bytes_s=st.floats(4 * GB, 5.6 * GB),
    read_bytes_s=st.floats(1 * GB, 8 * GB),
    fsync_s=st.floats(0, 0.01),
    cache_bytes=st.one_of(st.just(0.0), st.floats(0, 24 * GB)),
    sustained_bytes_s=st.floats(0.3 * GB, 1.3 * GB),
    recover_bytes_s=st.one_of(st.just(0.0), st.floats(0.001 * GB, 0.2 * GB)),
    settle_s=st.floats(0, 40),
    pause_bytes_s=st.floats(0, 0.05 * GB),
)
SIZES = st.floats(0, 30 * GB)
BOOKINGS = st.lists(st.tuples(st.floats(0, 400), SIZES, st.booleans()), max_size=12)
STATES = st.tuples(st.floats(0, 1e4), st.floats(0, 1))
"""When it is busy until, and the share of its cache that is free."""


def state_of(params: DriveParams, drawn: tuple[float, float]) -> DriveState:
    return DriveState(drawn[0], drawn[1] * params.cache_bytes)


def played(params: DriveParams, bookings: list[Booking], xp: Any = PLAIN) -> list[DriveState]:
    state, now, states = rested(params), 0.0, []
    for wait, nbytes, write in bookings:
        now += wait
        state, _ = step(params, state, now, nbytes, write, xp)
        states.append(state)
    return states


def took(params: DriveParams, state: DriveState, rest_s: float, nbytes: float) -> float:
    now = state.busy_until_s + rest_s
    return float(step(params, state, now, nbytes, True, PLAIN)[1] - now)


@given(PARAMS, BOOKINGS)
def test_the_cache_stays_within_its_size_and_time_goes_on(
    params: DriveParams, bookings: list[Booking]
) -> None:
    states = played(params, bookings)
    assert all(0 <= state.left_bytes <= params.cache_bytes for state in states)
    assert all(a.busy_until_s <= b.busy_until_s for a, b in pairwise(states))


@given(PARAMS, STATES, st.floats(0, 500), SIZES, SIZES, st.booleans())
def test_more_bytes_never_end_earlier(
    params: DriveParams, drawn: tuple[float, float], at: float, a: float, b: float, write: bool
) -> None:
    state, (few, many) = state_of(params, drawn), sorted((a, b))
    ends = [step(params, state, at, nbytes, write, PLAIN) for nbytes in (few, many)]
    assert ends[0][1] <= ends[1][1] and ends[0][0].left_bytes >= ends[1][0].left_bytes


@given(PARAMS, STATES, st.floats(0, 600), st.floats(0, 600), SIZES)
def test_more_rest_never_slows_the_next_write(
    params: DriveParams, drawn: tuple[float, float], a: float, b: float, nbytes: float
) -> None:
    """Without what a pause takes; with it, from the moment on when it has given that back."""
    state, (less, more) = state_of(params, drawn), sorted((a, b))
    mild = params._replace(pause_bytes_s=0.0)
    assert took(mild, state, more, nbytes) <= took(mild, state, less, nbytes) + 1e-9
    if params.recover_bytes_s > 0:
        even = params.settle_s * (1 + params.pause_bytes_s / params.recover_bytes_s)
        none = took(params, state, 0.0, nbytes)
        assert took(params, state, even + less, nbytes) <= none + 1e-6
    less, more = less + params.settle_s, more + params.settle_s
    assert took(params, state, more, nbytes) <= took(params, state, less, nbytes) + 1e-6


@given(PARAMS, STATES, st.floats(0, 500), SIZES, st.lists(st.floats(0.01, 1), min_size=1))
def test_pieces_booked_at_once_end_when_the_whole_does(
    params: DriveParams, drawn: tuple[float, float], rest: float, nbytes: float, cuts: list[float]
) -> None:
    state = state_of(params, drawn)
    now = state.busy_until_s + rest
    whole, _ = step(params, state, now, nbytes, True, PLAIN)
    for cut in cuts:
        state, _ = step(params, state, now, nbytes * cut / sum(cuts), True, PLAIN)
    assert state.busy_until_s == pytest.approx(whole.busy_until_s, rel=1e-9)
    assert state.left_bytes == pytest.approx(whole.left_bytes, rel=1e-9, abs=1)


def naive_s(params: DriveParams, left: float, nbytes: float, piece: float) -> float:
    """Seconds of a write that looks at the cache before every piece."""
    seconds = 0.0
    while nbytes > 0:
        some = min(piece, nbytes)
        fast = left >= some
        seconds += some / (params.write_bytes_s if fast else params.sustained_bytes_s)
        left -= some if fast else 0
        nbytes -= some
    return seconds


@given(PARAMS, st.floats(0, 1), st.floats(0, 10 * GB))
def test_a_large_write_takes_both_rates(params: DriveParams, share: float, nbytes: float) -> None:
    left, piece = share * params.cache_bytes, 0.05 * GB
    state = DriveState(0.0, left)
    found, expected = took(params, state, 0.0, nbytes), naive_s(params, left, nbytes, piece)
    assert found == pytest.approx(expected, abs=piece / params.sustained_bytes_s)


# the same function elsewhere


@given(PARAMS, BOOKINGS)
def test_plain_numbers_and_numpys_give_the_same(
    params: DriveParams, bookings: list[Booking]
) -> None:
    assert played(params, bookings) == played(params, bookings, np)


def test_jax_gives_the_same_and_so_does_a_drive() -> None:
    """A hundred random drives of forty bookings, scanned and vmapped in one call."""
    jax, jnp = jax_in_float64()
    rng = np.random.default_rng(0)
    many = DriveParams(
        write_bytes_s=rng.uniform(4, 5.6, 100) * GB,
        read_bytes_s=rng.uniform(1, 8, 100) * GB,
        fsync_s=rng.uniform(0, 0.01, 100),
        cache_bytes=rng.choice([0.0, 8.0, 24.0], 100) * GB,
        sustained_bytes_s=rng.uniform(0.3, 1.3, 100) * GB,
        recover_bytes_s=rng.uniform(0, 0.2, 100) * GB,
        settle_s=rng.uniform(0, 40, 100),
        pause_bytes_s=rng.uniform(0, 0.05, 100) * GB,
    )
    at, nbytes = np.cumsum(rng.exponential(20, 40)), rng.uniform(0, 9, 40) * GB
    writes = rng.random(40) < 0.7

    def scanned(params: DriveParams) -> Any:
        def one(state: DriveState, booking: Any) -> Any:
            return step(params, state, *booking, jnp)

        begun = jax.tree.map(lambda value: jnp.asarray(value, jnp.float64), rested(params))
        return jax.lax.scan(one, begun, (at, nbytes, writes))[1]

    ends = np.asarray(jax.jit(jax.vmap(scanned))(many))
    for number in range(100):
        params = DriveParams(*(float(values[number]) for values in many))
        drive = Drive(Rates(**params._asdict()))
        ours = [
            drive.book(now, n, write=bool(w)) for now, n, w in zip(at, nbytes, writes, strict=True)
        ]
        assert ours == pytest.approx(ends[number], rel=1e-9)


def jax_in_float64() -> tuple[Any, Any]:
    import jax

    jax.config.update("jax_enable_x64", True)
    return jax, jax.numpy


# what a cache of no size and one without end mean


def test_a_cache_of_no_size_writes_at_the_sustained_rate_and_an_endless_one_never() -> None:
    params = DriveParams(4.0, 8.0, 0.0, 0.0, 0.5, 1.0, 0.0, 0.0)
    assert took(params, rested(params), 1e6, 40) == 80
    endless = DriveParams(4.0, 8.0)
    assert took(endless, rested(endless), 0.0, 1e18) == 2.5e17
    assert took(params._replace(cache_bytes=2.0**60), DriveState(0.0, 2.0**60), 0.0, 40) == 10
    odd = params._replace(sustained_bytes_s=100.0)
    assert took(odd, rested(odd), 0.0, 40) == 10, "never more than into the cache"


# canaries: a model that recovers wrongly is seen

SEEDS = DriveParams(5 * GB, 7 * GB, 0.004, 20 * GB, 0.7 * GB, 0.07 * GB, 20.0, 0.01 * GB)


def rests_help() -> None:
    full, _ = step(SEEDS, rested(SEEDS), 0.0, 40 * GB, True, PLAIN)
    at_once, after = (took(SEEDS, full, rest, 6 * GB) for rest in (0.0, 300.0))
    assert after < at_once / 4


def pacing_does_not() -> None:
    """Each pause is too short, so that as much of the cache is used as in one burst, or more."""
    one = played(SEEDS, [(0.0, 10 * GB, True)])[-1]
    paced = played(SEEDS, [(1.2, 0.1 * GB, True)] * 100)[-1]
    assert paced.left_bytes <= one.left_bytes


def reading_is_no_rest() -> None:
    full, _ = step(SEEDS, rested(SEEDS), 0.0, 40 * GB, True, PLAIN)
    now = full.busy_until_s
    read, end = step(SEEDS, full, now, 7 * GB * 300, False, PLAIN)
    assert end == now + 300 and free_bytes(SEEDS, read, end, PLAIN) == 0


@pytest.mark.parametrize("claim", [rests_help, pacing_does_not, reading_is_no_rest])
def test_it_recovers_at_rest_alone(claim: Callable[[], None]) -> None:
    claim()


def test_canary_a_drive_that_never_recovers_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvme, "gained", lambda params, rest_s, xp: 0.0)
    with pytest.raises(AssertionError):
        rests_help()


def test_canary_a_drive_that_recovers_in_any_pause_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvme, "gained", lambda params, rest_s, xp: rest_s * params.recover_bytes_s)
    with pytest.raises(AssertionError):
        pacing_does_not()


def test_canary_a_drive_that_recovers_while_busy_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    real = nvme.step

    def busy(
        params: DriveParams, state: DriveState, now: Any, n: Any, write: Any, xp: Any
    ) -> tuple[DriveState, Any]:
        after, end = real(params, state, now, n, write, xp)
        more = (end - now) * params.recover_bytes_s
        return after._replace(left_bytes=min(after.left_bytes + more, params.cache_bytes)), end

    monkeypatch.setitem(globals(), "step", busy)
    with pytest.raises(AssertionError):
        reading_is_no_rest()
