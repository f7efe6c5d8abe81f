"""The gated delta rule's inner chunks and their sweep on a device; no sum's order is left open.

What they are held to is engine/layers/delta_rule.py, `solve` and `_sweep`: the same formulas, the
same parts, other orders of the same sums. Each program has its own outputs, nothing is added up
between programs, and every product is a float32 one in the round of IEEE 754.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

PIECE = 16
"""Terms of a product that are taken at a time: a thread holds that much of both sides."""
COLUMNS = 32
"""Columns that a program works on: of a state it carries, of a system's right sides."""


@triton.jit  # type: ignore[untyped-decorator]
def _solve_kernel(  # type: ignore[no-untyped-def]
    q,
    k,
    v,
    g,
    beta,
    grown_q,
    decay,
    scores,
    fresh,
    reads,
    C,
    K,
    V,
    CB: tl.constexpr,
    WB: tl.constexpr,
    PIECE: tl.constexpr,
):
    """Columns of `fresh` or of `reads`; what has no columns of the two comes with the first."""
    at, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    rows = tl.arange(0, CB)
    inside = rows < C
    # Rows past C are zeros with no decay: they take part in nothing.
    summed = tl.cumsum(tl.load(g + at * C + rows, mask=inside, other=0.0), 0)
    rate = tl.load(beta + at * C + rows, mask=inside, other=0.0)
    lower = rows[:, None] >= rows[None, :]
    # Above the diagonal the difference is positive and could overflow.
    pairs = tl.where(lower, tl.exp(tl.where(lower, summed[:, None] - summed[None, :], 0.0)), 0.0)
    system = tl.zeros((CB, CB), tl.float32)
    for first in range(0, K, PIECE):
        key = _piece(k, at, first, rows, C, K, PIECE)
        system += tl.dot(key, tl.trans(key), input_precision="ieee")
    system *= pairs * rate[:, None]
    grown = tl.exp(summed)
    of_v = tl.cdiv(V, WB)
    # Which side, and which columns of it.
    width = tl.where(part < of_v, V, K)
    columns = tl.where(part < of_v, part, part - of_v) * WB + tl.arange(0, WB)
    to = (at * C + rows[:, None]) * width + columns[None, :]
    within = inside[:, None] & (columns[None, :] < width)
    if part < of_v:
        right = tl.load(v + to, mask=within, other=0.0) * rate[:, None]
        tl.store(fresh + to, _forward(system, right, rows, C), mask=within)
    else:
        right = tl.load(k + to, mask=within, other=0.0) * (rate * grown)[:, None]
        tl.store(reads + to, _forward(system, right, rows, C), mask=within)
        query = tl.load(q + to, mask=within, other=0.0)
        tl.store(grown_q + to, query * grown[:, None], mask=within)
    if part == 0:
        tl.store(decay + at * C + rows, summed, mask=inside)
        both = tl.zeros((CB, CB), tl.float32)
        for first in range(0, K, PIECE):
            query = _piece(q, at, first, rows, C, K, PIECE)
            key = _piece(k, at, first, rows, C, K, PIECE)
            both += tl.dot(query, tl.trans(key), input_precision="ieee")
        of_pair = (at * C + rows[:, None]) * C + rows[None, :]
        tl.store(scores + of_pair, both * pairs, mask=inside[:, None] & inside[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def _piece(x, at, first, rows, C, K, PIECE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Columns [first, first + PIECE) of the chunk's rows [C, K]."""
    columns = first + tl.arange(0, PIECE)
    inside = (rows[:, None] < C) & (columns[None, :] < K)
    return tl.load(x + (at * C + rows[:, None]) * K + columns[None, :], mask=inside, other=0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _forward(system, right, rows, C):  # type: ignore[no-untyped-def]
    """Solve (I + strict lower of system) x = right, row after row."""
    for i in range(1, C):
        row = tl.sum(tl.where(rows[:, None] == i, system, 0.0), 0)
        known = tl.sum(tl.where(rows < i, row, 0.0)[:, None] * right, 0)
        right = tl.where(rows[:, None] == i, right - known[None, :], right)
    return right


@triton.jit  # type: ignore[untyped-decorator]
def _sweep_kernel(  # type: ignore[no-untyped-def]
    grown_q,
    k,
    decay,
    scores,
    fresh,
    reads,
    state,
    us,
    out,
    chunks,
    heads,
    C,
    K,
    V,
    CB: tl.constexpr,
    KB: tl.constexpr,
    VB: tl.constexpr,
    PIECE: tl.constexpr,
):
    """Columns of one head's state, which lies in memory, as `us` do: what is added up piece by
    piece is read piece by piece. Nobody else touches these columns.
    """
    head = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * VB + tl.arange(0, VB)
    rows, ks, some = tl.arange(0, CB), tl.arange(0, KB), tl.arange(0, PIECE)
    inside, within = rows < C, columns[None, :] < V
    of_u = (head * C + rows[:, None]) * V + columns[None, :]
    in_v = inside[:, None] & within
    for chunk in range(chunks):
        at = chunk * heads + head
        taken = tl.zeros((CB, VB), tl.float32)
        o = tl.zeros((CB, VB), tl.float32)
        for first in range(0, K, PIECE):
            row = first + some
            of_s = (head * K + row[:, None]) * V + columns[None, :]
            s = tl.load(state + of_s, mask=(row[:, None] < K) & within, other=0.0)
            read = _piece(reads, at, first, rows, C, K, PIECE)
            query = _piece(grown_q, at, first, rows, C, K, PIECE)
            taken += tl.dot(read, s, input_precision="ieee")
            o += tl.dot(query, s, input_precision="ieee")
        of_v = (at * C + rows[:, None]) * V + columns[None, :]
        tl.store(us + of_u, tl.load(fresh + of_v, mask=in_v, other=0.0) - taken, mask=in_v)
        c = tl.load(decay + at * C + C - 1)
        of_state = (head * K + ks[:, None]) * V + columns[None, :]
        in_state = (ks[:, None] < K) & within
        left = tl.load(state + of_state, mask=in_state, other=0.0) * tl.exp(c)
        # All threads have read the state, and see all of u.
        tl.debug_barrier()
        for first in range(0, C, PIECE):
            row = first + some
            known = row < C
            of_some = (head * C + row[:, None]) * V + columns[None, :]
            u = tl.load(us + of_some, mask=known[:, None] & within, other=0.0)
            pair = _piece(scores, at, first, rows, C, C, PIECE)
            o += tl.dot(pair, u, input_precision="ieee")
            # Keys as [key_dim, tokens], each with what is left of it at the chunk's end.
            of_k = (at * C + row[None, :]) * K + ks[:, None]
            key = tl.load(k + of_k, mask=known[None, :] & (ks[:, None] < K), other=0.0)
            since = tl.load(decay + at * C + row, mask=known, other=0.0)
            key *= tl.exp(tl.where(known, c - since, 0.0))[None, :]
            left += tl.dot(key, u, input_precision="ieee")
        tl.store(state + of_state, left, mask=in_state)
        # Rows of o are tokens: [chunk, row, head, column].
        of_o = ((chunk * C + rows[:, None]) * heads + head) * V + columns[None, :]
        tl.store(out + of_o, o, mask=in_v)
        # The next chunk reads this state, and writes its own u.
        tl.debug_barrier()


Solved = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def solve(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    columns: int = COLUMNS,
) -> Solved:
    """(exp(c) q, c, scores, fresh, reads) of a batch of inner chunks, float32.

    q, k [batch, C, key_dim], v [batch, C, value_dim], g, beta [batch, C]; shapes and meaning of
    what comes back are those of `delta_rule.Inner`. C is at most 64.
    """
    q, k, v, g, beta = (x.contiguous() for x in (q, k, v, g, beta))
    (batch, size, keys), values = k.shape, v.shape[-1]
    grown_q, decay = torch.empty_like(q), torch.empty_like(g)
    fresh, reads = torch.empty_like(v), torch.empty_like(k)
    scores = torch.empty(batch, size, size, dtype=q.dtype, device=q.device)
    if batch:
        width = min(columns, max(_side(keys), _side(values)))
        parts = triton.cdiv(values, width) + triton.cdiv(keys, width)
        _solve_kernel[(batch, parts)](
            *(q, k, v, g, beta, grown_q, decay, scores, fresh, reads, size, keys, values),
            CB=_side(size),
            WB=width,
            PIECE=PIECE,
            num_warps=8,
            num_stages=1,
        )
    return grown_q, decay, scores, fresh, reads


def sweep(
    queries: torch.Tensor,
    keys: torch.Tensor,
    decay: torch.Tensor,
    scores: torch.Tensor,
    fresh: torch.Tensor,
    reads: torch.Tensor,
    state: torch.Tensor,
    columns: int = COLUMNS,
) -> torch.Tensor:
    """Read and absorb m inner chunks one after the other; their o [m * C, heads, value_dim].

    The parts are those of `delta_rule.Inner`, batch m * heads; `state` [heads, key_dim, value_dim]
    float32 contiguous absorbs them in place.
    """
    assert state.is_contiguous() and state.dtype is torch.float32
    parts = [x.contiguous() for x in (queries, keys, decay, scores, fresh, reads)]
    (batch, size, width), (heads, _, values) = keys.shape, state.shape
    out = torch.empty(batch // heads * size, heads, values, device=state.device)
    us = torch.empty(heads, size, values, device=state.device)
    columns = min(columns, _side(values))
    _sweep_kernel[(heads, triton.cdiv(values, columns))](
        *(*parts, state, us, out, batch // heads, heads, size, width, values),
        CB=_side(size),
        KB=_side(width),
        VB=columns,
        PIECE=PIECE,
        num_warps=8,
        num_stages=1,
    )
    return out


def _side(count: int) -> int:
    return max(PIECE, triton.next_power_of_2(count))
