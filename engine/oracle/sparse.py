"""Sparse attention, one token: an indexer chooses blocks of rows, all heads attend over those

Source: docs/flash.md.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from engine.oracle.attention import Turn
from engine.oracle.formulas import attend, rms_norm, rotate, sigmoid
from engine.oracle.wide import Weights


class IndexedRows(NamedTuple):
    """A layer's rows, of which `filled` are there; the window is a whole number of blocks."""

    keys: jax.Array
    """[kv heads, window, head_dim], as are the values."""
    values: jax.Array
    index_keys: jax.Array
    """Index keys [window, index_dim]."""
    filled: jax.Array


def pooled(index: jax.Array, block_rows: int) -> jax.Array:
    """The mean of every block's index keys, [blocks, index_dim]; rows that are not there are 0."""
    return jnp.mean(index.reshape(-1, block_rows, index.shape[-1]), axis=1)


def chosen(scores: jax.Array, own: jax.Array, top: int) -> jax.Array:
    """Which blocks a query reads whose own block is number `own`; bool [blocks].

    Its own, the one before and the first; and of all between, the `top` of the highest scores, of
    equal ones the lower.
    """
    block = jnp.arange(len(scores))
    candidate = (block >= 1) & (block <= own - 2)
    higher = scores[None, :] > scores[:, None]
    earlier = (scores[None, :] == scores[:, None]) & (block[None, :] < block[:, None])
    before = jnp.sum(candidate[None, :] & (higher | earlier), axis=1)
    fixed = (block == own) | (block == own - 1) | (block == 0)
    return fixed | (candidate & (before < top))


def sparse_attention(
    w: Weights,
    x: jax.Array,
    rows: IndexedRows,
    *,
    turn: Turn,
    block_rows: int,
    top_blocks: int,
    eps: float,
) -> tuple[jax.Array, IndexedRows, jax.Array]:
    """One token x [hidden] as the next row; `w` by the names inside `self_attn.`.

    Also gives the blocks' scores [blocks], which mean something for candidates alone.
    """
    kv_heads, window, head = rows.keys.shape
    size, at = rows.index_keys.shape[-1], rows.filled
    position = jnp.full(3, at.astype(jnp.float64))
    both = (w["q_proj.weight"] @ x).reshape(-1, 2, head)
    q = rotate(rms_norm(both[:, 0], w["q_norm.weight"], eps), position, *turn)
    k = rms_norm((w["k_proj.weight"] @ x).reshape(kv_heads, head), w["k_norm.weight"], eps)
    index_q = (w["index_q_proj.weight"] @ x).reshape(-1, size)
    index_q = rms_norm(index_q, w["index_q_norm.weight"], eps)
    index_k = rms_norm(w["index_k_proj.weight"] @ x, w["index_k_norm.weight"], eps)
    rows = IndexedRows(
        rows.keys.at[:, at].set(rotate(k, position, *turn)),
        rows.values.at[:, at].set((w["v_proj.weight"] @ x).reshape(kv_heads, head)),
        rows.index_keys.at[at].set(index_k),
        at + 1,
    )
    alike = jnp.maximum(0, index_q @ pooled(rows.index_keys, block_rows).T)
    scores = (w["index_weights_proj.weight"] @ x) @ alike / size**0.5
    blocks = chosen(scores, at // block_rows, top_blocks)
    row = jnp.arange(window)
    seen = blocks[row // block_rows] & (row <= at)
    out = attend(q, rows.keys, rows.values, seen, head**-0.5) * sigmoid(both[:, 1])
    return w["o_proj.weight"] @ out.reshape(-1), rows, scores
