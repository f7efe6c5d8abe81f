"""What was noted in a journal since somebody last looked, of one tier"""

from __future__ import annotations

from itertools import islice

from cache.journal import CacheEvent, Journal


class Noted:
    """Reads a tier's events once each."""

    def __init__(self, journal: Journal, tier: str) -> None:
        self._journal = journal
        self._tier = tier
        self._seen = 0

    def take(self) -> list[CacheEvent]:
        """Those since the last call, in order."""
        prefix = f"{self._tier}."
        counters = self._journal.counters
        count = sum(counters[name] for name in counters if name.startswith(prefix))
        left, found = count - self._seen, list[CacheEvent]()
        for event in islice(reversed(self._journal.events), len(self._journal.events)):
            if len(found) == left:
                break
            if event.tier == self._tier:
                found.append(event)
        assert len(found) == left, f"{left} events at once are more than the journal keeps"
        self._seen = count
        return found[::-1]
