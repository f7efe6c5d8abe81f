"""The voice: one answer's tokens, as the client hears them and as the caches remember them"""

from __future__ import annotations

from collections.abc import Sequence

from cache.account import Answer
from engine.monitor import Monitor
from serve.chat.deltas import Delta
from serve.chat.writer import Writer


class Speaking:
    """Passes an answer on to its writer, without what a monitor hid in it.

    Everything happens on the engine's thread until the turn has ended.
    """

    def __init__(self, writer: Writer, monitor: Monitor | None, *, stops: bool) -> None:
        self.writer = writer
        self.stops = stops
        self._monitor = monitor
        self._had = 0
        self.hidden_tokens = 0
        """Of what was heard: the client never sees them."""
        self._deltas: list[Delta] = []

    def heard(self, answer: Sequence[int]) -> int | None:
        """The answer so far; how many of its tokens count, once a stop string has come."""
        new = answer[self._had :]
        self._had = len(answer)
        hidden = self._monitor.read(answer).hidden if self._monitor is not None else ()
        self.hidden_tokens = sum(length for _, length in hidden)
        self._deltas += self.writer.wrote(new, hidden)
        return self.writer.stopped_at

    def read(self, answer: Sequence[int]) -> Answer:
        """How much of the answer is thinking, what is hidden, and what its calls say."""
        return self.writer.answer(len(answer))

    def take(self) -> list[Delta]:
        """What is new for the client."""
        taken, self._deltas = self._deltas, []
        return taken

    def end(self) -> list[Delta]:
        """What was held back; the answer is over."""
        return self.take() + self.writer.end()
