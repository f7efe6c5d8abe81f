"""One attention layer's rows of keys and values, in the model's dtype or in e4m3

Buffers are [kv heads, window, head_dim], their scales [kv heads, window]: parts of a sequence's
views, so that what is written here is what caches copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.device import kernels_for
from engine.layers.attend import attend
from engine.layers.e4m3 import dequantise, quantise


class Kv:
    """What attention writes and reads.

    In e4m3 a query sees every row as it comes back from the buffer, those of its own block among
    them: else a resume, which finds the block's rows only there, would not be a cold prefill.
    """

    def __init__(
        self,
        keys: torch.Tensor,
        values: torch.Tensor,
        scales: Sequence[torch.Tensor],
        dtype: torch.dtype,
    ) -> None:
        """`scales` of keys and of values when those are e4m3 codes; empty when they are plain.

        `dtype` is what rows are read in.
        """
        self.keys, self.values, self.scales = keys, values, tuple(scales)
        self.dtype = dtype

    def write(self, start: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Rows [start, start + n) from k and v [n, kv heads, head_dim]."""
        if not self.scales:
            self.put(self.keys, start, k.transpose(0, 1))
            self.put(self.values, start, v.transpose(0, 1))
            return
        for into, scales, rows in zip((self.keys, self.values), self.scales, (k, v), strict=True):
            codes, made = quantise(rows)
            self.put(into, start, codes.transpose(0, 1))
            self.put(scales, start, made.t())

    def put(self, into: torch.Tensor, start: int, rows: torch.Tensor) -> None:
        """Rows [heads, n, ...] at `start` of [heads, window, ...]."""
        into[:, start : start + rows.shape[1]] = rows

    def attend(self, q: torch.Tensor, past: int) -> torch.Tensor:
        """Causal attention of q [kv heads, group, n, head_dim] at positions [past, past + n).

        A block of few tokens on a device reads codes where they lie, and is what a graph captures.
        """
        kernels = kernels_for(q.device)
        if kernels is None or q.shape[2] > kernels.queries_max:
            return attend(q, past, *self.read(past + q.shape[2]))
        start = torch.full((1,), past, device=q.device)
        return kernels.attend_rows(q, start, self.keys, self.values, self.scales or None)

    def read(self, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [kv heads, `stop` or more, head_dim] in the compute dtype.

        Rows from `stop` on mean nothing: plain rows are the buffers themselves, uncut.
        """
        if not self.scales:
            return self.keys, self.values
        key_scales, value_scales = self.scales
        return (
            dequantise(self.keys[:, :stop], key_scales[:, :stop], self.dtype),
            dequantise(self.values[:, :stop], value_scales[:, :stop], self.dtype),
        )
