"""Notes: what the tier has to report, as rows for the journal and as counters."""

from __future__ import annotations

from collections import Counter

from cache.journal import CacheEvent

NAME = "disk"
"""Of the tier, in offers and in the journal."""


class Notes:
    """Events since somebody last asked, and counters over all of them."""

    def __init__(self, name: str = NAME) -> None:
        """`name` is the tier's."""
        self._name = name
        self.counters: Counter[str] = Counter()
        self._events: list[CacheEvent] = []

    def note(
        self, event: str, session: str | None, tokens: int, nbytes: int = 0, why: str = ""
    ) -> None:
        """Something happened."""
        self.counters[event] += 1
        self._events.append(CacheEvent(self._name, event, session, tokens, nbytes, why))

    def events(self) -> list[CacheEvent]:
        """What there is to report since the last call."""
        told, self._events = self._events, []
        return told
