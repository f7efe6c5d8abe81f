"""Workers and the right of way in virtual time: a processor's rates, and who goes first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Generic

from cache.ports import Result
from sim.clock import VirtualClock

GIVES_MOST_S = 30.0
"""How long the background gives way at a time (the seed's figure)."""


class TimedTask(Generic[Result]):
    """Work that was done when it started; whoever waits for it, waits until it would be."""

    def __init__(self, clock: VirtualClock, done_s: float, work: Callable[[], Result]) -> None:
        self._clock, self._done_s = clock, done_s
        self._given: list[Result] = []
        self._error: BaseException | None = None
        try:
            self._given.append(work())
        except BaseException as error:
            self._error = error

    def wait(self) -> Result:
        """What it gave; raises what it raised. Time passes until a processor would be done."""
        self._clock.advance_to(self._done_s)
        if self._error is not None:
            raise self._error
        return self._given[0]


class TimedWorkers:
    """A modelled processor with one queue: work of a kind takes its bytes over the kind's rate.

    Its rates are those of all threads together. Work is done on the caller's thread when it starts.
    """

    def __init__(self, clock: VirtualClock, bytes_s: Mapping[str, float]) -> None:
        """`bytes_s` has a rate for each kind that takes time; work of any other kind is free."""
        assert all(rate > 0 for rate in bytes_s.values())
        self._clock, self._bytes_s = clock, dict(bytes_s)
        self._free_s = 0.0

    def start(self, kind: str, nbytes: int, work: Callable[[], Result]) -> TimedTask[Result]:
        """Begin, behind what was started before."""
        done_s = self._clock.mono_s()
        if kind in self._bytes_s:
            done_s = self._free_s = max(done_s, self._free_s) + nbytes / self._bytes_s[kind]
        return TimedTask(self._clock, done_s, work)


class TimedWay:
    """The right of way in virtual time: work aside waits out the times when somebody went first.

    Going first is for the engine, whose time only rises, so the times are ascending.
    """

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._times: list[tuple[float, float]] = []
        self._depth = 0
        self._since_s = 0.0
        self.given_s = 0.0
        """Seconds that the background has given way."""

    @contextmanager
    def first(self) -> Iterator[None]:
        """Held by whoever a request waits for; again while it is held changes nothing."""
        assert not self._clock.is_aside, "no request waits for work aside"
        if self._depth == 0:
            self._since_s = self._clock.mono_s()
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0 and self._clock.mono_s() > self._since_s:
                self._times.append((self._since_s, self._clock.mono_s()))

    def give(self) -> None:
        """Let the caller's own time pass until nobody goes first, or for as long as that may last.

        Where somebody still goes first the end is not known yet: it is taken to last so long.
        """
        begun_s = self._clock.mono_s()
        until_s = begun_s + GIVES_MOST_S
        for since_s, end_s in self._times:
            if since_s <= self._clock.mono_s() < end_s:
                self._clock.advance_to(min(end_s, until_s))
        if self._depth and self._since_s <= self._clock.mono_s():
            self._clock.advance_to(until_s)
        self.given_s += self._clock.mono_s() - begun_s
