"""Other settings for running caches: what shrinks gives back, what is left still serves exactly.

Method: conversations in turn under settings drawn between the turns, with pool, guests, store and
anchors in use; every turn held to its gate, every account checked, and no cache over its budget as
soon as it was changed. Covers cache.configure and cache.meet's switch.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import GRID, box, engine, joined, serve, tokens, verifier

from cache.anchors import AnchorConfig
from cache.config import StackConfig
from cache.configure import configure
from cache.guest import GuestConfig
from cache.meet import Switch, exactly
from cache.park import Park
from cache.parked import ParkConfig
from cache.snapshot import StoreConfig
from cache.types import Ask, Met
from engine.box import Box

ROOM = {"park_rows": 1_024, "pin_rows": 256, "stash_rows": 512, "guest_tokens": 256}


def other(on: Box, *, anchors: int, park: int, stash: int, store: int) -> StackConfig:
    """Budgets in copies, rows, rows and rows."""
    cost, config = on.engine.cost(), on.stack.config
    row, entry = cost.row_bytes, store * cost.row_bytes
    return replace(
        config,
        anchors=replace(config.anchors, budget_bytes=anchors * cost.anchor_bytes),
        park=replace(config.park, park_bytes=park * row, pin_bytes=0),
        guest=replace(config.guest, stash_bytes=stash * row, tokens_max=min(256, stash)),
        store=replace(config.store, budget_bytes=2 * entry, entry_bytes=entry),
    )


BUDGETS = st.fixed_dictionaries(
    {
        "anchors": st.integers(0, 12),
        "park": st.sampled_from([0, 200, 1_000, 4_000]),
        "stash": st.sampled_from([0, 100, 600]),
        "store": st.sampled_from([0, 90, 400, 2_000]),
    }
)
TURN = st.tuples(st.sampled_from("abc"), st.integers(5, 300), BUDGETS | st.none())


@settings(max_examples=12, deadline=None)
@given(st.lists(TURN, min_size=3, max_size=9))
def test_every_turn_keeps_its_gate_whatever_was_set_before_it(
    turns: list[tuple[str, int, dict[str, int] | None]],
) -> None:
    of = engine("witness")
    on, check = box(of, store_bytes=2**20, **ROOM), verifier(of)
    said = {name: tokens(3 * GRID, ord(name)) for name in "abc"}
    for number, (session, more, budgets) in enumerate(turns):
        ids, answer = joined(said[session], tokens(more, number)), tokens(9, 100 + number)
        row, verdict = serve(on, ids, answer, check=check, session=session)
        assert verdict is not None and verdict.ok, (row, verdict)
        said[session] = joined(ids, answer)[-1_500:]
        if budgets is not None:
            configure(on.stack, of, other(on, **budgets))
            assert_within(on)


def assert_within(on: Box) -> None:
    stack, config = on.stack, on.stack.config
    stack.check()
    assert stack.park.held_bytes() <= config.park.budget_bytes
    assert stack.store.held_bytes() <= config.store.budget_bytes
    assert all(snapshot.nbytes <= config.store.entry_bytes for snapshot in stack.store)
    anchors, copy = stack.resident.account.anchors, on.engine.cost().anchor_bytes
    assert len(anchors) <= max(config.anchors.newest_kept, config.anchors.budget_bytes // copy)


def test_canary_a_pool_that_only_notes_its_settings_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on = box(engine("witness"), **ROOM)
    serve(on, tokens(900, 1), tokens(20), session="a")
    serve(on, tokens(900, 2), tokens(20), session="b")

    def notes(park: Park, config: ParkConfig, anchors: AnchorConfig) -> None:
        park._config = config

    monkeypatch.setattr(Park, "configure", notes)
    configure(on.stack, on.engine, other(on, anchors=4, park=100, stash=0, store=0))
    with pytest.raises(AssertionError):
        assert_within(on)


def test_less_room_is_given_back_and_more_is_used_again() -> None:
    on = box(engine("witness"), store_bytes=2**20, **ROOM)
    serve(on, tokens(900, 1), tokens(20), session="a")
    serve(on, tokens(900, 2), tokens(20), session="b")
    before, config = on.stack.held_bytes(), on.stack.config
    assert before["park"] and before["store"] and before["anchors"]
    small = other(on, anchors=0, park=0, stash=0, store=0)
    configure(on.stack, on.engine, small)
    held = on.stack.held_bytes()
    assert held["park"] == held["store"] == 0
    assert held["anchors"] == config.anchors.newest_kept * on.engine.cost().anchor_bytes
    assert serve(on, tokens(100, 3), tokens(5), session="c")[0].guest is False
    configure(on.stack, on.engine, config)
    serve(on, tokens(900, 1), tokens(20), session="a")
    serve(on, tokens(900, 2), tokens(20), session="b")
    assert on.stack.held_bytes()["park"] and on.stack.held_bytes()["store"]


def test_what_comes_back_from_the_pool_is_under_the_settings_in_force() -> None:
    on = box(engine("witness"), park_rows=1_900)
    first = tokens(900, 1)
    serve(on, first, tokens(20), session="a")
    serve(on, tokens(900, 2), tokens(20), session="b")
    assert on.stack.park.entries
    config = on.stack.config
    fewer = replace(config.anchors, budget_bytes=5 * on.engine.cost().anchor_bytes)
    configure(on.stack, on.engine, replace(config, anchors=fewer))
    row, _ = serve(on, joined(first, tokens(400, 5)), tokens(20), session="a")
    assert row.source.startswith("park.")
    assert on.stack.resident.account.anchors.config == fewer
    assert len(on.stack.resident.account.anchors) <= 5


def test_a_guest_that_was_served_leaves_before_anything_changes() -> None:
    on = box(engine("witness"), park_rows=1_024, stash_rows=512, guest_tokens=256)
    long = tokens(1_200, 1)
    serve(on, long, tokens(20), session="a")
    assert serve(on, tokens(100, 2), tokens(5), session="b")[0].guest
    configure(on.stack, on.engine, other(on, anchors=12, park=0, stash=0, store=0))
    assert not on.stack.has_guest
    row, verdict = serve(
        on, joined(long, tokens(30, 3)), tokens(5), session="a", check=verifier(on.engine)
    )
    assert row.cached >= 1_152 and verdict is not None and verdict.ok


@pytest.mark.parametrize(
    "wrong",
    [
        StackConfig(keeps_end=False),
        StackConfig(park=ParkConfig(block_rows=7)),
        StackConfig(park=ParkConfig(block_rows=GRID, margin_rows=7)),
        StackConfig(park=ParkConfig(block_rows=GRID), guest=GuestConfig(block_rows=7)),
        StackConfig(
            AnchorConfig(),
            ParkConfig(block_rows=GRID),
            GuestConfig(block_rows=GRID, margin_rows=16),
            StoreConfig(block_rows=7),
        ),
    ],
)
def test_what_rows_lie_in_can_not_change(wrong: StackConfig) -> None:
    on = box(engine("witness"))
    with pytest.raises(AssertionError):
        configure(on.stack, on.engine, wrong)


def test_a_meeting_is_turned_off_and_on() -> None:
    on = box(engine("witness"))
    serve(on, tokens(200), tokens(5))

    def all_of_it(account: object, ask: Ask) -> Met:
        return Met(7, 7, ask.ids)

    account, ask = on.stack.resident.account, Ask(tokens(200))
    switch = Switch(all_of_it)
    assert switch(account, ask).rows == 7
    switch.on = False
    assert switch(account, ask) == exactly(account, ask)
    switch.on = True
    assert switch(account, ask).rows == 7
