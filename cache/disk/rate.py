"""The drive's read rate, as restores measured it lately."""

from __future__ import annotations

from typing import Protocol

from cache.ports import Clock

_NEWEST = 0.5
"""Weight of the last restore among the ones before."""


class Priors(Protocol):
    """The settings of a rate."""

    @property
    def read_bytes_s(self) -> float:
        """What to expect before a restore was measured."""

    @property
    def rate_memory_s(self) -> float:
        """After which a measured rate is forgotten."""


class ReadRate:
    """What restores read a second; the prior again when the last one is long ago."""

    def __init__(self, clock: Clock, config: Priors) -> None:
        self.config: Priors = config
        self._clock = clock
        self._seen: tuple[float, float] | None = None
        """(seconds a byte, when)."""

    def saw(self, nbytes: int, seconds: float) -> None:
        """A restore read so many bytes in this time."""
        if nbytes <= 0 or seconds <= 0.0:
            return
        before = 1.0 / self.bytes_s()
        self._seen = before + _NEWEST * (seconds / nbytes - before), self._clock.mono_s()

    def bytes_s(self) -> float:
        """Bytes a second to expect. Changes nothing."""
        if self._seen is None:
            return self.config.read_bytes_s
        slowness, when_s = self._seen
        recent = self._clock.mono_s() - when_s <= self.config.rate_memory_s
        return 1.0 / slowness if recent else self.config.read_bytes_s
