"""The gate of the caches in memory: each way back to a conversation, beside a cold prefill"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from cache.anchors import AnchorConfig
from cache.config import StackConfig
from cache.guest import GuestConfig
from cache.host import SystemClock, ThreadJobs
from cache.journal import Journal
from cache.parked import ParkConfig
from cache.snapshot import StoreConfig
from cache.stack import Stack
from cache.types import Gate, Ids
from engine.box import Box
from engine.events import Ready
from engine.forced import Forced
from engine.prompt import Prompt
from engine.turn import turn
from replay.gate_case import Case, drawn
from replay.models import build, verifier

LINES = 5
"""Whole chunks of what a conversation begins with."""
ANSWER = 9
STEPS = 11
"""How many resumes are looked at."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """One resume: what was to come back, what came back, and what is wrong with it."""

    what: str
    source: str
    cached: int
    gate: str
    why: str = ""


class Room:
    """One engine with every cache that memory holds."""

    def __init__(self, case: Case, *, pools: bool) -> None:
        """With a pool of conversations, or with a store of snapshots. Raises BadInput."""
        board = case.board
        board = replace(board, window=(LINES + 4) * board.grid, side_window=board.grid)
        engine = build(case.model, board, case.seed, knobs=case.knobs)
        self.grid, self.vocab, self._seed = board.grid, engine.vocab, case.seed
        cost, grid = engine.cost(), board.grid
        copies = board.window * cost.row_bytes + 2 * LINES * cost.anchor_bytes
        parked = copies if pools else 0
        caches = StackConfig(
            AnchorConfig(budget_bytes=4 * LINES * cost.anchor_bytes),
            ParkConfig(park_bytes=4 * parked, pin_bytes=parked, block_rows=grid),
            GuestConfig(grid // 2, stash_bytes=parked, margin_rows=16, block_rows=grid),
            StoreConfig(0 if pools else 2 * copies, copies, block_rows=grid),
            checkpoint_tokens=0,
        )
        self._jobs = ThreadJobs()
        self._box = Box(engine, Stack(engine, caches), SystemClock(), self._jobs, Journal())
        self._check = verifier(engine)

    def close(self) -> None:
        """Its jobs end."""
        self._jobs.close()

    def text(self, count: int, number: int) -> Ids:
        """So many tokens, others for every number."""
        return drawn(count, self._seed + number, self.vocab)

    def sends(
        self,
        what: str,
        ids: Ids,
        source: str,
        cached: int,
        *,
        session: str = "a",
        kind: str = "turn",
    ) -> tuple[Resumed, Ids]:
        """Serve a prompt by a real turn; how it was resumed, and prompt and answer."""
        answer = self.text(ANSWER, 10_000 + len(ids))
        rule = Forced(answer, seed="check", vocab=self.vocab, drafts=3, accepted=0.6)
        box, why, gate = self._box, "", Gate.BITS
        for event in turn(box, Prompt(ids, session, kind=kind), rule, limit=ANSWER):
            if isinstance(event, Ready):
                taint = box.stack.taint
                gate = Gate.BITS if taint is None else Gate.GREEDY
                clean = len(ids) if taint is None else taint
                why = self._check.check(event.ids, event.logits, gate, clean).why
        box.stack.check()
        row = box.journal.rows[-1]
        if not why and (row.source, row.cached) != (source, cached):
            why = f"{row.source}, {row.cached} rows instead of {source}, {cached}"
        seen = Resumed(what, row.source, row.cached, gate.name.lower(), why)
        return seen, joined(ids, answer)

    @property
    def end(self) -> int:
        """Where the conversation in place ends."""
        end = self._box.stack.end
        assert end is not None
        return end


def resumes(case: Case) -> Iterator[Resumed]:
    """Every way back that memory has, each held to its gate. Raises BadInput."""
    for pools, steps in ((True, _conversations), (False, _snapshots)):
        room = Room(case, pools=pools)
        try:
            yield from steps(room)
        finally:
            room.close()


def _conversations(room: Room) -> Iterator[Resumed]:
    """Two conversations that replace each other, a copy that parts, and a short request."""
    grid, more = room.grid, room.grid // 2 + 3
    head = room.text(LINES * grid + grid // 4, 0)
    seen, first = room.sends("a prompt that nobody knows", head, "cold", 0)
    yield seen
    went_on = joined(first, room.text(more, 1))
    seen, _ = room.sends("its next turn", went_on, "end", room.end)
    yield seen
    parts = joined(head[: 4 * grid + 5], room.text(more, 2))
    seen, first = room.sends("a copy that parts inside a chunk", parts, "grid", 4 * grid)
    yield seen
    other = room.text(LINES * grid + 7, 3)
    seen, second = room.sends("another conversation", other, "cold", 0, session="b")
    yield seen
    end = room.end
    parts = joined(first[: 3 * grid + 9], room.text(2 * grid, 5))
    seen, _ = room.sends("the first one from the pool, parting", parts, "park.grid", 3 * grid)
    yield seen
    went_on = joined(second, room.text(more, 6))
    what = "the other one from the pool, at its end"
    seen, second = room.sends(what, went_on, "park.end", end, session="b")
    yield seen
    end, short = room.end, room.text(grid // 4, 7)
    seen, _ = room.sends("a short request", short, "cold", 0, session="t", kind="title")
    yield seen
    went_on = joined(second, room.text(more, 8))
    seen, _ = room.sends("whose rows it borrowed", went_on, "end", end, session="b")
    yield seen


def _snapshots(room: Room) -> Iterator[Resumed]:
    """What many chats begin with, after a stranger took every row."""
    grid = room.grid
    head = room.text(3 * grid + 5, 20)
    seen, _ = room.sends("a chat", joined(head, room.text(grid // 3, 21)), "cold", 0)
    yield seen
    stranger = room.text(LINES * grid, 22)
    seen, _ = room.sends("a stranger", stranger, "cold", 0, session="s", kind="title")
    yield seen
    chat = joined(head, room.text(grid // 3, 23))
    seen, _ = room.sends("another chat", chat, "store.grid", 3 * grid, session="c")
    yield seen


def joined(*parts: Ids) -> Ids:
    """One sequence of several."""
    return np.concatenate(parts).astype(np.int32)
