"""Full attention, one token: q and k norms, partial rotary positions, output gate

Source: Qwen3.5 and Qwen3-Next as published.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from engine.oracle.formulas import attend, e4m3, rms_norm, rotate, sigmoid
from engine.oracle.wide import Weights


class Rows(NamedTuple):
    """A layer's rows: keys and values [kv heads, window, head_dim], of which `filled` are there."""

    keys: jax.Array
    values: jax.Array
    filled: jax.Array


class Turn(NamedTuple):
    """How heads carry their position: see formulas.rotate."""

    rotary: int
    theta: float
    section: tuple[int, int, int]


def attention(
    w: Weights,
    x: jax.Array,
    rows: Rows,
    position: jax.Array,
    *,
    turn: Turn,
    eps: float,
    rounded: bool = False,
) -> tuple[jax.Array, Rows]:
    """One token x [hidden] at position [3]; `w` by the names inside `self_attn.`.

    q_proj holds, head by head, the query's rows and then the gate's. `rounded` stores keys and
    values as e4m3 with a scale for each row of a head.
    """
    kv_heads, window, head = rows.keys.shape
    both = (w["q_proj.weight"] @ x).reshape(-1, 2, head)
    q, gate = both[:, 0], both[:, 1]
    k = rms_norm((w["k_proj.weight"] @ x).reshape(kv_heads, head), w["k_norm.weight"], eps)
    v = (w["v_proj.weight"] @ x).reshape(kv_heads, head)
    q = rotate(rms_norm(q, w["q_norm.weight"], eps), position, *turn)
    k = rotate(k, position, *turn)
    if rounded:
        k, v = e4m3(k), e4m3(v)
    keys = rows.keys.at[:, rows.filled].set(k)
    values = rows.values.at[:, rows.filled].set(v)
    seen = jnp.arange(window) <= rows.filled
    out = attend(q, keys, values, seen, head**-0.5) * sigmoid(gate)
    return w["o_proj.weight"] @ out.reshape(-1), Rows(keys, values, rows.filled + 1)
