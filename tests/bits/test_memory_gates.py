"""Under any memory budget every gate holds: what is given back makes a start colder, never wrong.

Method: conversations, guests, strangers and titles through the real turn on a witness, which checks
every row of every prefill, over a memory whose limits are anything from ample to absurd. The memory
counts what the caches hold at every question, so that a copy made before it was asked for is seen.
The canaries plant one fault each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from support import GRID, WINDOW, box, engine, joined, serve, tokens, verifier

from cache import anchors as anchors_module
from cache import guest as guest_module
from cache import pool as pool_module
from cache.budget import Budget, Refused
from cache.levels import Slot, levels_of
from cache.types import Ask, Cost, Gate, Ids, Limits
from engine.forced import Forced
from engine.turn import Box, Prompt, turn

COST = Cost(row_bytes=10, anchor_bytes=400, workspace_floor_bytes=500, workspace_row_bytes=2)
"""What the budgets count, whatever a witness really holds."""
BASE = 50_000
PLENTY = 10**9


class Held:
    """A memory that has just what the caches say they hold."""

    def __init__(self, on: Box, workspace: float) -> None:
        self._on, self._factor = on, workspace
        self.most = self.marked = 0
        self.running = 0

    def allocated_bytes(self) -> int:
        held = self._on.stack.held_bytes()
        total = BASE + sum(n for name, n in held.items() if name != "rows") + self.running
        self.most, self.marked = max(self.most, total), max(self.marked, total)
        return total

    def reserve_bytes(self) -> int:
        return 0

    def give_back(self, keep_bytes: int) -> None:
        raise AssertionError("there is no reserve")

    def mark(self) -> None:
        self.marked = 0
        self.allocated_bytes()

    def peak_bytes(self) -> int:
        self.allocated_bytes()
        return self.marked

    def prefilled(self, start: int, stop: int) -> None:
        """As a meter: the chunk's workspace is there for a moment."""
        self.running = int(COST.workspace_bytes(stop) * self._factor)
        self.allocated_bytes()
        self.running = 0

    def decoded(self, tokens: int) -> None:
        self.allocated_bytes()


class House:
    """A box under limits, everything on, and the conversations in it."""

    def __init__(self, ceiling: int, peak: int, *, workspace: float = 1.0, slack: int = 0) -> None:
        of = engine("witness")
        of._cost = COST
        self.on = on = box(
            of,
            anchors=12,
            newest=2,
            park_rows=9_000,
            guest_tokens=6 * GRID,
            stash_rows=12 * GRID,
            checkpoint_tokens=16,
            store_bytes=30_000,
            session_trim=True,
        )
        self.memory = Held(on, workspace)
        limits = Limits(ceiling_bytes=ceiling, peak_bytes=peak, slack_bytes=slack)
        self.budget = Budget(limits, self.memory, of.cost)
        stack = on.stack
        for part in (stack.resident, stack.park, stack.visits, stack.visits._stash, stack.store):
            part._grow = self.budget.grow  # type: ignore[attr-defined]
        self.budget.over(levels_of([(stack, of)]))
        on.budget, on.meter = self.budget, self.memory
        self.check = verifier(of)
        self.texts: dict[str, Ids] = {}
        self.count = 0

    def says(self, who: str, more: int, answer: int = 20, kind: str = "turn") -> str:
        """A turn; its gate must hold, or it was refused and nothing has changed."""
        self.count += 1
        before = self.texts.get(who, tokens(2 * GRID + 10, 50))
        ids = joined(before, tokens(more, 100 * self.count))[: WINDOW - 100]
        written = tokens(answer, 100 * self.count + 1)
        held = self.on.stack.held_bytes()
        row, verdict = serve(
            self.on, ids, written, check=self.check, session=who, kind=kind, check_accounts=True
        )
        if row.finish == "refused":
            assert verdict is None and row.retry_after_s and row.cached == row.forwarded == 0
            same = self.on.stack.held_bytes()
            assert {n: same[n] for n in ("anchors", "end", "park", "store")} == {
                n: held[n] for n in ("anchors", "end", "park", "store")
            } or held["stash"], (held, same)
            return "refused"
        assert verdict is not None and verdict.ok, verdict
        if kind == "turn":
            self.texts[who] = joined(ids, written)
        return row.source


def room(limits: Limits) -> int:
    return limits.ceiling_bytes - limits.slack_bytes


ACTS = st.tuples(
    st.sampled_from("abc"),
    st.sampled_from((5, 90, 5 * GRID, 12 * GRID)),
    st.sampled_from(("turn", "turn", "turn", "title")),
)


LIMITS = (st.integers(0, 60_000), st.integers(0, 20_000), st.lists(ACTS, max_size=14))


def holds(over: int, more: int, acts: list[tuple[str, int, str]]) -> None:
    house = House(BASE + over, BASE + over + more)
    for who, size, kind in acts:
        house.says(who, size, kind=kind)
        house.on.stack.check()
        # A chunk's workspace may pass the ceiling; nothing may pass the peak.
        assert house.memory.most <= house.budget.limits.peak_bytes
        assert house.memory.allocated_bytes() <= house.budget.limits.ceiling_bytes


SEEN = (
    (2_000, 912, [("a", 5, "turn"), ("b", 5, "turn"), ("a", 768, "turn")]),
    (4_120, 992, [("a", 768, "turn"), ("b", 90, "turn")]),
    (7_800, 2_312, [("a", 5, "turn"), ("a", 5, "turn"), ("b", 768, "turn")]),
    (10_300, 2_312, [("c", 320, "turn"), ("a", 768, "turn"), ("b", 90, "turn"), ("c", 5, "turn")]),
)
"""Where a copy that two hold, or nobody while it moves, was once counted wrong."""
test_every_gate_holds_under_any_limits = settings(deadline=None)(given(*LIMITS)(holds))


@pytest.mark.parametrize("limits", SEEN)
def test_copies_that_two_hold_or_nobody(
    limits: tuple[int, int, list[tuple[str, int, str]]],
) -> None:
    holds(*limits)


any_limits_quickly = settings(
    deadline=None, phases=[Phase.generate], max_examples=300, report_multiple_bugs=False
)(given(*LIMITS)(holds))
"""For the canaries: the first failure is enough."""


def sequence() -> Iterator[tuple[str, int, str]]:
    """Three conversations in turn, titles between them, and a stranger."""
    for round_ in range(3):
        for who in "abc":
            yield who, 5 * GRID, "turn"
            yield f"title {who}", 20, "title"
        yield f"stranger {round_}", 9 * GRID, "turn"


def night(ceiling: int, peak: int, **how: Any) -> tuple[House, list[str]]:
    house = House(ceiling, peak, **how)
    sources = [house.says(who, more, kind=kind) for who, more, kind in sequence()]
    return house, sources


def test_less_memory_is_a_colder_start_and_no_failure() -> None:
    house, sources = night(PLENTY, PLENTY)
    most = house.memory.most
    cold = sources.count("cold")
    assert not any(name.startswith("shed") for name in house.budget.counters)
    third = BASE + (most - BASE) // 3
    less, colder = night(third, third)
    assert less.memory.most <= third < most and "refused" not in colder
    cached = [row.cached for row in house.on.journal.rows]
    less_cached = [row.cached for row in less.on.journal.rows]
    assert sum(less_cached) < sum(cached) and colder.count("cold") >= cold
    tiny, coldest = night(BASE + 4_000, BASE + 4_000)
    assert "refused" not in coldest and tiny.memory.most <= BASE + 4_000


def test_an_impossible_prompt_is_refused_and_the_next_is_fine() -> None:
    house = House(BASE + 40_000, BASE + 40_000)
    for who in "ab":
        house.says(who, 3 * GRID)
    limits = house.budget.limits
    house.budget.limits = Limits(BASE + 1_000, BASE + 1_500, 0)
    before = house.on.stack.held_bytes()
    events = turn(
        house.on,
        Prompt(tokens(12 * GRID, 9), "c"),
        Forced(tokens(5), seed="0", vocab=499, drafts=3, accepted=0.5),
        limit=5,
    )
    (only,) = list(events)
    assert (
        isinstance(only, Refused) and only.retry_after_s > 0 and only.need_bytes > only.have_bytes
    )
    assert house.on.stack.held_bytes() == before
    row = house.on.journal.rows[-1]
    assert (row.finish, row.source, row.prompt) == ("refused", "refused", 12 * GRID)
    house.budget.limits = limits
    assert house.says("b", 20) == "end"


def test_what_a_prefill_took_too_much_is_learned() -> None:
    """The true workspace is 1.5 times the estimate: one prefill passes the peak, no more."""
    house = House(BASE + 3_000, BASE + 3_700, workspace=1.5)
    peaks = []
    for at in range(4):
        house.memory.most = 0
        house.says(f"s{at}", 10 * GRID)
        peaks.append(house.memory.most > house.budget.limits.peak_bytes)
    assert house.budget.workspace.learned_bytes > 0
    assert peaks[-1] is False


def test_levels_name_what_they_give() -> None:
    house = House(PLENTY, PLENTY)
    for who, more, kind in list(sequence())[:-1]:
        house.says(who, more, kind=kind)
    stack = house.on.stack
    held = stack.held_bytes()
    levels = {level.name: level for level in levels_of([(stack, house.on.engine)])}
    assert list(levels) == ["store", "anchors", "end", "stash", "park", "pin"]
    sizes = {name: level.held_bytes() for name, level in levels.items()}
    assert sizes["store"] == held["store"] and sizes["stash"] == held["stash"] > 0
    assert sizes["park"] + sizes["pin"] == held["park"] > 0
    for name in ("store", "anchors", "end", "stash", "park", "pin"):
        one = min(1, levels[name].held_bytes())
        assert levels[name].release(one) >= one, name
        levels[name].release(PLENTY)
        assert levels[name].held_bytes() == 0, name
        stack.check()
    # What the pool held as well is the rows' alone now.
    levels["end"].release(PLENTY)
    left = stack.held_bytes()
    assert {name: left[name] for name in ("store", "end", "stash", "anchors")} == {
        "store": 0,
        "end": 0,
        "stash": 0,
        "anchors": 0,
    }


def test_the_line_that_is_being_restored_is_never_given_back() -> None:
    """A guest's stash takes the room: the anchors go, but not the one it starts from."""
    house = House(PLENTY, PLENTY)
    house.says("a", 9 * GRID)
    house.on.stack.store.clear()
    held, stash = house.on.stack.held_bytes(), 2_000
    # All copies must go but one.
    tight = BASE + stash + COST.anchor_bytes
    assert held["anchors"] > 4 * COST.anchor_bytes and held["end"]
    house.budget.limits = Limits(tight, tight + 4_000, 0)
    row, verdict = serve(
        house.on,
        joined(tokens(2 * GRID + 10, 50), tokens(30, 7)),
        tokens(4, 8),
        check=house.check,
        kind="title",
    )
    assert row.guest and row.cached == 2 * GRID
    assert verdict is not None and verdict.gate is Gate.BITS and verdict.ok
    assert house.budget.counters["shed.anchors"] > 0


def test_what_is_being_used_is_no_level() -> None:
    """The end that is being restored, and what a guest borrowed while it is served."""
    house = House(PLENTY, PLENTY)
    house.says("a", 9 * GRID)
    stack, slot = house.on.stack, Slot(house.on.stack, house.on.engine)
    free = slot.end_bytes()
    plan = stack.plan(Ask(joined(house.texts["a"], tokens(9, 7)), "a"))
    assert plan.source == "end"
    stack.using = plan.best
    assert slot.end_bytes() == free - COST.anchor_bytes
    slot.give_end(PLENTY)
    assert stack.end is not None
    stack.using = None
    title = Prompt(joined(tokens(2 * GRID + 10, 50), tokens(30, 7)), "b", kind="title")
    events = turn(
        house.on, title, Forced(tokens(5), seed="0", vocab=499, drafts=3, accepted=0.5), 5
    )
    next(events)
    assert stack.has_guest and stack.held_bytes()["stash"] > 0
    assert slot.stash_bytes() == slot.give_stash(PLENTY) == 0 and stack.has_guest
    for _ in events:
        pass
    assert slot.stash_bytes() > 0 and slot.give_stash(1) > 0 and not stack.has_guest


# canaries


def test_canary_an_anchor_copied_before_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anchors_module.Anchors, "_make_room", room_without_asking)
    house, _ = night(BASE + 4_000, BASE + 8_000)
    assert house.memory.most > BASE + 4_000 or house.budget.counters["shed.anchors"]
    with pytest.raises(AssertionError):
        any_limits_quickly()


def room_without_asking(self: Any, line: int, room: Any) -> bool:
    """Only the cache's own budget counts."""
    lines = sorted({*self.lines, line})
    while len(lines) * room.anchor_bytes > self.config.budget_bytes:
        gone = anchors_module.victim(lines, room.layout, self.config)
        if gone is None:
            break
        lines.remove(gone)
    known = line in self.lines
    self._anchors = [anchor for anchor in self._anchors if anchor.tokens in lines]
    return line in lines and not known


@pytest.mark.parametrize("module", ("guest", "pool"))
def test_canary_copies_nobody_asked_for(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if module == "pool":
        fits = "_fits"

        def within(self: Any, need: int) -> bool:
            return need <= 0 or self.held_bytes() + need <= self._config.budget_bytes

        monkeypatch.setattr(pool_module.Pool, fits, within)
    else:
        init = guest_module.Stash.__init__

        def unasked(self: Any, config: Any, model: Any, grow: Any = None) -> None:
            init(self, config, model)

        monkeypatch.setattr(guest_module.Stash, "__init__", unasked)
        monkeypatch.setattr(guest_module.Stash, "cover", cover_unasked)
    with pytest.raises(AssertionError):
        any_limits_quickly()


def cover_unasked(self: Any, stop: int, valid: int) -> bool:
    """As the real one, but it asks nobody."""
    asked, self._grow = self._grow, guest_module.freely
    try:
        return COVER(self, stop, valid)
    finally:
        self._grow = asked


COVER = guest_module.Stash.cover


def test_canary_giving_back_the_line_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Slot, "_line", property(lambda self: None))
    with pytest.raises(AssertionError):
        test_the_line_that_is_being_restored_is_never_given_back()


def test_canary_a_plan_older_than_what_was_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan was made, then its line was shed, and nobody planned again."""
    monkeypatch.setattr(Budget, "shed_bytes", property(lambda self: 0))
    with pytest.raises(AssertionError):
        any_limits_quickly()
