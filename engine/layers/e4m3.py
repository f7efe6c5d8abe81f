"""Rows in eight bits: e4m3 codes with one float32 scale a row and head

A row's scale is its largest magnitude over 448, the largest number that e4m3 has, so that every row
uses the whole range. What a row becomes hangs on nothing but the row: the maximum is exact in any
order, and all else is done element by element with correctly rounded operations.
Format: e4m3fn of Micikevicius et al., FP8 Formats for Deep Learning, 2022.
"""

from __future__ import annotations

import torch

from engine.device import kernels_for

DTYPE = torch.float8_e4m3fn
LARGEST = 448.0
SMALLEST_SCALE = torch.finfo(torch.float32).tiny
"""2^-126. A row of zeros has this scale too; below it a scale would lose bits, or be 0 itself."""

_HALF_SHIFT, _HALF_BITS, _HALF_FACTOR = 7, -0x4001, 256.0
"""e4m3's bits shifted by 7 are float16's of the same number over 256 (their exponents' biases are 7
and 15), subnormal ones among them. Bit 14 is cleared: the sign was extended into it."""


def quantise(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes [..., channels] in e4m3 and scales [...] in float32 of rows [..., channels].

    A row that has a NaN or an infinity gets a scale that is none either: nothing that is read back
    of it is finite, so that it shows in the logits instead of passing for another row.
    """
    kernels = kernels_for(rows.device)
    if kernels is not None:
        return kernels.quantise(rows)
    wide = rows.float()
    scale = torch.linalg.vector_norm(wide, torch.inf, -1).div_(LARGEST).clamp_min_(SMALLEST_SCALE)
    return (wide / scale.unsqueeze(-1)).to(DTYPE), scale


def dequantise(codes: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """codes [..., channels] times scale [...], in float32 and rounded once to `dtype`; contiguous.

    By way of float16's bits: torch's own cast from e4m3 takes four times as long on a CPU.
    """
    kernels = kernels_for(codes.device)
    if kernels is not None:
        return kernels.dequantise(codes, scale, dtype)
    bits = codes.view(torch.int8).to(torch.int16)
    half = bits.bitwise_left_shift_(_HALF_SHIFT).bitwise_and_(_HALF_BITS).view(torch.float16)
    return half.float().mul_((scale * _HALF_FACTOR).unsqueeze(-1)).to(dtype)
