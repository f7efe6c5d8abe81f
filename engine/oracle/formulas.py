"""Formulas that layers share: norms, gates, rotary positions, a softmax over rows, e4m3 rows

Sources: Qwen3.5 and Qwen3-Next as published (TOOLCHAIN's architecture notes); RMSNorm of Zhang and
Sennrich, 2019; rotary positions of Su et al., 2021, in three directions as in Qwen2-VL, 2024; e4m3
of Micikevicius et al., FP8 formats for deep learning, 2022.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

E4M3_MAX = 448.0


def sigmoid(x: jax.Array) -> jax.Array:
    """1 / (1 + exp(-x))."""
    return 1 / (1 + jnp.exp(-x))


def silu(x: jax.Array) -> jax.Array:
    """x sigmoid(x)."""
    return x * sigmoid(x)


def softplus(x: jax.Array) -> jax.Array:
    """log(1 + exp(x))."""
    return jnp.log1p(jnp.exp(x))


def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """x / sqrt(mean x^2 + eps) * (1 + weight), over the last axis."""
    return x / jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + eps) * (1 + weight)


def gated_norm(x: jax.Array, gate: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """x / sqrt(mean x^2 + eps) * weight * silu(gate): norm before gate, plain weight."""
    return x / jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + eps) * weight * silu(gate)


def unit(x: jax.Array) -> jax.Array:
    """x / sqrt(sum x^2 + 1e-6), over the last axis."""
    return x / jnp.sqrt(jnp.sum(x * x, -1, keepdims=True) + 1e-6)


def rotate(
    x: jax.Array,
    position: jax.Array,
    rotary: int,
    theta: float,
    section: tuple[int, int, int] = (11, 11, 10),
) -> jax.Array:
    """Turn channel i of the first half of `rotary` with channel i of the second, x [heads, dim].

    position [3] is in time, height and width: pair i turns with the height where i is 1 modulo 3
    and below 3 * section[1], with the width where it is 2 modulo 3 and below 3 * section[2], with
    the time elsewhere, by position * theta^(-2 i / rotary). Channels past `rotary` stay.
    """
    half = rotary // 2
    axes = [i % 3 if i < 3 * section[i % 3] else 0 for i in range(half)]
    rates = jnp.array([theta ** (-2 * i / rotary) for i in range(half)])
    angle = position[jnp.array(axes)] * rates
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    one, two = x[:, :half], x[:, half:rotary]
    return jnp.concatenate((one * cos - two * sin, two * cos + one * sin, x[:, rotary:]), axis=1)


def attend(
    q: jax.Array, keys: jax.Array, values: jax.Array, seen: jax.Array, scale: float
) -> jax.Array:
    """softmax(scale q K) V of every query head over the rows that `seen` names; [heads, value dim].

    q [heads, dim]; keys and values [kv heads, window, dim], of which each serves heads / kv heads
    consecutive query heads; seen bool [window], or [heads, window] where heads see different rows.
    """
    shared = q.shape[0] // keys.shape[0]
    keys, values = jnp.repeat(keys, shared, axis=0), jnp.repeat(values, shared, axis=0)
    scores = jnp.where(seen, jnp.einsum("hd,hnd->hn", q, keys) * scale, -jnp.inf)
    share = jnp.exp(scores - scores.max(-1, keepdims=True))
    share = share / share.sum(-1, keepdims=True)
    return jnp.einsum("hn,hnd->hd", share, values)


def e4m3(x: jax.Array) -> jax.Array:
    """x as an e4m3 row gives it back: each row (last axis) over its largest size / 448, rounded.

    A float of four exponent and three fraction bits: steps of 2^(e - 3) from 2^e on, of 2^-9 below
    2^-6; ties to even. A row of zeros stays.
    """
    scale = jnp.max(jnp.abs(x), -1, keepdims=True) / E4M3_MAX
    small = x / jnp.where(scale > 0, scale, 1)
    _, exponent = jnp.frexp(small)  # |small| in [2^(exponent - 1), 2^exponent)
    # Not exp2, which is off by a bit.
    step = jnp.ldexp(jnp.ones_like(small), jnp.maximum(exponent - 1, -6) - 3)
    return jnp.round(small / step) * step * scale
