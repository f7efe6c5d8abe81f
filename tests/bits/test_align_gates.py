"""Goal: what alignment puts in is what the rows hold, on every kind of model.

Method: turns through the real turn with forced answers that think; the client's copy leaves the
thought out, or never saw a span. The verifier compares everything after each prefill with a cold
prefill of what was served. Canaries shift what is put in by one position, on both sides.
"""

from __future__ import annotations

import numpy as np
import pytest
from support import (
    CANARIES,
    GRID,
    MODELS,
    box,
    engine,
    forced,
    joined,
    judge,
    serve,
    tokens,
    verifier,
)

from cache.account import Account, Answer
from cache.align import Alignment
from cache.journal import TurnRow
from cache.meet import Meeting
from cache.types import Ask, Ids, Met, Valued
from engine.monitor import Budget, Monitor
from engine.turn import Box, Prompt, Ready, Tokens, turn
from replay.pieces import TracePieces
from replay.verify import Verdict

TEXT, BLANK = 300, 70
"""Ids from here on are text; from there, whitespace."""
OPEN, CLOSE, END = (np.array([id], np.int32) for id in (3, 4, 2))
"""Structure: a thought begins, a thought ends, a message ends."""
ALIGNED = Alignment(TracePieces())


def text(count: int, seed: int) -> Ids:
    """Tokens of text."""
    return (TEXT + tokens(count, seed) % 190).astype(np.int32)


class Chat:
    """One conversation whose client sends no thoughts back."""

    def __init__(self, model: str, meeting: Meeting = ALIGNED, **room: int) -> None:
        self.model = model
        of = engine(model)
        self.on: Box = box(of, checkpoint_tokens=16, meeting=meeting, **room)
        self.check = verifier(of)
        self.copies: dict[str, Ids] = {}
        self.count = 0
        self.verdict: Verdict | None = None

    def says(
        self,
        who: str = "a",
        *,
        thought: int = 30,
        hidden: int = 0,
        drops: bool = True,
        more: int = 90,
    ) -> TurnRow:
        """The next turn: what the client has, a question, a thought, an answer."""
        self.count += 1
        seed = 10 * self.count
        before = self.copies.get(who, text(2 * GRID + 10, 50))
        ids = joined(before, text(more, seed), OPEN)
        thinking, put_in = text(thought, seed + 1), text(hidden, seed + 2)
        answer = text(40, seed + 3)
        written = joined(thinking, put_in, CLOSE, answer, END)
        spans = ((thought, hidden),) if hidden else ()
        said = Answer(thought + hidden + 1, spans)
        row, self.verdict = serve(
            self.on, ids, written, check=self.check, session=who, read=lambda ids: said
        )
        assert self.verdict is not None
        assert self.verdict.ok, self.verdict
        shown = joined(CLOSE, answer, END) if drops else joined(thinking, CLOSE, answer, END)
        self.copies[who] = joined(ids, shown)
        return row


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("hidden", [0, 7])
@pytest.mark.parametrize("drops", [True, False])
def test_a_copy_without_what_it_never_saw_resumes_at_the_end(
    model: str, hidden: int, drops: bool
) -> None:
    chat = Chat(model)
    chat.says(hidden=hidden, drops=drops)
    for _ in range(3):
        end = chat.on.stack.end
        row = chat.says(hidden=hidden, drops=drops)
        assert (row.source, row.cached) == ("end", end)
        put_in = row.prompt - row.asked
        assert put_in == (chat.count - 1) * (hidden + (30 if drops else 0))


@pytest.mark.parametrize("model", MODELS)
def test_two_such_conversations_in_turn(model: str) -> None:
    chat = Chat(model, park_rows=8_000)
    ends: dict[str, int | None] = {}
    for number in range(6):
        who = "ab"[number % 2]
        row = chat.says(who, hidden=5, more=3 * GRID)
        if who in ends:
            assert (row.source, row.cached) == ("park.end", ends[who])
        ends[who] = chat.on.stack.end


@pytest.mark.parametrize("model", MODELS)
def test_answers_that_are_read_again_are_still_known(model: str) -> None:
    """The end is lost, and with it the lines of the answer: its rows are prefilled, thought and
    all, and the turn after that meets them as before."""
    chat = Chat(model)
    chat.says(thought=2 * GRID, hidden=9)
    chat.says(thought=2 * GRID, hidden=9)
    account = chat.on.stack.resident.account
    account.end = None
    account.anchors = account.anchors.only([GRID])
    row = chat.says(thought=2 * GRID, hidden=9)
    assert row.cached == GRID and row.gate == "bits"
    assert [g.whole for g in account.generations] == [True, True, True]
    end = chat.on.stack.end
    row = chat.says()
    assert (row.source, row.cached) == ("end", end)
    assert row.prompt - row.asked == 3 * (2 * GRID + 9)


@pytest.mark.parametrize("model", MODELS)
def test_an_answer_read_again_half_way_is_put_together(model: str) -> None:
    """Resuming inside an answer cuts it; when its other rows are back it is whole again."""
    chat = Chat(model)
    chat.says(thought=2 * GRID)
    account = chat.on.stack.resident.account
    account.end = None
    inside = [a.tokens for a in account.anchors if a.tokens > account.generations[0].start + 20]
    account.anchors = account.anchors.only(inside[:1])
    row = chat.says()
    assert row.cached == inside[0]
    assert [g.whole for g in account.generations] == [True, True]
    end = chat.on.stack.end
    assert chat.says().cached == end


@pytest.mark.parametrize("model", MODELS)
def test_an_answer_that_came_back_shorter_is_known_from_then_on(model: str) -> None:
    """The user stopped it; the turn after the next must meet what was put in for it."""
    chat = Chat(model)
    chat.says()
    asked = len(chat.copies["a"]) - 42
    chat.copies["a"] = joined(chat.copies["a"][: asked + 1 + 25], END)
    row = chat.says()
    assert row.source == "checkpoint" and row.prompt - row.asked == 30
    (cut, _) = chat.on.stack.resident.account.generations
    assert not cut.whole and cut.stop == asked + 30 + 1 + 25
    end = chat.on.stack.end
    row = chat.says()
    assert (row.source, row.cached) == ("end", end)


@pytest.mark.parametrize("model", MODELS)
def test_a_call_written_anew_resumes_at_the_end(model: str) -> None:
    on = box(engine(model), meeting=ALIGNED)
    check = verifier(on.engine)
    ids = joined(text(2 * GRID, 1), OPEN)
    call, again = text(30, 2), text(25, 3)
    begin, stop = np.array([5], np.int32), np.array([6], np.int32)
    written = joined(CLOSE, begin, call, stop, END)
    said = Answer(1, (), (Valued(1, 33, "value"),))
    serve(on, ids, written, check=check, read=lambda answer: said)
    end = on.stack.end
    copy = joined(ids, CLOSE, begin, again, stop, END, text(50, 4))
    at = len(ids) + 1
    same = Ask(copy, valued=(Valued(at, at + 27, "value"),))
    assert on.stack.plan(same).line.tokens == end
    for other in (Ask(copy), Ask(copy, valued=(Valued(at, at + 27, "other"),))):
        assert on.stack.plan(other).line.tokens <= at + 1


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("drops", [True, False])
def test_a_thinking_over_its_budget_resumes_at_the_end(model: str, drops: bool) -> None:
    """The monitor closes it with a phrase that the client never sees."""
    on = box(engine(model), meeting=ALIGNED)
    check = verifier(on.engine)
    ids = joined(text(2 * GRID + 9, 1), OPEN)
    phrase = text(6, 2)
    end: int | None = None
    for number in range(3):
        budget = Budget(thinking_max=25, end_id=int(CLOSE[0]), phrase=tuple(phrase.tolist()))
        rule = Monitor(forced(text(80, 5 + number)), budget)
        answer: list[int] = []
        for event in turn(on, Prompt(ids, "a"), rule, limit=60, read=rule.read):
            if isinstance(event, Ready):
                verdict = judge(on, event.ids, event.logits, check)
                assert verdict.ok, verdict
            elif isinstance(event, Tokens):
                answer += event.ids
        row = on.journal.rows[-1]
        assert end is None or (row.source, row.cached) == ("end", end)
        assert row.prompt - row.asked == number * (6 + (25 if drops else 0))
        written, end = np.array(answer, np.int32), on.stack.end
        assert np.array_equal(written[25:32], joined(phrase, CLOSE))
        shown = written[31:] if drops else joined(written[:25], written[31:])
        ids = joined(ids, shown, END, text(40, 30 + number), OPEN)


@pytest.mark.parametrize("limit", [60, 120])
def test_what_is_put_in_leaves_room_for_the_answer(limit: int) -> None:
    """A thought is put back only if the answer still fits as it would after the client's copy."""
    window = 6 * GRID
    on = box(engine("witness", window=window), meeting=ALIGNED)
    ids, thought = joined(text(3 * GRID, 1), OPEN), text(2 * GRID - 30, 2)
    said = Answer(len(thought) + 1)
    serve(on, ids, joined(thought, CLOSE, text(9, 3), END), read=lambda answer: said)
    copy = joined(ids, CLOSE, text(9, 3), END, text(5, 4))
    plan = on.stack.plan(Ask(copy, answer_max=limit))
    room = window - len(copy) - len(thought)
    assert 60 < room < 120
    assert (plan.line.kind == "end") == (limit < room)
    assert len(plan.served) == len(copy) + (len(thought) if limit < room else 0)


@pytest.mark.parametrize("known", [0, 200])
def test_an_answer_of_known_length_is_never_cut_by_what_is_put_in(known: int) -> None:
    """The client asked for more than there is: half of the room will do, unless it is known."""
    on = box(engine("witness", window=6 * GRID), meeting=ALIGNED)
    ids, thought = joined(text(3 * GRID, 1), OPEN), text(GRID, 2)
    said = Answer(len(thought) + 1)
    serve(on, ids, joined(thought, CLOSE, text(9, 3), END), read=lambda answer: said)
    copy = joined(ids, CLOSE, text(9, 3), END, text(5, 4))
    plan = on.stack.plan(Ask(copy, answer_max=6 * GRID, answer_min=known))
    assert (plan.line.kind == "end") == (known == 0)


# canaries


class Shifted:
    """Puts the rows' tokens in one position off."""

    def __init__(self, by: int) -> None:
        self._by = by

    def __call__(self, account: Account, ask: Ask) -> Met:
        met = ALIGNED(account, ask)
        if met.rows == met.copy:
            return met
        rows = account.ids
        put_in = np.roll(rows[: met.rows], self._by)
        return Met(met.rows, met.copy, np.concatenate([put_in, ask.ids[met.copy :]]))


@pytest.mark.parametrize("model", CANARIES)
@pytest.mark.parametrize("by", [-1, 1])
def test_canary_a_replay_one_position_off(model: str, by: int) -> None:
    chat = Chat(model, meeting=Shifted(by))
    chat.says(hidden=7, thought=2 * GRID)
    with pytest.raises(AssertionError, match=r"stands for|differ|off by"):
        chat.says(hidden=7)


@pytest.mark.parametrize("model", CANARIES)
def test_canary_a_span_listed_one_position_off(model: str) -> None:
    """The copy does not meet the rows any more: colder, never wrong."""
    chat = Chat(model)
    chat.says(hidden=7, drops=False)
    account = chat.on.stack.resident.account
    (written,) = account.generations
    (at, size), *_ = written.hidden
    moved = type(written)(written.start, written.think_end, written.stop, ((at - 1, size),))
    account.generations = [moved]
    end = chat.on.stack.end
    row = chat.says(drops=False)
    assert end is not None and row.cached < end
