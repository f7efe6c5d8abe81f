"""Prefix hashes of token ids: a 64-bit hash for every prefix, in one pass

Both families are polynomials modulo 2^64, h[i] = R * h[i-1] + m(i) with an odd R. Since R has an
inverse there, a whole stretch is one cumulative sum: h[i] = R^(i+1) * (h + sum m(j) * R^-(j+1)).
m is a bijection of the token, so two sequences that differ in one token always differ in their
hash. A hash is still a hint: a power-of-two modulus has known colliding pairs (Thue-Morse words of
2,048 symbols and more), so whoever serves by a hash compares the tokens.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from cache.types import Ids

Hashes = npt.NDArray[np.uint64]
"""One 64-bit hash a prefix."""

_MASK = (1 << 64) - 1
_R = 0xD6E8FEB86659FD93
_SEGMENT = 1 << 14
"""Values folded at once: the temporaries of a segment stay in the L2 cache."""
_FIRST, _SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)
_SHIFT, _SHIFT_AGAIN = np.uint64(32), np.uint64(29)


def _powers(base: int, count: int) -> Hashes:
    """base^1 .. base^count modulo 2^64."""
    powers = np.empty(count, dtype=np.uint64)
    power = 1
    for i in range(count):
        power = power * base & _MASK
        powers[i] = power
    return powers


_UP = _powers(_R, _SEGMENT)
_DOWN = _powers(pow(_R, -1, 1 << 64), _SEGMENT)


def mix(values: Hashes, scratch: Hashes) -> None:
    """Scramble 64-bit values in place, one to one (multiply and xor-shift, as splitmix64 does).

    `scratch` is overwritten; it has the shape of `values`.
    """
    np.multiply(values, _FIRST, out=values)
    np.right_shift(values, _SHIFT, out=scratch)
    np.bitwise_xor(values, scratch, out=values)
    np.multiply(values, _SECOND, out=values)
    np.right_shift(values, _SHIFT_AGAIN, out=scratch)
    np.bitwise_xor(values, scratch, out=values)


def _fold(mixed: Hashes, start: Hashes) -> None:
    """Turn at most _SEGMENT mixed values into prefix hashes in place; `start` has shape (1,)."""
    count = len(mixed)
    np.multiply(mixed, _DOWN[:count], out=mixed)
    np.add(mixed[:1], start, out=mixed[:1])
    np.cumsum(mixed, out=mixed)
    np.multiply(mixed, _UP[:count], out=mixed)


def _mix_and_fold(values: Hashes, start_hash: int) -> None:
    """Prefix hashes of raw values, in place."""
    scratch = np.empty(min(len(values), _SEGMENT), dtype=np.uint64)
    start = np.array([start_hash], dtype=np.uint64)
    for at in range(0, len(values), _SEGMENT):
        part = values[at : at + _SEGMENT]
        # Zero would stay zero under the multiplications; no sum of a token and one is zero.
        np.add(part, np.uint64(1), out=part)
        mix(part, scratch[: len(part)])
        _fold(part, start)
        start = part[-1:]


def prefix_hashes(ids: Ids, start_hash: int = 0) -> Hashes:
    """Hash of every prefix: result i covers ids[:i + 1]; shape (n,).

    Continuing from the hash of a prefix gives what hashing the whole would give: with
    h = prefix_hashes(ids), prefix_hashes(ids[k:], int(h[k - 1])) equals h[k:].
    """
    hashes = np.empty(len(ids), dtype=np.uint64)
    hashes[:] = ids
    _mix_and_fold(hashes, start_hash)
    return hashes


def next_hash(hash_before: int, token: int) -> int:
    """Hash of a prefix grown by one token: what `prefix_hashes` gives, without an array."""
    value = (token + 1) * 0x9E3779B97F4A7C15 & _MASK
    value = (value ^ (value >> 32)) * 0xBF58476D1CE4E5B9 & _MASK
    return (hash_before * _R + (value ^ (value >> 29))) & _MASK


@lru_cache(maxsize=64)
def _weights(count: int) -> Hashes:
    """`count` fixed odd multipliers."""
    weights = np.arange(1, count + 1, dtype=np.uint64)
    mix(weights, np.empty_like(weights))
    return weights | np.uint64(1)


def block_hashes(ids: Ids, block: int) -> Hashes:
    """Hash of every prefix of whole blocks: result k covers ids[:(k + 1) * block]; (n // block,).

    Another family than `prefix_hashes` (its values differ from those), and about thirty times as
    fast: a block is one weighted sum of its tokens, two of them in a word where the size is even.
    """
    count = len(ids) // block
    whole = np.ascontiguousarray(ids[: count * block], dtype=np.int32)
    if block % 2 == 0:
        words = whole.view(np.uint64).reshape(count, block // 2)
    else:
        words = whole.astype(np.uint64).reshape(count, block)
    sums: Hashes = np.einsum("ij,j->i", words, _weights(words.shape[1]))
    _mix_and_fold(sums, 0)
    return sums
