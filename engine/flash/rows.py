"""Rows of one sparse-attention layer, and the pooled index keys that are derived from them"""

from __future__ import annotations

import torch

from engine.flash.indexer import pooled


class SparseRows:
    """Parts of a sequence's views: keys and values [kv heads, window, head_dim], index keys
    [window, index_dim]; and beside them `pooled` [blocks, index_dim] float32, which is no view.
    """

    def __init__(
        self, keys: torch.Tensor, values: torch.Tensor, index: torch.Tensor, block: int
    ) -> None:
        self.keys, self.values, self.index = keys, values, index
        self.block = block
        """Rows of a block."""
        shape = (len(index) // block, index.shape[1])
        self.pooled = torch.zeros(shape, dtype=torch.float32, device=index.device)

    def write(self, start: int, k: torch.Tensor, v: torch.Tensor, index: torch.Tensor) -> None:
        """Write rows [start, start + n): k, v [n, kv heads, head_dim], index [n, index_dim]."""
        stop = start + len(k)
        self.keys[:, start:stop] = k.transpose(0, 1)
        self.values[:, start:stop] = v.transpose(0, 1)
        self.index[start:stop] = index
        self.pool(start, stop)

    def pool(self, start: int, stop: int) -> None:
        """Pool the blocks that rows [start, stop) touch and that end by `stop`.

        A block that a refused draft had filled is pooled again when its rows are written again.
        """
        first, last = start // self.block, stop // self.block
        if last > first:
            rows = self.index[first * self.block : last * self.block]
            self.pooled[first:last] = pooled(rows, self.block)
