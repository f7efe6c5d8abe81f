"""The modelled drive: one queue at constant rates, a sync that waits, a factor that slows it.

Method: direct; random bookings against a drive that moves its bytes one by one.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.drive import Drive, DriveState, Rates, finish_s

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
    alone = [finish_s(DriveState(RATES), now, n, write) for now, n, write in bookings]
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


def test_what_no_drive_has_is_refused() -> None:
    for rates in ((0.0, 1.0, 0.0), (1.0, -1.0, 0.0), (1.0, 1.0, -1.0)):
        with pytest.raises(AssertionError):
            Rates(*rates)
    drive = Drive(RATES)
    with pytest.raises(AssertionError):
        drive.slow = 0.0
    with pytest.raises(AssertionError):
        drive.book(0.0, -1, write=True)
