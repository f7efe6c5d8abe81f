"""The spill at its edges: where a bound is met exactly, and what a client that leaves, leaves.

Method: turns through the real engine and caches over files in memory, as in the bit gates, one edge
a test; each was seen red with the comparison beside it turned, or its line left out.
"""

from __future__ import annotations

import pytest
from homes import Home
from support import GRID, forced, joined, tokens

from cache.source import in_place
from cache.spill.entry import Entry
from cache.spill.manifest import read_manifest
from cache.spill.names import manifest_name
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
