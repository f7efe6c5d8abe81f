"""The account of a sequence's rows: lines, regions, and what a cut takes along.

Method: accounts made by hand; properties of cuts.
"""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cache.account import Account, Answer, End, Known
from cache.anchors import Anchor, AnchorConfig
from cache.types import Ask, Gate, Generation, Line, Region, Valued

COPY = (torch.zeros(1),)


def made() -> Account:
    """Tools to 20, system to 30, an answer [50, 80) with thinking to 60, another [100, 120)."""
    account = Account.empty(200, AnchorConfig())
    account.extend(np.arange(120, dtype=np.int32), 120)
    account.tools, account.system, account.prompt, account.taint = 20, 30, 100, 50
    account.generations = [
        Generation(50, 60, 80, ((55, 3), (70, 2))),
        Generation(100, 100, 120),
    ]
    for anchor in (Anchor(32, Gate.BITS, COPY), Anchor(64, Gate.GREEDY, COPY, "checkpoint")):
        account.anchors._insert(anchor)
    account.end = End(120, COPY)
    return account


@pytest.mark.parametrize(
    ("position", "region"),
    [
        (0, Region.TOOLS),
        (25, Region.SYSTEM),
        (40, Region.HISTORY),
        (50, Region.REASONING),
        (60, Region.ANSWER),
        (79, Region.ANSWER),
        (80, Region.HISTORY),
        (100, Region.ANSWER),
    ],
)
def test_regions_of_any_turn(position: int, region: Region) -> None:
    assert made().region(position) is region


@pytest.mark.parametrize(
    ("reach", "line"),
    [
        (31, None),
        (32, Line(32, "grid", Gate.BITS)),
        (119, Line(64, "checkpoint", Gate.GREEDY)),
        (120, Line(120, "end", Gate.GREEDY)),
        (999, Line(120, "end", Gate.GREEDY)),
    ],
)
def test_the_best_line_and_its_copies(reach: int, line: Line | None) -> None:
    account = made()
    assert account.best_line(reach) == line
    if line is not None:
        assert account.copies_at(line) is COPY


def test_at_equal_height_the_stricter_gate() -> None:
    account = made()
    account.end = End(32, COPY)
    assert account.best_line(40) == Line(32, "grid", Gate.BITS)
    account.end = End(64, COPY)
    assert account.best_line(70) == Line(64, "end", Gate.GREEDY)


@given(st.integers(0, 120))
def test_a_cut_takes_along_what_stood_on_the_rows(length: int) -> None:
    account = made()
    account.cut(length)
    account.check(grid=32)
    assert len(account.ids) == length
    assert account.taint == (50 if length > 50 else None)
    assert (account.end is not None) == (length == 120)
    assert account.anchors.lines == [line for line in (32, 64) if line <= length]
    assert all(generation.stop <= length for generation in account.generations)
    whole = made()
    for position in range(length):
        assert account.region(position) is whole.region(position)


def test_aside_is_another_account_over_the_same_copies() -> None:
    account = made()
    copied = account.aside(100, [64])
    assert copied.valid == 100 and copied.anchors.lines == [64] and copied.end is None
    assert copied.copies_at(Line(64, "checkpoint", Gate.GREEDY)) is COPY
    copied.buffer[:] = 7
    copied.cut(3)
    assert account.valid == 120 and account.ids[5] == 5 and len(account.generations) == 2


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        (130, Generation(100, 104, 130, ((101, 2), (120, 5)))),
        (122, Generation(100, 104, 122, ((101, 2), (120, 2)))),
        (102, Generation(100, 102, 102, ((101, 1),))),
        (101, Generation(100, 101, 101, ())),
    ],
)
def test_an_answer_over_the_rows_it_reached(stop: int, expected: Generation) -> None:
    assert Answer(thinking=4, hidden=((1, 2), (20, 5))).over(100, stop) == expected


def test_what_is_known_of_a_copy_goes_with_its_rows_and_its_next_token() -> None:
    copy = np.arange(20, dtype=np.int32)
    known = Known(copy, (), row=30, at=10)
    assert known.begins(Ask(copy)) and known.begins(Ask(copy[:11]))
    other = copy.copy()
    other[10] = 99
    assert not known.begins(Ask(other)), "whitespace before it may have been the answer's"
    assert not known.begins(Ask(copy[:10]))
    assert not known.begins(Ask(copy, valued=(Valued(2, 5, "x"),)))
    account = Account.empty(64, AnchorConfig())
    account.extend(np.arange(40, dtype=np.int32), 40)
    account.known = known
    account.cut(30)
    assert account.known is known
    account.cut(29)
    assert account.known is None
