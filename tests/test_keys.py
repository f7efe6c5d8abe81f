"""Key ids, and the prefix that two sequences with pictures have in common.

Goal: rows named by a digest are negative, hold the whole digest in the first KEY_ROWS of them, and
sequences share a picture from that many rows on or not at all. Method: hypothesis against a loop
over bits and a loop over rows; and by hand, partings at every row.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.hashing import next_hash, prefix_hashes
from cache.keys import KEY_ROWS, key_ids
from cache.types import Ids, common_prefix, equal_ids

DIGESTS = st.binary(min_size=32, max_size=32)


def naive_ids(digest: bytes, rows: int) -> list[int]:
    """The stream as one large number, 31 bits taken from its top for each row."""
    size = rows * 31 // 8 + 1
    stream = (digest + hashlib.shake_256(digest).digest(size))[:size]
    bits = "".join(f"{byte:08b}" for byte in stream)
    return [-1 - int(bits[31 * row : 31 * row + 31], 2) for row in range(rows)]


@given(DIGESTS, st.integers(KEY_ROWS, 300))
def test_the_rows_are_the_stream_and_negative(digest: bytes, rows: int) -> None:
    ids = key_ids(digest, rows)
    assert ids.dtype == np.int32 and ids.tolist() == naive_ids(digest, rows)
    assert (ids < 0).all()
    assert key_ids(digest, KEY_ROWS).tolist() == ids[:KEY_ROWS].tolist()


@given(DIGESTS, st.integers(0, 255))
def test_the_first_rows_hold_every_bit_of_the_digest(digest: bytes, bit: int) -> None:
    number = int.from_bytes(digest) ^ (1 << bit)
    other = key_ids(number.to_bytes(32), KEY_ROWS)
    assert equal_ids(key_ids(digest, KEY_ROWS), other) == (255 - bit) // 31


def text(*ids: int) -> Ids:
    return np.array(ids, np.int32)


def naive_common(a: Ids, b: Ids) -> int:
    """Row by row; a run of negative ids counts when KEY_ROWS of it are equal."""
    at = run = 0
    while at < min(len(a), len(b)) and a[at] == b[at]:
        run = run + 1 if a[at] < 0 else 0
        at += 1
    return at - run if run < KEY_ROWS else at


# Runs short enough to part, end and begin anywhere, and equal often.
PART = st.one_of(st.integers(0, 1).map(lambda i: [i]), st.integers(1, 12).map(lambda n: [-7] * n))
SEQUENCE = st.lists(PART, max_size=6).map(lambda parts: text(*[i for part in parts for i in part]))


@given(SEQUENCE, SEQUENCE)
def test_common_prefix_is_the_naive_one(a: Ids, b: Ids) -> None:
    assert common_prefix(a, b) == common_prefix(b, a) == naive_common(a, b)
    assert equal_ids(a, b) >= common_prefix(a, b)


@pytest.mark.parametrize("agree", range(20))
def test_a_parting_inside_the_first_rows_goes_back_to_the_pictures_start(agree: int) -> None:
    one, other = key_ids(b"a" * 32, 20), key_ids(b"b" * 32, 20)
    other[:agree] = one[:agree]
    a = np.concatenate([text(5, 6), one, text(7)])
    b = np.concatenate([text(5, 6), other, text(7)])
    assert equal_ids(a, b) == 2 + agree
    assert common_prefix(a, b) == (2 if agree < KEY_ROWS else 2 + agree)
    # A sequence that ends there holds no more of the picture than one that parts there.
    assert common_prefix(a, a[: 2 + agree]) == (2 if agree < KEY_ROWS else 2 + agree)
    assert common_prefix(a, a) == len(a)


@given(SEQUENCE)
def test_hashes_take_negative_ids(ids: Ids) -> None:
    running, hashes = 0, prefix_hashes(ids)
    for token, wanted in zip(ids.tolist(), hashes.tolist(), strict=True):
        running = next_hash(running, token)
        assert running == wanted
