"""The spill at its edges: where a bound is met exactly, and what a client that leaves, leaves.

Method: turns through the real engine and caches over files in memory, as in the bit gates, one edge
a test; each was seen red with the comparison beside it turned, or its line left out.
"""

from __future__ import annotations

import pytest
from homes import Home
from support import GRID, forced, joined, tokens

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
