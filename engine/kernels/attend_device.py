"""Attention of a prefill chunk on a device, by torch's fused kernels"""

from __future__ import annotations

import torch


def flash(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """(output, log-sum-exp of the scores, float32) of [batch, heads, n, head_dim] each.

    As torch.ops.aten._scaled_dot_product_flash_attention_for_cpu gives them. bfloat16 goes to
    FlashAttention-2, which takes no float32; that goes to the memory-efficient kernel. Neither
    adds in an order that chance decides: only their backward passes do.
    """
    n = q.shape[2]
    if q.dtype is torch.bfloat16:
        found = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)
    else:
        found = torch.ops.aten._scaled_dot_product_efficient_attention(
            q, k, v, None, True, 0.0, causal
        )
    # The second's log-sum-exp is filled up to whole tiles.
    return found[0], found[1].narrow(2, 0, n)
