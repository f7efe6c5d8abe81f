"""The spill at its edges: where a bound is met exactly, and what a client that leaves, leaves.

Method: turns through the real engine and caches over files in memory, as in the bit gates, one edge
a test; each was seen red with the comparison beside it turned, or its line left out.
"""

from __future__ import annotations

import dataclasses

import pytest
from homes import Home
from support import GRID, forced, joined, tokens

from cache.anchors import Anchors
from cache.source import in_place, parked
from cache.spill.entry import Entry
from cache.spill.manifest import read_manifest
from cache.spill.names import manifest_name
from cache.spill.shelf import Shelf
from cache.types import Gate
from engine.turn import Chunk, Prompt, turn
from sim.files import SimFiles

# a client that leaves in the prefill


def leaves_early(home: Home, session: str, more: int, **sizes: int) -> None:
    """The next prompt of a session, of which only the first chunk is read."""
    ids = joined(home.said.get(session, tokens(0)), tokens(more, 77))
    home.on.stack.leave()
    events = turn(home.on, Prompt(ids, session, **sizes), forced(tokens(9)), limit=9)
    for event in events:
        if isinstance(event, Chunk):
            events.close()


@pytest.mark.parametrize("sizes", [{}, {"tools": 250, "system": 40}], ids=["plain", "tools"])
def test_a_prompt_that_broke_off_spoils_no_conversation(sizes: dict[str, int]) -> None:
    """The manifest counts the rows that there are, not those that the prompt was to have."""
    home = Home("witness")
    if not sizes:
        home.turn("a", more=300)
    leaves_early(home, "a", 6 * GRID, **sizes)
    resident = home.on.stack.resident.account
    assert 0 < resident.valid < resident.prompt
    best = resident.best_line(resident.valid)
    assert best is not None
    assert home.restarts() == best.tokens
    assert not home.of_kind("sweep")
    assert sizes or home.turn("a").source == "end"


def test_what_is_written_can_be_read() -> None:
    home = Home("witness")
    home.turn("a", more=300)
    leaves_early(home, "a", 6 * GRID)
    home.stops()
    assert isinstance(home.files, SimFiles)
    (entry,) = home.spill.shelf.whole()
    shapes = home.spill.shapes
    name = manifest_name(entry.key)
    found = read_manifest(home.files, name, shapes, {shapes.fingerprint})
    assert isinstance(found, Entry), found


# saves that were stopped


def on_the_drive(home: Home) -> set[str]:
    return {name for name in home.files.list() if name.endswith((".block", ".anchor"))}


def saved_up_to(home: Home, blocks: int) -> str:
    """Save the conversation in place until so many blocks were written; what became of it."""
    asked = iter(range(1_000))
    source = in_place(home.on.stack.resident.account, home.of)
    return home.spill.writer.save(source, "idle", lambda: next(asked) >= blocks).why


@pytest.mark.parametrize("then", [0, 1, 2])
def test_a_stopped_save_of_other_rows_leaves_no_file_uncounted(then: int) -> None:
    """Rows were edited between two stopped saves: every file is some entry's, or gone."""
    home = Home("witness")
    home.turn("a", more=8 * GRID)
    assert saved_up_to(home, 6) == "yielded"
    edited = joined(home.said["a"][: 4 * GRID + 9], tokens(3 * GRID, 5))
    home.sends(edited, session="a")
    assert saved_up_to(home, then) == "yielded"
    (entry,) = home.spill.shelf._entries
    assert on_the_drive(home) == entry.names
    assert len(entry.loose) == 6, "what the older rows had further on may be wanted again"
    assert saved_up_to(home, 99) == ""
    assert on_the_drive(home) == entry.names
    assert home.restarts() == home.on.stack.end


def test_rows_that_changed_take_their_anchors_with_them() -> None:
    """A copy at the end of a block that changed is none of these rows, though the block before is
    the same: memory has no other there."""
    home = Home("witness")
    home.turn("a", more=8 * GRID)
    assert saved_up_to(home, 99) == ""
    (entry,) = home.spill.shelf.whole()
    assert 5 * GRID in {copy.tokens for copy in entry.copies}
    home.sends(joined(home.said["a"][: 4 * GRID + 9], tokens(3 * GRID, 5)), session="a")
    home.on.stack.resident.account.anchors.cut(4 * GRID)
    assert saved_up_to(home, 99) == ""
    kept = [copy.tokens for copy in entry.copies if copy.kind == "grid"]
    assert kept[-1] == 4 * GRID


@pytest.mark.parametrize("less", [0, 1])
def test_a_conversation_of_just_the_least_is_written(less: int) -> None:
    home = Home("witness", tokens_min=5 * GRID + 9)
    home.turn("a", more=5 * GRID - less)
    home.turn("b", more=GRID)
    assert [event.session for event in home.of_kind("write")] == ([] if less else ["a"])


def test_room_that_a_save_makes_is_not_made_by_another_save() -> None:
    home = Home("witness", rooms={"park_rows": 900})
    home.turn("a", more=5 * GRID)
    home.turn("b", more=5 * GRID)
    told: list[str] = []

    def gives_up(name: str, nbytes: int) -> bool:
        entry = home.on.stack.park.entries[0]
        told.append(home.spill.writer.save(parked(entry, home.of), "park").why)
        return True

    home.spill.buffers.grow = gives_up
    assert saved_up_to(home, 99) == "" and set(told) == {"busy"}
    assert [entry.session for entry in home.spill.shelf.whole()] == ["b"]


def test_what_has_no_line_is_not_written() -> None:
    home = Home("witness")
    home.turn("a", more=GRID // 2)
    account = home.on.stack.resident.account
    account.end = None
    assert not any(anchor.kind == "grid" for anchor in account.anchors)
    assert saved_up_to(home, 99) == "no line"
    assert on_the_drive(home) == set()


def test_a_save_that_finds_no_room_leaves_no_entry() -> None:
    home = Home("witness", budget_bytes=30_000)
    home.turn("a", more=8 * GRID)
    assert saved_up_to(home, 99) == "budget"
    assert home.spill.shelf._entries == [] and on_the_drive(home) == set()


@pytest.mark.parametrize("room", [1.5, 0.9])
def test_rows_that_pack_worse_than_expected_are_held_to_the_budget(
    room: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = room_for(room)
    monkeypatch.setattr(Shelf, "ratio", 0.1)
    home = Home("witness", budget_bytes=budget)
    home.turn("a", more=5 * GRID)
    home.turn("b", more=5 * GRID)
    # What is written last stays; where it is too large by itself, nothing does, and that is told.
    assert saved_up_to(home, 99) == ("" if room > 1 else "budget")
    names = {entry.session for entry in home.spill.shelf.whole()}
    assert names == ({"b"} if room > 1 else set())
    assert home.spill.shelf.held_bytes() <= budget


def test_a_copy_that_is_held_to_another_gate_is_told_anew() -> None:
    home = Home("witness")
    home.turn("a", more=5 * GRID)
    assert saved_up_to(home, 99) == ""
    account = home.on.stack.resident.account
    every = [dataclasses.replace(anchor, gate=Gate.GREEDY) for anchor in account.anchors]
    account.anchors = Anchors.of(account.anchors.config, every)
    account.taint = 0
    assert saved_up_to(home, 99) == ""
    (entry,) = home.spill.shelf.whole()
    assert {copy.gate for copy in entry.copies} == {Gate.GREEDY}


def test_what_is_known_anew_of_rows_that_are_there_is_told() -> None:
    home = Home("witness")
    home.turn("a", more=5 * GRID)
    assert saved_up_to(home, 99) == ""
    home.on.stack.resident.account.system = 2 * GRID
    assert saved_up_to(home, 99) == ""
    assert home.spill.notes.events()[-1].why.startswith("idle written=0 ")
    home.crashes()
    home.starts()
    (entry,) = home.spill.shelf.whole()
    assert entry.account is not None and entry.account.system == 2 * GRID


def room_for(conversations: float) -> int:
    """Bytes that so many conversations of five chunks take."""
    home = Home("witness")
    home.turn("a", more=5 * GRID)
    home.stops()
    return round(conversations * home.spill.shelf.held_bytes())


# an entry that is about to be read


def test_a_branch_that_is_left_does_not_take_the_place_of_what_is_read() -> None:
    """Nobody says whose they are: a prompt goes on with the entry, in place is a branch of it."""
    home = Home("witness")
    home.sends(tokens(5 * GRID, 1))
    first = home.answered
    home.sends(tokens(2 * GRID, 2))
    home.sends(joined(first[: 3 * GRID + 9], tokens(5 * GRID, 3)))
    row = home.sends(joined(first, tokens(30, 4)))
    assert (row.source, row.cached) == ("spill.end", len(first))
    assert not home.of_kind("fail")


def test_what_is_about_to_be_read_makes_no_room_for_what_it_replaces() -> None:
    """With room for one of them, the entry is read, and goes afterwards."""
    home = Home("witness", budget_bytes=room_for(1.5))
    home.turn("a", more=5 * GRID)
    home.turn("b", more=5 * GRID)
    assert [entry.session for entry in home.spill.shelf.whole()] == ["a"]
    assert home.turn("a").source == "spill.end"
    assert home.spill.shelf.in_use is None
    assert home.spill.shelf.held_bytes() <= home.spill.config.budget_bytes
    assert [entry.session for entry in home.spill.shelf.whole()] == ["b"]


# planned stops and pauses


def test_with_room_for_one_a_planned_stop_keeps_the_one_in_place() -> None:
    home = Home("witness", rooms={"park_rows": 3_000}, budget_bytes=room_for(1.5))
    for session in "abc":
        home.turn(session, more=5 * GRID)
    assert home.restarts() == home.on.stack.end
    assert [entry.session for entry in home.spill.shelf.whole()] == ["c"]
    assert home.turn("c").source == "end"


@pytest.mark.parametrize("stops", [True, False])
def test_a_guest_is_gone_before_the_house_is_written(stops: bool) -> None:
    home = Home("witness", rooms={"guest_tokens": 400, "stash_rows": 1_000})
    home.turn("long", more=1_200)
    before = home.state()
    assert home.turn("guest", more=200).guest
    if not stops:
        home.rests()
        home.crashes()
        home.starts()
        assert home.turn("long").source == "spill.end"
        return
    home.restarts()
    after = home.state()
    assert all(after[name].equal(before[name]) for name in after if name in before)
    assert any(name.startswith("end") for name in after)
    assert home.turn("long").source == "end"
