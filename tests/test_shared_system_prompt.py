"""Chats under one system prompt: what the store saves, where it can't, and what it holds.

Method: the experiment's own traffic in fewer chats, every request verified. Without the store the
whole prompt is read again, which is the canary of every saving; budgets too small to hold a head
between two chats must show as such.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cache.store import Store
from cache.types import Outcome
from experiments import shared_system_prompt as shared
from sim.profile import load

BOARD = load("spark-27b")
ROOMY = replace(BOARD, store_bytes=8 * 2**30)


def seen(board: shared.Profile, system: int = shared.SYSTEM, strangers: int = 1) -> shared.Seen:
    """Three chats, with the rows in place alone beside the store."""
    bare = shared.rows_alone(board)
    return shared.served(bare, strangers, system, chats=3, size=9_000)


@pytest.mark.parametrize("grid", shared.GRIDS)
def test_a_head_that_is_held_costs_what_is_above_its_line(grid: int) -> None:
    at = seen(replace(ROOMY, grid=grid))
    assert at.reread == shared.SYSTEM % grid and at.evicted == 0
    assert {row.source for row in at.chats} == {"store.grid"}
    assert 0 < at.held_bytes <= ROOMY.store_bytes


@pytest.mark.parametrize("grid", shared.GRIDS)
def test_canary_without_the_store_all_of_it_is_read_again(grid: int) -> None:
    at = seen(replace(ROOMY, grid=grid, store_bytes=0))
    assert (at.reread, at.held_bytes, at.evicted) == (shared.SYSTEM, 0, 0)
    assert at.first_token_s > 2 * seen(replace(ROOMY, grid=grid)).first_token_s


def test_a_line_in_the_message_serves_nobody_else() -> None:
    """The longest boundary is past the shared prompt: the last line below its end is kept as well,
    and with all of them it is one of many."""
    assert seen(ROOMY, shared.PAST).reread == shared.PAST % BOARD.grid
    every = seen(replace(ROOMY, store_boundaries=0, store_bytes=2**35), shared.PAST)
    assert every.reread == shared.PAST % BOARD.grid


def test_the_head_outlives_the_strangers_that_fill_the_store() -> None:
    at = seen(BOARD, strangers=2)
    assert at.reread == shared.SYSTEM % BOARD.grid and at.evicted > 0
    assert at.held_bytes <= BOARD.store_bytes


def test_canary_a_head_that_is_like_any_other_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    put = Store.put

    def forgetful(self: Store, *how: Any) -> Outcome:
        outcome = put(self, *how)
        self._served.clear()
        return outcome

    monkeypatch.setattr(Store, "put", forgetful)
    assert seen(BOARD, strangers=2).reread == shared.SYSTEM


def test_without_strangers_the_rows_in_place_serve() -> None:
    at = shared.served(BOARD, 0, chats=3)
    assert {row.source for row in at.chats} == {"grid"}
    assert at.reread == shared.SYSTEM % BOARD.grid


def test_the_ways_differ_as_they_say() -> None:
    ways = shared.stores(BOARD)
    assert ways["off"].store_bytes == 0 and ways["all"].store_boundaries == 0
    assert ways["twice_the_room"].store_bytes == 2 * BOARD.store_bytes
    assert 2 * ways["half_the_cap"].store_entry_bytes == BOARD.store_entry_bytes
    for name, at in shared.situations(BOARD).items():
        assert (at.board.park_bytes == 0) == name.startswith("rows"), name
        assert at.board.store_bytes == BOARD.store_bytes
    keys = [figure.key for figure in shared.figures_of("x", seen(ROOMY))]
    assert keys == ["x.reread_tokens", "x.first_token_s", "x.store_bytes", "x.evicted"]
