"""A virtual clock: time moves only when something charges it."""

from __future__ import annotations


class VirtualClock:
    """Clock of a replay; deterministic, as fast as the work that charges it."""

    def __init__(self, wall_start_s: float = 0.0) -> None:
        self._now_s = 0.0
        self._wall_start_s = wall_start_s

    def mono_s(self) -> float:
        """Seconds charged so far."""
        return self._now_s

    def wall_s(self) -> float:
        """The start's date plus what was charged."""
        return self._wall_start_s + self._now_s

    def charge(self, seconds: float) -> None:
        """Let `seconds` pass."""
        assert seconds >= 0.0, f"time cannot fall by {-seconds} s"
        self._now_s += seconds

    def advance_to(self, now_s: float) -> None:
        """Sleep until `now_s`; an earlier time changes nothing."""
        self._now_s = max(self._now_s, now_s)
