"""One attention layer's rows of keys and values, in the model's dtype or in e4m3

Buffers are [kv heads, window, head_dim], their scales [kv heads, window]: parts of a sequence's
views, so that what is written here is what caches copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

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
        self._dtype = dtype

    def write(self, start: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Rows [start, start + n) from k and v [n, kv heads, head_dim]."""
        stop = start + len(k)
        if not self.scales:
            self.keys[:, start:stop] = k.transpose(0, 1)
            self.values[:, start:stop] = v.transpose(0, 1)
            return
        key_scales, value_scales = self.scales
        _put(self.keys[:, start:stop], key_scales[:, start:stop], k)
        _put(self.values[:, start:stop], value_scales[:, start:stop], v)

    def read(self, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [kv heads, `stop` or more, head_dim] in the compute dtype.

        Rows from `stop` on mean nothing: plain rows are the buffers themselves, uncut.
        """
        if not self.scales:
            return self.keys, self.values
        key_scales, value_scales = self.scales
        return (
            dequantise(self.keys[:, :stop], key_scales[:, :stop], self._dtype),
            dequantise(self.values[:, :stop], value_scales[:, :stop], self._dtype),
        )


def _put(codes: torch.Tensor, scales: torch.Tensor, rows: torch.Tensor) -> None:
    made, scale = quantise(rows)
    codes.copy_(made.transpose(0, 1))
    scales.copy_(scale.t())
