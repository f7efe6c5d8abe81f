"""Rows in eight bits: how far from the row, and the same bits wherever the row stands.

Goal: engine.layers.e4m3 rounds as the format says, with one scale a row, and a model over such rows
stays near the one over plain rows. Method: every code against torch's own cast; drawn rows against
the bound that four bits give; each row alone, among others, and as a strided view. Rows that are
zero, tiny, huge or not finite by name. Canaries plant a wrong scale.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.config import HybridConfig
from engine.hybrid import Hybrid
from engine.layers.e4m3 import DTYPE, LARGEST, SMALLEST_SCALE, dequantise, quantise
from engine.layers.kv import Kv

HALF_STEP, SUBNORMAL = 2.0**-4, 2.0**-10
"""Half of the last of three bits, for a number of any size; and half of the smallest code."""
INF, NAN = float("inf"), float("nan")


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Rows whose sizes differ by some powers of ten."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.empty(shape).normal_(generator=generator)
    return (rows * torch.empty(*shape[:-1], 1).uniform_(-5, 5, generator=generator).exp()).to(dtype)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """The same bytes."""
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def off(rows: torch.Tensor) -> float:
    """The largest error over what the format allows; at most one."""
    codes, scale = quantise(rows)
    got = dequantise(codes, scale, torch.float32).double()
    wide, unit = rows.double(), scale.double().unsqueeze(-1)
    allowed = torch.maximum(wide.abs() * HALF_STEP, unit * SUBNORMAL) * (1 + 1e-5)
    return float(((got - wide).abs() / allowed).max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_number_is_off_by_more_than_half_a_step(dtype: torch.dtype) -> None:
    assert 0.5 < off(drawn(300, 2, 64, dtype=dtype)) <= 1


@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=9))
def test_any_row_is_within_the_bound(row: list[float]) -> None:
    assert off(torch.tensor([row])) <= 1


def test_the_largest_number_of_a_row_comes_back_nearly_whole() -> None:
    """It has the largest code, whatever its size."""
    rows = drawn(500, 32)
    codes, scale = quantise(rows)
    assert torch.equal(codes.float().abs().amax(-1), torch.full((500,), LARGEST))
    torch.testing.assert_close(scale * LARGEST, rows.abs().amax(-1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [1.0, 0.3, 1e-30, 7e35])
def test_every_code_is_read_as_the_format_says(dtype: torch.dtype, scale: float) -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(DTYPE)
    codes = codes[~codes.isnan()][None]
    want = (codes.float() * torch.tensor([[scale]])).to(dtype)
    assert same(dequantise(codes, torch.tensor([scale]), dtype), want)


def test_a_rows_bits_hang_on_nothing_but_the_row() -> None:
    rows = drawn(70, 3, 24, dtype=torch.bfloat16)
    codes, scale = quantise(rows)
    wide = torch.zeros(70, 3, 48, dtype=torch.bfloat16)
    wide[..., ::2] = rows
    for view in (wide[..., ::2], rows.transpose(0, 1).contiguous().transpose(0, 1)):
        assert all(map(same, quantise(view), (codes, scale)))
    for at in (0, 1, 37, 69):
        one = quantise(rows[at : at + 1])
        assert same(one[0], codes[at : at + 1]) and same(one[1], scale[at : at + 1])
        alone = dequantise(*one, torch.bfloat16)
        assert same(alone, dequantise(codes, scale, torch.bfloat16)[at : at + 1])


def test_rows_of_zeros_and_of_next_to_nothing() -> None:
    rows = torch.tensor([[0.0, -0.0], [1e-45, 0.0], [SMALLEST_SCALE, 0.0], [3e38, -1.0]])
    codes, scale = quantise(rows)
    assert scale.tolist()[:3] == [SMALLEST_SCALE] * 3
    got = dequantise(codes, scale, torch.float32)
    assert got[0].tolist() == [0, 0] and got[1].abs().max() < 1e-40
    assert got[2].tolist() == [SMALLEST_SCALE, 0] and got.isfinite().all()


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_nothing_of_a_row_that_is_not_finite_is_read_as_a_number(bad: float) -> None:
    rows = drawn(3, 2, 8)
    rows[1, 0, 5] = bad
    read = dequantise(*quantise(rows), torch.float32)
    assert not read[1, 0].isfinite().any()
    read[1, 0] = 0
    assert read.isfinite().all()


def test_canary_a_scale_of_all_rows_together_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = torch.linalg.vector_norm
    monkeypatch.setattr(
        torch.linalg, "vector_norm", lambda x, *of: whole(x, *of).fill_(whole(x, *of).amax())
    )
    rows = drawn(70, 24)
    assert off(rows) <= 1, "a bound that knows only the scale does not see it"
    assert not same(quantise(rows[:1])[0], quantise(rows)[0][:1])


# a whole model

SEED, GRID = 1, 64
FAR = {"float32": 0.03, "bfloat16": 0.06}
"""Of logits of size 1. Seen: 0.009 and 0.016."""


@cache
def plain_logits(dtype: str) -> torch.Tensor:
    """Over plain rows."""
    return logits_of(HybridConfig.tiny(dtype=dtype))


def logits_of(config: HybridConfig) -> torch.Tensor:
    """Of five prefilled positions, and of a block behind them."""
    of = Hybrid.random(config, SEED, grid=GRID, window=512)
    ids = np.random.default_rng(1).integers(0, config.vocab, 5 * GRID + 5).astype(np.int32)
    last = [of.prefill(ids[at : at + GRID])[None] for at in range(0, 5 * GRID, GRID)]
    return torch.cat([*last, of.verify(ids[5 * GRID :])]).float()


@pytest.mark.parametrize("dtype", FAR)
def test_logits_are_near_those_over_plain_rows(dtype: str) -> None:
    got = logits_of(HybridConfig.tiny(dtype=dtype, kv="e4m3"))
    far = float((got - plain_logits(dtype)).abs().max())
    assert 0 < far < FAR[dtype], far


@pytest.mark.parametrize("dtype", FAR)
def test_canary_another_heads_scales_are_far(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Kv.read

    def swapped(self: Kv, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        scales = [scale.flip(0) for scale in self.scales]
        return read(Kv(self.keys, self.values, scales, self.dtype), stop)

    monkeypatch.setattr(Kv, "read", swapped)
    got = logits_of(HybridConfig.tiny(dtype=dtype, kv="e4m3"))
    assert float((got - plain_logits(dtype)).abs().max()) > FAR[dtype]
