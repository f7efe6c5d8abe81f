"""The disk tier: what it offers and brings back; the slots of an engine share it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping
from typing import Any

from cache.account import Account
from cache.anchors import Tensors
from cache.budget import DRIVE, Grow, freely
from cache.disk.chain import Chain
from cache.disk.config import DiskConfig
from cache.disk.index import Entry, Index
from cache.disk.keeper import Keeper
from cache.disk.notes import NAME, Notes
from cache.disk.rate import ReadRate
from cache.disk.reader import Reader
from cache.disk.shapes import ANCHOR, ROWS, Shapes
from cache.disk.spent import Spent
from cache.disk.staging import Staging
from cache.disk.work import Work
from cache.hashing import block_hashes
from cache.journal import CacheEvent
from cache.keys import whole_keys
from cache.ports import Clock, Files, Jobs, Model, Way
from cache.types import Ask, Cost, Gate, Ids, Line, Met, Offer, common_prefix
from cache.writeguard import WriteGuard


class DiskTier:
    """Heads of prompts on a drive, as a cold prefill wrote them: the bit gate.

    Everything here runs on the engine's thread. What is written and removed is `Work`'s, in the
    steps of jobs; `absorb` takes in what became of it.
    """

    name = NAME

    def __init__(
        self,
        files: Files,
        clock: Clock,
        jobs: Jobs,
        config: DiskConfig,
        shapes: Shapes,
        accepted: Collection[str],
        window: int,
        index: Index,
        lock: int,
        guard: WriteGuard | None = None,
        way: Way | None = None,
    ) -> None:
        """Use `open_tier`. `window` bounds the chunks of an entry; `lock` holds the directory."""
        self._files = files
        self._lock: int | None = lock
        self.shapes = shapes
        self.notes = Notes()
        self.grow: Grow = freely
        """Asked before memory is taken."""
        self._clock = clock
        self._rate = ReadRate(clock, config)
        chunks = window // shapes.grid
        sizes = {kind: shapes.slot_bytes(kind, chunks) for kind in (ROWS, ANCHOR)}
        weight = {kind: shapes.weight(kind, size) for kind, size in sizes.items()}
        self.anchor_slots = Staging(files, 2, sizes[ANCHOR], weight[ANCHOR])
        self._chunk_slots = Staging(files, 2, sizes[ROWS], weight[ROWS])
        # Restores have their own: they must not wait for a drive that is written to.
        self._reading = Staging(files, 2, max(sizes.values()), max(weight.values()))
        self._reader = Reader(files, shapes, accepted, self._reading, Spent(clock))
        names = {chunk.name for chunk in index.chunks.values()}
        self.work = Work(
            files,
            shapes,
            self.anchor_slots,
            self._chunk_slots,
            lambda: self.config.free_bytes,
            names,
            Spent(clock),
            way.give if way is not None else lambda: None,
        )
        self.guard = guard
        """What the day's budget leaves to write; None for no such budget."""
        self.keeper = Keeper(config, index, shapes, self.work, clock, jobs, self.notes, guard)
        self._sessions: OrderedDict[str, None] = OrderedDict()

    @property
    def config(self) -> DiskConfig:
        """The settings in force."""
        return self.keeper.config

    @property
    def index(self) -> Index:
        """What is on the drive."""
        return self.keeper.index

    # the tier's questions and answers

    def offer(self, ask: Ask, in_place: Account, cost: Cost) -> Offer | None:
        """The entry that costs this ask least, reading and prefilling. Changes nothing."""
        if not self.config.reads or not self.index.entries:
            return None
        grid, ids = self.shapes.grid, ask.ids
        shared = common_prefix(in_place.ids, ids)
        if in_place.taint is not None:
            shared = min(shared, in_place.taint)
        # Whole chunks of the rows in place are a cold prefill's: they need not be read.
        base = shared // grid * grid
        best: Offer | None = None
        for number, name in enumerate(lines_of(ids[: len(ids) - 1], grid), 1):
            entry, line = self.index.entries.get(name), number * grid
            if entry is None or entry.line != line or whole_keys(ids, line) != line:
                continue
            start = min(base, line)
            nbytes = self._read_bytes(entry, start)
            chain = Chain(entry, ids[:line], start, ask.session, self._bring)
            met, read_s = Met(line, line, ids), nbytes / self._rate.bytes_s()
            offer = Offer(NAME, Line(line, "grid", Gate.BITS), met, chain, nbytes, read_s)
            if best is None or offer.cost_s(cost) <= best.cost_s(cost):
                best = offer
        return best

    def holds(self, entry: Entry) -> bool:
        """Whether an entry that was offered is still there."""
        return self.index.entries.get(entry.hash) is entry

    def _read_bytes(self, entry: Entry, base: int) -> int:
        above = entry.chunks[base // self.shapes.grid :]
        return entry.nbytes + sum(self.index.chunks[name].nbytes for name in above)

    def _bring(self, chain: Chain, model: Model) -> Tensors | None:
        """Read what a chain lacks; a file that is no good goes, and all that stands on it."""
        entry, session, note = chain.entry, chain.session, self.notes.note
        if not self.holds(entry):
            return None
        room = self.grow(DRIVE, model.cost().anchor_bytes)
        if not room or not self._reading.make(self.grow):
            note("fail", session, entry.line, 0, "memory")
            return None
        begun_s, nbytes = self._clock.mono_s(), self._read_bytes(entry, chain.base)
        read = self._reader.read(entry, chain.ids, chain.base, model)
        chain.reached = read.reached
        if read.sections is None:
            note("fail", session, entry.line, nbytes, read.why)
            if read.bad is not None:
                of_chunk = read.bad.kind == ROWS
                gone = self.index.damaged(read.bad.hash) if of_chunk else self.index.drop(entry)
                self.keeper.remove(gone)
                note("damage", session, read.bad.stop, 0, f"{read.bad.name}: {read.why}")
            return None
        self._rate.saw(nbytes, self._clock.mono_s() - begun_s)
        self.notes.counters["read_bytes"] += nbytes
        entry.hits, entry.used_s = entry.hits + 1, self._clock.wall_s()
        note("hit", session, entry.line, nbytes, " ".join(entry.packages))
        self.keeper.save_record()
        return read.sections

    # before something is written

    def ready(self) -> bool:
        """Whether there are buffers to write from; they are made now if they never were."""
        return self.anchor_slots.make(self.grow) and self._chunk_slots.make(self.grow)

    def first_long(self, session: str | None, first_answer: int) -> bool:
        """Whether a long request is its session's first; it is remembered."""
        if session is None:
            return not first_answer
        known = session in self._sessions
        self._sessions[session] = None
        self._sessions.move_to_end(session)
        while len(self._sessions) > self.config.sessions_max:
            self._sessions.popitem(last=False)
        return not known

    # settings, and what a person may ask for

    def configure(self, config: DiskConfig) -> None:
        """Other settings, from now on."""
        self.keeper.config = self._rate.config = config
        self.keeper.counts.lines_max = config.lines_max
        self.keeper.absorb()
        self.keeper.evict_to(config.budget_bytes)
        self.notes.note("settings", None, 0, config.budget_bytes, config.mode)

    def clear(self) -> None:
        """Forget everything, counts and all; files go in a job."""
        self.keeper.clear()
        self._sessions.clear()
        self.notes.note("clear", None, 0)

    def held_bytes(self) -> int:
        """Memory: the staging buffers that were used so far."""
        return sum(some.held_bytes() for some in self._staging)

    def most_bytes(self) -> int:
        """Memory when all of them are used."""
        return sum(some.most_bytes() for some in self._staging)

    @property
    def _staging(self) -> tuple[Staging, ...]:
        return self.anchor_slots, self._chunk_slots, self._reading

    def stats(self) -> Mapping[str, Any]:
        """What is held and how it is used, in plain values."""
        heads = sorted(self.index, key=lambda e: (-e.hits, -e.line))[:10]
        named = [{"tokens": e.line, "hits": e.hits, "packages": list(e.packages)} for e in heads]
        return {
            "mode": self.config.mode,
            "entries": len(self.index.entries),
            "chunks": len(self.index.chunks),
            "held_bytes": self.index.held_bytes(),
            "budget_bytes": self.config.budget_bytes,
            "counted_lines": len(self.keeper.counts),
            "read_bytes_s": self._rate.bytes_s(),
            "heads": named,
            "write_s": dict(self.work.spent.seconds),
            "read_s": dict(self._reader.spent.seconds),
            **({"writes": self.guard.stats()} if self.guard is not None else {}),
            **self.notes.counters,
        }

    def events(self) -> list[CacheEvent]:
        """What there is to report since the last call."""
        return self.notes.events() + (self.guard.events() if self.guard is not None else [])

    def close(self) -> None:
        """Let go of the directory, once the jobs have ended."""
        lock, self._lock = self._lock, None
        if lock is not None:
            try:
                self._files.close(lock)
            except OSError as error:
                self.notes.note("stuck", None, 0, 0, f"lock: {error.strerror}")

    def check(self) -> None:
        """Integrity; raises AssertionError."""
        self.keeper.check()


def lines_of(ids: Ids, grid: int) -> list[int]:
    """Hash of every grid line of a prompt; line n * grid is at place n - 1."""
    hashes: list[int] = block_hashes(ids, grid).tolist()
    return hashes
