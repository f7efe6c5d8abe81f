"""Gated delta net layer, one token: projections, causal convolution, delta rule, gated norm

Source: Yang et al., Gated Delta Networks, 2024, as Qwen3-Next and Qwen3.5 publish it.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from engine.oracle.formulas import gated_norm, sigmoid, silu, softplus, unit
from engine.oracle.wide import Weights


class DeltaState(NamedTuple):
    """What a layer remembers."""

    s: jax.Array
    """[value heads, key_dim, value_dim]."""
    tail: jax.Array
    """The convolution's last inputs, oldest first, [channels, kernel - 1]."""


def conv_step(x: jax.Array, tail: jax.Array, weight: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Each channel's last values, oldest first, times its taps; and the tail after x [channels]."""
    columns = jnp.concatenate((tail, x[:, None]), axis=1)
    return jnp.sum(columns * weight, axis=1), columns[:, 1:]


def delta_step(
    q: jax.Array, k: jax.Array, v: jax.Array, g: jax.Array, beta: jax.Array, s: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """One token over heads: o [heads, value_dim] and the next s [heads, key_dim, value_dim].

    S = exp(g) S;  u = beta (v - k S);  S = S + k^T u;  o = q S.
    """
    s = jnp.exp(g)[:, None, None] * s
    u = beta[:, None] * (v - jnp.einsum("hk,hkv->hv", k, s))
    s = s + jnp.einsum("hk,hv->hkv", k, u)
    return jnp.einsum("hk,hkv->hv", q, s), s


def delta_net(
    w: Weights, x: jax.Array, state: DeltaState, *, key_heads: int, eps: float
) -> tuple[jax.Array, DeltaState]:
    """One token x [hidden] through a layer; `w` by the names inside `linear_attn.`."""
    heads, key_dim, value_dim = state.s.shape
    mixed, tail = conv_step(w["in_proj_qkv.weight"] @ x, state.tail, w["conv1d.weight"][:, 0])
    mixed, keys = silu(mixed), key_heads * key_dim
    # Each key head serves heads / key_heads consecutive value heads.
    q, k = (
        jnp.repeat(unit(part.reshape(key_heads, key_dim)), heads // key_heads, axis=0)
        for part in (mixed[:keys], mixed[keys : 2 * keys])
    )
    v = mixed[2 * keys :].reshape(heads, value_dim)
    g = -jnp.exp(w["A_log"]) * softplus(w["in_proj_a.weight"] @ x + w["dt_bias"])
    beta = sigmoid(w["in_proj_b.weight"] @ x)
    o, s = delta_step(q / key_dim**0.5, k, v, g, beta, state.s)
    gate = (w["in_proj_z.weight"] @ x).reshape(heads, value_dim)
    out = gated_norm(o, gate, w["norm.weight"], eps).reshape(-1)
    return w["out_proj.weight"] @ out, DeltaState(s, tail)
