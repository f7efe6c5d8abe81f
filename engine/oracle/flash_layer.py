"""One layer of the flash model, one token: its branches over the streams in their order

Source: docs/flash.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax

from engine.flash.config import FlashConfig
from engine.oracle import per_layer
from engine.oracle.attention import Turn
from engine.oracle.delta_net import DeltaState, delta_net
from engine.oracle.mlp import mlp
from engine.oracle.sparse import IndexedRows, sparse_attention
from engine.oracle.streams import branch
from engine.oracle.wide import Weights, jitted, under


@dataclass(frozen=True, slots=True)
class FlashKind:
    """What a layer's weights don't say themselves. Equal kinds and shapes are compiled once."""

    turn: Turn
    eps: float
    key_heads: int
    block_rows: int
    top_blocks: int

    @classmethod
    def of(cls, config: FlashConfig) -> FlashKind:
        """That of all layers of a model."""
        return cls(
            turn=Turn(config.rotary_dim, config.rope_theta, (0, 0, 0)),
            eps=config.rms_eps,
            key_heads=config.key_heads,
            block_rows=config.block_rows,
            top_blocks=config.top_blocks,
        )


@dataclass(frozen=True, slots=True)
class Parts:
    """A layer's weights by its branches: each is compiled once, whatever other branches there are.

    Names stay as they are inside the layer.
    """

    mixer: Weights
    mlp: Weights
    ple: Weights

    @classmethod
    def of(cls, layer: Weights) -> Parts:
        """From all weights of a layer; an MTP layer has none for the last branch."""
        names = (
            ("self_attn.", "linear_attn.", "input_layernorm.", "mixer_streams."),
            ("mlp.", "post_attention_layernorm.", "mlp_streams."),
            ("ple.", "pre_ple_layernorm.", "ple_streams."),
        )
        return cls(*({n: w for n, w in layer.items() if n.startswith(own)} for own in names))


@jitted("kind")
def delta_mixer(
    w: Weights, streams: jax.Array, state: DeltaState, *, kind: FlashKind
) -> tuple[jax.Array, DeltaState]:
    """The streams [streams, hidden] of a token after a gated delta net."""

    def mixed(x: jax.Array) -> tuple[jax.Array, DeltaState]:
        inner = under(w, "linear_attn.")
        return delta_net(inner, x, state, key_heads=kind.key_heads, eps=kind.eps)

    return branch(w, "mixer_streams", "input_layernorm", streams, mixed, kind.eps)


@jitted("kind")
def sparse_mixer(
    w: Weights, streams: jax.Array, rows: IndexedRows, *, kind: FlashKind
) -> tuple[jax.Array, tuple[IndexedRows, jax.Array]]:
    """The streams of a token after sparse attention; with the rows, the blocks' scores."""

    def mixed(x: jax.Array) -> tuple[jax.Array, tuple[IndexedRows, jax.Array]]:
        how = {"block_rows": kind.block_rows, "top_blocks": kind.top_blocks}
        of = under(w, "self_attn.")
        out, after, scores = sparse_attention(of, x, rows, turn=kind.turn, eps=kind.eps, **how)
        return out, (after, scores)

    return branch(w, "mixer_streams", "input_layernorm", streams, mixed, kind.eps)


@jitted("kind")
def feed(w: Weights, streams: jax.Array, *, kind: FlashKind) -> jax.Array:
    """The streams of a token after a layer's MLP."""

    def mixed(x: jax.Array) -> tuple[jax.Array, None]:
        return mlp(under(w, "mlp."), x), None

    return branch(w, "mlp_streams", "post_attention_layernorm", streams, mixed, kind.eps)[0]


@jitted("kind")
def embed(w: Weights, streams: jax.Array, own: jax.Array, *, kind: FlashKind) -> jax.Array:
    """The streams of a token after a layer's own embedding of it, `own` [ple_dim]."""

    def mixed(x: jax.Array) -> tuple[jax.Array, None]:
        return per_layer.branch(under(w, "ple."), x, own), None

    return branch(w, "ple_streams", "pre_ple_layernorm", streams, mixed, kind.eps)[0]
