"""Experts: the block against a loop over tokens, and the same bits for a piece whatever came before

Goal: every row goes through its router's experts by their shares, and through the shared one; a
piece of the grid depends on nothing before it, so that a resume is a cold prefill. Method: a naive
loop in float64 over rows and their experts; one call again after others; a hybrid with experts in
its layers and its draft layer, resumed from a copy. The canaries leave out the renormalisation, the
shared expert's gate and the way back from the order by experts. The shape is engine.moe_config.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.config import HybridConfig
from engine.hybrid import Hybrid
from engine.layers.linear import linear
from engine.layers.mlp import Mlp
from engine.layers.moe import Moe, mlp_of
from engine.moe_config import MoeConfig
from engine.weights import expected_shapes, random_weights

MOE = MoeConfig.small()
CONFIG = HybridConfig.tiny(moe=MOE, tie_embeddings=False)


def layer_of(moe: MoeConfig, dtype: str = "float32") -> tuple[Moe, dict[str, torch.Tensor]]:
    """A layer's experts, and its tensors inside `mlp.`."""
    weights = random_weights(HybridConfig.tiny(moe=moe, dtype=dtype), 5)
    with weights.below("model.layers.1.mlp.") as tensors:
        return Moe(moe, tensors), tensors


def rows_of(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Random rows [count, hidden]."""
    noise = np.random.default_rng(1).standard_normal((count, CONFIG.hidden))
    return torch.from_numpy(noise).to(dtype)


def naive(moe: MoeConfig, tensors: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """The block in float64, row by row and expert by expert."""
    w = {name: tensor.double() for name, tensor in tensors.items()}

    def mlp(prefix: str, row: torch.Tensor) -> torch.Tensor:
        gate, up, down = (w[f"{prefix}{s}_proj.weight"] for s in ("gate", "up", "down"))
        inner = gate @ row
        return down @ (inner / (1 + (-inner).exp()) * (up @ row))

    made = []
    for row in x.double():
        odds = (w["gate.weight"] @ row).exp()
        odds /= odds.sum()
        chosen = sorted(range(moe.experts), key=lambda at: -float(odds[at]))[: moe.per_token]
        whole = sum(float(odds[at]) for at in chosen) if moe.renormalise else 1.0
        total = torch.stack([odds[at] / whole * mlp(f"experts.{at}.", row) for at in chosen]).sum(0)
        share = 1 / (1 + (-(w["shared_expert_gate.weight"] @ row)).exp())
        made.append(total + share * mlp("shared_expert.", row))
    return torch.stack(made)


SHAPES = [
    MOE,
    MoeConfig.small(renormalise=False),
    MoeConfig.small(per_token=1),
    MoeConfig.small(per_token=7),
    MoeConfig.small(experts=40, per_token=2),
]


@pytest.mark.parametrize("moe", SHAPES)
@pytest.mark.parametrize("count", [1, 5, 64])
def test_block_is_the_loop(moe: MoeConfig, count: int) -> None:
    layer, tensors = layer_of(moe)
    x = rows_of(count)
    torch.testing.assert_close(layer(x).double(), naive(moe, tensors, x), atol=1e-5, rtol=0.0)


def test_block_in_bfloat16_rounds_and_no_more() -> None:
    layer, tensors = layer_of(MOE, "bfloat16")
    x = rows_of(64, torch.bfloat16)
    off = (layer(x).double() - naive(MOE, tensors, x)).abs().amax(1)
    # A row whose experts are nearly equal may take another one; all others are within rounding.
    assert int((off < 0.03).sum()) >= 60, off


def test_a_piece_gives_the_same_bits_whatever_was_before() -> None:
    for dtype in ("float32", "bfloat16"):
        layer, _ = layer_of(MOE, dtype)
        x = rows_of(128, HybridConfig.tiny(dtype=dtype).torch_dtype)
        first = layer(x[64:])
        layer(x[:64])
        assert torch.equal(layer(x[64:].clone()), first)


def test_every_row_has_its_share_of_different_experts() -> None:
    layer, _ = layer_of(MOE)
    chosen, share = layer.route(rows_of(64))
    assert all(len(set(row)) == MOE.per_token for row in chosen.tolist())
    torch.testing.assert_close(share.sum(1), torch.ones(64))
    assert (share[:, :-1] >= share[:, 1:]).all() and len(chosen.unique()) == MOE.experts
    plain, _ = layer_of(MoeConfig.small(renormalise=False))
    assert (plain.route(rows_of(64))[1].sum(1) < 0.99).all()


def test_shares_are_of_float32_odds_in_bfloat16_too() -> None:
    """Rounded odds would be equal ones, of which anyone may be taken."""
    layer, tensors = layer_of(MOE, "bfloat16")
    x = rows_of(64, torch.bfloat16)
    odds, wanted = linear(x, tensors["gate.weight"]).float().softmax(-1).topk(MOE.per_token, -1)
    chosen, share = layer.route(x)
    assert torch.equal(chosen, wanted)
    assert torch.equal(share, (odds / odds.sum(-1, keepdim=True)).bfloat16())


def test_no_expert_is_copied() -> None:
    weights = random_weights(CONFIG, 5)
    with weights.below("model.layers.0.mlp.") as tensors:
        layer = Moe(MOE, tensors)
    held = {part.data_ptr() for expert in layer._experts for part in expert}
    assert held == {t.data_ptr() for name, t in tensors.items() if name.startswith("experts.")}


def test_a_layer_has_what_its_tensors_say() -> None:
    config = HybridConfig.tiny(moe=MoeConfig.small(every=2, draft=False), tie_embeddings=False)
    names = expected_shapes(config)
    has = [f"model.layers.{at}.mlp.gate.weight" in names for at in range(4)]
    assert has == [False, True, False, True] == [config.is_sparse(at) for at in range(4)]
    assert "mtp.layers.0.mlp.gate_proj.weight" in names
    weights = random_weights(config, 5)
    for at, kind in enumerate((Mlp, Moe)):
        with weights.below(f"model.layers.{at}.mlp.") as tensors:
            assert isinstance(mlp_of(config.moe, tensors), kind)


@pytest.mark.parametrize("draft", [True, False])
def test_a_hybrid_with_experts_resumes_bit_for_bit(draft: bool) -> None:
    config = replace(CONFIG, moe=MoeConfig.small(draft=draft))
    cold = Hybrid.random(config, 3, grid=64, window=256)
    warm = cold.twin(256)
    ids = np.random.default_rng(0).integers(0, config.vocab, 192).astype(np.int32)
    warm.prefill(ids[64:128])
    for start in (0, 64, 128):
        wanted = cold.prefill(ids[start : start + 64])
        if start == 64:
            state, copy = cold.cache_state(), warm.cache_state()
            for a, b in zip(
                (*state.sections, *state.views), (*copy.sections, *copy.views), strict=True
            ):
                b.tensor.copy_(a.tensor)
            warm.resume_at(128)
    assert torch.equal(warm.prefill(ids[128:]), wanted)
    assert warm.draft(7, 3) == cold.draft(7, 3) and len(cold.draft(7, 3)) == 3
    for a, b in zip(cold.cache_state().views, warm.cache_state().views, strict=True):
        assert torch.equal(a.rows(0, 192), b.rows(0, 192))


@pytest.mark.parametrize("plant", ["renormalise", "shared", "order", "expert"])
def test_canary_what_the_loop_sees(plant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, tensors = layer_of(MOE)
    x = rows_of(64)
    if plant == "renormalise":
        layer._renormalise = False
    elif plant == "shared":
        layer._shared_gate = -layer._shared_gate
    elif plant == "order":
        monkeypatch.setattr(torch.Tensor, "argsort", lambda t, stable: torch.arange(len(t)))
    else:
        layer._experts[2] = layer._experts[3]
    with pytest.raises(AssertionError):
        torch.testing.assert_close(layer(x).double(), naive(MOE, tensors, x), atol=1e-5, rtol=0.0)


def test_workspace_counts_rows_at_their_experts() -> None:
    many = replace(CONFIG, moe=MoeConfig.small(experts=40, per_token=30))
    few, more = (Hybrid.random(c, 3, grid=64, window=64).cost() for c in (CONFIG, many))
    assert more.workspace_floor_bytes > few.workspace_floor_bytes
    assert more.workspace_floor_bytes >= 4 * 64 * 3 * 30 * CONFIG.hidden
