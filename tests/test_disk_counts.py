"""Counts of cold reads: capped by forgetting what was read longest ago, kept as text.

Method: random reads against a list that remembers every one of them; the record through real JSON.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.disk.counts import Counts

LINES = st.integers(0, 12).map(lambda n: (n * 0x9E37_79B9_7F4A_7C15) % (1 << 64))


def naive(reads: list[int], lines_max: int) -> dict[int, int]:
    """Replay: after each read the least recently read goes while there are too many."""
    kept: list[tuple[int, int]] = []
    for line in reads:
        before = next((count for name, count in kept if name == line), 0)
        kept = [(name, count) for name, count in kept if name != line]
        kept.append((line, before + 1))
        kept = kept[-lines_max:]
    return dict(kept)


@given(st.lists(LINES, max_size=40), st.integers(1, 8))
def test_the_cap_forgets_what_was_read_longest_ago(reads: list[int], lines_max: int) -> None:
    counts = Counts(lines_max)
    for line in reads:
        more = counts.with_one_more([line])
        counts.add(line)
        assert more == [counts[line]]
        assert len(counts) <= lines_max
    expected = naive(reads, lines_max)
    assert {line: counts[line] for line in set(reads) if counts[line]} == expected
    again = Counts(lines_max)
    again.take(json.loads(json.dumps(counts.plain())))
    assert again.plain() == counts.plain()
    assert list(again.plain()) == [f"{line:016x}" for line in expected], "recency is kept too"
    again.add(77), counts.add(77)
    assert again.plain() == counts.plain()


def test_looking_changes_nothing() -> None:
    counts = Counts(2)
    counts.add(1), counts.add(2)
    before = counts.plain()
    assert counts.with_one_more([3, 1, 1]) == [1, 2, 2] and counts[3] == 0
    assert counts.plain() == before and list(before) == [f"{1:016x}", f"{2:016x}"]


def test_a_smaller_cap_holds_at_once() -> None:
    counts = Counts(10)
    for line in range(10):
        counts.add(line)
    counts.lines_max = 3
    assert len(counts) == 3
    assert list(counts.plain()) == [f"{line:016x}" for line in (7, 8, 9)]
    small = Counts(2)
    small.take({f"{line:016x}": 1 for line in range(5)})
    assert list(small.plain()) == [f"{line:016x}" for line in (3, 4)]


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("x", 1),
        ("", 1),
        ("-1", 1),
        (f"{1 << 64:x}", 1),
        ("1", "2"),
        ("1", 0),
        ("1", -3),
        ("1", 1.5),
        ("1", None),
        ("1", [2]),
        ("1", True),
    ],
)
def test_what_makes_no_sense_is_passed_over(name: str, count: object) -> None:
    counts = Counts(5)
    counts.take({name: count, f"{9:016x}": 4})
    assert counts.plain() == {f"{9:016x}": 4}


def test_only_a_wish_clears_them() -> None:
    counts = Counts(5)
    counts.add(1)
    counts.take({})
    assert len(counts) == 1
    counts.clear()
    assert len(counts) == 0 and counts.plain() == {}
