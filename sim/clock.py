"""A virtual clock: time moves only when something charges it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

DAY_S = 86_400.0


class VirtualClock:
    """Clock of a replay; deterministic, as fast as the work that charges it."""

    def __init__(self, wall_start_s: float = 0.0) -> None:
        self._now_s = 0.0
        self._wall_start_s = wall_start_s
        self._asides = 0

    def mono_s(self) -> float:
        """Seconds charged so far."""
        return self._now_s

    def wall_s(self) -> float:
        """The start's date plus what was charged."""
        return self._wall_start_s + self._now_s

    def day(self) -> int:
        """The date in UTC, as days since 1970-01-01."""
        return int(self.wall_s() // DAY_S)

    def charge(self, seconds: float) -> None:
        """Let `seconds` pass."""
        assert seconds >= 0.0, f"time cannot fall by {-seconds} s"
        self._now_s += seconds

    def advance_to(self, now_s: float) -> None:
        """Sleep until `now_s`; an earlier time changes nothing."""
        self._now_s = max(self._now_s, now_s)

    @contextmanager
    def aside(self, at_s: float) -> Iterator[None]:
        """Meanwhile it is `at_s`, and what is charged passes for whoever works aside alone.

        For work that goes on beside what the clock counts: its own time may lie before or after.
        """
        outside_s, self._now_s = self._now_s, at_s
        self._asides += 1
        try:
            yield
        finally:
            self._now_s = outside_s
            self._asides -= 1

    @property
    def is_aside(self) -> bool:
        """Whether the time is that of work beside."""
        return self._asides > 0
