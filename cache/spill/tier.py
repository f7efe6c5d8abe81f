"""The spill: whole conversations on a drive, as they were in the engine."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from cache.account import Account
from cache.budget import DRIVE
from cache.disk.rate import ReadRate
from cache.disk.spent import Spent
from cache.journal import CacheEvent
from cache.meet import Meeting
from cache.plan import Plan
from cache.ports import Clock, Files, Model, Stop, Way, Workers, never
from cache.spill.buffers import Buffers
from cache.spill.config import SpillConfig
from cache.spill.entry import Copy, Entry
from cache.spill.names import NAME, YIELDED
from cache.spill.offers import Offers
from cache.spill.reader import Reader
from cache.spill.saver import Saver
from cache.spill.shapes import Shapes
from cache.spill.shelf import Shelf
from cache.spill.spilled import Spilled
from cache.spill.writer import SpillWriter
from cache.types import Ask, Cost, Offer
from cache.writeguard import WriteGuard


class Spill:
    """Conversations on the drive. Everything happens on the engine's thread; requests wait for it.

    An entry holds the bytes that were in the engine, not a cold prefill's, so what it serves is
    held to the gate that its rows were held to in memory.
    """

    name = NAME

    def __init__(
        self,
        files: Files,
        clock: Clock,
        config: SpillConfig,
        shapes: Shapes,
        accepted: Collection[str],
        shelf: Shelf,
        workers: Workers,
        guard: WriteGuard,
        way: Way,
        lock: int,
    ) -> None:
        """Use `open_spill`."""
        self._files = files
        self._lock: int | None = lock
        self.stop: Stop = never
        """Ends a reading between two files; whoever sets it puts `never` back."""
        self._clock = clock
        self.shapes = shapes
        self.shelf = shelf
        self.guard = guard
        self.notes = shelf.notes
        self._rate = ReadRate(clock, config)
        self._offers = Offers(shapes, shelf, self._rate, self._bring)
        self.buffers = Buffers(files, shapes, config)
        raw, images = self.buffers.raw, self.buffers.images
        spent = Spent(clock, "sums", "pack", "manifest")
        saver = Saver(files, shapes, workers, raw, images, spent)
        self.writer = SpillWriter(saver, shapes, shelf, self.buffers, clock, config, guard, way)
        spent = Spent(clock, "sums", "pack")
        self._reader = Reader(files, shapes, accepted, workers, raw, images, spent)

    @property
    def config(self) -> SpillConfig:
        """The settings in force."""
        return self.writer.config

    # the tier's questions and answers

    def meets(self, meeting: Meeting) -> None:
        """How a prompt meets an entry's tokens."""
        self._offers.meeting = meeting

    def offer(self, ask: Ask, in_place: Account, cost: Cost) -> Offer | None:
        """The entry that costs this ask least, reading and prefilling. Changes nothing."""
        return self._offers.best(ask, in_place, cost) if self.config.reads else None

    def serves(self, plan: Plan, in_place: Account) -> None:
        """A plan is about to be acted on: the entry that it wants stays, and if it wants none
        although one shares a long part of a long prompt, that is noted with the reason."""
        if plan.best is not None and plan.best.tier == NAME:
            self.shelf.in_use = plan.best.entry.entry
            return
        ask = plan.ask
        long = self.config.reads and len(ask.ids) >= self.config.tokens_min
        told = self._offers.unserved(ask, in_place, plan.line.tokens) if long else None
        if told is not None:
            self.notes.note("refused", ask.session, told.shares, 0, told.line)
            self.notes.counters[f"refused.{told.why}"] += 1

    def served(self) -> None:
        """The plan was acted on."""
        self.shelf.in_use = None
        self.shelf.evict_to(self.config.budget_bytes, None)

    def _bring(self, spilled: Spilled, model: Model, top: int) -> bool:
        """Read what a conversation lacks; an entry with a file that is no good goes."""
        entry, note = spilled.entry, self.notes.note
        if not self.shelf.holds(entry) or entry.account is not spilled.seen:
            return False
        copies = self._affordable(entry, top, model.cost())
        if not copies or not self.buffers.ready():
            note("fail", entry.session, top, 0, "memory")
            return False
        begun_s = self._clock.mono_s()
        base, shared = spilled.base, spilled.shared
        read = self._reader.read(entry, copies, base, top, shared, model, self.stop)
        seconds = self._clock.mono_s() - begun_s
        self.notes.counters["read_bytes"] += read.nbytes
        if read.why:
            told = "yield" if read.why == YIELDED else "fail"
            note(told, entry.session, top, read.nbytes, read.why)
            if read.bad:
                self.shelf.drop(entry)
                note("damage", entry.session, top, entry.held_bytes, read.why)
            return False
        spilled.copies = read.copies
        self._rate.saw(read.nbytes, seconds)
        entry.hits, entry.used_s = entry.hits + 1, self._clock.wall_s()
        why = f"blocks_read={read.blocks_read} blocks_in_place={read.blocks_in_place}"
        note("hit", entry.session, top, read.nbytes, why)
        return True

    def _affordable(self, entry: Entry, top: int, cost: Cost) -> list[Copy]:
        """The copies up to a line that there is memory for: the line's own, the newest others."""
        copies = entry.copies_to(top)[::-1]
        while copies and not self.buffers.grow(DRIVE, len(copies) * cost.anchor_bytes):
            copies.pop()
        return copies[::-1]

    # across processes

    def remember(self, account: Account) -> None:
        """This conversation was in place at a planned stop: the next start reads it back."""
        entry = self.shelf.like(account)
        if entry is not None and entry.account is not None:
            self.shelf.point_at(entry)

    def last(self, in_place: Account) -> Spilled | None:
        """The conversation that was in place at the last planned stop, to be brought back."""
        entry = self.shelf.pointed()
        if entry is None or entry.account is None or not self.config.reads:
            return None
        line = entry.account.best_line(entry.account.valid)
        return self._offers.beside(entry, in_place, line.tokens) if line is not None else None

    # settings, and what a person may ask for

    def absorb(self) -> None:
        """Let go of what is too old."""
        self.shelf.expire(self._clock.wall_s(), self.config.ttl_s)

    def configure(self, config: SpillConfig) -> None:
        """Other settings, from now on; those that shape files stay."""
        assert config.block_rows == self.config.block_rows
        assert config.codec.frame_bytes == self.config.codec.frame_bytes
        self.writer.config = self._rate.config = config
        self.absorb()
        self.shelf.evict_to(config.budget_bytes, None)
        self.notes.note("settings", None, 0, config.budget_bytes, config.mode)

    def clear(self) -> None:
        """Forget everything."""
        self.shelf.clear()
        self.notes.note("clear", None, 0)

    def held_bytes(self) -> int:
        """Memory: the staging buffers that were used so far."""
        return self.buffers.held_bytes()

    def stats(self) -> Mapping[str, Any]:
        """What is held and how it is used, in plain values."""
        return {
            "mode": self.config.mode,
            "entries": len(self.shelf.whole()),
            "held_bytes": self.shelf.held_bytes(),
            "budget_bytes": self.config.budget_bytes,
            "read_bytes_s": self._rate.bytes_s(),
            "write_s": dict(self.writer.spent.seconds),
            "read_s": dict(self._reader.spent.seconds),
            **self.notes.counters,
        }

    def events(self) -> list[CacheEvent]:
        """What there is to report since the last call."""
        return self.notes.events() + self.guard.events()

    def close(self) -> None:
        """Let go of the directory."""
        lock, self._lock = self._lock, None
        if lock is not None:
            try:
                self._files.close(lock)
            except OSError as error:
                self.notes.note("stuck", None, 0, 0, f"lock: {error.strerror}")

    def check(self) -> None:
        """Integrity; raises AssertionError."""
        self.shelf.check(self.shapes.grid)
