"""A hybrid sequence's live tensors: what its sections and views are parts of"""

from __future__ import annotations

import torch

from cache.types import View
from engine.config import HybridConfig
from engine.layers import e4m3
from engine.layers.kv import Kv

ROW_AXIS = 2
"""Token axis of every view: [layers, kv heads, window, ...]."""


class Stack:
    """Rows of several attention layers: as views by name, and as each layer's own part of them."""

    def __init__(
        self, name: str, config: HybridConfig, layers: int, window: int, device: torch.device
    ) -> None:
        """`name` goes before those of the views."""
        coded, dtype = config.kv == "e4m3", config.torch_dtype
        shape = (layers, config.kv_heads, window, config.head_dim)

        def pair(shape: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
            return [torch.zeros(shape, dtype=dtype, device=device) for _ in range(2)]

        rows = pair(shape, e4m3.DTYPE if coded else dtype)
        scales = pair(shape[:-1], torch.float32) if coded else []
        names = (f"{name}{view}" for view in ("K", "V", "K.scale", "V.scale"))
        self.views = tuple(
            View(view, tensor, ROW_AXIS) for view, tensor in zip(names, rows + scales, strict=False)
        )
        wide = torch.float32.itemsize + dtype.itemsize
        self.read_bytes = 2 * config.kv_heads * config.head_dim * wide if coded else 0
        """At most, of one row while a layer reads it: codes become floats, those the model's dtype.
        Plain rows are read where they lie."""
        # Made once: taking the views apart at every call would cost as much as their arithmetic on
        # a narrow model.
        self.layers = [
            Kv(rows[0][at], rows[1][at], [side[at] for side in scales], dtype)
            for at in range(layers)
        ]


class Buffers:
    """Of one sequence, which is empty at first: all zeros."""

    def __init__(self, config: HybridConfig, window: int, device: torch.device) -> None:
        dtype = config.torch_dtype
        heads = (config.delta_layers, config.value_heads, config.key_dim, config.value_dim)
        tail = (config.delta_layers, config.channels, config.conv_kernel - 1)
        self.state = torch.zeros(heads, dtype=torch.float32, device=device)
        self.states = self.state.unbind()
        self.all_heads = self.state.flatten(0, 1)
        """[gdn layers x value heads, key_dim, value_dim]."""
        self.tail = torch.zeros(tail, dtype=dtype, device=device)
        self.tails = self.tail.unbind()
        self.hidden = torch.zeros(config.hidden, dtype=dtype, device=device)
        """Of the last absorbed position; the draft layers read it with the next token."""
        self.rows = Stack("", config, config.attention_layers, window, device)
        drafts = config.draft_layers if config.draft else 0
        self.draft_rows = Stack("draft.", config, drafts, window, device)
