"""The spill at its edges: where a bound is met exactly, and what a client that leaves, leaves.

Method: turns through the real engine and caches over files in memory, as in the bit gates, one edge
a test; each was seen red with the comparison beside it turned, or its line left out.
"""

from __future__ import annotations

import dataclasses
import errno

import pytest
from homes import Home
from support import GRID, box, engine, forced, joined, spill, tokens

from cache.anchors import Anchors
from cache.exchange import COMPACTION
from cache.planned import pause, read_back
from cache.source import in_place, parked
from cache.spill.entry import Entry
from cache.spill.manifest import read_manifest
from cache.spill.names import manifest_name
from cache.spill.shelf import Shelf
from cache.types import Gate
from engine.turn import Chunk, Prompt, turn
from sim.clock import VirtualClock
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


@pytest.mark.parametrize("kind", ["turn", "title"])
def test_a_pause_asks_less_of_the_pools_than_of_the_one_in_place(kind: str) -> None:
    """Also when what is in place is a side request's, which nobody comes back to."""
    home = Home("witness", rooms={"park_rows": 3_000}, tokens_min=10_000)
    for session in "ab":
        home.turn(session, more=5 * GRID)
    home.sends(tokens(7 * GRID, 3), session="c", kind=kind)
    assert home.on.stack.resident.account.kind == kind
    assert home.rests() == 2
    assert {entry.session for entry in home.spill.shelf.whole()} == {"a", "b"}


def test_a_pause_begins_with_those_used_last() -> None:
    home = Home("witness", rooms={"park_rows": 3_000})
    for session in "abc":
        home.turn(session, more=5 * GRID)

    def enough() -> bool:
        return len(home.spill.shelf.whole()) == 2

    assert pause(home.on.stack, home.of, enough) == 2
    assert {entry.session for entry in home.spill.shelf.whole()} == {"b", "c"}


@pytest.mark.parametrize("less", [0, 1])
def test_what_fills_the_window_does_not_come_back(less: int) -> None:
    """Nothing could be said there any more."""
    home = Home("witness")
    home.turn("a", more=8 * GRID)
    line = home.on.stack.end
    home.stops()
    assert line is not None
    of = engine("witness", window=line + 1 - less)
    small = spill(home.files, of)
    assert len(small.shelf.whole()) == 1
    found = read_back(box(of, spill=small).stack, of)
    assert (found is None) == bool(less)


def test_what_is_held_is_what_lies_there() -> None:
    home = Home("witness")
    home.turn("a", more=5 * GRID)
    home.turn("b", more=5 * GRID)
    home.stops()
    ours = [name for name in home.files.list() if name[0] in "0123456789abcdef"]
    assert home.spill.shelf.held_bytes() == sum(home.files.size(name) for name in ours)


def test_heads_alone_are_no_conversations() -> None:
    """What a compaction leaves in the pool is nothing that anybody goes on with."""
    home = Home("witness", rooms={"park_rows": 3_000, "pin_rows": 1_000})
    home.turn("a", more=8 * GRID)
    head = home.said["a"][: 4 * GRID]
    home.sends(joined(head, tokens(2 * GRID, 8)), session="a", kind=COMPACTION)
    home.sends(tokens(6 * GRID, 9), session="b")
    assert {entry.kind for entry in home.on.stack.park.entries} >= {"pin"}
    pinned = [e.account.valid for e in home.on.stack.park.entries if e.kind == "pin"]
    home.stops()
    assert not {e.account.valid for e in home.spill.shelf.whole() if e.account} & set(pinned)


# room, and who goes


def test_what_an_entry_has_already_needs_no_more_room() -> None:
    home = Home("witness", budget_bytes=room_for(2.3))
    home.turn("a", more=5 * GRID)
    home.turn("b", more=5 * GRID)
    assert saved_up_to(home, 99) == ""
    home.turn("b", more=10)
    assert saved_up_to(home, 99) == ""
    assert {entry.session for entry in home.spill.shelf.whole()} == {"a", "b"}


def test_room_is_made_before_anything_is_written() -> None:
    home = Home("witness", budget_bytes=room_for(1.5))
    home.turn("a", more=5 * GRID)
    home.turn("b", more=5 * GRID)
    there = [{entry.session for entry in home.spill.shelf.whole()}]

    def looks() -> bool:
        there.append({entry.session for entry in home.spill.shelf.whole()})
        return False

    source = in_place(home.on.stack.resident.account, home.of)
    assert home.spill.writer.save(source, "idle", looks).ok
    assert there[0] == {"a"} and there[1] == set()


def test_the_one_used_longest_ago_goes_first_and_age_is_counted_from_now() -> None:
    clock = VirtualClock()
    home = Home("witness", ports={"clock": clock}, budget_bytes=room_for(2.5), ttl_s=3_600.0)
    for session in "abc":
        clock.advance_to(clock.mono_s() + 10)
        home.turn(session, more=5 * GRID)
        assert saved_up_to(home, 99) == ""
    shelf = home.spill.shelf
    assert {entry.session for entry in shelf.whole()} == {"b", "c"}
    # A clock that was ahead makes nobody older, and nobody younger than now.
    for entry in shelf.whole():
        entry.used_s += 10**6
    home.spill.absorb()
    clock.advance_to(clock.mono_s() + 3_590)
    home.spill.absorb()
    assert len(shelf.whole()) == 2
    clock.advance_to(clock.mono_s() + 20)
    home.on.stack.leave()
    assert shelf.whole() == []


def test_who_was_read_was_used() -> None:
    clock = VirtualClock()
    home = Home("witness", ports={"clock": clock})
    for session in "abca":
        clock.advance_to(clock.mono_s() + 10)
        home.turn(session, more=5 * GRID if session not in home.said else 10)
    assert len(home.of_kind("hit")) == 1
    used = {entry.session: entry.used_s for entry in home.spill.shelf.whole()}
    assert used["a"] == clock.wall_s() > used["b"]


def test_a_start_lets_go_of_what_is_too_much_or_too_old() -> None:
    clock = VirtualClock()
    home = Home("witness", ports={"clock": clock})
    for session in "ab":
        home.turn(session, more=5 * GRID)
    home.restarts(budget_bytes=room_for(1.5))
    assert len(home.spill.shelf.whole()) == 1
    home.crashes()
    clock.advance_to(clock.mono_s() + 50 * 3_600)
    home.starts()
    assert home.spill.shelf.whole() == []


def test_a_smaller_budget_holds_at_once() -> None:
    home = Home("witness")
    for session in "abc":
        home.turn(session, more=5 * GRID)
    assert len(home.spill.shelf.whole()) == 2
    home.spill.configure(dataclasses.replace(home.spill.config, budget_bytes=room_for(1.5)))
    assert len(home.spill.shelf.whole()) == 1


def test_without_memory_for_all_copies_the_line_itself_comes() -> None:
    home = Home("witness")
    home.turn("a", more=8 * GRID)
    home.turn("b", more=5 * GRID)
    one = home.of.cost().anchor_bytes
    assert home.spill.buffers.ready()
    home.spill.buffers.grow = lambda name, nbytes: nbytes <= 2 * one
    row = home.sends(home.said["a"], session="a")
    assert (row.source, row.cached) == ("spill.grid", 8 * GRID) or row.source == "spill.end"


def test_a_drive_that_cannot_just_now_costs_no_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home("witness")
    home.turn("a", more=8 * GRID)
    home.turn("b", more=5 * GRID)

    def busy(name: str) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(home.files, "open", busy)
        assert home.sends(home.said["a"], session="a").source == "cold"
    assert home.of_kind("fail") and not home.of_kind("damage")
    assert "a" in {entry.session for entry in home.spill.shelf.whole()}


def test_what_would_not_go_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home("witness")
    home.turn("a", more=5 * GRID)
    assert saved_up_to(home, 99) == ""
    unlink = home.files.unlink

    def stuck(name: str) -> None:
        raise OSError(errno.EIO, "no")

    monkeypatch.setattr(home.files, "unlink", stuck)
    home.spill.clear()
    assert on_the_drive(home)
    monkeypatch.setattr(home.files, "unlink", unlink)
    home.spill.absorb()
    assert on_the_drive(home) == set()


# what a conversation that comes leaves of the one before, and of others


def test_no_anchor_of_the_rows_before_stays_above_what_both_have() -> None:
    home = Home("witness")
    home.turn("a", more=8 * GRID)
    before = home.state()
    home.turn("b", more=8 * GRID)
    home.sends(home.said["a"], session="a")
    assert home.on.stack.source == "spill."
    after = {name: at for name, at in home.state().items() if name.startswith("anchor")}
    assert after and all(at.equal(before[name]) for name, at in after.items() if name in before)


def test_rows_that_others_left_in_place_are_copied_before_a_longer_entry_comes() -> None:
    """A block of an entry may reach further than the prompt that wants it."""
    home = Home("witness", rooms={"park_rows": 3_000}, block_rows=8 * GRID, anchors_kept=9)
    home.turn("a", more=7 * GRID)
    assert saved_up_to(home, 99) == ""
    home.crashes()
    home.starts()
    park = home.on.stack.park
    park._config = dataclasses.replace(park._config, margin_rows=16)
    home.turn("long", more=20 * GRID)
    before = home.state()
    home.sends(tokens(20, 5), session="short")
    (entry,) = park.entries
    assert entry.high < 4 * GRID
    row = home.sends(home.said["a"][: 2 * GRID + 9], session="other")
    assert row.source == "spill.grid"
    assert home.turn("long").source == "park.end"
    after = home.state()
    rows = {n: t for n, t in before.items() if n.startswith("row.")}
    views = {f"row.{view.name}": view.axis for view in home.of.cache_state().views}
    assert all(after[n].narrow(views[n], 0, t.shape[views[n]]).equal(t) for n, t in rows.items())


@pytest.mark.parametrize("taint", [None, 3 * GRID + 5])
@pytest.mark.parametrize("here", [None, GRID + 5])
@pytest.mark.parametrize("line", [2 * GRID, 5 * GRID])
def test_an_entry_stands_on_no_rows_but_a_cold_prefills_up_to_its_line(
    taint: int | None, here: int | None, line: int
) -> None:
    home = Home("witness")
    home.turn("a", more=8 * GRID)
    assert saved_up_to(home, 99) == ""
    (entry,) = home.spill.shelf.whole()
    account = home.on.stack.resident.account
    assert entry.account is not None
    entry.account.taint, account.taint = taint, here
    found = home.spill._offers.beside(entry, account, line)
    least = min(line, *(row for row in (taint, here, line) if row is not None))
    assert found.base == least // GRID * GRID and found.shared == account.valid


def test_rows_of_the_same_tokens_and_other_bits_are_read() -> None:
    """What a verify block wrote comes back, though a prompt's rows of the same tokens lie there."""
    home = Home("witness")
    home.turn("a", more=GRID, answer=4 * GRID)
    home.turn("a", more=2 * GRID)
    before = home.state()
    home.turn("b", more=100)
    home.spill.writer.config = dataclasses.replace(home.spill.config, mode="off")
    home.sends(home.said["a"][: 4 * GRID], session="c")
    home.spill.writer.config = dataclasses.replace(home.spill.config, mode="on")
    changed = home.state()
    views = {f"row.{view.name}": view.axis for view in home.of.cache_state().views}
    some = [(n, before[n].narrow(axis, 0, 4 * GRID)) for n, axis in views.items()]
    assert not all(changed[n].narrow(views[n], 0, 4 * GRID).equal(rows) for n, rows in some)
    assert home.turn("a").source == "spill.end"
    after = home.state()
    assert all(after[n].narrow(views[n], 0, 4 * GRID).equal(rows) for n, rows in some)
