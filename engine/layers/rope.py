"""Rotary positions on the leading channels of a head, from a table over the window."""

from __future__ import annotations

import torch


class Rope:
    """Cosines and sines of positions [0, window) for rotary / 2 angles, in the model's dtype."""

    def __init__(self, rotary: int, theta: float, window: int, dtype: torch.dtype) -> None:
        inverse = theta ** -(torch.arange(0, rotary, 2, dtype=torch.float32) / rotary)
        # The angle is a float32 product, as in the published implementation: past 2^16 tokens a
        # better one would be another model.
        angles = torch.arange(window, dtype=torch.float32)[:, None, None] * inverse
        self._half = rotary // 2
        self._cos, self._sin = angles.cos().to(dtype), angles.sin().to(dtype)

    def __call__(self, x: torch.Tensor, start: int) -> torch.Tensor:
        """Rotate x, shape [n, heads, head_dim], standing at positions [start, start + n)."""
        half, stop = self._half, start + len(x)
        cos, sin = self._cos[start:stop], self._sin[start:stop]
        first, second, rest = torch.split_with_sizes(x, (half, half, x.shape[-1] - 2 * half), -1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)
