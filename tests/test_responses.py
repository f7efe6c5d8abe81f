"""Goal: an identical greedy request gets the answer it got, and nothing else ever does.

Method: a fresh box is the oracle of every hit. Greedy, sampled, budgeted, aligned and forced
answers go through the real turn on the small hybrid; a naive list of answers is the twin of the
cache under hypothesis, with its hash cut to four bits. The canaries leave the stop ids out of what
is compared, or the tokens, or what is hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import GRID, box, engine, forced, joined, tokens

from cache import responses
from cache.account import Answer
from cache.anchors import AnchorConfig
from cache.config import StackConfig
from cache.journal import TurnRow
from cache.meet import exactly
from cache.responses import ENTRY_BYTES, Asked, Responses
from cache.stack import Stack
from cache.types import Ask, Gate, Ids, Met
from engine.decode import Rule
from engine.monitor import Budget, Monitor
from engine.pictures.picture import Picture
from engine.sampling import Greedy, Sampled, Sampling
from engine.slots import Slots
from engine.turn import Box, Prompt, Tokens, turn

PROMPT = tokens(2 * GRID + 9, 5)
PLENTY = 10**6


def answering(model: str = "hybrid-float32", budget_bytes: int = PLENTY, **how: object) -> Box:
    """A box that remembers answers."""
    on = box(engine(model), **how)  # type: ignore[arg-type]
    return replace(on, responses=Responses(budget_bytes))


def said(
    on: Box,
    ids: Ids = PROMPT,
    rule: Rule | None = None,
    limit: int = 12,
    stops: Sequence[int] = (),
    leaves_after: int | None = None,
    pictures: Sequence[Picture] = (),
) -> list[int]:
    """The answer to a prompt; the client goes away after so many tokens."""
    rule = rule or Greedy()
    read = rule.read if isinstance(rule, Monitor) else lambda _: Answer()
    answer: list[int] = []
    prompt = Prompt(ids, "s", pictures=tuple(pictures))
    events = turn(on, prompt, rule, limit, frozenset(stops), read)
    for event in events:
        if isinstance(event, Tokens):
            answer += event.ids
            if leaves_after is not None and len(answer) >= leaves_after:
                events.close()
    if on.responses is not None:
        on.responses.check()
    return answer


def row(on: Box) -> TurnRow:
    return on.journal.rows[-1]


def fresh(ids: Ids = PROMPT, limit: int = 12, stops: Sequence[int] = ()) -> list[int]:
    """What a box that knows nothing says."""
    return said(box(engine("hybrid-float32")), ids, None, limit, stops)


# through the turn


def test_a_hit_is_what_a_fresh_box_says_and_touches_nothing() -> None:
    on = answering()
    first = said(on)
    wrote = row(on)
    other = tokens(GRID + 3, 6)
    said(on, other)
    rows, length, before = on.stack.rows.copy(), on.engine.length, on.stack.held_bytes()
    sections = [s.tensor.clone() for s in on.engine.cache_state().sections]
    assert said(on) == first == fresh()
    assert row(on).source == row(on).why == "response"
    assert (row(on).prompt, row(on).cached, row(on).forwarded) == (len(PROMPT), len(PROMPT), 0)
    assert (row(on).output, row(on).rounds, row(on).finish) == (12, 0, wrote.finish)
    assert row(on).session == "s" and row(on).held_bytes["responses"] > 0
    assert np.array_equal(on.stack.rows, rows) and on.engine.length == length
    assert on.stack.held_bytes() == before
    for section, was in zip(on.engine.cache_state().sections, sections, strict=True):
        assert section.tensor.equal(was), section.name
    on.stack.check()


def test_it_is_off_unless_somebody_makes_one() -> None:
    on = box(engine("hybrid-float32"))
    assert on.responses is None
    assert said(on) == said(on)
    assert row(on).source != "response" and "responses" not in row(on).held_bytes
    nothing = answering(budget_bytes=0)
    assert said(nothing) == said(nothing) and row(nothing).source != "response"
    assert nothing.responses is not None and nothing.responses.held_bytes() == 0


def test_a_stop_is_a_stop_again_whatever_was_drafted() -> None:
    text = fresh()
    on = answering()
    assert said(on, stops=[text[5]]) == said(on, rule=Greedy(0), stops=[text[5]]) == text[:6]
    assert (row(on).source, row(on).finish) == ("response", "stop")


@pytest.mark.parametrize("change", ["limit", "fewer", "stop", "one token", "longer", "shorter"])
def test_another_request_is_read(change: str) -> None:
    text = fresh()
    ids, limit, stops = PROMPT, 12, [text[-1]]
    on = answering()
    said(on, ids, None, limit, stops)
    if change == "limit":
        limit = 13
    elif change == "fewer":
        limit = 3
    elif change == "stop":
        stops = [text[2]]
    elif change == "one token":
        ids = ids.copy()
        ids[1] += 1
    else:
        ids = joined(ids, tokens(1, 8)) if change == "longer" else ids[:-1]
    assert said(on, ids, None, limit, stops) == fresh(ids, limit, stops)
    assert row(on).source != "response"
    assert said(on, ids, None, limit, stops) == fresh(ids, limit, stops)
    assert row(on).source == "response"


def test_other_pixels_in_the_same_place_are_another_request() -> None:
    """Rows of a picture hold ids of its digest; a placeholder would be one for all pictures."""
    pictures = [Picture(bytes([at] * 32), (1, 8, 8)) for at in (1, 2, 1, 2)]
    on = answering("witness")
    for picture in pictures:
        ids = joined(PROMPT, picture.ids, PROMPT[:9])
        said(on, ids, pictures=[picture])
    assert [turn.source == "response" for turn in on.journal.rows] == [False, False, True, True]


def test_a_drawn_answer_is_never_remembered() -> None:
    on = answering()
    for seed in (1, 2, 1):
        said(on, rule=Sampled(Sampling(temperature=1.0, seed=seed)))
    said(on)
    said(on, rule=Sampled(Sampling(temperature=1.0, seed=1)))
    assert {turn.source for turn in on.journal.rows}.isdisjoint({"response"})
    assert on.responses is not None and len(on.responses) == 1


def test_a_recordings_answer_is_never_remembered() -> None:
    on = answering()
    assert said(on, rule=forced(tokens(5, 1)), limit=5) == tokens(5, 1).tolist()
    assert said(on, rule=forced(tokens(5, 2)), limit=5) == tokens(5, 2).tolist()
    assert on.responses is not None and not on.responses.counters


def test_an_answer_with_hidden_tokens_is_never_remembered() -> None:
    """It is said again with its hidden span listed, or the client's copy would meet nothing."""
    hides = Budget(4, end_id=7, phrase=(400, 401))
    on = answering()
    for _ in range(2):
        said(on, rule=Monitor(Greedy(), hides))
        assert row(on).source != "response"
    assert on.responses is not None and on.responses.counters["declined.hidden"] == 2


def test_an_open_budget_is_remembered_under_that_budget_alone() -> None:
    on = answering()
    first = said(on, rule=Monitor(Greedy(), Budget(50, end_id=7)))
    assert said(on, rule=Monitor(Greedy(), Budget(50, end_id=7))) == first
    assert row(on).source == "response"
    short = said(on, rule=Monitor(Greedy(), Budget(3, end_id=7)))
    assert row(on).source != "response" and short[3] == 7
    assert said(on) == fresh() and row(on).source != "response"
    said(on, rule=Monitor(Sampled(Sampling(temperature=1.0)), Budget(50, end_id=7)))
    assert row(on).source != "response"


@pytest.mark.parametrize("after", [1, 5])
def test_a_cancelled_answer_is_never_remembered(after: int) -> None:
    on = answering()
    said(on, leaves_after=after)
    assert row(on).finish == "cancelled"
    assert said(on) == fresh() and row(on).source != "response"
    said(on, leaves_after=after)
    assert (row(on).source, row(on).finish) == ("response", "cancelled")


def test_an_answer_that_failed_or_was_cut_by_the_window_is_never_remembered() -> None:
    on = answering()
    events = turn(on, Prompt(PROMPT), Greedy(), 12)
    next(events)
    with pytest.raises(RuntimeError):
        events.throw(RuntimeError("the device fell over"))
    small = replace(on, engine=on.engine.twin(len(PROMPT) + 6))
    small = replace(small, stack=Stack(small.engine))
    cut = said(small)
    assert len(cut) < 12 and row(small).finish == "length"
    assert small.responses is not None and small.responses.counters["declined.window"] == 1
    assert said(on) == fresh() and row(on).source != "response"


def test_a_prompt_that_is_read_otherwise_than_it_was_sent_is_never_remembered() -> None:
    """Its answer is that of the rows' tokens, which hold a thought that the client left out."""
    seen = joined(PROMPT, tokens(4, 7))

    def meets(account: object, ask: Ask) -> Met:
        ids: Ids = account.ids  # type: ignore[attr-defined]
        served = joined(ids[:GRID], tokens(3, 9), ask.ids[GRID:])
        return Met(GRID, GRID, served) if len(ids) > GRID else exactly(account, ask)  # type: ignore[arg-type]

    on = answering(meeting=meets)
    said(on, PROMPT)
    for _ in range(2):
        said(on, seen)
        assert row(on).source == "grid" and row(on).prompt == len(seen) + 3
    assert on.responses is not None and on.responses.counters["declined.aligned"] == 2


def test_slots_share_what_was_said() -> None:
    main = answering()

    def plain(of: object) -> Stack:
        return Stack(of, StackConfig(AnchorConfig(0, newest_kept=1)))  # type: ignore[arg-type]

    side = list(Slots.beside(main, 1, 512, plain))[1]
    assert said(main) == said(side)
    assert (row(side).source, row(side).slot) == ("response", 1)


# the cache itself


def asked(size: int, seed: int = 0, limit: int = 9, stops: Sequence[int] = ()) -> Asked:
    return Asked(tokens(size, seed), limit, frozenset(stops), "greedy")


def put(into: Responses, of: Asked, text: Sequence[int]) -> bool:
    finish = "stop" if text[-1] in of.stop_ids else "length"
    kept = into.put(of, of.ids, text, Answer(), finish, Gate.BITS)
    into.check()
    return kept.ok


def four_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    real = responses.prefix_hashes
    monkeypatch.setattr(responses, "prefix_hashes", lambda ids: real(ids) & np.uint64(15))


def test_the_least_recently_used_goes_first() -> None:
    each = ENTRY_BYTES + 4 * (10 + 9)
    cache = Responses(3 * each)
    for seed in range(3):
        assert put(cache, asked(10, seed), [seed] * 9)
    assert cache.find(asked(10, 0)) is not None
    assert put(cache, asked(10, 3), [3] * 9)
    assert [cache.find(asked(10, seed)) is not None for seed in range(4)] == [
        True,
        False,
        True,
        True,
    ]
    assert cache.held_bytes() == 3 * each and cache.counters["evicted"] == 1
    assert not put(cache, asked(3 * each, 4), [4] * 9) and cache.counters["declined.big"] == 1
    assert len(cache) == 3, "what can't be kept drives nothing out"
    assert cache.release(1) == each and len(cache) == 2
    cache.clear()
    assert cache.find(asked(10, 3)) is None and cache.held_bytes() == 0
    cache.check()


def test_a_prompt_that_changes_afterwards_changes_nothing() -> None:
    """The caller's buffer is written to again."""
    cache, of = Responses(PLENTY), asked(10)
    put(cache, of, [1] * 9)
    of.ids[0] += 1
    assert cache.find(of) is None and cache.find(asked(10)) is not None


class Naive:
    """A list, the least recently used first."""

    def __init__(self, budget: int) -> None:
        self.budget, self.held = budget, list[tuple[Asked, list[int]]]()

    def size(self) -> int:
        return sum(ENTRY_BYTES + 4 * (len(a.ids) + len(t)) for a, t in self.held)

    def find(self, of: Asked) -> list[int] | None:
        for at, (known, text) in enumerate(self.held):
            same = known.ids.tolist() == of.ids.tolist() and known.limit == of.limit
            if same and known.stop_ids == of.stop_ids and known.rule == of.rule:
                self.held.append(self.held.pop(at))
                return text
        return None

    def put(self, of: Asked, text: list[int]) -> None:
        if ENTRY_BYTES + 4 * (len(of.ids) + len(text)) > self.budget:
            return
        if self.find(of) is not None:
            self.held.pop()
        self.held.append((of, text))
        while self.size() > self.budget:
            self.held.pop(0)


ASKED = st.builds(
    asked,
    st.integers(1, 3),
    st.integers(0, 40),
    st.sampled_from((2, 3)),
    st.sampled_from(((), (1,), (1, 2))),
)


@settings(max_examples=80)
@given(
    st.lists(st.tuples(st.booleans(), ASKED), max_size=60), st.integers(0, 6 * (ENTRY_BYTES + 20))
)
def test_it_is_a_list_with_a_hint(steps: list[tuple[bool, Asked]], budget: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        four_bits(patched)
        cache, naive = Responses(budget), Naive(budget)
        for number, (puts, of) in enumerate(steps):
            if puts:
                text = [number + 3] * of.limit
                put(cache, of, text)
                naive.put(of, text)
            found = cache.find(of)
            assert (found.tokens.tolist() if found else None) == naive.find(of)
            assert cache.held_bytes() == naive.size()


# canaries


def collide() -> list[bool]:
    """Whether each of forty prompts gets its own answer from a cache of sixteen hints."""
    cache = Responses(PLENTY)
    own = {seed: [seed] * 9 for seed in range(40)}
    for seed, text in own.items():
        if cache.find(asked(6, seed)) is None:
            put(cache, asked(6, seed), text)
    found = {seed: cache.find(asked(6, seed)) for seed in own}
    return [hit is not None and hit.tokens.tolist() == own[seed] for seed, hit in found.items()]


def test_equal_hashes_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    four_bits(monkeypatch)
    assert all(collide())


def test_canary_only_hashes_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    four_bits(monkeypatch)
    monkeypatch.setattr(Asked, "same", lambda self, other: self.hint == other.hint)
    assert sum(collide()) <= 16


def test_canary_a_key_without_the_stop_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer that one client stopped early is another's, who did not ask for that."""

    def forgets(self: Asked, other: Asked) -> bool:
        return self.limit == other.limit and np.array_equal(self.ids, other.ids)

    text = fresh()
    monkeypatch.setattr(Asked, "same", forgets)
    on = answering()
    said(on, stops=[text[2]])
    assert said(on) == text[:3] != fresh()


def test_canary_what_was_hidden_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's copy of the second answer meets rows that say nothing of a hidden span."""
    monkeypatch.setattr(Monitor, "read", lambda self, answer: Answer())
    on = answering()
    for _ in range(2):
        said(on, rule=Monitor(Greedy(), Budget(4, end_id=7, phrase=(400, 401))))
    assert row(on).source == "response"
