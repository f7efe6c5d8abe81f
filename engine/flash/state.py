"""A flash sequence's live tensors: sections, views, and the rows of each attention layer"""

from __future__ import annotations

import torch

from cache.types import CacheState, Section, View
from engine.flash.config import FlashConfig
from engine.flash.rows import SparseRows, padded


class FlashState:
    """Of one sequence, which is empty at first: all zeros. docs/flash.md lists what is here.

    Each gated delta net's state and tail are sections of their own, though those of all layers lie
    behind each other, so that a block is absorbed as one batch.
    """

    def __init__(self, config: FlashConfig, window: int, device: torch.device | str) -> None:
        dtype = config.torch_dtype

        def zeros(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        heads = (config.delta_layers, config.value_heads, config.key_dim, config.value_dim)
        state = zeros(*heads, dtype=torch.float32)
        self.states = state.unbind()
        self.all_heads = state.flatten(0, 1)
        """[gdn layers x value heads, key_dim, value_dim]."""
        self.tail = zeros(config.delta_layers, config.channels, config.conv_kernel - 1)
        self.tails = self.tail.unbind()
        self.ple_tail = zeros(config.ple_channels, config.ple_kernel - 1)
        self.context = zeros(config.ngram - 1, dtype=torch.int64)
        """The last token ids plus one, oldest first; 0 where there is none."""
        self.last = zeros(config.streams, config.hidden)
        """Streams of the last absorbed row; the MTP layer reads them with the next token."""
        rows = padded(window, config.block_rows)
        layers, shape = config.attention_layers, (config.kv_heads, rows, config.head_dim)
        keys, values = zeros(layers, *shape), zeros(layers, *shape)
        index = zeros(layers, rows, config.index_dim)
        self.rows = [
            SparseRows(*parts, config.block_rows)
            for parts in zip(keys.unbind(), values.unbind(), index.unbind(), strict=True)
        ]
        views = [("K", keys, 2), ("V", values, 2), ("index.K", index, 1)]
        sections = [Section(f"gdn.S.{n}", one) for n, one in enumerate(self.states)]
        sections += [Section(f"gdn.conv.{n}", one) for n, one in enumerate(self.tails)]
        sections += [Section("ple.conv", self.ple_tail), Section("ple.context", self.context)]
        self.mtp_rows: SparseRows | None = None
        if config.draft:
            own = zeros(*shape), zeros(*shape), zeros(rows, config.index_dim)
            self.mtp_rows = SparseRows(*own, config.block_rows)
            views += zip(("mtp.K", "mtp.V", "mtp.index.K"), own, (1, 1, 0), strict=True)
            sections.append(Section("mtp.last", self.last))
        shown = (View(name, rows.narrow(axis, 0, window), axis) for name, rows, axis in views)
        self.cache = CacheState(tuple(sections), tuple(shown))

    def rebuild(self, length: int) -> None:
        """Pool the index keys of rows [0, length) anew, which a cache has written back."""
        for rows in (*self.rows, *([self.mtp_rows] if self.mtp_rows else [])):
            rows.pool(0, length)
