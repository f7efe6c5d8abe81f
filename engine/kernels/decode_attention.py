"""Attention of a verify block over rows whose count is read on the device, as a graph needs it

Flash-decoding (Dao et al., 2023): programs share the rows between them, each keeps its own sums
with their largest score, and a second kernel weighs these in the order of the rows. How rows are
shared hangs on their count alone, never on the window, and nothing is added in an order that
chance decides. The reference is engine/layers/attend.py.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from engine.kernels.rows_e4m3 import round_bf16, widen

QUERIES_MAX = 8
"""Tokens of a block that goes this way."""
SHARES = 64
"""Programs that share the rows of one kv head."""
TILE = 32
"""Rows a program reads at a time; a share is a whole number of tiles."""
_SIDE_MIN = 16


@triton.jit  # type: ignore[untyped-decorator]
def _share_of(rows, SHARES: tl.constexpr, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """How many rows each program reads."""
    return tl.cdiv(tl.cdiv(rows, SHARES), TILE) * TILE


@triton.jit  # type: ignore[untyped-decorator]
def _floats(rows, CODED: tl.constexpr, NARROW: tl.constexpr):  # type: ignore[no-untyped-def]
    """Rows as a product takes them; codes without their scales."""
    if CODED:
        rows = widen(rows)
    return rows.to(tl.bfloat16) if NARROW else rows.to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def _shares_kernel(  # type: ignore[no-untyped-def]
    q,
    keys,
    values,
    key_scales,
    value_scales,
    start,
    sums,
    tops,
    totals,
    n,
    queries,
    channels,
    head_stride,
    scale_stride,
    scale,
    CODED: tl.constexpr,
    NARROW: tl.constexpr,
    SHARES: tl.constexpr,
    TILE: tl.constexpr,
    QB: tl.constexpr,
    DB: tl.constexpr,
):
    share, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    tile, tiles = tl.program_id(2), tl.num_programs(2)
    past = tl.load(start)
    stop = past + n
    size = _share_of(stop, SHARES, TILE)
    first = share * size
    if first < stop:
        m, d = tile * QB + tl.arange(0, QB), tl.arange(0, DB)
        in_q = (m[:, None] < queries) & (d[None, :] < channels)
        query = tl.load(q + (head * queries + m[:, None]) * channels + d[None, :], in_q, other=0.0)
        if not NARROW:
            query = query.to(tl.float32)
        # Query m is token m % n of its head, and sees the rows up to its own.
        last = past + m % n
        top = tl.full((QB,), float("-inf"), tl.float32)
        total = tl.zeros((QB,), tl.float32)
        acc = tl.zeros((QB, DB), tl.float32)
        for low in range(first, tl.minimum(first + size, stop), TILE):
            row = low + tl.arange(0, TILE)
            at = head * head_stride + row[:, None] * channels + d[None, :]
            inside = (row[:, None] < stop) & (d[None, :] < channels)
            of_scale = head * scale_stride + row
            k = _floats(tl.load(keys + at, mask=inside, other=0), CODED, NARROW)
            v = _floats(tl.load(values + at, mask=inside, other=0), CODED, NARROW)
            s = tl.dot(query, tl.trans(k), input_precision="ieee") * scale
            if CODED:
                s *= tl.load(key_scales + of_scale, mask=row < stop, other=0.0)[None, :]
            s = tl.where(row[None, :] <= last[:, None], s, float("-inf"))
            new = tl.maximum(top, tl.max(s, 1))
            # A query that has seen no row yet stays at zero: -inf less -inf is no number.
            base = tl.where(new == float("-inf"), 0.0, new)
            p = tl.exp(s - base[:, None])
            kept = tl.exp(top - base)
            total = total * kept + tl.sum(p, 1)
            if CODED:
                p *= tl.load(value_scales + of_scale, mask=row < stop, other=0.0)[None, :]
            if NARROW:
                p = p.to(tl.bfloat16)
            acc = acc * kept[:, None] + tl.dot(p, v, input_precision="ieee")
            top = new
        part = (head * SHARES + share) * (tiles * QB) + m
        tl.store(sums + part[:, None] * DB + d[None, :], acc)
        tl.store(tops + part, top)
        tl.store(totals + part, total)


@triton.jit  # type: ignore[untyped-decorator]
def _weigh_kernel(  # type: ignore[no-untyped-def]
    start,
    sums,
    tops,
    totals,
    out,
    n,
    queries,
    channels,
    padded,
    HALF: tl.constexpr,
    SHARES: tl.constexpr,
    TILE: tl.constexpr,
    DB: tl.constexpr,
):
    m, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    stop = tl.load(start) + n
    used = tl.cdiv(stop, _share_of(stop, SHARES, TILE))
    d = tl.arange(0, DB)
    top = tl.full((), float("-inf"), tl.float32)
    total = tl.zeros((), tl.float32)
    acc = tl.zeros((DB,), tl.float32)
    for share in range(used):
        part = (head * SHARES + share) * padded + m
        one = tl.load(tops + part)
        new = tl.maximum(top, one)
        # The first share has row 0, which every query sees: `new` is never -inf.
        kept, more = tl.exp(top - new), tl.exp(one - new)
        total = total * kept + tl.load(totals + part) * more
        acc = acc * kept + tl.load(sums + part * DB + d) * more
        top = new
    value = acc / total
    to = (head * queries + m) * channels + d
    if HALF:
        tl.store(out + to, round_bf16(value), mask=d < channels)
    else:
        tl.store(out + to, value, mask=d < channels)


def attend_rows(
    q: torch.Tensor,
    start: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scales: tuple[torch.Tensor, torch.Tensor] | None = None,
    shares: int = SHARES,
) -> torch.Tensor:
    """Causal attention of q [kv heads, group, n, head_dim] at positions [start, start + n).

    start int64 [1], on the device. keys and values [kv heads, window, head_dim], of which rows
    [0, start + n) are read: in q's dtype, or e4m3 with `scales` [kv heads, window]. n is at most
    QUERIES_MAX. Returns q's shape and dtype, contiguous. Allocates and never waits, so that it can
    be captured. Reads nothing past those rows.
    """
    (heads, group, n, channels), coded = q.shape, scales is not None
    assert n <= QUERIES_MAX and keys.shape == values.shape
    assert keys[0].is_contiguous() and keys.stride() == values.stride()
    q, queries = q.contiguous(), group * n
    half = q.dtype is torch.bfloat16
    # Tensor cores on a device; elsewhere bfloat16 products are the interpreter's own.
    narrow = half and q.is_cuda
    # Without tensor cores a thread has no room for more queries than these.
    side = _side(queries) if narrow else _SIDE_MIN
    padded = triton.cdiv(queries, side) * side
    shared = {"DB": _side(channels), "SHARES": shares, "TILE": TILE}
    sums = torch.empty(heads, shares, padded, shared["DB"], device=q.device)
    tops, totals = sums.new_empty(2, heads, shares, padded).unbind()
    if coded:
        keys, values = keys.view(torch.uint8), values.view(torch.uint8)
    key_scales, value_scales = scales if scales is not None else (tops, tops)
    _shares_kernel[(shares, heads, padded // side)](
        *(q, keys, values, key_scales, value_scales, start, sums, tops, totals),
        *(n, queries, channels, keys.stride(0), key_scales.stride(0), channels**-0.5),
        CODED=coded,
        NARROW=narrow,
        QB=side,
        **shared,
        num_warps=8,
        num_stages=2,
    )
    out = torch.empty_like(q)
    _weigh_kernel[(queries, heads)](
        *(start, sums, tops, totals, out.view(torch.int16) if half else out),
        *(n, queries, channels, padded),
        HALF=half,
        **shared,
    )
    return out


def _side(count: int) -> int:
    return max(_SIDE_MIN, triton.next_power_of_2(count))
