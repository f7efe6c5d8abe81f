"""Attention of a block of queries over the rows before them and their own"""

from __future__ import annotations

import torch

from engine.device import kernels_for
from engine.layers.norm import rounded


def attend(q: torch.Tensor, past: int, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Causal attention of q [kv heads, group, n, head_dim] at positions [past, past + n).

    Every query sees all of the past, so that part needs no mask: it is attended apart from the
    block's own rows, and the two are weighed by their log-sum-exp. That reads each key once and
    makes no [n, past] mask. The key lengths passed are those of the grid, never the window's.
    """
    n, stop = q.shape[2], past + q.shape[2]
    if n == 1:
        return _past(q, keys[:, :stop], values[:, :stop])[0]
    if past == 0:
        return _flash(q, keys[:, :stop], values[:, :stop], causal=True)[0]
    old, old_weight = _past(q, keys[:, :past], values[:, :past])
    new, new_weight = _flash(q, keys[:, past:stop], values[:, past:stop], causal=True)
    share = (old_weight - new_weight).sigmoid_().unsqueeze(3)
    return rounded(torch.lerp(new.float(), old.float(), share), q)


def _past(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Every query sees every row, so all of a group's queries are rows of one head: a CPU's kernel
    then reads k and v once for the group, where it would once for each of its heads.
    """
    if q.shape[1] == 1 or kernels_for(q.device) is not None:
        return _flash(q, k, v, causal=False)
    out, weight = _flash(q.flatten(1, 2).unsqueeze(1), k, v, causal=False)
    return out.view(q.shape), weight.view(q.shape[:3])


def _flash(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """(output, log-sum-exp of the scores, float32). The kv heads are the kernel's batch axis, so
    that the query heads of a group can share k and v [kv heads, n, head_dim] without a copy.
    """
    kernels = kernels_for(q.device)
    shared = (-1, q.shape[1], -1, -1)
    k, v = k.unsqueeze(1).expand(shared), v.unsqueeze(1).expand(shared)
    if kernels is not None:
        return kernels.flash(q, k, v, causal)
    out, weight = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)
    return out, weight
