"""Workers on threads of their own, and the right of way between a save and the background."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic

from cache.ports import Result
from cache.transfers import Transfers


class Task(Generic[Result]):
    """Work that a thread has, or will have, in hand."""

    def __init__(self, threads: Transfers, work: Callable[[], Result]) -> None:
        self._given: list[Result] = []
        given = self._given  # The thread holds the work and where to put what it gives.

        def run() -> int:
            given.append(work())
            return 0

        self._moving = threads.start(run)

    def wait(self) -> Result:
        """What the work gave; raises what it raised. May be asked again."""
        self._moving.wait()
        return self._given[0]


class ThreadWorkers:
    """A few daemon threads, made when the first work starts; work begins in the order it came."""

    def __init__(self, threads: int = 8) -> None:
        """`threads` is the seed's figure for its board; those of a small machine do no harm."""
        self._threads = Transfers(threads)

    def start(self, kind: str, nbytes: int, work: Callable[[], Result]) -> Task[Result]:
        """Begin; the caller leaves the work's memory alone until `wait`. Work starts no work."""
        return Task(self._threads, work)

    def close(self) -> None:
        """Let what was started end, then the threads; no work may start after it."""
        self._threads.close()


class ThreadWay:
    """The right of way on a drive, between threads."""

    def __init__(self, most_s: float = 30.0) -> None:
        """`most_s` is how long the background gives way at a time (the seed's figure)."""
        assert most_s >= 0
        self._most_s = most_s
        self._first = 0
        self._changed = threading.Condition()

    @contextmanager
    def first(self) -> Iterator[None]:
        """Held by whoever a request waits for; several may hold it, and one more than once."""
        with self._changed:
            self._first += 1
        try:
            yield
        finally:
            with self._changed:
                self._first -= 1
                self._changed.notify_all()

    def give(self) -> None:
        """Return when nobody goes first, or after `most_s`. Not for a thread that goes first."""
        with self._changed:
            self._changed.wait_for(lambda: self._first == 0, self._most_s)
