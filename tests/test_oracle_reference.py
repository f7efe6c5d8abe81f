"""The oracle against another implementation, both in float64.

Goal: engine.oracle computes what Qwen3_5 and Qwen3Next of transformers compute, text, experts and
pictures: two implementations that share no line agree to the last digits, so that neither has a
wrong formula in it. Method: tiny random models of transformers with the same weights, in which
float32 is read as float64 (they ask for it by name in norms, gates and rotary positions); logits of
every row, states, conv tails, keys and values are compared. Experts and joined projections are put
together here, by hand. The whole models are made of engine.oracle.layer, engine.oracle.attention,
engine.oracle.delta_net, engine.oracle.mlp, engine.oracle.formulas and engine.oracle.wide.

Bound: a float64 step of order one rounds by 1e-16, and sums of some hundred terms over four layers
come to the 6e-14 that was seen; 1e-12 is asked for. One float32 left in either would show as 1e-8.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from test_hybrid_reference import published as text_config
from test_vision import drawn
from test_vision import published as tower_config

from engine.config import HybridConfig
from engine.moe_config import MoeConfig
from engine.oracle.hybrid import Oracle, Token, positions
from engine.oracle.vision import tower
from engine.vision_config import VisionConfig
from engine.weights import random_weights

transformers = pytest.importorskip("transformers", reason="the other implementation")

BOUND = 1e-12
NARROW = torch.Tensor.float
TEXT = HybridConfig.tiny(draft=False)
SEEING = HybridConfig.tiny(draft=False, rotary_fraction=0.5, vision=VisionConfig.small())

Tensors = dict[str, torch.Tensor]


class Wide(ModuleType):
    """torch, in which float32 is float64."""

    def __getattr__(self, name: str) -> Any:
        return torch.float64 if name in ("float32", "float") else getattr(torch, name)


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Inside, their modules compute in float64 and so do the models that are made."""
    from transformers import vision_utils
    from transformers.models.qwen3_5 import modeling_qwen3_5
    from transformers.models.qwen3_next import modeling_qwen3_next

    for module in (modeling_qwen3_5, modeling_qwen3_next, vision_utils):
        if hasattr(module, "torch"):
            monkeypatch.setattr(module, "torch", Wide("torch"))
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    yield


def near(got: torch.Tensor, want: torch.Tensor) -> None:
    """Both float64, element by element."""
    assert got.dtype is want.dtype is torch.float64
    torch.testing.assert_close(got, want, atol=BOUND, rtol=0.0)


def loaded(model: Any, tensors: Tensors) -> Any:
    """Their model in float64 with these weights."""
    model = model.double().eval()
    found = model.load_state_dict(tensors, strict=False)
    assert not found.unexpected_keys and set(found.missing_keys) <= {"lm_head.weight"}
    return model


def ids_of(count: int) -> list[int]:
    return np.random.default_rng(0).integers(0, 499, count).tolist()


def agree(config: HybridConfig, theirs: Any) -> None:
    """One text through both."""
    ids = ids_of(90)
    oracle = Oracle(config, random_weights(config, 3).tensors)
    logits = oracle.read(ids)
    with torch.no_grad():
        out = theirs(torch.tensor(ids)[None], use_cache=True)
    near(logits, out.logits[0])
    state, layers = oracle.state(), out.past_key_values.layers
    for at in range(3):
        near(state["gdn.S"][at], layers[at].recurrent_states[0][0])
        near(state["gdn.conv"][at], layers[at].conv_states[0][0, :, -3:])
    near(state["K"][0], layers[3].keys[0])
    near(state["V"][0], layers[3].values[0])


def test_text_is_qwen3_5() -> None:
    shape = transformers.Qwen3_5TextConfig(**text_config(TEXT))
    model = transformers.Qwen3_5ForCausalLM(shape)
    agree(TEXT, loaded(model, dict(random_weights(TEXT, 3).tensors)))


def test_canary_norms_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """How sharp the bound is: theirs with one kind of rounding left in."""
    shape = transformers.Qwen3_5TextConfig(**text_config(TEXT))
    model = loaded(transformers.Qwen3_5ForCausalLM(shape), dict(random_weights(TEXT, 3).tensors))
    monkeypatch.setattr(torch.Tensor, "float", NARROW)
    with pytest.raises(AssertionError, match="not close"):
        agree(TEXT, model)


@pytest.mark.parametrize("renormalise", [True, False])
def test_experts_are_qwen3_next(renormalise: bool) -> None:
    moe = MoeConfig.small(renormalise=renormalise)
    config = HybridConfig.tiny(draft=False, tie_embeddings=False, moe=moe)
    words = text_config(config) | {
        "num_experts": moe.experts,
        "num_experts_per_tok": moe.per_token,
        "moe_intermediate_size": moe.intermediate,
        "shared_expert_intermediate_size": moe.shared_intermediate,
        "norm_topk_prob": renormalise,
    }
    shape = transformers.Qwen3NextConfig(**words, experts_implementation="eager")
    model = transformers.Qwen3NextForCausalLM(shape)
    agree(config, loaded(model, joined(config, dict(random_weights(config, 3).tensors))))


def joined(config: HybridConfig, tensors: Tensors) -> Tensors:
    """The weights as Qwen3Next of transformers has them."""
    made = {n: t for n, t in tensors.items() if ".experts." not in n and ".in_proj_" not in n}
    for layer in range(config.layers):
        prefix = f"model.layers.{layer}."
        experts = f"{prefix}mlp.experts."
        sides = {
            side: torch.stack(
                [tensors[f"{experts}{at}.{side}_proj.weight"] for at in range(config.moe.experts)]
            )
            for side in ("gate", "up", "down")
        }
        made[f"{experts}gate_up_proj"] = torch.cat((sides["gate"], sides["up"]), dim=1)
        made[f"{experts}down_proj"] = sides["down"]
        if not config.is_attention(layer):
            made |= interleaved(config, tensors, f"{prefix}linear_attn.in_proj_")
    return made


def interleaved(config: HybridConfig, tensors: Tensors, prefix: str) -> Tensors:
    """One projection of queries, keys, values and gates by key head, another of both rates."""
    keys, heads = config.key_heads * config.key_dim, config.key_heads
    qkv, z, b, a = (tensors[f"{prefix}{name}.weight"] for name in ("qkv", "z", "b", "a"))
    parts = (qkv[:keys], qkv[keys : 2 * keys], qkv[2 * keys :], z)
    by_head = [part.view(heads, -1, config.hidden) for part in parts]
    rates = [part.view(heads, -1, config.hidden) for part in (b, a)]
    return {
        f"{prefix}qkvz.weight": torch.cat(by_head, dim=1).flatten(0, 1),
        f"{prefix}ba.weight": torch.cat(rates, dim=1).flatten(0, 1),
    }


def test_pictures_are_qwen3_5() -> None:
    """Tower, rows in place of tokens, and three directions of positions."""
    assert SEEING.vision is not None
    shape = transformers.Qwen3_5Config(
        text_config=text_config(SEEING),
        vision_config=tower_config(SEEING.vision, SEEING.hidden),
        image_token_id=498,
        tie_word_embeddings=True,
    )
    tensors = dict(random_weights(SEEING, 3).tensors)
    named = {
        n if ".visual." in n else n.replace("model.", "model.language_model.", 1): t
        for n, t in tensors.items()
    }
    model = loaded(transformers.Qwen3_5ForConditionalGeneration(shape), named)
    one, other = drawn(6, 10, 1), drawn(8, 6, 2)
    parts = [[5, 6, 7], one, [9], other, ids_of(12)]
    ids, rows, where, stills = list[int](), list[Token](), list[Any](), list[torch.Tensor]()
    for part in parts:
        if isinstance(part, list):
            text = [token % 498 for token in part]
            ids, rows, where = ids + text, [*rows, *text], [*where, len(text)]
            continue
        visual = {n.removeprefix("model.visual."): t for n, t in tensors.items()}
        rows += tower(SEEING.vision, visual, part.patches, part.grid).unbind()
        ids, where = [*ids, *[498] * part.rows], [*where, (1, part.grid[1] // 2, part.grid[2] // 2)]
        stills.append(part.patches.view(-1, 3, 1, 256).expand(-1, 3, 2, 256).flatten(1))
    with torch.no_grad():
        out = model(
            torch.tensor(ids)[None],
            pixel_values=(torch.cat(stills).double() / 255 - 0.5) / 0.5,
            image_grid_thw=torch.tensor([one.grid, other.grid]),
            mm_token_type_ids=(torch.tensor(ids) == 498).int()[None],
        )
    oracle = Oracle(SEEING, tensors)
    near(oracle.read(rows, positions(where)), out.logits[0])
