"""Why a turn started where it did: codes, positions and the tokens each cause cost.

Method: the pure function on the cases a night has; ghosts against a plain list of everything.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.account import Account
from cache.anchors import AnchorConfig
from cache.types import COLD, Gate, Generation, Line, Met, Region, common_prefix
from cache.why import Ghosts, Reason, Why, explain


def account(rows: int) -> Account:
    """Tools to 200, system to 300, a prompt of 1,000 with a thinking answer after it."""
    made = Account.empty(20_000, AnchorConfig())
    made.extend(np.zeros(rows, np.int32), rows)
    made.tools, made.system, made.prompt = 200, 300, 1_000
    made.generations.append(Generation(1_000, 1_100, rows))
    return made


def grid(tokens: int) -> Line:
    return Line(tokens, "grid", Gate.BITS)


def why(
    line: Line,
    shared: int,
    *,
    ghost: int = 0,
    rows: int = 1_200,
    anchored: int = -1,
    slow: int = 0,
) -> Reason:
    top = line.tokens if anchored < 0 else anchored
    met = Met(shared, shared, np.zeros(10_001, np.int32))
    return explain(line, met, ghost, account(rows), 64, top, slow)


def test_a_follow_up_at_the_end_lost_nothing() -> None:
    reason = why(Line(1_200, "end", Gate.GREEDY), 1_200)
    assert (reason.code, reason.region, reason.lost) == (Why.END, None, {})


def test_without_an_end_anchor_the_answer_is_read_again() -> None:
    reason = why(grid(960), 1_200)
    assert reason.code is Why.UNANCHORED
    assert reason.lost == {Why.UNANCHORED: 240}


@pytest.mark.parametrize(
    ("shared", "line", "region"),
    [
        (100, 64, Region.TOOLS),
        (250, 192, Region.SYSTEM),
        (900, 896, Region.HISTORY),
        (1_010, 960, Region.REASONING),
    ],
)
def test_a_parting_says_where(shared: int, line: int, region: Region) -> None:
    reason = why(grid(line), shared)
    assert (reason.code, reason.region, reason.shared) == (Why.PARTED, region, shared)
    assert reason.lost == {Why.GRID: shared - line}


def test_an_evicted_anchor_is_told_from_the_grid() -> None:
    reason = why(grid(256), 900, anchored=896)
    assert reason.code is Why.EVICTED
    assert reason.lost == {Why.EVICTED: 640, Why.GRID: 4}


def test_a_replaced_conversation() -> None:
    reason = why(grid(256), 300, ghost=5_000)
    assert reason.code is Why.REPLACED
    assert reason.held == 5_000
    assert reason.lost == {Why.GRID: 44, Why.REPLACED: 4_700}


def test_a_line_on_a_drive_that_is_too_slow() -> None:
    reason = why(grid(256), 300, ghost=5_000, slow=4_096)
    assert reason.code is Why.SLOW
    assert reason.lost == {Why.GRID: 44, Why.REPLACED: 904, Why.SLOW: 3_796}
    assert Why.SLOW not in why(grid(256), 300, slow=256).lost


def test_something_new() -> None:
    reason = why(COLD, 3, anchored=0)
    assert reason.code is Why.NEW
    assert reason.lost == {Why.GRID: 3}


def test_a_prompt_sent_again_counts_to_the_highest_line_it_could_use() -> None:
    met = Met(1_000, 1_000, np.zeros(1_000, np.int32))
    reason = explain(grid(960), met, 0, account(1_200), 64, 960)
    assert reason.lost == {Why.GRID: 39}


sequences = st.lists(
    st.lists(st.integers(0, 2), min_size=1, max_size=12).map(lambda x: np.array(x, np.int32)),
    max_size=8,
)


@given(sequences, st.lists(st.integers(0, 2), max_size=12))
def test_ghosts_know_the_longest_match(added: list[np.ndarray], asked: list[int]) -> None:
    ghosts, ids = Ghosts(), np.array(asked, np.int32)
    for sequence in added:
        ghosts.add(sequence)
    assert ghosts.shared(ids) == max((common_prefix(s, ids) for s in added), default=0)


def test_ghosts_forget_the_oldest_and_never_hold_more_than_they_may() -> None:
    ghosts = Ghosts(tokens_max=10)
    a, b, c = (np.full(6, n, np.int32) for n in (1, 2, 3))
    for sequence in (a, b):
        ghosts.add(sequence)
    assert (ghosts.shared(a), ghosts.shared(b)) == (0, 6)
    ghosts.add(np.full(11, 4, np.int32))
    assert ghosts.shared(b) == 6
    ghosts.add(c)
    assert (ghosts.shared(b), ghosts.shared(c)) == (0, 6)


def test_a_ghost_is_a_copy() -> None:
    ghosts, ids = Ghosts(), np.ones(4, np.int32)
    ghosts.add(ids)
    ids[:] = 2
    assert ghosts.shared(np.ones(4, np.int32)) == 4
