"""The disk tier beside all other tiers: restarts, damaged files, failing calls, jumping clocks.

Method: a hypothesis state machine drives sessions with shared heads through turns of the witness,
on a grid of 64. In between the process ends, sometimes with work undone, files are damaged, calls
fail once or for ever, the clock jumps, settings and the day's write budget change, all is cleared.
After every prefill the witness's formula checks each row, a plan made before must be what served
unless a file was no good, nothing is planned over the write budget, and the index must be the
files' own account.
"""

from __future__ import annotations

import errno

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from support import GRID, box, engine, forced, joined, serve, tier, tokens, verifier

from cache.disk.config import DiskConfig
from cache.disk.open import MARKER
from cache.disk.plan import Plan
from cache.disk.writer import DiskWriter
from cache.journal import TurnRow
from cache.types import Ask, Ids, common_prefix
from cache.writeguard import GuardConfig, WriteGuard
from engine.turn import Chunk, Prompt, turn
from sim.clock import VirtualClock
from sim.faults import Fault
from sim.files import SimFiles
from sim.jobs import SeededJobs

SESSIONS = ("a", "b", "c")
WINDOW = 2_048
YEAR_S = 366 * 86_400.0
ERRORS = (errno.EIO, errno.ENOSPC, errno.EMFILE, errno.EROFS)


class Machine(RuleBasedStateMachine):
    """One drive and the processes over it."""

    @initialize(
        seed=st.integers(0, 50),
        rooms=st.sampled_from((0, 300, 4_000)),
        chunks=st.sampled_from((8, 40, 500, 500)),
    )
    def begin(self, seed: int, rooms: int, chunks: int) -> None:
        self.seed, self.rooms = seed, rooms
        self.files = SimFiles(logs=False)
        self.clock = VirtualClock(wall_start_s=1e9)
        self.count = 0
        self.budget_bytes = chunks * 8_192
        self.writes = GuardConfig()
        self.head = tokens(5 * GRID + 9, seed)
        self.texts: dict[str, Ids] = {}
        self.read: list[Ids] = []
        self.starts()

    def starts(self) -> None:
        """A process begins, on a drive that works."""
        self.files.fault = None
        self.of = engine("witness", window=WINDOW)
        self.jobs = SeededJobs(self.seed + self.count)
        self.guard = WriteGuard(self.clock, self.writes)
        self.tier = tier(
            self.files,
            self.of,
            jobs=self.jobs,
            clock=self.clock,
            guard=self.guard,
            budget_bytes=self.budget_bytes,
        )
        admit = self.tier.keeper.admit

        def within(plan: Plan) -> bool:
            assert self.guard.level() == "ok", "planned over the day's write budget"
            return admit(plan)

        self.tier.keeper.admit = within  # type: ignore[method-assign]
        self.on = box(
            self.of,
            anchors=6,
            park_rows=self.rooms,
            pin_rows=self.rooms // 2,
            guest_tokens=8 * GRID,
            stash_rows=self.rooms,
            checkpoint_tokens=32,
            store_bytes=self.rooms * self.of.cost().row_bytes,
            disk=self.tier,
        )
        self.check = verifier(self.of)

    def fresh(self, size: int) -> Ids:
        self.count += 1
        return tokens(size, 1_000 + self.count)

    def ask(self, session: str | None, ids: Ids, answer: int, kind: str = "turn") -> TurnRow:
        ids, written = ids[: WINDOW - 300], self.fresh(answer)
        self.on.stack.leave()
        plan = self.on.stack.plan(Ask(ids, session, kind, answer))
        asked = self.tier.notes.counters["fail"]
        row, verdict = serve(
            self.on, ids, written, check=self.check, session=session, kind=kind, limit=answer
        )
        assert verdict is not None and verdict.ok, verdict
        if self.tier.notes.counters["fail"] == asked:
            assert (row.cached, row.source) == (plan.line.tokens, plan.source)
        else:
            assert row.cached <= plan.line.tokens and plan.source == "disk.grid"
        held = max((common_prefix(text, ids) for text in self.read), default=0)
        assert row.cached <= min(held, len(ids) - 1)
        self.read.append(self.on.stack.rows.copy())
        if session is not None:
            self.texts[session] = joined(ids, written)
        return row

    @rule(session=st.sampled_from(SESSIONS), size=st.integers(1, 200), answer=st.integers(1, 80))
    def extend(self, session: str, size: int, answer: int) -> None:
        text = self.texts.get(session, self.head)
        self.ask(session, joined(text, self.fresh(size)), answer)

    @rule(
        keep=st.sampled_from((1.0, 1.0, 0.8, 0.3)),
        size=st.integers(1, 300),
        session=st.sampled_from(SESSIONS),
    )
    def a_new_session_with_some_of_the_head(self, keep: float, size: int, session: str) -> None:
        head = self.head[: int(keep * len(self.head))]
        self.ask(session, joined(head, self.fresh(size)), 9)

    @rule(size=st.integers(1, 900))
    def a_stranger(self, size: int) -> None:
        self.ask(None, self.fresh(size), 9, kind="title")

    @rule(size=st.integers(64, 300), at=st.integers(0, 3))
    def leave_early(self, size: int, at: int) -> None:
        ids = joined(self.head, self.fresh(size))
        events = turn(self.on, Prompt(ids, None), forced(tokens(9)), limit=9)
        for event in events:
            if isinstance(event, Chunk):
                if at == 0:
                    events.close()
                at -= 1
        self.read.append(self.on.stack.rows.copy())

    @rule(whole=st.sampled_from((True, True, False)))
    def restart(self, whole: bool) -> None:
        """With `whole` a planned stop; else the process dies with its jobs undone."""
        if whole:
            self.jobs.drain()
        if whole or self.tier._lock in self.files.handles:
            self.files.fault = None
            self.tier.close()
        self.starts()

    @rule(data=st.data())
    def damage(self, data: st.DataObject) -> None:
        """One bit of a file, or its end; the process that is running knows nothing of it."""
        state = self.files.snapshot()
        names = sorted(name for name in state if name not in ("lock", MARKER) and state[name])
        if not names:
            return
        name = data.draw(st.sampled_from(names))
        at = data.draw(st.integers(0, len(state[name]) - 1))
        inode = self.files._directory.names[name]
        if data.draw(st.booleans()):
            inode.data[at] ^= 1 << data.draw(st.integers(0, 7))
        else:
            del inode.data[at // 4_096 * 4_096 :]

    @rule(
        after=st.integers(0, 30),
        number=st.sampled_from(ERRORS),
        ever=st.booleans(),
        half=st.booleans(),
    )
    def calls_will_fail(self, after: int, number: int, ever: bool, half: bool) -> None:
        self.files.fault = Fault(self.files.calls + after, number, for_ever=ever, half=half)

    @rule()
    def calls_work_again(self) -> None:
        self.files.fault = None

    @rule(step_s=st.sampled_from((-YEAR_S, -86_400.0, 3_600.0, 3 * 86_400.0, YEAR_S)))
    def the_clock_jumps(self, step_s: float) -> None:
        self.clock._wall_start_s += step_s

    @rule(
        chunks=st.sampled_from((0, 8, 40, 500, 500, 500)),
        mode=st.sampled_from(("on", "on", "on", "read", "off")),
    )
    def set_the_budget(self, chunks: int, mode: str) -> None:
        self.budget_bytes = chunks * 8_192
        now = self.tier.config
        self.tier.configure(
            DiskConfig(
                mode=mode,  # type: ignore[arg-type]
                budget_bytes=self.budget_bytes,
                tokens_min=now.tokens_min,
                min_free_bytes=0,
                floor_bytes=0,
            )
        )

    @rule(budget_bytes=st.sampled_from((0, 100_000, 1 << 40, 1 << 40)))
    def set_the_days_writes(self, budget_bytes: int) -> None:
        self.writes = self.guard.config = GuardConfig(budget_bytes=budget_bytes)

    @rule(dice=st.integers(0, 5))
    def clear(self, dice: int) -> None:
        if dice:
            return
        self.tier.clear()
        assert not self.tier.index.entries and not len(self.tier.keeper.counts)

    @rule()
    def rest(self) -> None:
        """Whatever is to be written is written, and nothing is left over, of earlier errors too."""
        self.jobs.drain()
        self.on.stack.leave()
        self.jobs.drain()
        if self.files.fault is None:
            self.tier.keeper.save_record()
            self.jobs.drain()
            held = {chunk.name for chunk in self.tier.index.chunks.values()}
            held |= {entry.name for entry in self.tier.index}
            there = {n for n in self.files.list() if n.endswith((".rows", ".anchor", ".tmp"))}
            assert held - there == set(), "the index has what is not there"
            assert there - held == set() or self.tier.notes.counters["foreign"], there - held

    @invariant()
    def all_is_whole(self) -> None:
        if hasattr(self, "tier"):
            self.on.stack.check()
            assert 1 <= len(self.guard.days()) <= 14
            assert self.guard.days()[-1][0] == self.clock.day()
            assert len(self.files.handles) <= 4


SOME = settings(max_examples=max(40, settings().max_examples // 4), stateful_step_count=30)
MANY = settings(SOME, max_examples=max(150, settings().max_examples))
TestMachine = Machine.TestCase
TestMachine.settings = SOME


@pytest.mark.slow
def test_many_runs() -> None:
    run_state_machine_as_test(Machine, settings=MANY)


def test_canary_a_tier_that_does_not_ask_the_days_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DiskWriter, "_skips", lambda *_: False)
    some = settings(SOME, max_examples=60, phases=[Phase.generate])
    with pytest.raises(AssertionError, match="over the day's write budget"):
        run_state_machine_as_test(Machine, settings=some)
