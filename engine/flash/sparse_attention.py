"""Sparse attention: an indexer chooses the blocks of rows that each query attends"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F

from engine.flash.config import FIXED_BLOCKS, FlashConfig
from engine.flash.indexer import chosen, scores
from engine.flash.rows import SparseRows
from engine.layers.attend import attend
from engine.layers.linear import linear
from engine.layers.norm import centred, rms
from engine.layers.rope import Angles

TILE = 64
"""Queries whose rows are gathered at once."""


class SparseAttention:
    """One layer's weights. Its rows live in `SparseRows`."""

    def __init__(self, config: FlashConfig, tensors: Mapping[str, torch.Tensor]) -> None:
        """`tensors` by their names inside `self_attn.`."""
        self._q_heads, self._kv_heads = config.q_heads, config.kv_heads
        self._head, self._index = config.head_dim, config.index_dim
        self._top = config.top_blocks
        query, gate = tensors["q_proj.weight"].view(config.q_heads, 2, -1, config.hidden).unbind(1)
        names = ("k_proj", "v_proj", "index_k_proj")
        own = torch.cat([tensors[f"{name}.weight"] for name in names])
        index = [tensors[f"index_{name}_proj.weight"] for name in ("q", "weights")]
        # In this order queries and keys are one block for norm and rotation, and what a row keeps
        # is another, computed alone where nothing else is wanted.
        self._in = torch.cat((query.flatten(0, 1), own, gate.flatten(0, 1), *index))
        wide, keys = config.q_heads * config.head_dim, config.kv_heads * config.head_dim
        self._own = self._in[wide : wide + len(own)]
        self._own_splits = [keys, keys, config.index_dim]
        self._splits = [wide + keys, keys, config.index_dim, wide, *map(len, index)]
        self._out = tensors["o_proj.weight"]
        eps = config.rms_eps
        self._key_norm = centred(tensors["k_norm.weight"], eps)
        # Queries and keys go through one norm, in which every head has its own weights.
        scales = [1.0 + tensors[f"{name}.weight"].float() for name in ("q_norm", "k_norm")]
        heads = (config.q_heads, config.kv_heads)
        wide_scales = [scale.expand(count, -1) for scale, count in zip(scales, heads, strict=True)]
        self._norm = rms(torch.cat(wide_scales), eps)
        self._index_q_norm = centred(tensors["index_q_norm.weight"], eps)
        self._index_k_norm = centred(tensors["index_k_norm.weight"], eps)

    def __call__(self, x: torch.Tensor, start: int, rows: SparseRows, turn: Angles) -> torch.Tensor:
        """Forward x [n, hidden] as rows [start, start + n), which are written first.

        `turn` has the angles of their positions.
        """
        n, heads = len(x), self._q_heads + self._kv_heads
        parts = torch.split_with_sizes(linear(x, self._in), self._splits, -1)
        pair, v, index_k, gate, index_q, index_w = parts
        turned = turn(self._norm(pair.view(n, heads, self._head)))
        q, k = torch.split_with_sizes(turned, (self._q_heads, self._kv_heads), 1)
        self._write(k, v, index_k, start, rows)
        index_q = self._index_q_norm(index_q.view(n, -1, self._index))
        mixed = self._attend(q, index_q, index_w, start, rows).reshape(n, -1)
        return linear(mixed * gate.sigmoid(), self._out)

    def rows(self, x: torch.Tensor, start: int, rows: SparseRows, turn: Angles) -> None:
        """Write the rows [start, start + n) of x [n, hidden] and nothing more."""
        k, v, index_k = linear(x, self._own).split_with_sizes(self._own_splits, -1)
        shaped = k.view(len(x), self._kv_heads, self._head)
        self._write(turn(self._key_norm(shaped)), v, index_k, start, rows)

    def _write(
        self,
        k: torch.Tensor,
        v: torch.Tensor,
        index_k: torch.Tensor,
        start: int,
        rows: SparseRows,
    ) -> None:
        shaped = v.view(-1, self._kv_heads, self._head)
        rows.write(start, k, shaped, self._index_k_norm(index_k))

    def _attend(
        self,
        q: torch.Tensor,
        index_q: torch.Tensor,
        index_w: torch.Tensor,
        start: int,
        rows: SparseRows,
    ) -> torch.Tensor:
        """[n, kv heads, group, head_dim] of q [n, query heads, head_dim] at rows from `start` on.

        What is taken together depends on where rows start and stop and on nothing else, so that a
        resumed prefill has a cold one's bits.
        """
        n = len(q)
        q = q.view(n, self._kv_heads, -1, self._head)
        last = (start + n - 1) // rows.block
        if last < self._top + FIXED_BLOCKS:
            # Every query attends every block up to its own.
            return attend(q.permute(1, 2, 0, 3), start, rows.keys, rows.values).permute(2, 0, 1, 3)
        blocks = rows.pooled[1 : last - 1]
        room = rows.room(min(n, TILE), self._top + FIXED_BLOCKS)
        tiles = []
        for at in range(0, n, TILE):
            to = min(at + TILE, n)
            places = torch.arange(start + at, start + to, device=q.device)
            found = scores(index_q[at:to], index_w[at:to], blocks)
            which, filled = chosen(found, places // rows.block, self._top)
            tiles.append(_over(q[at:to], places, which, filled, rows, room))
        return torch.cat(tiles)


def _over(
    q: torch.Tensor,
    places: torch.Tensor,
    which: torch.Tensor,
    filled: torch.Tensor,
    rows: SparseRows,
    room: tuple[torch.Tensor, torch.Tensor],
) -> torch.Tensor:
    """Attention of q [n, kv heads, group, head_dim] at rows `places` over each one's own blocks.

    which, filled [n, places]: as `chosen` gives them, a query's own block first.
    """
    inside = torch.arange(rows.block, device=q.device)
    taken = which.unsqueeze(2) * rows.block + inside
    seen = (taken <= places.view(-1, 1, 1)) & filled.unsqueeze(2)
    # A place that is not filled may hold any number.
    k, v = rows.take(which.clamp_min(0), seen, room)
    mask = seen.flatten(1)[:, None, None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
