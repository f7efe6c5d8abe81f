"""Gated delta rule in its chunked (WY) form: inner chunks are solved at once, then absorbed.

The recurrence over a head's state S [key_dim, value_dim], by token (engine/oracle/delta_net.py):
    S = exp(g) S;  u = beta (v - k S);  S = S + k^T u;  o = q S
Inside an inner chunk, with c the running sum of g and D_ij = exp(c_i - c_j) for j <= i, the u of
all tokens solve a unit lower triangular system in which S appears linearly:
    (I + strict lower of (beta_i k_i.k_j D_ij)) u = beta v - (beta exp(c) k) S
so what does not touch S is computed for many inner chunks in one batch. Formulas: Yang et al.,
Gated Delta Networks, 2024, and the UT transform of Yang et al., Parallelizing Linear Transformers
with the Delta Rule, 2024.

A verify block is an inner chunk that is read but not absorbed: `read` leaves S alone, and `absorb`
lets it take in the first tokens later, since their u depends on no later token.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.device import kernels_for

INNER = 64
"""Tokens of an inner chunk, as in the published implementation."""
LEAST = -87.0
"""exp of less is no normal float32. What it is of is lost beside the rest long before."""


@dataclass(frozen=True, slots=True)
class Inner:
    """A batch of inner chunks of C tokens, solved up to their state; float32, batch axis first."""

    queries: torch.Tensor
    """exp(c) q, [batch, C, key_dim]."""
    keys: torch.Tensor
    """k, [batch, C, key_dim]."""
    decay: torch.Tensor
    """c, the running sum of g inside the chunk, [batch, C]."""
    scores: torch.Tensor
    """q_i.k_j D_ij on and below the diagonal, [batch, C, C]."""
    fresh: torch.Tensor
    """u for an empty state, [batch, C, value_dim]."""
    reads: torch.Tensor
    """What the state takes away: u = fresh - reads S, [batch, C, key_dim]."""


def share(passed: torch.Tensor) -> torch.Tensor:
    """exp of decays that passed between two tokens, in place: what is left of the earlier one.

    Those of tokens in the wrong order are positive, and could overflow: they give 1. Where exp is
    no normal number, a CPU takes a hundred times as long for it.
    """
    return passed.clamp_(LEAST, 0.0).exp_()


def solve(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor
) -> Inner:
    """Prepare a batch: q, k [batch, C, key_dim], v [batch, C, value_dim], g, beta [batch, C].

    q and k have their final length; everything is float32.
    """
    kernels = kernels_for(q.device)
    if kernels is not None:
        queries, decay, scores, fresh, reads = kernels.solve(q, k, v, g, beta)
        return Inner(queries, k, decay, scores, fresh, reads)
    decay = g.cumsum(-1)
    # Only pairs j <= i count.
    pairs = share(decay.unsqueeze(2) - decay.unsqueeze(1))
    grown, rate = share(decay.clone()).unsqueeze(2), beta.unsqueeze(2)
    weighted, transposed = k * rate, k.transpose(1, 2)
    # The solver reads neither the diagonal nor what is above it.
    system = torch.bmm(weighted, transposed).mul_(pairs)
    right = torch.cat((v * rate, weighted * grown), dim=-1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    fresh, reads = torch.split_with_sizes(solved, (v.shape[-1], k.shape[-1]), -1)
    scores = torch.bmm(q, transposed).mul_(pairs).tril_()
    return Inner(q * grown, k, decay, scores, fresh, reads)


def read(inner: Inner, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(o, u) of one inner chunk on `state` [heads, key_dim, value_dim]; [heads, C, value_dim]."""
    u = torch.baddbmm(inner.fresh, inner.reads, state, alpha=-1.0)
    return torch.bmm(inner.queries, state).baddbmm_(inner.scores, u), u


def absorb(
    state: torch.Tensor, keys: torch.Tensor, decay: torch.Tensor, u: torch.Tensor, count: int
) -> None:
    """Let `state` [heads, key_dim, value_dim] take in `count` tokens of an inner chunk, in place.

    `keys` and `decay` are the chunk's own, `u` what `read` gave.
    """
    decay = decay[:, :count]
    last = decay[:, -1:]
    weighted = keys[:, :count] * share(last - decay).unsqueeze(2)
    state.mul_(share(last.clone()).unsqueeze(2)).baddbmm_(weighted.transpose(1, 2), u[:, :count])


def scan(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
) -> torch.Tensor:
    """o [n, heads, value_dim] of n tokens; `state` absorbs them all, in place.

    q, k [n, heads, key_dim], v [n, heads, value_dim], g, beta [n, heads]: float32.
    """
    n = len(q)
    whole = n // INNER * INNER
    # What is left over is one shorter inner chunk, not a padded one: a small grid stays cheap.
    pieces = [(0, whole, INNER), (whole, n, n - whole)]
    outputs = []
    for start, stop, size in pieces:
        if stop > start:
            parts = (_inner_chunks(x[start:stop], size) for x in (q, k, v, g, beta))
            outputs.append(_sweep(solve(*parts), state))
    return torch.cat(outputs) if len(outputs) > 1 else outputs[0]


def _inner_chunks(x: torch.Tensor, size: int) -> torch.Tensor:
    """[m * size, heads, ...] as [m * heads, size, ...], contiguous."""
    return x.view(-1, size, *x.shape[1:]).transpose(1, 2).flatten(0, 1)


def _sweep(inner: Inner, state: torch.Tensor) -> torch.Tensor:
    """Read and absorb m inner chunks one after the other; their o, [m * C, heads, value_dim]."""
    kernels = kernels_for(state.device)
    if kernels is not None:
        parts = inner.queries, inner.keys, inner.decay, inner.scores, inner.fresh, inner.reads
        return kernels.sweep(*parts, state)
    heads = len(state)
    last = inner.decay[:, -1:]
    keys = inner.keys * share(last - inner.decay).unsqueeze(2)
    parts = (
        inner.queries,
        inner.scores,
        inner.fresh,
        inner.reads,
        keys.transpose(1, 2),
        share(last.clone()).unsqueeze(2),
    )
    steps = zip(*(part.view(-1, heads, *part.shape[1:]).unbind() for part in parts), strict=True)
    outputs = []
    for queries, scores, fresh, reads, transposed, shrink in steps:
        u = torch.baddbmm(fresh, reads, state, alpha=-1.0)
        outputs.append(torch.bmm(queries, state).baddbmm_(scores, u))
        state.mul_(shrink).baddbmm_(transposed, u)
    return torch.stack(outputs).transpose(1, 2).flatten(0, 1)
