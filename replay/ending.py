"""Signals that end a replay: the first as planned, after the request in flight, the next at once"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)
DIED = 128
"""What a shell adds to a signal's number to tell of it."""


@dataclass(slots=True)
class Asked:
    """Who asked for the end."""

    by: signal.Signals | None = None

    @property
    def status(self) -> int:
        """The exit status that tells of it; 0 when nobody asked."""
        return DIED + self.by if self.by is not None else 0


@contextmanager
def asked_to_end(stop: Callable[[], object]) -> Iterator[Asked]:
    """Meanwhile the first signal calls `stop`; one more ends the process where it is.

    What is on a drive then is what a crash leaves there, which the next start sorts out. Signals
    are the main thread's: on any other nothing changes.
    """
    asked = Asked()

    def handle(number: int, frame: FrameType | None) -> None:
        if asked.by is not None:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        asked.by = signal.Signals(number)
        stop()

    try:
        before = {number: signal.signal(number, handle) for number in SIGNALS}
    except ValueError:  # Another thread than the main one.
        before = {}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
