"""Seeded jobs: the seed decides which job takes its next step, and when."""

from __future__ import annotations

import random

from cache.ports import Job


class SeededJobs:
    """Jobs on the caller's thread; one seed is one interleaving, so that a failure replays."""

    def __init__(self, seed: int, steps_a_pump_max: int = 3) -> None:
        self._random = random.Random(seed)
        self._steps_max = steps_a_pump_max
        self._jobs: list[tuple[str, Job]] = []

    def start(self, name: str, job: Job) -> None:
        """Take a job on; it takes no step before the next pump."""
        self._jobs.append((name, job))

    def pump(self) -> None:
        """Let none to `steps_a_pump_max` steps happen, each of a job that the seed picks."""
        if not self._jobs:
            return
        for _ in range(self._random.randint(0, self._steps_max)):
            if not self._jobs:
                return
            self._step(self._random.randrange(len(self._jobs)))

    def drain(self) -> None:
        """Step the jobs in the seed's order until all have ended."""
        while self._jobs:
            self._step(self._random.randrange(len(self._jobs)))

    def _step(self, index: int) -> None:
        name, job = self._jobs[index]
        try:
            next(job)
        except StopIteration:
            self._jobs.pop(index)
        except BaseException as error:
            self._jobs.pop(index)
            if not isinstance(error, Exception):
                raise  # The program is to end: no job failed.
            raise RuntimeError(f"job {name} failed") from error
