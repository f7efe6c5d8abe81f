"""The voice: one answer's tokens, as the client hears them and as the caches remember them"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cache.account import Answer
from engine.monitor import Monitor
from serve.chat.deltas import Delta
from serve.chat.plain import Plain
from serve.chat.writer import Writer


class Speaking:
    """Passes an answer on to its writer, without what a monitor hid in it.

    Everything happens on the engine's thread until the turn has ended.
    """

    def __init__(self, writer: Writer | Plain, monitor: Monitor | None, *, stops: bool) -> None:
        """`stops` says whether the writer may end the answer: by a stop string, or a call."""
        self.writer = writer
        self.stops = stops
        self._monitor = monitor
        self._had = 0
        self._deltas: list[Delta] = []

    def heard(self, answer: Sequence[int]) -> int | None:
        """The answer so far; how many of its tokens count, once it has come to its end."""
        had, self._had = self._had, len(answer)
        spans = ((max(start, had), start + n) for start, n in self.hidden(answer))
        new = [(start, stop - start) for start, stop in spans if start < stop]
        self._deltas += self.writer.wrote(answer[had:], new)
        return self.writer.stopped_at

    def hidden(self, answer: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """(start, length) of the answer's tokens that the client never sees."""
        return self._monitor.hidden(len(answer)) if self._monitor is not None else ()

    def read(self, answer: Sequence[int]) -> Answer:
        """How much of the answer is thinking, what is hidden, and what its calls say."""
        return replace(self.writer.answer(len(answer)), hidden=self.hidden(answer))

    def take(self) -> list[Delta]:
        """What is new for the client."""
        taken, self._deltas = self._deltas, []
        return taken

    def end(self) -> list[Delta]:
        """What was held back; the answer is over."""
        return self.take() + self.writer.end()
