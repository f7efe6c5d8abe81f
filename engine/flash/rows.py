"""Rows of one sparse-attention layer, and the pooled index keys that are derived from them"""

from __future__ import annotations

import torch

from engine.flash.indexer import pooled


def padded(window: int, block: int) -> int:
    """Rows of the buffers of a window: whole blocks."""
    return -(-window // block) * block


class SparseRows:
    """Parts of a sequence's buffers: keys and values [kv heads, rows, head_dim], index keys
    [rows, index_dim]; and beside them `pooled` [blocks, index_dim] float32, which is no view.
    """

    def __init__(
        self, keys: torch.Tensor, values: torch.Tensor, index: torch.Tensor, block: int
    ) -> None:
        """`block` is the rows of a block; the buffers have a whole number of them, so that blocks
        can be taken in one piece each.
        """
        assert len(index) % block == 0
        self.keys, self.values, self.index = keys, values, index
        self.block = block
        shape = (len(index) // block, index.shape[1])
        self.pooled = torch.zeros(shape, dtype=torch.float32, device=index.device)
        # The blocks of all heads behind each other, each one row.
        self._blocks = [side.view(len(side) * shape[0], -1) for side in (keys, values)]
        self._firsts = torch.arange(len(keys), device=index.device).view(1, -1, 1) * shape[0]

    def room(self, queries: int, places: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Memory for `take`, which a call's tiles use in turn: new memory costs more than the copy.

        For so many queries or fewer, of so many blocks each.
        """
        shape = (queries * len(self.keys) * places, self.block * self.keys.shape[2])
        first, second = (self.keys.new_empty(shape) for _ in range(2))
        return first, second

    def take(
        self,
        blocks: torch.Tensor,
        seen: torch.Tensor,
        room: tuple[torch.Tensor, torch.Tensor],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [n, kv heads, places * block, head_dim] of int64 blocks [n, places],
        which lie in `room`.

        seen [n, places, block]: the rows that will be. Of the first place, which alone may hold
        junk, the others are zeros: junk may be no number, and not even a weight of zero helps then.
        """
        (n, places), heads = blocks.shape, len(self.keys)
        taken = (blocks.unsqueeze(1) + self._firsts).flatten()
        unseen = ~seen[:, None, 0, :, None]
        sides = []
        for side, into in zip(self._blocks, room, strict=True):
            out = into[: len(taken)]
            torch.index_select(side, 0, taken, out=out)
            found = out.view(n, heads, places, self.block, -1)
            found[:, :, 0].masked_fill_(unseen, 0.0)
            sides.append(found.flatten(2, 3))
        return sides[0], sides[1]

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
