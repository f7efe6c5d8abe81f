"""A gated delta net layer's chunk where heads are wide: convolution and lengths tile by tile"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.layers.conv import causal_conv_into
from engine.layers.delta_rule import INNER
from engine.layers.norm import Norm
from engine.layers.tiles import tiles
from engine.layers.wide_rule import Chunks, sweep

WIDE_NUMBERS = 1 << 13
"""Of a layer's state, from which on this form is the faster one: its passes over memory are fewer,
its calls are more."""


@dataclass(frozen=True, slots=True)
class WideChunk:
    """What turns a chunk's projected rows into the delta rule's output."""

    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int
    unit: Norm
    """Of queries and keys, [..., 2, heads, key_dim]."""
    taps: Sequence[Sequence[torch.Tensor]]
    """The convolution's over queries and keys, and over values: kernel times [channels]."""

    def __call__(
        self,
        rows: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        state: torch.Tensor,
        tail: torch.Tensor,
    ) -> torch.Tensor:
        """o [n, value heads, value_dim], float32; `state` and `tail` absorb the rows, in place.

        rows [n, channels] before the convolution, g and beta [n, value heads], float32.
        """
        n, before = len(rows), tail.shape[1]
        whole = n // INNER * INNER
        o = rows.new_empty((n, self.value_heads, self.value_dim), dtype=torch.float32)
        for start, stop, size in ((0, whole, INNER), (whole, n, n - whole)):
            if stop > start:
                part = slice(start, stop)
                inputs = self._inputs(rows, tail, start, stop, size)
                sweep(Chunks(*inputs, g[part], beta[part]), state, o[part])
        last = rows[n - before :] if n >= before else torch.cat((tail.t()[n:], rows))
        tail.copy_(last.t())
        return o

    def _inputs(
        self, rows: torch.Tensor, tail: torch.Tensor, start: int, stop: int, size: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`Chunks.pair` and `Chunks.values` of rows [start, stop), inner chunks of `size`."""
        n, before = stop - start, tail.shape[1]
        shape = (n // size, self.key_heads, 2, size, self.key_dim)
        pair = rows.new_empty(shape, dtype=torch.float32)
        values = rows.new_empty((n, self.value_heads, self.value_dim), dtype=torch.float32)
        by_token, flat = pair.permute(0, 3, 2, 1, 4), values.flatten(1)
        for first, last in tiles(n, rows.shape[1], size):
            begin, end = start + first - before, start + last
            # Only the first tile sees the tail; all others read the rows where they lie.
            window = rows[begin:end] if begin >= 0 else torch.cat((tail.t()[begin:], rows[:end]))
            sides = rows.new_empty((last - first, rows.shape[1] - flat.shape[1]), dtype=pair.dtype)
            causal_conv_into((sides, flat[first:last]), window, self.taps)
            made = by_token[first // size : last // size]
            self.unit.into(made, sides.view(made.shape))
        return pair, values
