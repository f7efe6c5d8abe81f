"""Products of rows with a weight, in the format that the machine multiplies fastest"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F

from engine.layers.norm import rounded

WIDENED_ROWS = 5
"""Fewer rows than this read a weight faster as it lies than they widen it."""
PART_NUMBERS = 1 << 20
"""Of a weight that is widened at a time: 4 MiB, so that a part stays in a cache till it is used."""


def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x [n, in] times weight [out, in], transposed: [n, out], summed in float32, in x's dtype.

    A processor without bfloat16 products takes eight times as long for them as for those in
    float32: there many rows are multiplied in float32, and what comes out is rounded once.
    """
    if len(x) >= WIDENED_ROWS and widens(x):
        return _widened(x, weight)
    return F.linear(x, weight)


@cache
def multiplies_bfloat16() -> bool:
    """Whether the processor has instructions for products of bfloat16, as AMX and AVX512_BF16 are.

    The instruction set is one of the traits a cache's fingerprint has (engine/machine.py).
    """
    return bool(torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported())


def widens(x: torch.Tensor) -> bool:
    """Whether products of x are taken in float32, since the processor has none in its dtype."""
    return x.dtype is torch.bfloat16 and x.device.type == "cpu" and not multiplies_bfloat16()


def _widened(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Part by part: the whole weight in float32 could be larger than the model."""
    step = max(1, PART_NUMBERS // weight.shape[1])
    wide = x.float()
    if len(weight) <= step:
        return rounded(F.linear(wide, weight.float()), x)
    made = x.new_empty(len(x), len(weight))
    for start in range(0, len(weight), step):
        part = weight[start : start + step]
        made[:, start : start + len(part)] = F.linear(wide, part.float())
    return made
