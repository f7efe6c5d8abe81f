"""A conversation that its own session left for another: parked, and not written for want of room.

Method: turns on the witness; one session speaks of one thing, then of another from the head on.
"""

from __future__ import annotations

import pytest
from homes import Home
from support import GRID, joined, tokens


@pytest.mark.parametrize("who", ["a", "b"])
def test_only_another_sessions_request_writes_it(who: str) -> None:
    home = Home("witness")
    home.turn("a", more=5 * GRID)
    home.sends(tokens(6 * GRID, 77), session=who)
    written = [event.session for event in home.of_kind("write")]
    skipped = [event.why for event in home.of_kind("skip")]
    assert (written, skipped) == ((["a"], []) if who == "b" else ([], ["evict: left"]))


def test_the_pool_gives_it_up_unwritten_and_a_planned_stop_writes_it() -> None:
    for stops in (False, True):
        home = Home("witness", rooms={"park_rows": 600})
        home.turn("a", more=5 * GRID)
        home.sends(tokens(6 * GRID, 77), session="a")
        assert home.on.stack.park.entries[0].account.left
        if stops:
            assert home.stops() == 2
            continue
        home.turn("c", more=9 * GRID)
        home.turn("d", more=9 * GRID)
        assert [e.why for e in home.of_kind("skip")] == ["park: left"], "told once"
        written = {e.tokens for e in home.of_kind("write") if e.session == "a"}
        assert written == {6 * GRID + 9}, "only the one that it left for"


def test_one_that_came_back_is_written_again() -> None:
    home = Home("witness", rooms={"park_rows": 900})
    home.turn("a", more=5 * GRID)
    first = home.said["a"]
    home.sends(tokens(6 * GRID, 77), session="a")
    assert home.sends(joined(first, tokens(30, 3)), session="a").source == "park.end"
    assert not home.on.stack.resident.account.left
    home.rests()
    assert [e.session for e in home.on.stack.events() if e.event == "write"] == ["a"]


def test_a_pause_writes_none() -> None:
    home = Home("witness", rooms={"park_rows": 900})
    home.turn("a", more=5 * GRID)
    home.sends(tokens(6 * GRID, 77), session="a")
    assert home.rests() == 1
