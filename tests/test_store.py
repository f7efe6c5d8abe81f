"""The state store: what is kept, for how long, and what is declined, said once and counted.

Method: accounts of a witness whose rows were prefilled or generated through the real turn; the
bytes that exist at any moment are counted where copies are made. The gates over whole turns are in
tests/bits/test_store_gates.py.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import GRID, box, engine, forced, joined, serve, tokens

from cache import store as store_module
from cache.journal import CacheEvent
from cache.rows import RowBlock, try_copy
from cache.snapshot import StoreConfig
from cache.store import Store
from cache.types import CacheState, Cost
from engine.turn import Box, Prompt, turn

COST = Cost(row_bytes=10, anchor_bytes=1_000)


def desk(rows: int = 4_000, entry_rows: int = 2_000, **config: Any) -> Box:
    """A witness with a store for so many rows, a state counting as one."""
    on = box(engine("witness"))
    cost = on.engine.cost()
    config = {"block_rows": GRID, "session_trim": True} | config
    on.stack.store.config = StoreConfig(
        budget_bytes=rows * cost.row_bytes, entry_bytes=entry_rows * cost.row_bytes, **config
    )
    return on


def kept(on: Box) -> list[tuple[str, int]]:
    """The snapshots, the next to go first."""
    return [(snapshot.use, snapshot.tokens) for snapshot in on.stack.store]


def test_a_turn_leaves_its_longest_line_and_its_end() -> None:
    on = desk()
    serve(on, tokens(3 * GRID + 7), tokens(9, 1), accepts=(0,) * 9)
    assert kept(on) == [("prefix", 3 * GRID), ("session", 3 * GRID + 7 + 8)]
    on.stack.check()


def test_boundaries() -> None:
    store = Store(StoreConfig(budget_bytes=50_000, entry_bytes=9_000), grid=100)
    assert store.boundaries(0, 350, COST) == {300}
    assert store.boundaries(0, 301, COST) == {300}
    # The last token must be forwarded, so a snapshot of all of them would serve nobody.
    assert store.boundaries(0, 300, COST) == {200}
    assert store.boundaries(300, 390, COST) == frozenset()
    # 800 rows and a state are the cap.
    assert store.boundaries(0, 5_000, COST) == {800}
    store.config = StoreConfig(budget_bytes=50_000, entry_bytes=9_000, boundaries=2)
    assert store.boundaries(0, 5_000, COST) == {700, 800}
    store.config = StoreConfig(budget_bytes=50_000, entry_bytes=9_000, boundaries=0)
    assert store.boundaries(150, 450, COST) == {200, 300, 400}
    store.config = StoreConfig(budget_bytes=0)
    assert store.boundaries(0, 5_000, COST) == frozenset()


def test_the_line_that_others_will_share_is_kept_as_well() -> None:
    """A long first message takes the longest line past the system text."""
    store = Store(StoreConfig(budget_bytes=50_000, entry_bytes=9_000), grid=100)
    assert store.boundaries(0, 750, COST, head=450) == {400, 700}
    assert store.boundaries(0, 460, COST, head=450) == {400}
    assert store.boundaries(400, 750, COST, head=450) == {700}
    assert store.boundaries(0, 5_000, COST, head=4_000) == {800}


def test_what_served_outlives_what_never_did() -> None:
    on = desk(rows=100 * GRID, boundaries=1)
    heads = [tokens(GRID + 9, seed) for seed in range(3)]
    for ids in heads:
        serve(on, ids, tokens(3, 9), kind="title")
    for _ in range(2):
        row, _ = serve(on, joined(heads[0][: GRID + 1], tokens(30, 4)), tokens(3, 9), kind="title")
        serve(on, tokens(GRID - 9, 5), tokens(3, 9), kind="title")
    assert row.source == "store.grid"
    store = on.stack.store
    one = store.held_bytes() // 3
    assert store.release(2 * one) == 2 * one
    (left,) = store
    assert int(left.account.ids[0]) == int(heads[0][0])
    # Long ago is never.
    store._number += store_module.RECENT
    serve(on, heads[1], tokens(3, 9), kind="title")
    assert store.release(1) == one and int(next(iter(store)).account.ids[0]) == int(heads[1][0])


def test_a_head_outlives_what_came_after_it() -> None:
    on = desk(rows=100 * GRID, boundaries=1)
    prompt = Prompt(tokens(4 * GRID, 1), "a", system=GRID + 9)
    list(turn(on, prompt, forced(tokens(5, 2)), limit=5))
    serve(on, tokens(2 * GRID + 9, 3), tokens(3, 9), kind="title")
    store, order = on.stack.store, []
    while len(store):
        before = kept(on)
        store.release(1)
        (gone,) = set(before) - set(kept(on))
        order.append(gone)
    assert [use for use, _ in order] == ["prefix", "session", "prefix", "prefix"]
    assert [size for use, size in order if use == "prefix"] == [3 * GRID, 2 * GRID, GRID]


def test_a_growth_that_can_not_be_empties_nothing_beyond_its_size() -> None:
    on = desk(rows=100 * GRID)
    for seed in range(4):
        serve(on, tokens(GRID + 7, seed), tokens(3, 90), kind="title")
    store = on.stack.store
    store._grow = lambda name, nbytes: False
    serve(on, tokens(GRID + 7, 9), tokens(3, 90), kind="title")
    assert len(store) == 3 and store.declines == {"no room": 1}


def test_a_title_leaves_its_head_only() -> None:
    on = desk()
    serve(on, tokens(2 * GRID + 7), tokens(9, 1), kind="title")
    assert kept(on) == [("prefix", 2 * GRID)]


def test_the_least_recently_used_goes_first() -> None:
    on = desk(rows=4 * GRID, boundaries=1)
    first, second, third = (tokens(GRID + 9, seed) for seed in (1, 2, 3))
    for ids in (first, second):
        serve(on, ids, tokens(3, 9), kind="title")
    assert len(on.stack.store) == 2
    row, _ = serve(on, joined(first[: GRID + 1], tokens(30, 4)), tokens(3, 9), kind="title")
    assert row.source == "store.grid"
    on.stack.store.config = StoreConfig(
        budget_bytes=on.stack.store.held_bytes(), entry_bytes=2**20, block_rows=GRID
    )
    serve(on, third, tokens(3, 9), kind="title")
    assert [int(s.account.ids[0]) for s in on.stack.store] == [int(first[0]), int(third[0])]
    assert on.stack.store.evictions == 1


def test_an_older_end_of_the_same_chat_goes_before_anything_else() -> None:
    on = desk(boundaries=1)
    serve(on, tokens(GRID + 5, 1), tokens(3, 2), kind="title")
    text = tokens(20, 3)
    for at in range(2):
        ids = joined(text, tokens(10, 4 + at))
        written = tokens(5, 6 + at)
        serve(on, ids, written, session="a")
        text = joined(ids, written)
    assert [use for use, _ in kept(on)] == ["session", "prefix", "session"]


def test_the_same_tokens_are_kept_once() -> None:
    on = desk()
    for _ in range(3):
        serve(on, tokens(2 * GRID + 7), tokens(9, 1), kind="title")
        serve(on, tokens(5 * GRID, 8), tokens(2, 9), kind="title")
    assert sorted(kept(on)) == [("prefix", 2 * GRID), ("prefix", 4 * GRID)]


def test_a_snapshot_over_the_cap_is_declined_and_said_once_a_conversation() -> None:
    on = desk(entry_rows=2 * GRID)
    text = tokens(3 * GRID, 1)
    for at in range(3):
        ids = joined(text, tokens(20, 2 + at))
        serve(on, ids, tokens(4, 9), session="a")
        text = joined(ids, tokens(4, 9))
    serve(on, joined(text, tokens(9, 8)), tokens(4, 9), session="b")
    assert on.stack.store.declines == {"big": 4}
    assert [(event.session, event.why) for event in on.journal.events] == [
        ("a", "big"),
        ("b", "big"),
    ]
    assert on.journal.counters["store.decline"] == 2
    assert isinstance(on.journal.events[0], CacheEvent)


def test_a_conversation_without_a_name_is_known_by_its_start() -> None:
    on = desk(entry_rows=GRID)
    text = tokens(3 * GRID, 1)
    for at in range(3):
        serve(on, joined(text, tokens(20, 2 + at)), tokens(4, 9))
    assert on.stack.store.declines == {"big": 3} and len(on.journal.events) == 3


def test_an_engine_ahead_of_its_tokens_is_declined_and_the_end_anchor_survives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its last block was accepted past the limit: without the trim nothing is cloned."""
    on = desk(session_trim=False)
    copies: list[int] = []

    def counted(state: CacheState, start: int, stop: int) -> RowBlock | None:
        copies.append(stop)
        return try_copy(state, start, stop)

    monkeypatch.setattr(store_module, "try_copy", counted)
    row, _ = serve(on, tokens(30), tokens(9, 1), accepts=(3, 3, 3), limit=3)
    assert on.engine.length >= 33 and row.end == "kept" and on.stack.end is not None
    assert on.stack.store.declines == {"ahead": 1} and not copies
    row, _ = serve(on, joined(tokens(30), tokens(3, 1), tokens(9, 2)), tokens(2, 3))
    assert row.source == "end"
    on = desk(session_trim=True)
    serve(on, tokens(30), tokens(9, 1), accepts=(3, 3, 3), limit=3)
    assert kept(on) == [("session", 33)] and on.stack.end == 33


def test_a_state_past_the_tokens_is_declined_although_it_might_be_trimmed() -> None:
    """The checkpoint landed what ran ahead: the sections can't be taken back."""
    on = desk(session_trim=True)
    stack = on.stack
    trims = [True, False]
    real = type(on.engine).trim_pending

    def once(self: Any, length: int) -> bool:
        return real(self, length) and trims.pop(0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(on.engine), "trim_pending", once)
        serve(on, tokens(30), tokens(9, 1))
    assert stack.store.declines == {"absorbed": 1} and not kept(on)


def test_a_tainted_head_is_no_prefix_snapshot() -> None:
    on = desk(boundaries=1)
    serve(on, tokens(30), tokens(9, 1), session="a")
    text = joined(tokens(30), tokens(9, 1))
    row, _ = serve(on, joined(text, tokens(3 * GRID, 2)), tokens(9, 1), session="a")
    assert row.source == "end"
    assert on.stack.store.declines["tainted"] == 1
    assert all(use == "session" for use, _ in kept(on))


def full(on: Box, monkeypatch: pytest.MonkeyPatch) -> int:
    """Fill a small store again and again; the most bytes that existed at once."""
    most, row_bytes = 0, on.engine.cost().row_bytes

    def counted(state: CacheState, start: int, stop: int) -> RowBlock | None:
        nonlocal most
        most = max(most, on.stack.store.held_bytes() + stop * row_bytes)
        return try_copy(state, start, stop)

    monkeypatch.setattr(store_module, "try_copy", counted)
    for seed in range(6):
        serve(on, tokens(2 * GRID + 7, seed), tokens(3, 90 + seed), kind="title")
    assert on.stack.store.evictions >= 3
    return most


def test_room_is_made_before_the_clone(monkeypatch: pytest.MonkeyPatch) -> None:
    on = desk(rows=5 * GRID)
    assert full(on, monkeypatch) <= on.stack.store.config.budget_bytes


def test_canary_cloning_before_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    put = Store.put

    def early(self: Store, use: Any, account: Any, model: Any) -> Any:
        store_module.try_copy(model.cache_state(), 0, account.valid)
        return put(self, use, account, model)

    monkeypatch.setattr(Store, "put", early)
    on = desk(rows=5 * GRID)
    assert full(on, monkeypatch) > on.stack.store.config.budget_bytes


def test_no_memory_for_a_copy_is_a_decline(monkeypatch: pytest.MonkeyPatch) -> None:
    on = desk()
    monkeypatch.setattr(store_module, "try_copy", lambda *_: None)
    row, _ = serve(on, tokens(2 * GRID + 7), tokens(9, 1))
    assert row.finish == "length" and not kept(on)
    assert set(on.stack.store.declines) == {"memory"}


def test_memory_that_others_need_is_given_back() -> None:
    on = desk()
    for seed in range(4):
        serve(on, tokens(2 * GRID + 7, seed), tokens(3, 90), kind="title")
    store = on.stack.store
    one = store.held_bytes() // 4
    assert store.release(one + 1) == 2 * one and len(store) == 2
    assert store.release(10 * one) == 2 * one and store.held_bytes() == 0
    assert store.release(1) == 0


def test_growth_is_asked_for_and_a_refusal_declines() -> None:
    asked: list[tuple[str, int]] = []
    on = box(engine("witness"))
    cost = on.engine.cost()

    def never(name: str, nbytes: int) -> bool:
        asked.append((name, nbytes))
        return False

    config = StoreConfig(2**20, 2**20, block_rows=GRID)
    on.stack.store = Store(config, GRID, grow=never)
    serve(on, tokens(2 * GRID + 7), tokens(3, 90), kind="title")
    assert asked == [("store", 2 * GRID * cost.row_bytes + cost.anchor_bytes)]
    assert on.stack.store.declines == {"no room": 1}


def test_one_token_is_always_forwarded() -> None:
    """A prompt of exactly a snapshot's tokens: the logits of its last one must be computed."""
    on = desk(boundaries=0)
    head = tokens(2 * GRID, 1)
    serve(on, joined(head, tokens(9, 2)), tokens(3, 9), kind="title")
    serve(on, tokens(5 * GRID, 8), tokens(2, 9), kind="title")
    row, _ = serve(on, head, tokens(3, 9), kind="title")
    assert (row.source, row.cached) == ("store.grid", GRID)


def test_an_end_is_no_start_for_a_prompt_of_its_own_tokens() -> None:
    on = desk(boundaries=1)
    serve(on, tokens(30, 1), tokens(9, 2), session="a")
    (snapshot,) = on.stack.store
    text = snapshot.account.ids.copy()
    serve(on, tokens(5 * GRID, 8), tokens(2, 9), kind="title")
    row, _ = serve(on, text, tokens(3, 9), session="a")
    assert row.source == "cold"
    serve(on, tokens(5 * GRID, 8), tokens(2, 9), kind="title")
    row, _ = serve(on, joined(text, tokens(1, 5)), tokens(3, 9), session="a")
    assert (row.source, row.cached) == ("store.end", len(text))


def test_what_is_being_restored_can_not_be_given_back() -> None:
    on = desk()
    for seed in range(3):
        serve(on, tokens(GRID + 7, seed), tokens(3, 90), kind="title")
    store = on.stack.store
    first = next(iter(store))
    store.use(first)
    assert store.spare_bytes() == store.held_bytes() - first.nbytes
    assert store.release(2**40) == 2 * first.nbytes and list(store) == [first]
    store.in_use = None
    assert store.release(1) == first.nbytes


def test_an_end_does_not_stand_for_a_line_of_the_same_tokens() -> None:
    """The greedy gate is weaker: one under the bit gate is wanted beside it."""
    on = desk(boundaries=1)
    serve(on, tokens(GRID - 8, 1), tokens(9, 2), session="a")
    (end,) = on.stack.store
    assert end.use == "session"
    put = Store(StoreConfig(2**30, 2**30, block_rows=GRID), GRID)
    account = end.account.aside(end.tokens, ())
    put._snapshots[1] = end
    account.taint = None
    assert put._same(account) is None and put._same(end.account) is end


def test_clear_forgets_all() -> None:
    on = desk()
    serve(on, tokens(2 * GRID + 7), tokens(3, 90))
    on.stack.store.clear()
    assert not kept(on) and on.stack.store.held_bytes() == 0


@given(st.lists(st.integers(0, 7), max_size=25), st.integers(1, 9), st.integers(0, 3))
def test_budget_and_cap_hold_whatever_comes(heads: list[int], rows: int, boundaries: int) -> None:
    on = desk(rows=rows * GRID, entry_rows=4 * GRID, boundaries=boundaries)
    for number, head in enumerate(heads):
        ids = joined(tokens((1 + head % 4) * GRID, head), tokens(9, 50 + number))
        row, _ = serve(
            on, ids, tokens(3, 90), session=str(head), kind="turn" if head % 2 else "title"
        )
        assert row.cached <= len(ids)
        on.stack.check()
