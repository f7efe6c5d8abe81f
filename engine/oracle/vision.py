"""Vision tower: a still's patches through full attention, merged to rows of the model

Source: the Qwen3.5 vision tower as published; tensors by their names inside `model.visual.`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.scipy.special import erf

from engine.oracle.formulas import attend
from engine.oracle.wide import Weights, back, jitted, under, wide_all
from engine.vision_config import VisionConfig

_EPS = 1e-6
_STEP = 64
"""Patches are filled up to a multiple of this: fewer shapes to compile."""


def tower(
    config: VisionConfig,
    tensors: Mapping[str, torch.Tensor],
    patches: torch.Tensor,
    grid: tuple[int, int, int],
) -> torch.Tensor:
    """A still's rows [rows, out], float64, from its bytes [n, 3 * patch * patch].

    Patches are in the order of the merge x merge blocks that become rows.
    """
    w, (_, high, wide), merge = wide_all(tensors), grid, config.merge
    blocks = itertools.product(range(high // merge), range(wide // merge))
    inside = list(itertools.product(range(merge), repeat=2))
    spots = [(a * merge + y, b * merge + x) for a, b in blocks for y, x in inside]
    filled = -(-len(spots) // _STEP) * _STEP
    pixels = np.zeros((filled, patches.shape[1]))
    pixels[: len(spots)] = patches.double().numpy()
    near = np.zeros((filled, config.positions))
    near[: len(spots)] = [weights(config.side, at, (high, wide)) for at in spots]
    places = np.zeros((filled, 2))
    places[: len(spots)] = spots
    x = _embedded(w, pixels, near, temporal=config.temporal)
    for block in range(config.depth):
        of = under(w, f"blocks.{block}.")
        how = {"heads": config.heads, "theta": config.rope_theta}
        x = _block(of, x, places, np.int32(len(spots)), **how)
    rows = back(_merged(w, x, side=merge**2))
    return rows[: len(spots) // merge**2]


def weights(side: int, at: tuple[int, int], of: tuple[int, int]) -> list[float]:
    """How much of each learned position a patch takes, [side * side].

    The square grid's corners are the picture's, and between four of its points values are mixed by
    distance.
    """
    y, x = (i * (side - 1) / max(n - 1, 1) for i, n in zip(at, of, strict=True))
    return [
        max(0.0, 1 - abs(y - a)) * max(0.0, 1 - abs(x - b))
        for a, b in itertools.product(range(side), repeat=2)
    ]


def layer_norm(x: jax.Array, w: Weights, name: str) -> jax.Array:
    """(x - mean) / sqrt(variance + 1e-6) * weight + bias."""
    centred = x - jnp.mean(x, -1, keepdims=True)
    scaled = centred / jnp.sqrt(jnp.mean(centred * centred, -1, keepdims=True) + _EPS)
    return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]


def affine(x: jax.Array, w: Weights, name: str) -> jax.Array:
    """weight x + bias of every row, x [n, channels]."""
    weight = w[f"{name}.weight"]
    return x @ weight.reshape(len(weight), -1).T + w[f"{name}.bias"]


@jitted("temporal")
def _embedded(w: Weights, pixels: jax.Array, near: jax.Array, *, temporal: int) -> jax.Array:
    """A still's frame counts `temporal` times; bytes are scaled to [-1, 1]."""
    frame = ((pixels / 255 - 0.5) / 0.5).reshape(len(pixels), 3, 1, -1)
    both = jnp.repeat(frame, temporal, axis=2).reshape(len(pixels), -1)
    return affine(both, w, "patch_embed.proj") + near @ w["pos_embed.weight"]


def _turned(x: jax.Array, places: jax.Array, theta: float) -> jax.Array:
    """x [n, heads, d]: d/4 angles of the height, then d/4 of the width, each turns channel i of a
    head's first half with channel i of its second.
    """
    half = x.shape[-1] // 2
    rates = jnp.array([theta ** (-i / (half // 2)) for i in range(half // 2)])
    angle = jnp.concatenate([places[:, side, None] * rates for side in range(2)], axis=1)
    cos, sin = jnp.cos(angle)[:, None], jnp.sin(angle)[:, None]
    one, two = x[..., :half], x[..., half:]
    return jnp.concatenate((one * cos - two * sin, two * cos + one * sin), axis=-1)


@jitted("heads", "theta")
def _block(
    w: Weights, x: jax.Array, places: jax.Array, count: jax.Array, *, heads: int, theta: float
) -> jax.Array:
    """Attention over the first `count` patches, and an MLP, each behind its norm."""
    qkv = affine(layer_norm(x, w, "norm1"), w, "attn.qkv").reshape(len(x), 3, heads, -1)
    q, k = (_turned(qkv[:, side], places, theta) for side in range(2))
    keys, values = jnp.swapaxes(k, 0, 1), jnp.swapaxes(qkv[:, 2], 0, 1)
    seen, scale = jnp.arange(len(x)) < count, q.shape[-1] ** -0.5
    mixed = jax.vmap(lambda one: attend(one, keys, values, seen, scale))(q)
    x = x + affine(mixed.reshape(len(x), -1), w, "attn.proj")
    inner = affine(layer_norm(x, w, "norm2"), w, "mlp.linear_fc1")
    gelu = inner / 2 * (1 + jnp.tanh((2 / jnp.pi) ** 0.5 * (inner + 0.044715 * inner**3)))
    return x + affine(gelu, w, "mlp.linear_fc2")


@jitted("side")
def _merged(w: Weights, x: jax.Array, *, side: int) -> jax.Array:
    """`side` patches side by side, through an MLP of that width."""
    rows = layer_norm(x, w, "merger.norm").reshape(len(x) // side, -1)
    inner = affine(rows, w, "merger.linear_fc1")
    return affine(inner / 2 * (1 + erf(inner / 2**0.5)), w, "merger.linear_fc2")
