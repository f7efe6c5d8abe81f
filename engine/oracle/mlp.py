"""Gated MLP and mixture of experts, one token

Source: Qwen3.5 and Qwen3-Next as published; the gated MLP of Shazeer, GLU variants, 2020.
"""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp

from engine.oracle.formulas import sigmoid, silu
from engine.oracle.wide import Weights, under

_SIDES = ("gate_proj.weight", "up_proj.weight", "down_proj.weight")


def mlp(w: Weights, x: jax.Array) -> jax.Array:
    """down(silu(gate x) * up x)."""
    gate, up, down = (w[side] for side in _SIDES)
    return down @ (silu(gate @ x) * (up @ x))


def share(router: jax.Array, x: jax.Array, per_token: int, renormalise: bool) -> jax.Array:
    """How much of each expert a token takes, [experts]: its `per_token` highest probabilities.

    They are softmax(router x), divided by their sum if `renormalise`; of all others it takes none.
    """
    scores = router @ x
    odds = jnp.exp(scores - scores.max())
    odds = odds / odds.sum()
    lowest = jnp.sort(odds)[-per_token]
    chosen = jnp.where(odds >= lowest, odds, 0)
    return chosen / chosen.sum() if renormalise else chosen


def experts(w: Weights, x: jax.Array, *, per_token: int, renormalise: bool) -> jax.Array:
    """The chosen experts by their shares, and sigmoid(shared gate x) of the one all tokens take."""
    found = itertools.takewhile(lambda at: f"experts.{at}.gate_proj.weight" in w, itertools.count())
    every = [[w[f"experts.{at}.{side}"] for side in _SIDES] for at in found]
    gate, up, down = (jnp.stack(side) for side in zip(*every, strict=True))
    inner = silu(gate @ x) * (up @ x)
    mine = share(w["gate.weight"], x, per_token, renormalise)
    chosen = jnp.einsum("e,ehi,ei->h", mine, down, inner)
    return chosen + sigmoid(w["shared_expert_gate.weight"] @ x) * mlp(under(w, "shared_expert."), x)
