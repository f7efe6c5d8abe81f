"""The gated delta rule's inner chunks and their sweep on a device; no sum's order is left open.

What they are held to is engine/layers/delta_rule.py, `solve` and `_sweep`: the same formulas, the
same parts, other orders of the same sums. Each program has its own outputs, nothing is added up
between programs, and every product is a float32 one in the round of IEEE 754.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

DOT_MIN = 16
"""The least side of a product of tiles."""
COLUMNS = 32
"""Columns of a state that a program carries through the chunks."""


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
    KB: tl.constexpr,
    VB: tl.constexpr,
):
    at, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    rows, ks, vs = tl.arange(0, CB), tl.arange(0, KB), tl.arange(0, VB)
    inside = rows < C
    # Rows past C are zeros with no decay: they take part in nothing.
    summed = tl.cumsum(tl.load(g + at * C + rows, mask=inside, other=0.0), 0)
    rate = tl.load(beta + at * C + rows, mask=inside, other=0.0)
    of_k = (at * C + rows[:, None]) * K + ks[None, :]
    in_k = inside[:, None] & (ks[None, :] < K)
    key = tl.load(k + of_k, mask=in_k, other=0.0)
    lower = rows[:, None] >= rows[None, :]
    # Above the diagonal the difference is positive and could overflow.
    pairs = tl.where(lower, tl.exp(tl.where(lower, summed[:, None] - summed[None, :], 0.0)), 0.0)
    weighted = key * rate[:, None]
    system = tl.dot(weighted, tl.trans(key), input_precision="ieee") * pairs
    grown = tl.exp(summed)[:, None]
    if part == 0:
        of_v = (at * C + rows[:, None]) * V + vs[None, :]
        in_v = inside[:, None] & (vs[None, :] < V)
        right = tl.load(v + of_v, mask=in_v, other=0.0) * rate[:, None]
        tl.store(fresh + of_v, _forward(system, right, rows, C), mask=in_v)
    else:
        query = tl.load(q + of_k, mask=in_k, other=0.0)
        of_pair = (at * C + rows[:, None]) * C + rows[None, :]
        in_pair = inside[:, None] & inside[None, :]
        both = tl.dot(query, tl.trans(key), input_precision="ieee") * pairs
        tl.store(scores + of_pair, both, mask=in_pair)
        tl.store(grown_q + of_k, query * grown, mask=in_k)
        tl.store(decay + at * C + rows, summed, mask=inside)
        tl.store(reads + of_k, _forward(system, weighted * grown, rows, C), mask=in_k)


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
    out,
    chunks,
    heads,
    C,
    K,
    V,
    CB: tl.constexpr,
    KB: tl.constexpr,
    VB: tl.constexpr,
):
    head = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * VB + tl.arange(0, VB)
    rows, ks = tl.arange(0, CB), tl.arange(0, KB)
    inside = rows < C
    of_state = (head * K + ks[:, None]) * V + columns[None, :]
    in_state = (ks[:, None] < K) & (columns[None, :] < V)
    s = tl.load(state + of_state, mask=in_state, other=0.0)
    in_k = inside[:, None] & (ks[None, :] < K)
    in_v = inside[:, None] & (columns[None, :] < V)
    for chunk in range(chunks):
        at = chunk * heads + head
        of_k = (at * C + rows[:, None]) * K + ks[None, :]
        of_v = (at * C + rows[:, None]) * V + columns[None, :]
        of_pair = (at * C + rows[:, None]) * C + rows[None, :]
        taken = tl.dot(tl.load(reads + of_k, mask=in_k, other=0.0), s, input_precision="ieee")
        u = tl.load(fresh + of_v, mask=in_v, other=0.0) - taken
        both = inside[:, None] & inside[None, :]
        o = tl.dot(tl.load(grown_q + of_k, mask=in_k, other=0.0), s, input_precision="ieee")
        o += tl.dot(tl.load(scores + of_pair, mask=both, other=0.0), u, input_precision="ieee")
        # Rows of o are tokens: [chunk, row, head, column].
        of_o = ((chunk * C + rows[:, None]) * heads + head) * V + columns[None, :]
        tl.store(out + of_o, o, mask=in_v)
        c = tl.load(decay + at * C + rows, mask=inside, other=0.0)
        last = tl.load(decay + at * C + C - 1)
        left = tl.exp(tl.where(inside, last - c, 0.0))
        key = tl.load(k + of_k, mask=in_k, other=0.0) * left[:, None]
        s = s * tl.exp(last) + tl.dot(tl.trans(key), u, input_precision="ieee")
    tl.store(state + of_state, s, mask=in_state)


Solved = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def solve(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor
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
        _solve_kernel[(batch, 2)](
            *(q, k, v, g, beta, grown_q, decay, scores, fresh, reads, size, keys, values),
            CB=_side(size),
            KB=_side(keys),
            VB=_side(values),
            num_warps=8,
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
) -> torch.Tensor:
    """Read and absorb m inner chunks one after the other; their o [m * C, heads, value_dim].

    The parts are those of `delta_rule.Inner`, batch m * heads; `state` [heads, key_dim, value_dim]
    float32 contiguous absorbs them in place.
    """
    assert state.is_contiguous() and state.dtype is torch.float32
    parts = [x.contiguous() for x in (queries, keys, decay, scores, fresh, reads)]
    (batch, size, width), (heads, _, values) = keys.shape, state.shape
    out = torch.empty(batch // heads * size, heads, values, device=state.device)
    columns = min(COLUMNS, _side(values))
    _sweep_kernel[(heads, triton.cdiv(values, columns))](
        *(*parts, state, out, batch // heads, heads, size, width, values),
        CB=_side(size),
        KB=_side(width),
        VB=columns,
        num_warps=8,
        # Tiles of the next chunk would not fit the shared memory beside these.
        num_stages=1,
    )
    return out


def _side(count: int) -> int:
    return max(DOT_MIN, triton.next_power_of_2(count))
