"""Decides what is written of conversations that memory loses, and says what became of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from cache.account import Account
from cache.ports import Clock, Stop, Way, never
from cache.source import Source
from cache.spill.buffers import Buffers
from cache.spill.config import SpillConfig
from cache.spill.names import YIELDED
from cache.spill.saver import Saver
from cache.spill.shapes import Shapes
from cache.spill.shelf import Shelf
from cache.types import Outcome
from cache.writeguard import WriteGuard

Who = Literal["drain", "evict", "park", "idle"]
"""Why a conversation is written: a planned stop, another one takes its rows, the pool gives it up,
or a pause."""


class SpillWriter:
    """Writes conversations on the engine's thread: rows leave before anybody overwrites them."""

    def __init__(
        self,
        saver: Saver,
        shapes: Shapes,
        shelf: Shelf,
        buffers: Buffers,
        clock: Clock,
        config: SpillConfig,
        guard: WriteGuard,
        way: Way,
    ) -> None:
        self.config = config
        self.wrote: Callable[[], object] = lambda: None
        """Told after something may have been written: the day's count goes to the drive."""
        self.spent = saver.spent
        self._saver = saver
        self._shapes = shapes
        self._shelf = shelf
        self._buffers = buffers
        self._clock = clock
        self._guard = guard
        self._way = way
        self._busy = False
        self._left: Account | None = None
        """The last that was not written because its session had left it: it is told once."""

    def leaves(self, source: Source, who: Who) -> bool:
        """Write a conversation that memory is about to lose, if that is worth it; whether all of it
        is on the drive now."""
        account, config = source.account, self.config
        least = config.park_tokens_min if who == "park" else config.tokens_min
        if account.valid < least:
            return False
        if account.left:
            # On recorded sessions nine in ten of these, half of all bytes, were never read.
            if self._left is not account:
                self._skipped(account, who, "left", 0)
            self._left = account
            return False
        return self.save(source, who).ok

    def save(self, source: Source, who: Who, stop: Stop = never) -> Outcome:
        """Write what changed of a conversation; the older entry lasts until the new one is whole.

        Of a save that `stop` ended between two blocks the next one finds what was written.
        """
        account, config = source.account, self.config
        if not config.writes or self._busy:
            return Outcome(False, "off" if not config.writes else "busy")
        if not _resumable(account):
            return Outcome(False, "no line")
        if self._shelf.in_use is not None and self._shelf.like(account) is self._shelf.in_use:
            # The prompt goes on with what the session's entry holds: this is a branch that is left.
            return Outcome(False, "in use")
        if not self._guard.allows(who, account.valid):
            self._guard.skipped(who, account.session, account.valid)
            return Outcome(False, "guard")
        self._busy = True
        try:
            with self._way.first():
                return self._save(source, who, stop)
        finally:
            self._busy = False
            self.wrote()

    def _save(self, source: Source, who: Who, stop: Stop) -> Outcome:
        account, shelf, budget_bytes = source.account, self._shelf, self.config.budget_bytes
        if why := self._saver.refused(self.config):
            return self._skipped(account, who, why, 0)
        if not self._buffers.ready():
            return self._skipped(account, who, "memory", 0)
        entry = shelf.of(account, self._clock.wall_s())
        need = self._shapes.expected_weight(account.valid, self.config.anchors_kept + 1)
        if not shelf.make_room(entry, round(need * shelf.ratio), budget_bytes):
            shelf.settle(entry)
            return self._skipped(account, who, "budget", 0)
        before, begun_s = dict(self.spent.seconds), self._clock.mono_s()
        had = entry.names
        saved = self._saver.save(entry, source, self.config, stop)
        shelf.let_go(had - entry.names)
        with self.spent.on("manifest"):
            why = saved.why or shelf.publish(entry, account, saved, self._clock.wall_s())
        if why == YIELDED:
            shelf.notes.note("yield", account.session, account.valid, saved.nbytes, who)
            return Outcome(False, why, saved.nbytes)
        if why:
            shelf.settle(entry, saved)
            return self._skipped(account, who, why, saved.nbytes)
        shelf.evict_to(budget_bytes, entry)
        if shelf.held_bytes() > budget_bytes and shelf.in_use is None:
            # It takes more than was expected, and nobody else is left to go.
            shelf.evict_to(budget_bytes, None)
            return self._skipped(account, who, "budget", saved.nbytes)
        took = {part: s - before[part] for part, s in self.spent.seconds.items()}
        parts = " ".join(f"{part}={seconds * 1e3:.1f}ms" for part, seconds in took.items())
        total = f"{(self._clock.mono_s() - begun_s) * 1e3:.1f}ms"
        told = f"{who} written={saved.written} kept={saved.kept} {total}: {parts}"
        shelf.notes.note("write", account.session, account.valid, saved.nbytes, told)
        shelf.notes.counters["written_bytes"] += saved.nbytes
        return Outcome(True, "", saved.nbytes)

    def _skipped(self, account: Account, who: Who, why: str, nbytes: int) -> Outcome:
        self._shelf.notes.note("skip", account.session, account.valid, nbytes, f"{who}: {why}")
        return Outcome(False, why, nbytes)


def _resumable(account: Account) -> bool:
    """Whether a save of it would have a line."""
    grid = any(anchor.kind == "grid" for anchor in account.anchors)
    return account.valid > 0 and (account.end is not None or grid)
