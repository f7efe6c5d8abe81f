"""Prefill and decode seconds of the board, charged to the virtual clock."""

from __future__ import annotations

from dataclasses import dataclass

from sim.clock import VirtualClock
from sim.profile import Profile


@dataclass(frozen=True, slots=True)
class PrefillTime:
    """Cold prefill seconds t(n) = a n + b n^2: a pass over the weights, and attention over n."""

    a: float
    b: float

    @classmethod
    def fit(cls, profile: Profile) -> PrefillTime:
        """The curve through the profile's two measured prefills."""
        (n, t_n), (m, t_m) = profile.prefill_fit
        b = (t_m / m - t_n / n) / (m - n)
        return cls(t_n / n - b * n, b)

    def seconds(self, start: int, stop: int) -> float:
        """Seconds to forward rows [start, stop) on top of `start` rows in place."""
        assert 0 <= start <= stop
        return self.a * (stop - start) + self.b * (stop * stop - start * start)


class Compute:
    """The meter of a simulated board: forwards and rounds let its clock pass."""

    def __init__(self, profile: Profile, clock: VirtualClock) -> None:
        self._time = PrefillTime.fit(profile)
        self._token_s = 1.0 / profile.decode_tokens_s
        self._clock = clock

    def prefilled(self, start: int, stop: int) -> None:
        """Charge a chunk."""
        self._clock.charge(self._time.seconds(start, stop))

    def decoded(self, tokens: int) -> None:
        """Charge a round."""
        self._clock.charge(tokens * self._token_s)
