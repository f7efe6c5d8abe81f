"""One layer of the hybrid, one token: a mixer and an MLP or experts, each behind its norm

Source: Qwen3.5 and Qwen3-Next as published.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax

from engine.config import HybridConfig
from engine.oracle.attention import Rows, Turn, attention
from engine.oracle.delta_net import DeltaState, delta_net
from engine.oracle.formulas import rms_norm
from engine.oracle.mlp import experts, mlp
from engine.oracle.wide import Weights, jitted, under


@dataclass(frozen=True, slots=True)
class Kind:
    """What a layer's weights don't say themselves. Equal kinds and shapes are compiled once."""

    turn: Turn
    eps: float
    key_heads: int
    rounded: bool
    """Whether keys and values are stored as e4m3."""
    per_token: int
    """Experts of a token, where a layer has any."""
    renormalise: bool

    @classmethod
    def of(cls, config: HybridConfig) -> Kind:
        """That of all layers of a model."""
        moe = config.moe
        return cls(
            turn=Turn(config.rotary_dim, config.rope_theta, config.mrope_section),
            eps=config.rms_eps,
            key_heads=config.key_heads,
            rounded=config.kv == "e4m3",
            per_token=moe.per_token if moe else 0,
            renormalise=moe is not None and moe.renormalise,
        )


@jitted("kind")
def delta_layer(
    w: Weights, x: jax.Array, state: DeltaState, *, kind: Kind
) -> tuple[jax.Array, DeltaState]:
    """One token x [hidden] through a gated delta net layer."""
    normed = rms_norm(x, w["input_layernorm.weight"], kind.eps)
    inner = under(w, "linear_attn.")
    mixed, state = delta_net(inner, normed, state, key_heads=kind.key_heads, eps=kind.eps)
    return feed(w, x + mixed, kind), state


@jitted("kind")
def attention_layer(
    w: Weights, x: jax.Array, rows: Rows, position: jax.Array, *, kind: Kind
) -> tuple[jax.Array, Rows]:
    """One token x [hidden] at position [3] through an attention layer."""
    normed = rms_norm(x, w["input_layernorm.weight"], kind.eps)
    own, turn, eps = under(w, "self_attn."), kind.turn, kind.eps
    mixed, rows = attention(own, normed, rows, position, turn=turn, eps=eps, rounded=kind.rounded)
    return feed(w, x + mixed, kind), rows


def feed(w: Weights, x: jax.Array, kind: Kind) -> jax.Array:
    """x and what the layer's MLP, or its experts, make of it."""
    normed, inner = rms_norm(x, w["post_attention_layernorm.weight"], kind.eps), under(w, "mlp.")
    if "gate.weight" in inner:
        per_token, renormalise = kind.per_token, kind.renormalise
        return x + experts(inner, normed, per_token=per_token, renormalise=renormalise)
    return x + mlp(inner, normed)
