"""The hybrid's multi-token-prediction layers (`mtp.*`), one token: one after the other

Source: Qwen3-Next and Qwen3.5 as published.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from engine.config import HybridConfig
from engine.oracle.attention import Rows
from engine.oracle.formulas import rms_norm
from engine.oracle.layer import Kind, attention_layer
from engine.oracle.wide import Weights, jitted, under


class Drafts:
    """All draft layers of a model; sequences bring their rows, one entry a layer."""

    def __init__(self, config: HybridConfig, weights: Weights) -> None:
        """`weights` by the names inside `mtp.`."""
        self._kind = Kind.of(config)
        self._layers = [under(weights, f"layers.{at}.") for at in range(config.draft_layers)]
        self._ends = {n: w for n, w in weights.items() if not n.startswith("layers.")}

    def step(
        self, embedded: jax.Array, before: jax.Array, rows: list[Rows], position: jax.Array
    ) -> tuple[jax.Array, list[Rows]]:
        """The hidden [hidden] of a token at position [3], given the hidden before it."""
        x, after = _joined(self._ends, embedded, before, eps=self._kind.eps), list[Rows]()
        for w, own in zip(self._layers, rows, strict=True):
            x, moved = attention_layer(w, x, own, position, kind=self._kind)
            after.append(moved)
        return _normed(self._ends, x, eps=self._kind.eps), after


@jitted("eps")
def _joined(w: Weights, embedded: jax.Array, before: jax.Array, *, eps: float) -> jax.Array:
    """What the first layer reads: both sides, each behind its norm, through one matrix."""
    one = rms_norm(embedded, w["pre_fc_norm_embedding.weight"], eps)
    other = rms_norm(before, w["pre_fc_norm_hidden.weight"], eps)
    return w["fc.weight"] @ jnp.concatenate((one, other))


@jitted("eps")
def _normed(w: Weights, x: jax.Array, *, eps: float) -> jax.Array:
    return rms_norm(x, w["norm.weight"], eps)
