"""Goal: power that fails at any moment, over and over, costs nothing that was acknowledged.

Method: a hypothesis state machine: sessions ask, jobs take a few steps, settings change, calls
fail, weeks pass, all is cleared; then the machine goes off and comes back with what a drawn crash
state of its log holds, and the next process goes on from there. The witness checks every request,
the index is compared with the files, and what was acknowledged and not given up must be there.
"""

from __future__ import annotations

import errno
import random
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from rig import CONFIG, LONG, OTHERS, STRANGER, WALL_S, A, B, Owed, Rig, astray

from cache.disk.config import DAY_S
from sim.crash import Order, drawn
from sim.faults import Fault
from sim.files import SimFiles
from sim.pending import Start

TEXTS = (A, B, LONG, STRANGER)


class Power(RuleBasedStateMachine):
    """One drive, and the processes that were killed over it."""

    @initialize(seed=st.integers(0, 20), others=st.booleans())
    def begin(self, seed: int, others: bool) -> None:
        self.seed, self.config, self.wall_s = seed, CONFIG, WALL_S
        self.state: dict[str, bytes] = {}
        self.starts()
        if others:
            self.power(seed, weak=False)
            self.state = self.files.snapshot() | OTHERS
            self.starts()

    def starts(self) -> None:
        self.seed += 1
        self.asked = 0
        self.files = SimFiles(self.state)
        self.rig = Rig(self.files, config=self.config, seed=self.seed, wall_s=self.wall_s)

    @rule(
        text=st.integers(0, 3),
        again=st.booleans(),
        steps=st.sampled_from((0, 1, 2, 3, 5, 8, 13, 100)),
    )
    def ask(self, text: int, again: bool, steps: int) -> None:
        """On the rows in place, or on an engine that holds nothing; then the jobs go on."""
        if again:
            self.rig.reset()
        self.rig.ask(TEXTS[text], f"s{self.seed % 5}")
        self.asked += 1
        for _ in range(steps):
            self.rig.jobs.pump()

    @rule(text=st.integers(0, 3), following=st.integers(0, 3))
    def two_at_once(self, text: int, following: int) -> None:
        """The second begins while the first one is written."""
        self.ask(text, True, 0)
        self.ask(following, False, 0)

    @rule()
    def settle(self) -> None:
        self.rig.settle()

    @rule(chunks=st.sampled_from((0, 4, 7, 100)))
    def budget(self, chunks: int) -> None:
        self.config = replace(CONFIG, budget_bytes=chunks * 8_192)
        self.rig.tier.configure(self.config)

    @rule(days=st.sampled_from((0.5, 8.0)))
    def time_passes(self, days: float) -> None:
        self.rig.clock.charge(days * DAY_S)
        self.wall_s += days * DAY_S

    @rule()
    def clear(self) -> None:
        self.rig.tier.clear()

    @rule(
        ahead=st.integers(0, 30),
        number=st.sampled_from((errno.EIO, errno.ENOSPC, errno.EMFILE)),
        half=st.booleans(),
    )
    def a_call_fails(self, ahead: int, number: int, half: bool) -> None:
        self.files.fault = Fault(self.files.calls + ahead, number, half=half, reverts=half)

    @precondition(lambda self: self.asked)
    @rule(seed=st.integers(0, 1 << 16), weak=st.booleans())
    def power(self, seed: int, weak: bool) -> None:
        """Off and on again."""
        assert self.rig.wrong == []
        self.rig.look()
        order = Order.WEAK if weak else Order.ORDERED
        found = drawn(Start.of(self.state), self.files.log, random.Random(seed), order)
        self.state = found.files
        self.starts()
        self.rig.settle()
        owed = Owed.by(note for note in found.notes if not note.startswith("counts"))
        # Where little may be kept, or not for so long, opening gives up what is over.
        gives_up = self.config != CONFIG or self.wall_s - WALL_S > CONFIG.ttl_s
        assert self.rig.entries() >= owed.anchors or gives_up
        assert astray(self.rig, self.state) == []

    @precondition(lambda self: self.asked > 2)
    @rule()
    def a_process_ends(self) -> None:
        self.rig.close()
        self.files.fault = None
        assert self.rig.wrong == [] and not self.files.handles
        self.state = self.files.snapshot()
        self.starts()

    def teardown(self) -> None:
        if hasattr(self, "rig"):
            assert self.rig.wrong == []


Power.TestCase.settings = settings(
    max_examples=max(20, settings().max_examples // 5), stateful_step_count=20
)
TestPower = pytest.mark.timeout(3_600)(Power.TestCase)
"""A night's run of it takes longer than other tests may."""
