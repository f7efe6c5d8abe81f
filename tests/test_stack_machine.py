"""All tiers together: guests, parked conversations, heads, aborts and edits, in any order.

Method: a hypothesis state machine drives turns of several sessions on the witness, on a grid of 64
with a pool and a store that hold only some of them; some of them think, and their client leaves it
out. After every prefill the witness's formula checks each row, a naive account of all that was ever
read bounds what may be reused, a naive reading of the prompt says that nothing but thoughts was put
in, and every tier checks itself.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)
from support import GRID, box, engine, forced, joined, serve, tokens, verifier

from cache.account import Answer
from cache.align import Alignment
from cache.journal import TurnRow
from cache.types import Ask, Ids, common_prefix
from engine.turn import Chunk, Prompt, turn
from replay.pieces import TracePieces

SESSIONS = ("a", "b", "c", "d")
WINDOW = 2_048


OPEN, CLOSE = np.array([3], np.int32), np.array([4], np.int32)
"""Structure around a thought."""


def as_text(ids: Ids) -> Ids:
    """Tokens of text, so that no thought holds structure or blanks."""
    return (260 + ids % 230).astype(np.int32)


def said_in(ids: Ids) -> Ids:
    """A prompt without blanks, and what stands right after OPEN with only text up to CLOSE."""
    keep = np.ones(len(ids), bool)
    for at in np.flatnonzero(ids == 3).tolist():
        structure = np.flatnonzero(ids[at + 1 :] < 64)
        stop = at + 1 + int(structure[0]) if len(structure) else len(ids)
        if stop < len(ids) and ids[stop] == 4:
            keep[at + 1 : stop] = False
    return ids[keep & ~TracePieces().blank(ids)]


class Conversations(RuleBasedStateMachine):
    """Several people at one engine."""

    @initialize(
        seed=st.integers(0, 5),
        park_rows=st.sampled_from((0, 300, 900, 4_000)),
        store_rows=st.sampled_from((0, 400, 1_500)),
    )
    def begin(self, seed: int, park_rows: int, store_rows: int) -> None:
        self.of = engine("witness", window=WINDOW)
        self.on = box(
            self.of,
            anchors=6,
            seed=seed,
            park_rows=park_rows,
            pin_rows=park_rows // 2,
            guest_tokens=200,
            stash_rows=300,
            checkpoint_tokens=32,
            store_bytes=store_rows * self.of.cost().row_bytes,
            session_trim=bool(seed % 2),
            boundaries=seed % 3,
            meeting=Alignment(TracePieces()),
        )
        self.check = verifier(self.of)
        self.count = 0
        head = tokens(150, seed)
        self.texts: dict[str, Ids] = {s: joined(head, self.fresh(60)) for s in SESSIONS}
        self.read: list[Ids] = []

    def fresh(self, size: int) -> Ids:
        self.count += 1
        return tokens(size, 1_000 + self.count)

    def ask(
        self, session: str, ids: Ids, answer: int, kind: str = "turn", thought: int = 0
    ) -> TurnRow:
        ids = ids[: WINDOW - 300]
        written = self.fresh(answer)
        if thought:
            written = joined(as_text(self.fresh(thought)), CLOSE, as_text(written))
            self.count -= 1
        said = Answer(thought + bool(thought))
        size = len(written)
        self.on.stack.leave()
        plan = self.on.stack.plan(Ask(ids, session, kind, size))
        row, verdict = serve(
            self.on,
            ids,
            written,
            check=self.check,
            session=session,
            kind=kind,
            limit=size,
            read=lambda _: said,
        )
        assert verdict is not None and verdict.ok, verdict
        assert (row.cached, row.source) == (plan.line.tokens, plan.source)
        assert row.guest <= plan.guest
        served = plan.served
        held = max((common_prefix(text, served) for text in self.read), default=0)
        assert row.cached <= min(held, len(served) - 1)
        assert row.cached + row.forwarded == row.prompt == len(served)
        assert np.array_equal(said_in(served), said_in(ids))
        self.read.append(self.on.stack.rows.copy())
        whole = joined(served, written)
        assert np.array_equal(self.on.stack.rows, whole[: len(self.on.stack.rows)])
        return row

    @rule(session=st.sampled_from(SESSIONS), size=st.integers(1, 200), answer=st.integers(1, 80))
    def extend(self, session: str, size: int, answer: int) -> None:
        ids = joined(self.texts[session], self.fresh(size))[: WINDOW - 300]
        self.ask(session, ids, answer)
        self.texts[session] = joined(ids, self.fresh_last(answer))

    @rule(
        session=st.sampled_from(SESSIONS),
        size=st.integers(1, 90),
        thought=st.integers(1, 90),
        answer=st.integers(1, 40),
    )
    def think_and_forget(self, session: str, size: int, thought: int, answer: int) -> None:
        """The client sends the answer back without the thought."""
        ids = joined(self.texts[session], self.fresh(size))[: WINDOW - 301]
        ids = joined(ids, OPEN)
        self.ask(session, ids, answer, thought=thought)
        self.texts[session] = joined(ids, CLOSE, as_text(self.fresh_last(answer)))

    def fresh_last(self, size: int) -> Ids:
        """The tokens that `ask` had written last."""
        return tokens(size, 1_000 + self.count)

    @rule(session=st.sampled_from(SESSIONS), answer=st.integers(1, 40))
    def go_on_with_every_token_sent_back(self, session: str, answer: int) -> None:
        """The next turn of whoever was served last resumes at the end."""
        ids = joined(self.texts[session], self.fresh(30))[: WINDOW - 300]
        self.ask(session, ids, answer)
        text = joined(ids, self.fresh_last(answer))
        following = joined(text, self.fresh(20))[: WINDOW - 300]
        if len(following) == len(text) + 20 and not self.on.journal.rows[-1].guest:
            row = self.ask(session, following, answer)
            # Nothing generated, on a grid line: its anchor is as high, and held to more.
            assert (row.source in ("end", "grid") and row.cached >= len(text) - 1) or row.guest, row
            text = joined(following, self.fresh_last(answer))
        self.texts[session] = text

    @rule(
        session=st.sampled_from(SESSIONS),
        part=st.floats(0, 1),
        size=st.integers(1, 150),
        answer=st.integers(1, 60),
    )
    def edit(self, session: str, part: float, size: int, answer: int) -> None:
        text = self.texts[session]
        ids = joined(text[: int(part * len(text))], self.fresh(size))
        self.ask(session, ids, answer)
        self.texts[session] = joined(ids, self.fresh_last(answer))

    @rule(session=st.sampled_from(SESSIONS), size=st.integers(1, 150), answer=st.integers(1, 150))
    def side_request(self, session: str, size: int, answer: int) -> None:
        self.ask(session, self.fresh(size), answer, kind="title")

    @rule(session=st.sampled_from(SESSIONS), size=st.integers(100, 400))
    def compact(self, session: str, size: int) -> None:
        text = self.texts[session]
        self.ask(session, self.fresh(size), 20, kind="compaction")
        self.texts[session] = joined(text[:150], self.fresh(50))

    @rule(session=st.sampled_from(SESSIONS), size=st.integers(64, 300), at=st.integers(0, 3))
    def leave_early(self, session: str, size: int, at: int) -> None:
        ids = joined(self.texts[session], self.fresh(size))[: WINDOW - 300]
        events = turn(self.on, Prompt(ids, session), forced(tokens(9)), limit=9)
        for event in events:
            if isinstance(event, Chunk):
                if at == 0:
                    events.close()
                at -= 1
        self.on.stack.check()
        self.read.append(self.on.stack.rows.copy())
        self.texts[session] = ids


SOME = settings(max_examples=max(40, settings().max_examples // 4), stateful_step_count=25)
MANY = settings(SOME, max_examples=max(150, settings().max_examples))
TestConversations = Conversations.TestCase
TestConversations.settings = SOME


@pytest.mark.slow
def test_many_conversations() -> None:
    run_state_machine_as_test(Conversations, settings=MANY)


assert GRID == 64
