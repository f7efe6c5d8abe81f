"""The keeper: makes room for what is to be written, takes in what was, lets the rest go."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from cache.disk.config import DiskConfig
from cache.disk.counts import Counts
from cache.disk.index import Entry, Index
from cache.disk.notes import NAME, Notes
from cache.disk.plan import Done, Plan
from cache.disk.shapes import ANCHOR, ROWS, Shapes
from cache.disk.work import COUNTS, Work
from cache.ports import Clock, Jobs
from cache.writeguard import WRITES, WriteGuard


class Keeper:
    """What is on the drive and on its way there, under one budget. On the engine's thread."""

    def __init__(
        self,
        config: DiskConfig,
        index: Index,
        shapes: Shapes,
        work: Work,
        clock: Clock,
        jobs: Jobs,
        notes: Notes,
        guard: WriteGuard | None = None,
    ) -> None:
        self.config = config
        self.index = index
        self.counts = Counts(config.lines_max)
        self.keeps_record = True
        """The counts' file is ours to write."""
        self._shapes = shapes
        self._work = work
        self._clock = clock
        self.jobs = jobs
        self._notes = notes
        self._guard = guard
        self._plans: list[Plan] = []

    # what is to be written

    def wants(self, line: int) -> bool:
        """Whether the anchor of this hash is neither on the drive nor on its way."""
        coming = any(line == plan.chunks(n)[-1] for plan in self._plans for n in plan.lines)
        return line not in self.index.entries and not coming

    def admit(self, plan: Plan) -> bool:
        """Make room for a plan by giving up what is worth less; False, and nothing changed, when
        that does not do."""
        index, budget_bytes = self.index, self.config.budget_bytes
        index.reserve(plan.hashes)
        need = self._need(plan) + sum(other.need_bytes for other in self._plans)
        if index.kept_bytes(self._worth(plan), self._clock.wall_s()) + need > budget_bytes:
            index.settle(plan.hashes)
            return False
        plan.need_bytes = self._need(plan)
        self._plans.append(plan)
        self.evict_to(budget_bytes - need)
        return True

    def _worth(self, plan: Plan) -> float:
        """The value that the best of its entries will have."""
        chunk = self._shapes.bytes_of(ROWS)
        return max(
            self.index.worth_of_new(line, chunks, self._anchor_bytes(line), chunk)
            for line in plan.lines
            if (chunks := plan.chunks(line))
        )

    def _need(self, plan: Plan) -> int:
        """Bytes that a plan would add to what is there and on its way."""
        coming = {name for other in self._plans for name in other.hashes}
        lacks = [n for n in plan.hashes if n not in self.index.chunks and n not in coming]
        anchors = sum(self._anchor_bytes(line) for line in plan.lines)
        return len(lacks) * self._shapes.bytes_of(ROWS) + anchors

    def _anchor_bytes(self, line: int) -> int:
        return self._shapes.bytes_of(ANCHOR, line // self._shapes.grid)

    def rows_ready(self, plan: Plan) -> None:
        """A plan's prefill is over: its chunks may be copied."""
        self._work.rows(plan)
        self.run()

    def run(self) -> None:
        """Let a job do what is to be done."""
        self.jobs.start(NAME, self._work.job())

    # what was written

    def absorb(self) -> None:
        """Take in what jobs have done since the last time, and let go of what is too old."""
        while self._work.results:
            result = self._work.results.popleft()
            if isinstance(result, Done):
                self._absorb(result)
            else:
                self._notes.note("stuck", None, 0, 0, f"{result.name}: {result.why}")
        for entry in self.index.expired(self._clock.wall_s(), self.config.ttl_s):
            self._give_up(entry, "expire", "ttl")
        if not self._plans:
            self.evict_to(self.config.budget_bytes)

    def _absorb(self, done: Done) -> None:
        plan, index, note = done.plan, self.index, self._notes.note
        self._plans.remove(plan)
        plan.finished = True
        for chunk in done.chunks:
            index.add_chunk(chunk)
        for entry in done.entries:
            entry.used_s = self._clock.wall_s()
            if not plan.stopped and index.add(entry):
                note("write", plan.session, entry.line, entry.nbytes, " ".join(entry.packages))
            else:
                # A chunk below it turned out to be no good meanwhile, or all was cleared.
                self.remove([entry.name])
                done.dropped.append((entry.line, plan.stopped or "chunk lost"))
        index.settle(plan.hashes)
        self.remove(index.orphans(plan.hashes))
        for line, why in done.dropped:
            note("drop", plan.session, line, 0, why)
        nbytes = sum(c.nbytes for c in done.chunks) + sum(e.nbytes for e in done.entries)
        self._notes.counters["written_bytes"] += nbytes
        if done.entries or (done.chunks and self._guard is not None):
            self.save_record()

    # what goes

    def evict_to(self, budget_bytes: int) -> None:
        """Give up the least valuable entries until no more than this is held."""
        while self.index.held_bytes() > budget_bytes:
            entry = self.index.least(self._clock.wall_s())
            if entry is None:
                return
            self._give_up(entry, "evict", "budget")

    def _give_up(self, entry: Entry, event: str, why: str) -> None:
        before = self.index.held_bytes()
        self.remove(self.index.drop(entry))
        self._notes.note(event, None, entry.line, before - self.index.held_bytes(), why)

    def remove(self, names: list[str]) -> None:
        """These files go, in a job."""
        if names:
            self._work.unlink(names)
            self.run()

    def clear(self) -> None:
        """Forget everything, counts and all; files go in a job."""
        for plan in self._plans:
            with plan.model.device_calls():
                plan.stopped = "cleared"
        self.remove(self.index.clear())
        self.counts.clear()
        self.save_record()

    # counts and uses

    def save_record(self) -> None:
        """Counts and uses go to the drive, in a job, and what was written by day."""
        guard = self._guard
        if self.keeps_record:
            uses = {f"{e.hash:016x}": [e.hits, e.used_s] for e in self.index}
            self._work.record(COUNTS, {"counts": self.counts.plain(), "uses": uses})
        if guard is not None and guard.keeps_record:
            self._work.record(WRITES, guard.plain())
        self.run()

    def take_record(self, record: Mapping[str, Any]) -> None:
        """Counts and uses as an earlier process left them; what makes no sense is passed over."""
        counts, uses = record.get("counts"), record.get("uses")
        self.counts.take(counts if isinstance(counts, dict) else {})
        now_s = self._clock.wall_s()
        for entry in self.index:
            entry.used_s = now_s
            match uses.get(f"{entry.hash:016x}") if isinstance(uses, dict) else None:
                case [int(hits), float(used_s)] if 0 <= hits < 1 << 53 and isfinite(used_s):
                    # A clock that was ahead must not keep an entry for ever.
                    entry.hits, entry.used_s = hits, min(used_s, now_s)

    def check(self) -> None:
        """Integrity; raises AssertionError."""
        self.index.check()
        assert self._plans or self.index.held_bytes() <= self.config.budget_bytes
