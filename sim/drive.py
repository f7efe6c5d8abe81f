"""A modelled drive: one queue, constant rates, a latency of a sync, and a factor that slows it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rates:
    """What a drive does in a second, while nothing else is asked of it."""

    write_bytes_s: float
    read_bytes_s: float
    fsync_s: float = 0.0
    """Seconds of a sync beside the writes it waits for."""

    def __post_init__(self) -> None:
        assert self.write_bytes_s > 0 and self.read_bytes_s > 0 and self.fsync_s >= 0


@dataclass(frozen=True, slots=True)
class DriveState:
    """A drive at a moment."""

    rates: Rates
    slow: float = 1.0
    """How many times longer everything takes."""
    busy_until_s: float = 0.0
    """When the last transfer that was booked ends."""


def finish_s(state: DriveState, now_s: float, nbytes: float, write: bool) -> float:
    """When a transfer ends that is booked now: it begins when those before it have ended."""
    rate = state.rates.write_bytes_s if write else state.rates.read_bytes_s
    return max(now_s, state.busy_until_s) + nbytes / rate * state.slow


class Drive:
    """One NVMe drive, shared by all that is read and written; bytes are the board's.

    A transfer keeps the rate that held when it was booked. A sync waits for all that was booked
    before it, and holds up no transfer.
    """

    def __init__(self, rates: Rates) -> None:
        self._state = DriveState(rates)
        self.written_bytes = 0
        self.read_bytes = 0

    @property
    def busy_until_s(self) -> float:
        """When the last transfer that was booked ends."""
        return self._state.busy_until_s

    @property
    def slow(self) -> float:
        """How many times longer everything takes than the rates say; may change at any time."""
        return self._state.slow

    @slow.setter
    def slow(self, factor: float) -> None:
        assert factor > 0
        self._state = DriveState(self._state.rates, factor, self._state.busy_until_s)

    def book(self, now_s: float, nbytes: float, *, write: bool) -> float:
        """Take a transfer on; the time when it ends."""
        assert nbytes >= 0
        end_s = finish_s(self._state, now_s, nbytes, write)
        self._state = DriveState(self._state.rates, self._state.slow, end_s)
        if write:
            self.written_bytes += round(nbytes)
        else:
            self.read_bytes += round(nbytes)
        return end_s

    def sync(self, now_s: float) -> float:
        """The time when all that was booked before is on the drive."""
        return max(now_s, self.busy_until_s) + self._state.rates.fsync_s * self.slow
