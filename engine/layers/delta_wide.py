"""A gated delta net layer's chunk where heads are wide: one convolution, keys laid out by head"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from engine.layers.conv import causal_conv_wide, next_tail
from engine.layers.delta_rule import INNER
from engine.layers.norm import Norm
from engine.layers.wide_rule import Chunks, sweep

WIDE_NUMBERS = 1 << 13
"""Of a layer's state, from which on this form is the faster one: its passes over memory are fewer,
its calls are more."""
PIECE = 4 * INNER


@dataclass(frozen=True, slots=True)
class WideChunk:
    """What turns a chunk's projected rows into the delta rule's output."""

    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int
    unit: Norm
    """Of queries and keys, [..., 2, heads, key_dim]."""
    weight: torch.Tensor
    """The convolution's, [channels, 1, kernel]."""

    def __call__(
        self,
        rows: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        state: torch.Tensor,
        tail: torch.Tensor,
    ) -> torch.Tensor:
        """o [n, value heads, value_dim] in rows' dtype; `state` and `tail` absorb them, in place.

        rows [n, channels] before the convolution, g and beta [n, value heads], float32.
        """
        n = len(rows)
        mixed, joined = causal_conv_wide(rows, tail, self.weight)
        tail.copy_(next_tail(joined, n, self.weight.shape[2]))
        o = rows.new_empty((n, self.value_heads, self.value_dim))
        for start, stop in pieces(n):
            part, size = slice(start, stop), min(INNER, stop - start)
            inputs = self._inputs(mixed[part], size)
            sweep(Chunks(*inputs, g[part], beta[part]), state, o[part])
        return o

    def _inputs(self, mixed: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """`Chunks.pair` and `Chunks.values` of mixed [m * size, channels]."""
        m, values = len(mixed) // size, self.value_heads * self.value_dim
        sides, flat = torch.split_with_sizes(mixed, (mixed.shape[1] - values, values), -1)
        shape = (m, self.key_heads, 2, size, self.key_dim)
        pair = mixed.new_empty(shape, dtype=torch.float32)
        by_token = pair.permute(0, 3, 2, 1, 4)
        self.unit.into(by_token, sides.float().view(-1, 2, self.key_heads, self.key_dim))
        return pair, flat.view(-1, self.value_heads, self.value_dim)


def pieces(rows: int) -> Iterator[tuple[int, int]]:
    """Where they begin and end: whole inner chunks, and what is left over as one shorter chunk.

    Few chunks at a time: what is made of them stays in a core's own cache.
    """
    whole = rows // INNER * INNER
    for start in range(0, whole, PIECE):
        yield start, min(whole, start + PIECE)
    if whole < rows:
        yield whole, rows
