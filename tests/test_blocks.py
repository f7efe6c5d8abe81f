"""Block ids become runs that say which tokens are equal, and tokens become block ids again.

Method: the naive twin gives every block's tokens a name straight from the ids (a prefix id names
its prefix, a content id its block) and walks the runs; sharing must agree at every block. Then the
way back: prompts numbered in blocks by the writers' side against tuples of their tokens.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from traces import naive_sequences, small, traces

from replay.open import Malformed
from replay.readers.blocks import (
    Blocks,
    block_ids,
    joined,
    left_numbers,
    small_ids,
)
from replay.tokens import Tokens
from replay.trace import FRESH, TEXT, Header, Request, Run, Trace
from replay.writers.blocks import BlockNumbers, prompts_in_blocks


def ids_of(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def as_trace(rows: list[tuple[list[int], int]], block: int) -> Trace:
    """Rows of (ids, tokens) read as prompts with no answers."""
    blocks = Blocks(block, 1 + max((max(ids, default=0) for ids, _ in rows), default=0))
    requests: list[Request] = []
    for number, (ids, tokens) in enumerate(rows):
        runs = blocks.runs(ids_of(*ids), tokens)
        assert sum(run.length for run in runs) == tokens
        requests.append(small(number, list(runs), []))
        blocks.add(number, ids_of(*ids), tokens)
    return Trace("t", Header(), tuple(requests))


@st.composite
def prefix_rows(draw: st.DrawFn) -> tuple[list[tuple[list[int], int]], int]:
    """Prompts as ids that stand for whole prefixes, a partial last block having its own."""
    block = draw(st.integers(1, 4))
    known: dict[tuple[int, ...], int] = {}
    rows: list[tuple[list[int], int]] = []
    for _ in range(draw(st.integers(1, 10))):
        words = tuple(draw(st.lists(st.integers(0, 1), max_size=5)))
        rest = draw(st.integers(0 if words else 1, block - 1)) if block > 1 else 0
        if not words and not rest:
            continue
        prefixes = [words[: i + 1] for i in range(len(words))]
        if rest:
            prefixes.append((*words, 100 + rest))
        ids = [known.setdefault(prefix, len(known)) for prefix in prefixes]
        rows.append((ids, len(words) * block + rest))
    return rows, block


@given(prefix_rows())
@settings(deadline=None, max_examples=150)
def test_equal_ids_are_equal_tokens_and_others_are_not(
    made: tuple[list[tuple[list[int], int]], int],
) -> None:
    rows, block = made
    trace = as_trace(rows, block)
    named: dict[int, list[tuple[int, int, int]]] = {}
    for request, (ids, _) in zip(trace.requests, rows, strict=True):
        tokens = naive_sequences(trace)[request.number]
        for i, one in enumerate(ids):
            assert named.setdefault(one, tokens[: (i + 1) * block]) == tokens[: (i + 1) * block]
    assert len({tuple(tokens) for tokens in named.values()}) == len(named)
    # A prefix that one request held is one run of it.
    assert all(len(request.prompt) <= 2 for request in trace.requests)
    # And the way back gives the same ids, up to their names.
    again = [ids for _, ids in prompts_in_blocks(trace, block)]
    first_seen: dict[int, int] = {}
    for ids, _ in rows:
        for one in ids:
            first_seen.setdefault(one, len(first_seen))
    assert again == [[first_seen[one] for one in ids] for ids, _ in rows]


def test_ids_that_name_a_block_alone_are_copied_from_wherever_it_stood() -> None:
    trace = as_trace([([5, 6, 7], 12), ([6, 9, 5, 6], 15), ([9, 6], 8)], 4)
    assert trace.requests[1].prompt == (
        Run(0, 4, 4),
        Run(FRESH, TEXT, 4),
        Run(0, 0, 7),
    )
    # Block 6 stood in request 1 twice; where it was full is where it is copied from.
    assert trace.requests[2].prompt == (Run(1, 4, 4), Run(1, 0, 4))


def test_a_block_seen_fuller_is_copied_as_far_as_both_go() -> None:
    # 7 is first a partial block of 2, then a full one of 4, then partial again, then full.
    trace = as_trace([([1, 7], 6), ([1, 7], 8), ([1, 7], 5), ([1, 7], 8), ([1, 7, 8], 9)], 4)
    assert [request.prompt for request in trace.requests[1:]] == [
        (Run(0, 0, 6), Run(FRESH, TEXT, 2)),
        (Run(1, 0, 5),),
        (Run(1, 0, 8),),
        (Run(3, 0, 8), Run(FRESH, TEXT, 1)),
    ]


def test_tokens_past_the_ids_are_fresh() -> None:
    trace = as_trace([([1], 6), ([1], 6), ([], 3)], 4)
    assert [request.prompt for request in trace.requests] == [
        (Run(FRESH, TEXT, 6),),
        (Run(0, 0, 4), Run(FRESH, TEXT, 2)),
        (Run(FRESH, TEXT, 3),),
    ]


def test_ids_of_any_size_become_small_ones() -> None:
    rows = [ids_of(2**62, -5, 2**62), ids_of(), ids_of(-5, 7)]
    made, count = small_ids(rows)
    assert count == 3 and [row.tolist() for row in made] == [[2, 0, 2], [], [0, 1]]
    made, count = small_ids([ids_of(3, 1), ids_of(0)])
    assert count == 4 and [row.tolist() for row in made] == [[3, 1], [0]]
    assert small_ids([])[1] == 0 and small_ids([ids_of()])[1] == 0


def test_ids_must_be_whole_numbers_of_64_bits() -> None:
    assert block_ids([1, 2**62]).tolist() == [1, 2**62]
    assert block_ids([]).dtype == np.int64
    for wrong in (["1"], [True], [1.0], [None], [[1]]):
        with pytest.raises(Malformed, match="a block id is not a whole number"):
            block_ids([1, *wrong])
    with pytest.raises(Malformed, match="does not fit"):
        block_ids([2**63])


def test_joined_runs_and_left_numbers() -> None:
    runs = [Run(0, 0, 4), Run(0, 4, 0), Run(0, 4, 2), Run(1, 6, 1), Run(-1, 0, 2), Run(-1, 0, 3)]
    assert joined([*runs, Run(-1, 1, 1)]) == (
        Run(0, 0, 6),
        Run(1, 6, 1),
        Run(-1, 0, 5),
        Run(-1, 1, 1),
    )
    assert left_numbers([1, 3], 5) == [0, 2, 4]


@given(traces(most=8), st.integers(1, 40))
@settings(deadline=None, max_examples=60)
def test_numbers_are_equal_exactly_where_the_prefixes_are(trace: Trace, block: int) -> None:
    tokens, numbers = Tokens(trace), BlockNumbers(block)
    known: dict[tuple[int, ...], int] = {}
    for request in trace.requests:
        ids = tokens.prompt(request.number)
        ends = [*range(block, len(ids), block), len(ids)]
        expected = [known.setdefault(tuple(ids[:end].tolist()), len(known)) for end in ends]
        assert numbers.of(ids) == expected


def test_a_zero_token_is_no_block_of_zeros() -> None:
    # The two hash families of the writers meet at all-zero blocks; only the length differs.
    numbers = BlockNumbers(2)
    assert numbers.of(np.array([0], dtype=np.int32)) == [0]
    assert numbers.of(np.array([0, 0, 0], dtype=np.int32)) == [1, 2]
