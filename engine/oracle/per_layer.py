"""Per-layer embeddings, one token: n-gram rows, their sum with the token's own, a convolution

Source: docs/flash.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax

from engine.oracle.delta_net import conv_step
from engine.oracle.formulas import silu
from engine.oracle.wide import Weights, jitted

_FACTOR, _PRIME = 1_000_003, 2**31 - 1


def ngram_keys(tokens: Sequence[int], longest: int, rows: int) -> list[int]:
    """Rows of the table for the last of `tokens`, for n-grams of 2 to `longest` of them.

    Tokens that would be before the first one count as -1.
    """
    found = []
    for order in range(2, longest + 1):
        before = [-1] * max(0, order - len(tokens))
        x = order
        for token in [*before, *tokens[-order:]]:
            x = (x + token + 1) * _FACTOR % _PRIME
        found.append(x % rows)
    return found


@jitted()
def embedded(
    w: Weights, token: jax.Array, ngrams: jax.Array, tail: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """All layers' embeddings [layers * ple_dim] of a token, and the convolution's next tail.

    `w` by the names inside `model.ple.`; ngrams [orders, width] are the table's rows, tail
    [layers * ple_dim, kernel - 1] the last sums, oldest first.
    """
    own = w["embed_tokens.weight"][token] + w["ngram_proj.weight"] @ ngrams.reshape(-1)
    mixed, tail = conv_step(own, tail, w["conv1d.weight"][:, 0])
    return silu(mixed), tail


def branch(w: Weights, x: jax.Array, embedding: jax.Array) -> jax.Array:
    """up(silu(gate x) * embedding); `w` by the names inside `ple.` of a layer."""
    gated = silu(w["gate_proj.weight"] @ x) * embedding
    return w["up_proj.weight"] @ gated
