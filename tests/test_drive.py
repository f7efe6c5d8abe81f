"""The modelled drive: one queue, a sync that waits, a cache that fills, a factor that slows it.

Method: direct; random bookings against a drive that moves its bytes one by one.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.drive import Drive, Rates
from sim.nvme import PLAIN, rested, step
from sim.profile import load

WRITE, READ = 4, 8
"""Ticks a byte of the naive drive takes, so that every time is a whole number."""
RATES = Rates(write_bytes_s=1 / WRITE, read_bytes_s=1 / READ, fsync_s=3.0)


def naive(bookings: list[tuple[int, int, bool]]) -> list[int]:
    """When each booking (arrival, bytes, write) ends, on a drive that is looked at every tick."""
    ends, queue, tick, waiting = [0] * len(bookings), list[list[int]](), 0, list(bookings)
    while waiting or queue:
        while waiting and waiting[0][0] <= tick:
            number = len(bookings) - len(waiting)
            _, nbytes, write = waiting.pop(0)
            queue.append([number, nbytes * (WRITE if write else READ)])
        while queue and queue[0][1] == 0:
            ends[queue.pop(0)[0]] = tick
        if queue:
            queue[0][1] -= 1
        tick += 1
    return ends


BOOKINGS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5), st.booleans()), max_size=12)


@given(BOOKINGS)
def test_transfers_take_their_turn(bookings: list[tuple[int, int, bool]]) -> None:
    bookings.sort(key=lambda booking: booking[0])
    drive = Drive(RATES)
    ends = [drive.book(now, nbytes, write=write) for now, nbytes, write in bookings]
    assert ends == naive(bookings)
    assert drive.written_bytes == sum(n for _, n, write in bookings if write)
    assert drive.read_bytes == sum(n for _, n, write in bookings if not write)
    assert drive.sync(0.0) == max([0, *ends]) + 3.0 and drive.sync(1e6) == 1e6 + 3.0


def test_canary_a_drive_without_a_queue_is_seen() -> None:
    bookings = [(0, 5, True), (1, 5, False)]
    fresh = rested(RATES.params)
    alone = [step(RATES.params, fresh, now, n, write, PLAIN)[1] for now, n, write in bookings]
    assert alone != naive(bookings)


def test_a_slow_drive_is_slow_from_the_next_booking_on() -> None:
    drive = Drive(Rates(4.0, 8.0, 0.5))
    assert drive.book(0.0, 40, write=True) == 10.0
    drive.slow = 100.0
    assert drive.slow == 100.0 and drive.busy_until_s == 10.0
    assert drive.book(0.0, 8, write=False) == 110.0
    assert drive.sync(0.0) == 160.0
    drive.slow = 1.0
    assert drive.book(200.0, 8, write=False) == 201.0


def test_a_slow_drive_is_slow_past_its_cache_too_and_tells_what_is_free() -> None:
    rates = Rates(4.0, 8.0, 0.5, 20.0, 1.0, recover_bytes_s=0.5, settle_s=10.0, pause_bytes_s=0.1)
    drive = Drive(rates)
    drive.slow = 2.0
    assert drive.book(0.0, 24, write=True) == 2 * (5 + 4)
    assert [drive.cache_free_bytes(18.0 + rest) for rest in (0, 10, 12, 20, 1e6)] == [
        0,
        0,
        0,
        4,
        20,
    ]
    assert drive.book(38.0, 5, write=True) == 38 + 2 * (1 + 1)
    assert drive.sync(0.0) == 43.0 and drive.cache_free_bytes(42.0) == 0


def test_a_board_has_its_drive() -> None:
    board = load("spark-27b")
    rates = Rates.of(board)
    assert (rates.write_bytes_s, rates.fsync_s) == (board.drive_write_bytes_s, board.drive_fsync_s)
    assert (rates.cache_bytes, rates.settle_s) == (board.drive_cache_bytes, board.drive_settle_s)
    assert Drive(rates).cache_free_bytes(0.0) == 22.04e9


def test_what_no_drive_has_is_refused() -> None:
    for rates in ((0.0, 1.0, 0.0), (1.0, -1.0, 0.0), (1.0, 1.0, -1.0)):
        with pytest.raises(AssertionError):
            Rates(*rates)
    for name in ("cache_bytes", "recover_bytes_s", "settle_s", "pause_bytes_s"):
        with pytest.raises(AssertionError):
            Rates(1.0, 1.0, **{name: -1.0})
    with pytest.raises(AssertionError):
        Rates(1.0, 1.0, sustained_bytes_s=0.0)
    drive = Drive(RATES)
    with pytest.raises(AssertionError):
        drive.slow = 0.0
    with pytest.raises(AssertionError):
        drive.book(0.0, -1, write=True)
