"""The whole hybrid against the oracle, and faults in its layers that the oracle must see.

Goal: logits, sections and rows of engine.hybrid are within float32's rounding of the published
formulas, with an MLP or experts, one draft layer or two, rows plain or e4m3, through chunks, pieces
of them, verified blocks and a resume. Method: engine.oracle in JAX float64, token by token, on the
same weights; the bound is derived in oracled.bound. Canaries plant a wrong sign, order or factor in
the torch layers, one at a time: each must end up at least a hundred bounds away.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from oracled import COUNT, GRID, after, bound, copied, ids_of, resumed, walk, worst

from engine.config import HybridConfig
from engine.hybrid import Hybrid
from engine.layers import attention, delta_net, delta_rule
from engine.layers.decoder import Decoder
from engine.layers.moe import Moe
from engine.layers.norm import GatedNorm
from engine.layers.rope import Angles, Rope
from engine.moe_config import MoeConfig
from engine.oracle.formulas import e4m3
from engine.oracle.hybrid import Oracle
from engine.oracle.wide import back, jitted, wide
from engine.weights import random_weights

DENSE = HybridConfig.tiny()
EXPERTS = HybridConfig.tiny(tie_embeddings=False, moe=MoeConfig.small())
DEEP = HybridConfig.tiny(layers=8, draft_layers=2)
EIGHT_BITS = HybridConfig.tiny(kv="e4m3")
BOUND = bound(layers=4)


def engine(config: HybridConfig) -> Hybrid:
    return Hybrid(Decoder(random_weights(config, 3)), grid=GRID, window=256)


@cache
def wanted(config: HybridConfig) -> tuple[Oracle, torch.Tensor]:
    """The oracle after all ids, and their logits."""
    oracle = Oracle(config, random_weights(config, 3).tensors)
    return oracle, oracle.read(ids_of().tolist())


def far(config: HybridConfig) -> dict[str, float]:
    """How far the engine's logits, sections and rows are off after a walk."""
    oracle, logits = wanted(config)
    return after(engine(config), ids_of(), logits, oracle.state())


@pytest.mark.parametrize("config", [DENSE, EXPERTS, DEEP], ids=["dense", "experts", "deep"])
def test_all_ways_through_the_engine(config: HybridConfig) -> None:
    assert worst(far(config)) < bound(config.layers)


@pytest.mark.parametrize("config", [DENSE, EXPERTS, DEEP], ids=["dense", "experts", "deep"])
def test_drafts(config: HybridConfig) -> None:
    """Of a commit that is pending, and settled. The guesses are far from ties: see the margin."""
    of, oracle = engine(config), wanted(config)[0]
    walk(of, ids_of())
    guesses = oracle.draft(7, 5)
    assert of.draft(7, 5) == guesses and of.pending
    of.settle()
    assert of.draft(7, 5) == guesses
    assert len(set(guesses)) > 1


@pytest.mark.parametrize("config", [DENSE, EXPERTS], ids=["dense", "experts"])
def test_a_resume(config: HybridConfig) -> None:
    got = resumed(engine(config), engine(config), ids_of(), 2 * GRID)
    assert float((got.double() - wanted(config)[1][-1]).abs().max()) < BOUND


# e4m3 rows


def test_rows_of_eight_bits() -> None:
    """The oracle rounds its rows as the format says: near a tie float32 may round the other way.

    A number is that near, 1e-5 of a step of a sixteenth, once in some thousands: then a row is one
    step off, an eighth of its size at most, and the logits by a hundredth of it. So all but a few
    numbers are as close as plain rows; and the rounding itself is seen.
    """
    oracle, logits = wanted(EIGHT_BITS)
    of, want = engine(EIGHT_BITS), oracle.state()
    found = walk(of, ids_of())
    of.settle()
    got = copied(of)
    for name in ("K", "V", "draft.K", "draft.V"):
        off = (got[name] - want[name]).abs()
        assert float((off > BOUND).double().mean()) < 1e-3
        size = want[name].abs().maximum(want[name].abs().amax(-1, keepdim=True) / 448)
        assert bool((off <= size / 8 * 1.01).all())
    rows = sorted(found)
    off = float((torch.stack([found[row] for row in rows]).double() - logits[rows]).abs().max())
    rounding = float((wanted(DENSE)[1][rows] - logits[rows]).abs().max())
    assert off < 1e-3 and rounding > 20 * off


def test_the_format_itself_is_torchs() -> None:
    codes = torch.arange(256, dtype=torch.int16).to(torch.uint8).view(torch.float8_e4m3fn)
    numbers = codes.double()[codes.double().isfinite()].unique()
    between = (numbers[1:] + numbers[:-1]) / 2
    # torch rounds to float32 first, which must not make a tie of what is none.
    x = torch.cat((numbers, between, between * (1 + 1e-6), between * (1 - 1e-6)))
    # 448 in every row, so that the scale is one.
    rows = torch.stack((x, torch.full_like(x, 448.0)), dim=1)
    got = back(jitted()(e4m3)(wide(rows)))
    assert torch.equal(got[:, 0], x.to(torch.float8_e4m3fn).double())
    assert not back(jitted()(e4m3)(wide(torch.zeros(2, 4)))).any()


def test_float64_stays_inside_the_oracle() -> None:
    """Other JAX code in the process, a third model's among it, keeps its float32."""
    # Whatever else this process has set for all of it, as sim.drive_fit does.
    with jax.enable_x64(False):
        wanted(DENSE)
        assert jnp.ones(3).dtype == jnp.float32 and jnp.sin(np.ones(3)).dtype == jnp.float32
        assert wanted(DENSE)[1].dtype is torch.float64
    third = back(jitted()(lambda x: x / 3)(wide(torch.ones(1))))
    assert float(third) == 1 / 3


# planted faults

Plant = Callable[[pytest.MonkeyPatch], None]


def decay_grows(patch: pytest.MonkeyPatch) -> None:
    solve = delta_rule.solve
    patch.setattr(delta_rule, "solve", lambda q, k, v, g, beta: solve(q, k, v, -g, beta))


def rate_upside_down(patch: pytest.MonkeyPatch) -> None:
    solve = delta_rule.solve
    patch.setattr(delta_rule, "solve", lambda q, k, v, g, beta: solve(q, k, v, g, 1 - beta))


def output_gate(patch: pytest.MonkeyPatch) -> None:
    split = attention._split_gate

    def planted(weight: torch.Tensor, heads: int) -> tuple[torch.Tensor, torch.Tensor]:
        q, gate = split(weight, heads)
        return q, -gate

    patch.setattr(attention, "_split_gate", planted)


def norm_gate(patch: pytest.MonkeyPatch) -> None:
    plain = GatedNorm.into
    patch.setattr(GatedNorm, "into", lambda self, out, x, gate: plain(self, out, x, -gate))


def conv_order(patch: pytest.MonkeyPatch) -> None:
    conv = delta_net.causal_conv
    patch.setattr(delta_net, "causal_conv", lambda rows, tail, taps: conv(rows, tail, taps[::-1]))


def rotary(patch: pytest.MonkeyPatch) -> None:
    rows = Rope.rows

    def planted(self: Rope, start: int, stop: int) -> Angles:
        angles = rows(self, start, stop)
        return Angles(angles._cos, -angles._sin)

    patch.setattr(Rope, "rows", planted)


def plain_norm(patch: pytest.MonkeyPatch) -> None:
    centred = attention.centred
    patch.setattr(attention, "centred", lambda weight, eps: centred(weight - 1.0, eps))


@pytest.mark.parametrize(
    "plant",
    [decay_grows, rate_upside_down, output_gate, norm_gate, conv_order, rotary, plain_norm],
    ids=lambda plant: plant.__name__,
)
def test_canary_a_wrong_sign_or_order(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert worst(far(DENSE)) > 100 * BOUND


def test_canary_shares_of_experts_in_the_wrong_order(monkeypatch: pytest.MonkeyPatch) -> None:
    route = Moe.route

    def planted(self: Moe, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        chosen, share = route(self, x)
        return chosen, share.flip(-1)

    monkeypatch.setattr(Moe, "route", planted)
    assert worst(far(EXPERTS)) > 100 * BOUND


def test_canary_a_state_that_absorbs_a_token_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    absorb = Hybrid._absorb
    monkeypatch.setattr(Hybrid, "_absorb", lambda self, count: absorb(self, max(1, count - 1)))
    assert far(DENSE)["gdn.S"] > 100 * BOUND


def test_canary_a_row_in_place_of_another() -> None:
    of = engine(DENSE)
    other = engine(DENSE)
    view = of.cache_state().views[0]
    of.prefill(ids_of()[:GRID])
    other.prefill(ids_of()[:GRID])
    view.tensor[:, :, 10] = view.tensor[:, :, 11]
    got, want = (each.prefill(ids_of()[GRID : 2 * GRID]) for each in (of, other))
    assert float((got - want).abs().max()) > BOUND


def test_the_walk_reads_every_token() -> None:
    of = engine(DENSE)
    found = walk(of, ids_of())
    assert of.length == COUNT and of.pending == 2
    assert {63, 99, 100, 102, 106, 127, 139, 144, 147, 149} <= set(found)
    assert np.unique(ids_of()).size > 100
