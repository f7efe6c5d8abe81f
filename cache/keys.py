"""Key ids: the rows of content that has no tokens, named by its digest in place of ids

Such content (an image) takes rows whose token is one and the same placeholder, so that a cache
keyed on tokens would answer with another content's state. Everywhere in the caches those rows hold
negative ids drawn from the content's digest; ids of tokens are never negative. They are ids like
any others: compared, hashed, and equal for equal content under any name.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

_BITS = 31
"""Bits of a negative int32."""

KEY_ROWS = 9
"""Rows whose key ids hold the whole digest, 256 bits in 9 x 31. Content has at least as many."""


def key_ids(digest: bytes, rows: int) -> npt.NDArray[np.int32]:
    """Ids of `rows` rows of the content with this SHA-256 digest: negative, shape (rows,).

    Row i holds bits [31 i, 31 i + 31) of the digest followed by SHAKE-256 of it. So the first
    KEY_ROWS rows are equal if and only if the digests are, and no row repeats another's on purpose.
    """
    assert len(digest) == 32 and rows >= KEY_ROWS, (len(digest), rows)
    more = hashlib.shake_256(digest).digest(rows * _BITS // 8 - len(digest) + 1)
    stream = np.unpackbits(np.frombuffer(digest + more, np.uint8))[: rows * _BITS]
    weights = 1 << np.arange(_BITS - 1, -1, -1, dtype=np.int64)
    return (-1 - stream.reshape(rows, _BITS) @ weights).astype(np.int32)


def digest_of(ids: npt.NDArray[np.int32]) -> bytes:
    """The SHA-256 digest of the content whose rows begin with these ids."""
    assert len(ids) >= KEY_ROWS and (ids[:KEY_ROWS] < 0).all()
    values = -1 - ids[:KEY_ROWS].astype(np.int64)
    bits = (values[:, None] >> np.arange(_BITS - 1, -1, -1)) & 1
    return np.packbits(bits.reshape(-1)[:256].astype(np.uint8)).tobytes()


def whole_keys(ids: npt.NDArray[np.int32], at: int) -> int:
    """`at`, or where its content begins when sequences that part at `at` share too few rows of it.

    Below KEY_ROWS rows two different digests may agree, and the rows would be taken for the other
    content's on the word of fewer bits than the digest has.
    """
    if at == 0 or ids[at - 1] >= 0:
        return at
    tail = ids[max(0, at - KEY_ROWS) : at]
    rows = int(np.argmax(tail[::-1] >= 0)) if (tail >= 0).any() else len(tail)
    return at if rows == KEY_ROWS else at - rows
