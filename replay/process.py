"""What requests run on from one start of a process to its end: engine, caches, slots and board"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from cache.budget import Budget
from cache.config import StackConfig
from cache.disk.tier import DiskTier
from cache.journal import Journal
from cache.levels import levels_of
from cache.meet import Meeting
from cache.ports import Job, Jobs
from cache.spill.tier import Spill
from cache.stack import Stack
from cache.suffix_store import SuffixStore
from engine.adapter import Engine
from engine.box import Box
from engine.slots import Slots, side_stack
from replay.models import stack_config, verifier
from sim.board import Board
from sim.clock import VirtualClock
from sim.compute import Compute
from sim.profile import Profile


@dataclass(frozen=True, slots=True)
class Ports:
    """What outlives a process, or is made anew beside it."""

    clock: VirtualClock
    jobs: Jobs
    journal: Journal
    suffixes: SuffixStore | None
    disk: DiskTier | None = None
    spill: Spill | None = None


class Together:
    """Jobs of two owners, pumped at the same points; what is started here is the first one's."""

    def __init__(self, first: Jobs, other: Jobs) -> None:
        self._first, self._other = first, other

    def start(self, name: str, job: Job) -> None:
        """Take a job on."""
        self._first.start(name, job)

    def pump(self) -> None:
        """Steps of both."""
        self._first.pump()
        self._other.pump()

    def drain(self) -> None:
        """Return when every job of both has ended; raises what a job raised."""
        self._first.drain()
        self._other.drain()


class Process:
    """One engine with its caches and side slots, on a board of its own.

    All of it is gone at a restart; what a replay knows of its requests is kept elsewhere.
    """

    def __init__(
        self,
        engine: Engine,
        profile: Profile,
        ports: Ports,
        meets: Meeting,
        policy: StackConfig | None,
    ) -> None:
        """`policy` replaces the caches' settings that follow from the profile."""
        clock = ports.clock
        self.engine = engine
        self.board = Board(profile, clock, Compute(profile, clock))
        self.budget = Budget(profile.limits, self.board, engine.cost)
        grow = self.budget.grow
        disk, spill = ports.disk, ports.spill
        config = policy or stack_config(profile)
        stack = Stack(engine, config, meets, grow=grow, disk=disk, spill=spill)
        self.box = Box(
            engine, stack, clock, ports.jobs, ports.journal, self.board, budget=self.budget
        )
        self.box.suffixes = ports.suffixes
        self.slots = Slots.beside(
            self.box,
            profile.side_slots,
            profile.side_window,
            lambda side: side_stack(side, meets, stack.store, grow, disk),
        )
        self.board.holds(self._held)
        self.budget.over(levels_of([(b.stack, b.engine) for b in self.slots], engine.encoded))
        if engine.encoded is not None:
            engine.encoded.grow = grow
        if disk is not None:
            disk.grow = grow
        if spill is not None:
            spill.buffers.grow = grow
        self.verifiers = {box.slot: verifier(box.engine) for box in self.slots}

    def _held(self) -> Mapping[str, int]:
        """Bytes by cache over all slots, which share the store and the disk tier."""
        held = Counter(self.box.stack.held_bytes())
        if self.engine.encoded is not None:
            held["encoded"] = self.engine.encoded.held_bytes()
        for box in self.slots:
            if box is not self.box:
                sizes = box.stack.held_bytes()
                held.update({n: size for n, size in sizes.items() if n not in ("store", "disk")})
        return held
