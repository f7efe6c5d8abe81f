"""Prefix hashes against the definition, in Python integers.

Method: the vectorised forms are compared with a loop over plain ints on arbitrary sequences, at
every start and cut, across segment borders; then what callers rely on is checked: equal exactly
when the prefixes are equal, on sequences that differ in one token, in order, or in length.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache import hashing
from cache.hashing import block_hashes, next_hash, prefix_hashes

MASK = (1 << 64) - 1


def naive_mix(value: int) -> int:
    value = value * 0x9E3779B97F4A7C15 & MASK
    value ^= value >> 32
    value = value * 0xBF58476D1CE4E5B9 & MASK
    return value ^ value >> 29


def naive_prefix_hashes(ids: list[int], start_hash: int) -> list[int]:
    hashes, last = [], start_hash
    for token in ids:
        last = (last + naive_mix(token + 1) * pow(hashing._R, -1, 1 << 64)) * hashing._R & MASK
        hashes.append(last)
    return hashes


def naive_block_hashes(ids: list[int], block: int) -> list[int]:
    sums = []
    for at in range(0, len(ids) - block + 1, block):
        tokens = ids[at : at + block]
        if block % 2 == 0:
            tokens = [tokens[i] + (tokens[i + 1] << 32) for i in range(0, block, 2)]
        sums.append(sum(t * (naive_mix(j + 1) | 1) for j, t in enumerate(tokens)) & MASK)
    return naive_prefix_hashes(sums, 0)


def ids_of(values: list[int]) -> np.ndarray:
    return np.array(values, dtype=np.int32)


tokens = st.lists(st.integers(0, 2**31 - 1), max_size=60)


@given(tokens, st.integers(0, MASK), st.integers(1, 9))
@settings(deadline=None)
def test_equal_to_the_definition(values: list[int], start: int, segment: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hashing, "_SEGMENT", segment)
        got = prefix_hashes(ids_of(values), start)
    assert got.dtype == np.uint64
    assert got.tolist() == naive_prefix_hashes(values, start)
    last = start
    for value, expected in zip(values, got.tolist(), strict=True):
        last = next_hash(last, value)
        assert last == expected


@given(tokens, st.integers(1, 9))
@settings(deadline=None)
def test_blocks_equal_to_the_definition(values: list[int], block: int) -> None:
    assert block_hashes(ids_of(values), block).tolist() == naive_block_hashes(values, block)


def test_continuing_at_any_cut_gives_the_same_values() -> None:
    ids = np.random.default_rng(0).integers(0, 248_320, 40_000, dtype=np.int32)
    whole = prefix_hashes(ids)
    for cut in (1, 2, 8_191, 16_383, 16_384, 16_385, 39_999):
        assert np.array_equal(prefix_hashes(ids[cut:], int(whole[cut - 1])), whole[cut:])
        assert np.array_equal(prefix_hashes(ids[:cut]), whole[:cut])


def test_one_changed_token_changes_every_later_hash_and_no_earlier_one() -> None:
    rng = np.random.default_rng(1)
    ids = rng.integers(0, 248_320, 20_000, dtype=np.int32)
    for at in (0, 1, 9_999, 16_384, 19_999):
        other = ids.copy()
        other[at] ^= 1
        same = prefix_hashes(ids) == prefix_hashes(other)
        assert same[:at].all() and not same[at:].any()
        blocks = block_hashes(ids, 16) == block_hashes(other, 16)
        assert blocks[: at // 16].all() and not blocks[at // 16 :].any()


def test_every_prefix_of_simple_sequences_has_its_own_hash() -> None:
    # Zeros, ones and counting are where a weak mix shows: equal sums, shifted sums, no length.
    up = np.arange(2, 3_002)
    rows = [np.zeros(3_000), np.ones(3_000), up, up[::-1]]
    for hashes in (prefix_hashes, lambda ids: block_hashes(ids, 4)):
        every = np.concatenate([hashes(row.astype(np.int32)) for row in rows])
        assert len(np.unique(every)) == len(every)


def test_a_slice_at_an_odd_place_hashes_like_its_copy() -> None:
    ids = np.arange(1_000, dtype=np.int32)
    assert np.array_equal(block_hashes(ids[3:], 8), block_hashes(ids[3:].copy(), 8))
    assert np.array_equal(prefix_hashes(ids[::2]), prefix_hashes(ids[::2].copy()))


def test_empty_and_shorter_than_a_block() -> None:
    assert prefix_hashes(ids_of([])).shape == (0,)
    assert block_hashes(ids_of([]), 16).shape == (0,)
    assert block_hashes(ids_of([1, 2, 3]), 4).shape == (0,)
