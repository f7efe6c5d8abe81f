"""What a prefill takes beside weights, buffers and caches: the model's figures, learned upward."""

from __future__ import annotations

from collections.abc import Callable

from cache.types import Cost


class Workspace:
    """The model's own estimate, raised by the most that any prefill took beyond it.

    The raise holds for every length, and as long as the process. A prefill that is looked at chunk
    by chunk was seen at every length up to its own, so none of at most that length exceeds the
    estimate again, whatever the true curve is.
    """

    def __init__(self, cost: Callable[[], Cost]) -> None:
        self._cost = cost
        self.learned_bytes = 0
        """How much the model's own figures were too low at most."""

    def bytes(self, tokens: int) -> int:
        """Bytes that a prefill up to `tokens` is expected to take; 0 for none."""
        return self._cost().workspace_bytes(tokens) + self.learned_bytes if tokens > 0 else 0

    def learn(self, tokens: int, took_bytes: int) -> bool:
        """A prefill that had come to `tokens` took so much. False when it teaches nothing, because
        as much was expected."""
        short = took_bytes - self.bytes(tokens)
        self.learned_bytes += max(0, short)
        return short > 0
