"""The ideal against the longest common prefix with everything before, token by token.

Method: the naive twin keeps every sequence and compares each. Sequences are random ones over few
tokens and cuts of earlier ones, lengths around block borders; the clever one must agree on every
question, also under hashes that collide. The block form is compared with sets of tuples, and
Mooncake's way of counting with a file's own ids.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from traces import small, traces

from cache.hashing import Hashes, block_hashes
from cache.types import Ids
from replay import ideal as ideal_module
from replay.ideal import BlockIdeal, Ideal, ideal_by_blocks
from replay.tokens import Tokens
from replay.trace import Header, Trace


class NaiveIdeal:
    def __init__(self) -> None:
        self.sequences: list[list[int]] = []

    def reusable(self, ids: Ids) -> int:
        return max((_common(held, ids.tolist()) for held in self.sequences), default=0)

    def add(self, ids: Ids) -> None:
        self.sequences.append(ids.tolist())


def _common(a: list[int], b: list[int]) -> int:
    pairs = zip(a, b, strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))


def no_hash(ids: Ids, block: int) -> Hashes:
    """The worst: one value for every prefix."""
    return np.full(len(ids) // block, 7, dtype=np.uint64)


def few_values(ids: Ids, block: int) -> Hashes:
    """A hash of four values."""
    return block_hashes(ids, block) % np.uint64(4) + np.uint64(1)


@st.composite
def sequences(draw: st.DrawFn) -> list[Ids]:
    """Sequences that share prefixes and part at all kinds of places."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    alphabet = draw(st.sampled_from([2, 300]))
    made: list[Ids] = []
    for _ in range(draw(st.integers(1, 14))):
        head = np.empty(0, dtype=np.int32)
        if made and draw(st.booleans()):
            source = made[draw(st.integers(0, len(made) - 1))]
            cut = draw(st.sampled_from([len(source), 64, 128, 63, 65, 1, 130, 200]))
            head = source[:cut]
        tail = rng.integers(0, alphabet, draw(st.sampled_from([0, 1, 5, 63, 64, 65, 150])))
        made.append(np.concatenate([head, tail]).astype(np.int32))
    return made


@pytest.mark.parametrize("hashes", [block_hashes, few_values, no_hash])
@given(rows=sequences(), slab=st.sampled_from([50, 64, 1 << 22]))
@settings(deadline=None, max_examples=60)
def test_agrees_with_the_naive_twin(
    rows: list[Ids], slab: int, hashes: Callable[[Ids, int], Hashes]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ideal_module, "_SLAB", slab)
        clever, naive = Ideal(hashes), NaiveIdeal()
        new = 0
        for ids in rows:
            for question in (ids, ids[:-1], ids[: len(ids) // 2], ids[1:]):
                assert clever.reusable(question) == naive.reusable(question)
            new += len(ids) - naive.reusable(ids)
            clever.add(ids)
            naive.add(ids)
            assert clever.reusable(ids) == len(ids)
        assert clever.stored_tokens == new


def test_a_wrong_hash_would_be_seen_without_the_comparison(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The canary of the test above: an ideal that trusts its hash fails it.
    monkeypatch.setattr(Ideal, "_common", lambda self, number, ids: len(ids))
    rows = [np.arange(200, dtype=np.int32), np.arange(1, 201, dtype=np.int32)]
    clever = Ideal(no_hash)
    clever.add(rows[0])
    assert clever.reusable(rows[1]) != 0


def test_a_conversation_lies_in_one_piece() -> None:
    rng = np.random.default_rng(0)
    ideal, ids = Ideal(), np.empty(0, dtype=np.int32)
    for _ in range(50):
        ids = np.concatenate([ids, rng.integers(0, 9_999, 700)]).astype(np.int32)
        ideal.add(ids)
    assert len(ideal._paths[-1].starts) == 1
    assert ideal.stored_tokens == len(ids)


def test_many_answers_to_one_prompt_are_each_found() -> None:
    rng = np.random.default_rng(1)
    head = rng.integers(0, 999, 128).astype(np.int32)
    rows = [np.concatenate([head, rng.integers(0, 3, 90)]).astype(np.int32) for _ in range(500)]
    clever, naive = Ideal(), NaiveIdeal()
    for ids in rows:
        assert clever.reusable(ids) == naive.reusable(ids)
        clever.add(ids)
        naive.add(ids)


def naive_by_blocks(prompts: list[Ids], block: int) -> int:
    """Whole and partial blocks as tuples of all tokens up to their end."""
    known: set[tuple[int, ...]] = set()
    reusable = 0
    for ids in prompts:
        ends = [*range(block, len(ids), block), len(ids)]
        blocks = [tuple(ids[:end].tolist()) for end in ends]
        for end, tokens in zip(ends, blocks, strict=True):
            if tokens not in known:
                break
            reusable += end - (end - 1) // block * block
        known.update(blocks)
    return reusable


@given(rows=sequences(), block=st.sampled_from([1, 2, 3, 16, 64]))
@settings(deadline=None, max_examples=80)
def test_blocks_agree_with_their_naive_twin(rows: list[Ids], block: int) -> None:
    rows = [ids for ids in rows if len(ids)]
    ideal = BlockIdeal(block)
    for ids in rows:
        ideal.add(ids)
    assert ideal.reusable == naive_by_blocks(rows, block)
    assert ideal.total == sum(map(len, rows))


def test_a_partial_block_counts_for_the_same_end_only() -> None:
    prompt, longer = [(-1, 0, 40)], [(0, 0, 40), (-1, 0, 30)]
    requests = [small(0, prompt, []), small(1, [(0, 0, 40)], []), small(2, longer, [])]
    assert ideal_by_blocks(Trace("t", Header(), tuple(requests)), 16) == (40 + 32, 150)


@given(traces(most=8))
@settings(deadline=None, max_examples=40)
def test_one_token_blocks_of_prompts_are_the_ideal_without_answers(trace: Trace) -> None:
    tokens, exact, cached = Tokens(trace), Ideal(), 0
    for request in trace.requests:
        cached += exact.reusable(tokens.prompt(request.number))
        exact.add(tokens.prompt(request.number))
    assert ideal_by_blocks(trace, 1) == (cached, sum(r.prompt_tokens for r in trace.requests))
