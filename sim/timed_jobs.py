"""Jobs in virtual time: each runs beside the clock at its own due time; and a lock they hold."""

from __future__ import annotations

import heapq
import random
from types import TracebackType

from cache.ports import Job
from sim.clock import VirtualClock


class TimedJobs:
    """Jobs of a replay: what a step charges is the job's time, and nobody else's.

    All jobs run at once, as if each had a worker. A step is taken at the first pump at or after
    its due time, so a caller sees at a pump what was finished before it, never what comes later.
    """

    def __init__(self, clock: VirtualClock, seed: int) -> None:
        """`seed` orders steps that are due at the same time."""
        self._clock = clock
        self._random = random.Random(seed)
        self._due: list[tuple[float, float, int]] = []
        self._jobs: dict[int, tuple[str, Job]] = {}
        self._last = 0
        self._ended_s = 0.0

    def start(self, name: str, job: Job) -> None:
        """Take a job on; its first step is due now."""
        self._last += 1
        self._jobs[self._last] = (name, job)
        self._push(self._clock.mono_s(), self._last)

    def pump(self) -> None:
        """Take every step that is due by now, in the order of their times; raises a job's error."""
        assert not self._clock.is_aside, "a job cannot wait for the others"
        now_s = self._clock.mono_s()
        while self._due and self._due[0][0] <= now_s:
            self._step(*heapq.heappop(self._due))

    def drain(self) -> None:
        """Let time pass until every job has ended; raises a job's error."""
        while self._due:
            self._clock.advance_to(self._due[0][0])
            self.pump()
        self._clock.advance_to(self._ended_s)

    @property
    def waiting(self) -> int:
        """Jobs that have not ended."""
        return len(self._jobs)

    def _push(self, due_s: float, number: int) -> None:
        heapq.heappush(self._due, (due_s, self._random.random(), number))

    def _step(self, due_s: float, _: float, number: int) -> None:
        name, job = self._jobs[number]
        try:
            with self._clock.aside(due_s):
                try:
                    next(job)
                finally:
                    due_s = self._clock.mono_s()
            self._push(due_s, number)
        except StopIteration:
            del self._jobs[number]
            self._ended_s = max(self._ended_s, due_s)
        except BaseException as error:
            del self._jobs[number]
            if not isinstance(error, Exception):
                raise  # The program is to end: no job failed.
            raise RuntimeError(f"job {name} failed") from error


class TimedLock:
    """A lock in virtual time: whoever enters waits until it was last released.

    Stands for a device lock around one chunk's copy: work aside holds it for `hold_s`, the engine
    for no time. Entering again while holding it is free.
    """

    def __init__(self, clock: VirtualClock, hold_s: float) -> None:
        assert hold_s >= 0
        self._clock, self._hold_s = clock, hold_s
        self._free_s = self._entered_s = 0.0
        self._depth = 0
        self._aside = False
        self.waited_s = 0.0
        """Seconds that those who entered have waited, the engine and jobs together."""

    def __enter__(self) -> TimedLock:
        if self._depth == 0:
            now_s = self._clock.mono_s()
            self.waited_s += max(0.0, self._free_s - now_s)
            self._clock.advance_to(self._free_s)
            self._entered_s = self._clock.mono_s()
            self._aside = self._clock.is_aside
        assert self._aside == self._clock.is_aside, "held across a step of a job"
        self._depth += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._depth -= 1
        if self._depth == 0:
            if self._aside:
                self._clock.charge(self._hold_s)
            # A hold of no time keeps nobody out, not even work whose own time is earlier.
            if self._clock.mono_s() > self._entered_s:
                self._free_s = max(self._free_s, self._clock.mono_s())
