"""Which blocks a query attends: pooled index keys, their scores and the choice"""

from __future__ import annotations

import torch

LOWEST = torch.iinfo(torch.int64).min
INDEX_BITS = 32
"""Low bits of an order key; a block's number must fit them."""


def pooled(keys: torch.Tensor, size: int) -> torch.Tensor:
    """Mean index key of every block, [..., blocks, dim] float32, of rows [..., blocks * size, dim].

    A tree of additions: they are the same two numbers at a time however many blocks there are, so
    that a block pooled when its last row came and one pooled after a restore have the same bits.
    """
    total = keys.view(*keys.shape[:-2], -1, size, keys.shape[-1]).float()
    half = size // 2
    while half:
        total = total[..., :half, :] + total[..., half:, :]
        half //= 2
    return total.squeeze(-2).mul(1.0 / size)


def scores(queries: torch.Tensor, weights: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    """Scores [n, blocks] float32 of index queries [n, heads, dim] over pooled keys [blocks, dim].

    `weights` [n, heads]; a head counts where it is above zero.
    """
    n, heads, dim = queries.shape
    flat = torch.mm(queries.reshape(-1, dim).float(), blocks.t()).relu_().view(n, heads, -1)
    wide = weights.float() * dim**-0.5
    total: torch.Tensor = flat[:, 0] * wide[:, :1]
    for head in range(1, heads):
        total.addcmul_(flat[:, head], wide[:, head : head + 1])
    return total


def chosen(of: torch.Tensor, own: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Blocks that queries attend, int64 [n, 3 + count], and which of those places are filled.

    of [n, candidates]: scores of the blocks from 1 on; own int64 [n]: the block of each query. A
    query's candidates end before the block in front of its own. Of equal scores the lower block is
    taken. Chosen blocks ascend, behind the own block, the one before and the first.
    """
    fixed = torch.stack((own, own - 1, torch.zeros_like(own)), 1)
    filled = torch.stack((own >= 0, own >= 1, own >= 2), 1)
    blocks = torch.arange(1, 1 + of.shape[1], device=of.device)
    keys = order_keys(of, blocks).masked_fill_(blocks > (own - 2).unsqueeze(1), LOWEST)
    best = keys.topk(min(count, of.shape[1]), sorted=False).indices.sort().values + 1
    found = best <= (own - 2).unsqueeze(1)
    return torch.cat((fixed, best), 1), torch.cat((filled, found), 1)


def order_keys(of: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    """Int64 keys that stand in the order of the float32 scores, of equal ones the lower block's
    higher: no two of a query are equal, so that the highest few are one certain set.
    """
    # A float's bits are in the order of its value when those of negative ones are turned over.
    # Adding zero makes -0 into 0, which is equal to it.
    bits = (of + 0.0).view(torch.int32)
    ordered = bits ^ ((bits >> 31) & 0x7FFF_FFFF)
    return (ordered.long() << INDEX_BITS) - blocks
