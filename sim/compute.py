"""Prefill and decode seconds of the board, charged to the virtual clock."""

from __future__ import annotations

from dataclasses import dataclass

from sim.chunks import ChunkTimes
from sim.clock import VirtualClock
from sim.profile import Profile


@dataclass(frozen=True, slots=True)
class PrefillTime:
    """Prefill seconds t(n) = a n + b n^2: passes over the weights, and attention over n.

    The curve holds for the chunk that it was measured in; on another grid a pass over the weights
    is added or taken off for each chunk more or less.
    """

    a: float
    b: float
    grid: int = 1
    chunks: ChunkTimes | None = None
    """None where one chunk size was measured: then all cost the same."""

    @classmethod
    def fit(cls, profile: Profile) -> PrefillTime:
        """The curve through the profile's two measured prefills."""
        (n, t_n), (m, t_m) = profile.prefill_fit
        b = (t_m / m - t_n / n) / (m - n)
        a, chunks = t_n / n - b * n, profile.chunk_times
        assert chunks is None or chunks.chunk_s < a * chunks.fit_grid, "a chunk without its rows"
        return cls(a, b, profile.grid, chunks)

    def seconds(self, start: int, stop: int) -> float:
        """Seconds to forward rows [start, stop) on top of `start` rows in place."""
        return self.rows_s(start, stop) + self.chunks_s(start, stop)

    def rows_s(self, start: int, stop: int) -> float:
        """What the curve says; adds up whatever the cuts."""
        assert 0 <= start <= stop
        return self.a * (stop - start) + self.b * (stop * stop - start * start)

    def chunks_s(self, start: int, stop: int) -> float:
        """What this grid's chunks cost beyond those of the curve's; negative for a coarser one."""
        return self.chunks.extra_s(start, stop, self.grid) if self.chunks else 0.0


class Compute:
    """The meter of a simulated board: forwards and rounds let its clock pass."""

    def __init__(self, profile: Profile, clock: VirtualClock) -> None:
        self._time = PrefillTime.fit(profile)
        self._token_s = 1.0 / profile.decode_tokens_s
        self._clock = clock
        self._begun = self._done = 0
        """Rows that the prefill under way has forwarded."""

    def prefilled(self, start: int, stop: int) -> None:
        """Charge a chunk; one that goes on where the last ended belongs to the same prefill.

        So does the retry of one that was cancelled, which may cost a chunk more than it would.
        """
        if start != self._done:
            self._begun = start
        before = self._time.chunks_s(self._begun, start)
        extra = self._time.chunks_s(self._begun, stop) - before
        self._clock.charge(self._time.rows_s(start, stop) + extra)
        self._done = stop

    def decoded(self, tokens: int) -> None:
        """Charge a round; the next prefill is another one, wherever it starts."""
        self._done = -1
        self._clock.charge(tokens * self._token_s)
