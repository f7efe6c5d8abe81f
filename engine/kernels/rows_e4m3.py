"""Rows in e4m3 with a scale each, made and undone on a device, bit for bit as torch makes them.

Numbers are taken apart as integers, so that one source gives the same bits on every device and
under the interpreter. e4m3 as in the OCP specification of 8-bit floats: a sign, four bits of
exponent with bias 7, three of mantissa, no infinity, S.1111.111 is NaN, the largest is 448.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

LARGEST = 448.0
SMALLEST_SCALE = torch.finfo(torch.float32).tiny
ROWS = 8
"""Rows a program works on."""


@triton.jit  # type: ignore[untyped-decorator]
def widen(byte):  # type: ignore[no-untyped-def]
    """float32 of e4m3 bytes, which are uint8. NaN's code reads as 480: its scale is not finite."""
    bits = byte.to(tl.int32)
    exponent, mantissa = (bits >> 3) & 15, bits & 7
    normal = (((exponent + 120) << 23) | (mantissa << 20)).to(tl.float32, bitcast=True)
    value = tl.where(exponent == 0, mantissa.to(tl.float32) * 0.001953125, normal)
    # By its bit: 0 - 0 is no negative zero.
    signed = value.to(tl.int32, bitcast=True) | ((bits & 128) << 24)
    return signed.to(tl.float32, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def narrow(value):  # type: ignore[no-untyped-def]
    """e4m3 bytes of float32 in [-448, 448] or NaN, to the nearest, ties to even."""
    bits = value.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    # Below 2^-6 steps are 2^-9: adding 2^14 leaves just these bits, rounded by the adder.
    low = (size.to(tl.float32, bitcast=True) + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    high = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - (120 << 3)
    byte = tl.where(size < 0x3C800000, low, high)
    byte = tl.where(size > 0x7F800000, 127, byte)
    return (byte | ((bits >> 24) & 128)).to(tl.uint8)


@triton.jit  # type: ignore[untyped-decorator]
def round_bf16(value):  # type: ignore[no-untyped-def]
    """The bits, as int16, of float32 rounded to bfloat16, to the nearest, ties to even."""
    bits = value.to(tl.int32, bitcast=True)
    near = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    # The bits of a NaN would be rounded to those of an infinity.
    return tl.where((bits & 0x7FFFFFFF) > 0x7F800000, 0x7FC0, near).to(tl.int16)


@triton.jit  # type: ignore[untyped-decorator]
def _quantise_kernel(  # type: ignore[no-untyped-def]
    rows,
    codes,
    scales,
    n,
    channels,
    LARGEST: tl.constexpr,
    SMALLEST: tl.constexpr,
    HALF: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    at = row[:, None] * channels + column[None, :]
    inside = (row[:, None] < n) & (column[None, :] < channels)
    if HALF:
        bits = tl.load(rows + at, mask=inside, other=0).to(tl.int32) << 16
    else:
        bits = tl.load(rows + at, mask=inside, other=0)
    # Sizes in the order of their bits, above all numbers infinity, above that what is none.
    largest = tl.max(bits & 0x7FFFFFFF, 1).to(tl.float32, bitcast=True)
    scale = tl.div_rn(largest, tl.full((ROWS,), LARGEST, tl.float32))
    scale = tl.where(scale < SMALLEST, SMALLEST, scale)
    value = bits.to(tl.float32, bitcast=True)
    wide = tl.broadcast_to(scale[:, None], (ROWS, WIDTH))
    tl.store(codes + at, narrow(tl.div_rn(value, wide)), mask=inside)
    tl.store(scales + row, scale, mask=row < n)


@triton.jit  # type: ignore[untyped-decorator]
def _dequantise_kernel(  # type: ignore[no-untyped-def]
    codes,
    scales,
    out,
    n,
    channels,
    code_outer,
    code_row,
    scale_outer,
    HALF: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    outer = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    inside = (row[:, None] < n) & (column[None, :] < channels)
    at = outer * code_outer + row[:, None] * code_row + column[None, :]
    scale = tl.load(scales + outer * scale_outer + row, mask=row < n, other=0.0)
    value = widen(tl.load(codes + at, mask=inside, other=0)) * scale[:, None]
    to = (outer * n + row[:, None]) * channels + column[None, :]
    if HALF:
        tl.store(out + to, round_bf16(value), mask=inside)
    else:
        tl.store(out + to, value, mask=inside)


def quantise(rows: torch.Tensor, block: int = ROWS) -> tuple[torch.Tensor, torch.Tensor]:
    """What engine/layers/e4m3.py's `quantise` gives, but for the sign of what is no number.

    rows [..., channels] in float32 or bfloat16.
    """
    flat = rows.contiguous()
    codes = torch.empty(flat.shape, dtype=torch.uint8, device=rows.device)
    scale = torch.empty(flat.shape[:-1], device=rows.device)
    count = scale.numel()
    if count:
        _quantise_kernel[(triton.cdiv(count, block),)](
            *(_integers(flat), codes, scale, count, flat.shape[-1]),
            LARGEST=LARGEST,
            SMALLEST=SMALLEST_SCALE,
            HALF=_half(rows.dtype),
            ROWS=block,
            WIDTH=triton.next_power_of_2(flat.shape[-1]),
        )
    return codes.view(torch.float8_e4m3fn), scale


def dequantise(
    codes: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype, block: int = ROWS
) -> torch.Tensor:
    """What engine/layers/e4m3.py's `dequantise` gives.

    codes [heads, n, channels] and scale [heads, n], parts of buffers of any window, to `dtype`,
    float32 or bfloat16.
    """
    (heads, n, channels), ints = codes.shape, codes.view(torch.uint8)
    assert ints.stride(2) == 1 and scale.stride(1) == 1
    out = torch.empty(codes.shape, dtype=dtype, device=codes.device)
    if n:
        _dequantise_kernel[(triton.cdiv(n, block), heads)](
            *(ints, scale, _integers(out) if _half(dtype) else out, n, channels),
            *(ints.stride(0), ints.stride(1), scale.stride(0)),
            HALF=_half(dtype),
            ROWS=block,
            WIDTH=triton.next_power_of_2(channels),
        )
    return out


def _half(dtype: torch.dtype) -> bool:
    assert dtype in (torch.float32, torch.bfloat16), dtype
    return dtype is torch.bfloat16


def _integers(rows: torch.Tensor) -> torch.Tensor:
    return rows.view(torch.int16 if _half(rows.dtype) else torch.int32)
