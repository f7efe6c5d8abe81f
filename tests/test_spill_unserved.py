"""Why no entry serves a prompt that shares a long part with one: each reason, and its one line.

Method: turns through the real caches on the witness; the reason is provoked, then read from the
journal and the counters. It covers cache.spill.unserved.
"""

from __future__ import annotations

import pytest
from homes import Home
from support import GRID, joined, tokens

from cache.spill.offers import CHUNKS_SHARED
from cache.types import Ask


def told(home: Home) -> list[dict[str, str]]:
    return [dict(part.split("=") for part in e.why.split()) for e in home.of_kind("refused")]


def evicted(**settings: object) -> Home:
    """A conversation of ten chunks on the drive, another one in place."""
    home = Home("witness", **settings)
    home.turn("a", more=10 * GRID + 9, answer=20)
    home.turn("b", more=100)
    return home


def test_an_end_that_is_not_reached() -> None:
    """The prompt parts from the entry before its lowest anchor, and nothing in place is as long."""
    home = evicted()
    row = home.sends(joined(home.said["a"][: 5 * GRID + 3], tokens(200, 5)), session="c")
    assert row.source == "cold"
    (line,) = told(home)
    assert line["why"] == "end_no_align"
    assert (line["shares"], line["ram"], line["offer"]) == (str(5 * GRID + 3), "0", "0")
    assert line["owner"] == "a" and line["tokens"] == str(5 * GRID + 203)
    assert home.spill.stats()[f"refused.{line['why']}"] == 1


def test_without_an_end_only_its_anchors_are_in_question() -> None:
    home = evicted()
    entry = next(e for e in home.spill.shelf.whole() if e.session == "a")
    assert entry.account is not None
    entry.account.end = None
    home.sends(joined(home.said["a"][: 5 * GRID + 3], tokens(200, 5)), session="c")
    assert told(home)[0]["why"] == "anchors_below"


def test_reading_that_costs_more_than_forwarding() -> None:
    home = evicted(read_bytes_s=1.0)
    row = home.turn("a")
    assert row.source == "cold" and row.why == "slow"
    (line,) = told(home)
    assert line["why"] == "slow" and int(line["offer"]) > 10 * GRID


def test_what_it_would_save_is_too_short() -> None:
    home = Home("witness")
    home.turn("a", more=6 * GRID + 1)
    home.said["b"] = joined(home.said["a"][: 5 * GRID], tokens(200, 3))
    home.turn("b", more=10)
    row = home.sends(joined(home.said["a"][: 6 * GRID + 2], tokens(60, 9)), session="c")
    assert row.cached == 5 * GRID
    assert [line["why"] for line in told(home)] == ["short"]


@pytest.mark.parametrize("chunks", [CHUNKS_SHARED - 1, CHUNKS_SHARED])
def test_four_chunks_in_common_are_worth_a_line(chunks: int) -> None:
    home = evicted(tokens_min=3 * GRID)
    home.sends(joined(home.said["a"][: chunks * GRID], tokens(200, 5)), session="c")
    assert len(told(home)) == (chunks >= CHUNKS_SHARED)


def test_short_prompts_and_those_that_memory_serves_as_far_say_nothing() -> None:
    home = evicted(tokens_min=9 * GRID)
    home.sends(joined(home.said["a"][: 5 * GRID], tokens(20, 5)), session="c")
    home.turn("a")
    home.turn("a")
    assert told(home) == []


def test_a_peek_says_nothing_and_counts_nothing() -> None:
    home = evicted()
    home.on.stack.plan(Ask(joined(home.said["a"][: 5 * GRID + 3], tokens(200, 5)), "c"))
    home.looks()
    assert told(home) == []
