"""The board's memory: what the engine, its caches, a prefill and the allocator hold, over time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from sim.clock import VirtualClock
from sim.profile import Profile

Held = Callable[[], Mapping[str, int]]
"""Bytes by cache. `rows` lie in the engine's own buffers and are not counted again."""


class Work(Protocol):
    """What a forward and a round cost in time."""

    def prefilled(self, start: int, stop: int) -> None:
        """Rows [start, stop) of a prompt were forwarded."""

    def decoded(self, tokens: int) -> None:
        """A verify round gave this many tokens."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What was held at one time. Bytes; the reserve is what the allocator kept unused."""

    at_s: float
    base_bytes: int
    caches: Mapping[str, int]
    workspace_bytes: int
    reserve_bytes: int

    @property
    def allocated_bytes(self) -> int:
        """All that was in use."""
        return self.base_bytes + sum(self.caches.values()) + self.workspace_bytes

    @property
    def total_bytes(self) -> int:
        """What the driver had given out."""
        return self.allocated_bytes + self.reserve_bytes


@dataclass(frozen=True, slots=True)
class Usage:
    """One request on the board."""

    highest: Moment
    """When most was held while it was served."""
    after: Moment
    """When it was over."""
    over_peak_s: float
    """Seconds of its prefill above the peak."""
    over_board_s: float
    """Seconds of its prefill above all the memory there is: on a real board, an end."""
    over_ceiling_s: float
    """Seconds above the ceiling while nothing was served, before it came."""


def workspace_of(profile: Profile) -> Callable[[int], int]:
    """What a prefill takes in truth, by the tokens it has come to."""
    cost = profile.cost
    return lambda tokens: round(profile.workspace_factor * cost.workspace_bytes(tokens))


class Board:
    """The memory port of a simulated board, and its meter: work takes time and workspace.

    It holds nobody to anything: a run that passes the peak, or the board, is seen in its moments.
    Freed blocks stay in the reserve until they are given back. A chunk's workspace is taken from
    the reserve first and goes back to it; a copy finds `reuse` of itself there, the rest being in
    pieces too small.
    """

    def __init__(
        self,
        profile: Profile,
        clock: VirtualClock,
        work: Work,
        workspace: Callable[[int], int] | None = None,
        reuse: float = 1.0,
    ) -> None:
        assert 0.0 <= reuse <= 1.0
        self._profile = profile
        self._clock = clock
        self._work = work
        self._workspace = workspace or workspace_of(profile)
        self._reuse = reuse
        self._held: list[Held] = []
        self._cached = self._reserve = self._marked = 0
        self._over_peak_s = self._over_board_s = self._over_ceiling_s = 0.0
        self._highest: Moment | None = None
        self.usages: list[Usage] = []
        """One a request, in the order served."""

    def holds(self, held: Held) -> None:
        """These caches lie on the board."""
        self._held.append(held)

    # the meter

    def prefilled(self, start: int, stop: int) -> None:
        """A chunk: its time passes, its workspace is taken and freed."""
        begun_s = self._clock.mono_s()
        self._work.prefilled(start, stop)
        seconds = self._clock.mono_s() - begun_s
        took, now = self._workspace(stop), self._see()
        # What it can't take from the reserve is the driver's, and lies in the reserve after it.
        left = max(now.reserve_bytes, took) - took
        total = self._note(replace(now, workspace_bytes=took, reserve_bytes=left)).total_bytes
        self._reserve = left + took
        self._over_peak_s += seconds * (total > self._profile.peak_bytes)
        self._over_board_s += seconds * (total > self._profile.board_bytes)

    def decoded(self, tokens: int) -> None:
        """A round."""
        self._work.decoded(tokens)

    # the memory port

    def allocated_bytes(self) -> int:
        """Weights, buffers and caches; no chunk is running while anybody asks."""
        return self._see().allocated_bytes

    def reserve_bytes(self) -> int:
        """Freed blocks that the allocator keeps."""
        return self._see().reserve_bytes

    def give_back(self, keep_bytes: int) -> None:
        """Freed blocks above `keep_bytes` go back to the driver."""
        assert keep_bytes >= 0
        self._see()
        self._reserve = min(self._reserve, keep_bytes)

    def mark(self) -> None:
        """`peak_bytes` starts anew from here."""
        self._marked = 0
        self._see()

    def peak_bytes(self) -> int:
        """The most that was allocated at once since the mark, as far as anybody has looked."""
        return self._marked

    # what is seen

    def begins(self) -> None:
        """A request comes; what is held has been held since the last one ended."""
        self._highest = None
        total = self._see().total_bytes
        idle_s = self._clock.mono_s() - (self.usages[-1].after.at_s if self.usages else 0.0)
        self._over_peak_s = self._over_board_s = 0.0
        self._over_ceiling_s = idle_s * (total > self._profile.ceiling_bytes)

    def ends(self) -> Usage:
        """The request is over."""
        after = self._see()
        assert self._highest is not None
        over = (self._over_peak_s, self._over_board_s, self._over_ceiling_s)
        usage = Usage(self._highest, after, *over)
        self.usages.append(usage)
        return usage

    def _see(self) -> Moment:
        """Look at the caches: what they freed is in the reserve, what they took came from it."""
        caches: dict[str, int] = {}
        for held in self._held:
            for name, nbytes in held().items():
                if name != "rows":
                    caches[name] = caches.get(name, 0) + nbytes
        more = sum(caches.values()) - self._cached
        self._cached += more
        if more < 0:
            self._reserve -= more
        else:
            self._reserve -= min(self._reserve, int(more * self._reuse))
        base = self._profile.loaded_bytes
        return self._note(Moment(self._clock.mono_s(), base, caches, 0, self._reserve))

    def _note(self, moment: Moment) -> Moment:
        self._marked = max(self._marked, moment.allocated_bytes)
        if self._highest is None or moment.total_bytes > self._highest.total_bytes:
            self._highest = moment
        return moment
