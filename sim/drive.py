"""A modelled drive: one queue, a write cache, a latency of a sync, and a factor that slows it."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass, fields

from sim.nvme import PLAIN, DriveParams, DriveState, free_bytes, rested, step
from sim.profile import Profile


@dataclass(frozen=True, slots=True)
class Rates:
    """What a drive does in a second, and what its write cache does: see sim.nvme.DriveParams.

    Without the last five it writes at one rate for ever.
    """

    write_bytes_s: float
    read_bytes_s: float
    fsync_s: float = 0.0
    """Seconds of a sync beside the writes it waits for."""
    cache_bytes: float = math.inf
    sustained_bytes_s: float = math.inf
    recover_bytes_s: float = 0.0
    settle_s: float = 0.0
    pause_bytes_s: float = 0.0

    def __post_init__(self) -> None:
        assert self.write_bytes_s > 0 and self.read_bytes_s > 0 and self.sustained_bytes_s > 0
        never_negative = (self.fsync_s, self.cache_bytes, self.recover_bytes_s)
        assert min(*never_negative, self.settle_s, self.pause_bytes_s) >= 0

    @classmethod
    def of(cls, board: Profile) -> Rates:
        """A board's drive."""
        return cls(**{field.name: getattr(board, f"drive_{field.name}") for field in fields(cls)})

    @property
    def params(self) -> DriveParams:
        """As the step takes them."""
        return DriveParams(*map(float, astuple(self)))


class Drive:
    """One NVMe drive, shared by all that is read and written; bytes are the board's.

    A transfer keeps the rates that held when it was booked. A sync waits for all that was booked
    before it, and holds up no transfer.
    """

    def __init__(self, rates: Rates) -> None:
        self._params = rates.params
        self._state: DriveState = rested(self._params)
        self._slow = 1.0
        self.written_bytes = 0
        self.read_bytes = 0

    @property
    def busy_until_s(self) -> float:
        """When the last transfer that was booked ends."""
        return float(self._state.busy_until_s)

    @property
    def slow(self) -> float:
        """How many times longer everything takes than the rates say; may change at any time."""
        return self._slow

    @slow.setter
    def slow(self, factor: float) -> None:
        assert factor > 0
        self._slow = factor

    def cache_free_bytes(self, now_s: float) -> float:
        """What the write cache would take at once."""
        return float(free_bytes(self._params, self._state, now_s, PLAIN))

    def book(self, now_s: float, nbytes: float, *, write: bool) -> float:
        """Take a transfer on; the time when it ends."""
        assert nbytes >= 0
        moved = step(self._params, self._state, now_s, nbytes, write, PLAIN, self._slow)
        self._state, end_s = moved
        if write:
            self.written_bytes += round(nbytes)
        else:
            self.read_bytes += round(nbytes)
        return float(end_s)

    def sync(self, now_s: float) -> float:
        """The time when all that was booked before is on the drive."""
        return max(now_s, self.busy_until_s) + self._params.fsync_s * self._slow
