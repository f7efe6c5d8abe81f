"""The delta rule for wide heads, engine.layers.wide_rule, against the recurrence.

Goal: outputs and states are those of the token-by-token recurrence, for whole and short inner
chunks, shared and unshared keys, and the rates and keys that are worst for the system. Method: the
recurrence in float64, as engine/layers/delta_rule.py states it; bounds are a few times the largest
error seen, on values of order one.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine.layers import wide_rule
from engine.layers.wide_rule import Chunks, sweep

CARRIED = 1e-5
KEY, VALUE = 12, 20


def draw(*shape: int, seed: int) -> torch.Tensor:
    """Normal noise."""
    return torch.empty(shape).normal_(generator=torch.Generator().manual_seed(seed))


def chunks_of(size: int, count: int, keys: int, served: int, rate: float) -> Chunks:
    """Noise: unit keys and queries, decay rates of about `rate` a token, beta in (0, 1)."""
    n, heads = size * count, keys * served
    pair = torch.nn.functional.normalize(draw(count, keys, 2, size, KEY, seed=1), dim=-1)
    g = -rate * draw(n, heads, seed=3).exp()
    beta = draw(n, heads, seed=5).sigmoid()
    return Chunks(pair, draw(n, heads, VALUE, seed=4), g, beta)


def by_token(chunks: Chunks, state: torch.Tensor) -> torch.Tensor:
    """o of all tokens, float64; moves `state`, float64."""
    served = chunks.values.shape[1] // chunks.pair.shape[1]
    rows = chunks.pair.double().permute(0, 3, 2, 1, 4).flatten(0, 1)
    queries, keys = rows.repeat_interleave(served, dim=2).unbind(1)
    outputs = []
    for q, k, v, g, beta in zip(
        queries, keys, chunks.values.double(), chunks.g.double(), chunks.beta.double(), strict=True
    ):
        state *= g.exp()[:, None, None]
        u = beta[:, None] * (v - torch.einsum("hk,hkv->hv", k, state))
        state += torch.einsum("hk,hv->hkv", k, u)
        outputs.append(torch.einsum("hk,hkv->hv", q, state))
    return torch.stack(outputs)


def off_by(chunks: Chunks) -> float:
    """The largest difference from the recurrence, in outputs or in the state; NaN is infinite."""
    state = draw(chunks.values.shape[1], KEY, VALUE, seed=7)
    wanted = state.double()
    want, got = by_token(chunks, wanted), torch.full_like(chunks.values, torch.nan)
    sweep(chunks, state, got)
    off = max(float((got - want).abs().max()), float((state - wanted).abs().max()))
    return off if off == off else float("inf")


@pytest.mark.parametrize(
    "size, count", [(1, 1), (2, 1), (5, 1), (37, 1), (63, 1), (64, 1), (64, 3)]
)
@pytest.mark.parametrize("keys, served", [(1, 1), (3, 1), (2, 3)])
@pytest.mark.parametrize("rate", [0.002, 0.1, 3.0])
def test_sweep_is_the_recurrence(
    size: int, count: int, keys: int, served: int, rate: float
) -> None:
    assert off_by(chunks_of(size, count, keys, served, rate)) < CARRIED


def test_sweep_holds_when_every_key_is_the_same() -> None:
    """The system to solve is then as far from the identity as it can be."""
    chunks = chunks_of(64, 2, 2, 2, 0.001)
    same = chunks.pair.clone()
    same[:, :, 1] = chunks.pair[:1, :, 1, :1]
    assert off_by(replace(chunks, pair=same, beta=torch.full((128, 4), 0.999))) < CARRIED


@pytest.mark.parametrize("rate", [20.0, 300.0])
def test_sweep_survives_decay_that_forgets_everything(rate: float) -> None:
    """Above the diagonal the decay would be exp of a large positive number."""
    assert off_by(chunks_of(64, 2, 2, 2, rate)) < CARRIED


def test_tokens_that_write_nothing_leave_the_state_to_decay() -> None:
    """Their line of the system, divided by beta = 0, would be infinite."""
    chunks = chunks_of(64, 1, 2, 2, 0.1)
    beta = chunks.beta.clone()
    beta[10:20] = 0
    assert off_by(replace(chunks, beta=beta)) < CARRIED
    assert off_by(replace(chunks, beta=torch.zeros_like(beta))) < CARRIED


def test_canary_an_inverse_with_its_blocks_in_the_wrong_order_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    part = wide_rule._Blocks._part

    def swapped(
        self: wide_rule._Blocks, matrices: torch.Tensor, step: int, row: int, column: int
    ) -> torch.Tensor:
        """C^-1 and A^-1 change places."""
        if row == column:
            row = column = step - row
        return part(self, matrices, step, row, column)

    monkeypatch.setattr(wide_rule._Blocks, "_part", swapped)
    assert off_by(chunks_of(64, 1, 2, 2, 0.1)) > 10 * CARRIED


def test_canary_heads_served_by_the_wrong_key_are_seen() -> None:
    chunks = chunks_of(64, 1, 2, 3, 0.1)
    state = draw(6, KEY, VALUE, seed=7)
    want = by_token(chunks, state.double())
    got = torch.empty_like(chunks.values)
    sweep(replace(chunks, pair=chunks.pair.flip(1)), state, got)
    assert float((got - want).abs().max()) > 10 * CARRIED
