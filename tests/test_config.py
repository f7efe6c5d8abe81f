"""The model's shape: what it derives, what it reads from a published config, what it refuses.

The modules are engine.config, engine.moe_config, engine.vision_config and engine.checkpoint.shape.
Goal: a published config.json gives the published shape, and numbers that don't fit together are
refused in one line. Method: the 27B's figures, and one broken number at a time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine.bad import BadCheckpoint
from engine.checkpoint.shape import hybrid_config
from engine.config import HybridConfig
from engine.moe_config import MoeConfig
from engine.vision_config import VisionConfig

PUBLISHED: dict[str, Any] = {
    "model_type": "qwen3_5_text",
    "vocab_size": 248_320,
    "hidden_size": 5_120,
    "intermediate_size": 17_408,
    "num_hidden_layers": 64,
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
    "mtp_num_hidden_layers": 1,
    "full_attention_interval": 4,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 16,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
    },
}


def test_published_shape() -> None:
    config = hybrid_config(PUBLISHED)
    assert (config.channels, config.rotary_dim) == (10_240, 64)
    assert (config.delta_layers, config.attention_layers) == (48, 16)
    assert [at for at in range(12) if config.is_attention(at)] == [3, 7, 11]
    assert config.draft and not config.tie_embeddings and config.dtype == "bfloat16"


def test_text_model_inside_a_multimodal_config() -> None:
    nested = {"model_type": "qwen3_5", "text_config": PUBLISHED, "tie_word_embeddings": True}
    assert hybrid_config(nested).tie_embeddings
    whole = {**nested, "text_config": PUBLISHED | {"dtype": "bfloat16"}, "dtype": "float32"}
    assert hybrid_config(whole).dtype == "bfloat16", "the text's own counts"
    text = {key: value for key, value in PUBLISHED.items() if key not in ("dtype", "torch_dtype")}
    assert hybrid_config({**whole, "text_config": text}).dtype == "float32"


def test_interval_from_layer_types_alone_and_changes() -> None:
    text = {key: value for key, value in PUBLISHED.items() if key != "full_attention_interval"}
    text |= {"num_hidden_layers": 6, "layer_types": ["linear_attention", "full_attention"] * 3}
    config = hybrid_config(text, dtype="float32", draft=False)
    assert config.full_attention_interval == 2
    assert config.dtype == "float32" and not config.draft


@pytest.mark.parametrize(
    "change, says",
    [
        ({"model_type": "qwen2"}, "model_type is 'qwen2', none of qwen3_5, qwen3_5_text"),
        ({"model_type": ["qwen3_5"]}, "model_type"),
        ({"text_config": {"model_type": "qwen3_5_moe_text"}}, "qwen3_5_moe_text"),
        ({"text_config": [1]}, "text_config is no object"),
        ({"attn_output_gate": False}, "attn_output_gate False is not supported"),
        ({"mtp_use_dedicated_embeddings": True}, "mtp_use_dedicated_embeddings"),
        ({"mtp_num_hidden_layers": -1}, "mtp_num_hidden_layers is -1, no count"),
        ({"layer_types": 3}, "layer_types is no list"),
        ({"rope_parameters": [1]}, "rope_parameters is no object"),
        ({"rope_parameters": {"rope_theta": "big"}}, "rope_theta is 'big', no number"),
        ({"hidden_size": "big"}, "hidden must be positive, not 'big'"),
        ({"num_hidden_layers": 6.5}, "layers must be positive, not 6.5"),
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"layer_types": ["full_attention"] * 64}, "layer_types"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e7}}, "rope_type"),
        ({"rope_parameters": {"rope_type": "default"}}, "rope_theta is missing"),
        ({"dtype": "float16"}, "float16"),
        ({"dtype": []}, "dtype"),
        ({"hidden_size": 0}, "hidden"),
        ({"hidden_size": True}, "hidden must be positive, not True"),
        ({"num_hidden_layers": 10**9}, "1,000,000,000 layers are more than 1,024"),
        ({"mtp_num_hidden_layers": 10**9}, "draft_layers are more than 1,024"),
        ({"rms_norm_eps": True}, "rms_eps must be positive, not True"),
        ({"rms_norm_eps": float("inf")}, "rms_eps must be positive, not inf"),
        ({"rms_norm_eps": float("nan")}, "rms_eps must be positive, not nan"),
        ({"rope_parameters": {"rope_theta": 10**400}}, "rope_theta is beyond any float"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings is 'false', neither true nor"),
        ({"num_key_value_heads": 5}, "kv_heads"),
        ({"linear_num_value_heads": 24}, "value_heads"),
    ],
)
def test_refused_in_one_line(change: dict[str, Any], says: str) -> None:
    with pytest.raises(BadCheckpoint, match=says) as caught:
        hybrid_config({**PUBLISHED, **change})
    assert "\n" not in str(caught.value)


def test_missing_key_is_named() -> None:
    text = {key: value for key, value in PUBLISHED.items() if key != "head_dim"}
    with pytest.raises(BadCheckpoint, match="head_dim is missing"):
        hybrid_config(text)


def test_draft_layers_are_counted_and_kinds_of_rows_known() -> None:
    assert hybrid_config({**PUBLISHED, "mtp_num_hidden_layers": 2}).draft_layers == 2
    none = hybrid_config({**PUBLISHED, "mtp_num_hidden_layers": None})
    assert not none.draft and none.draft_layers == 1
    assert hybrid_config(PUBLISHED, kv="e4m3").kv == "e4m3"
    with pytest.raises(BadCheckpoint, match="kv fp16 is none of model, e4m3"):
        hybrid_config(PUBLISHED, kv="fp16")


# experts

NEXT: dict[str, Any] = {
    "model_type": "qwen3_next",
    "vocab_size": 151_936,
    "hidden_size": 2_048,
    "intermediate_size": 5_120,
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "full_attention_interval": 4,
    "rope_theta": 10_000_000,
    "rope_scaling": None,
    "partial_rotary_factor": 0.25,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "norm_topk_prob": True,
    "num_experts": 512,
    "num_experts_per_tok": 10,
}


def test_published_shape_with_experts() -> None:
    config = hybrid_config(NEXT)
    assert config.moe == MoeConfig(512, 10, 512, 512)
    assert (config.channels, config.rotary_dim, config.rope_theta) == (8_192, 64, 1e7)
    assert (config.delta_layers, config.attention_layers) == (36, 12)
    assert config.dtype == "bfloat16" and not config.draft
    assert all(config.is_sparse(layer) for layer in range(48))


def test_layers_that_have_an_mlp_all_the_same() -> None:
    config = hybrid_config({**NEXT, "decoder_sparse_step": 2, "mlp_only_layers": [3, 6]})
    assert [at for at in range(12) if config.is_sparse(at)] == [1, 5, 7, 9, 11]
    assert hybrid_config({**NEXT, "num_experts": 0}).moe is None
    assert not hybrid_config(PUBLISHED).is_sparse(0)
    assert not hybrid_config({**NEXT, "norm_topk_prob": False}).moe.renormalise  # type: ignore[union-attr]


def test_rope_numbers_beside_and_inside() -> None:
    rope = {"rope_type": "default", "rope_theta": 5e6}
    newer = {key: value for key, value in NEXT.items() if key != "rope_theta"}
    config = hybrid_config({**newer, "rope_parameters": rope, "partial_rotary_factor": 0.5})
    assert (config.rope_theta, config.rotary_fraction) == (5e6, 0.5)
    inside = {**rope, "partial_rotary_factor": 0.125}
    assert hybrid_config({**newer, "rope_parameters": inside}).rotary_fraction == 0.125
    beside = {**newer, "rope_parameters": {"rope_type": "default"}, "rope_theta": 3e6}
    assert hybrid_config(beside).rope_theta == 3e6


def test_rope_scaling_counts_where_rope_parameters_are_too() -> None:
    """As transformers takes them: somebody wanted longer contexts and added it."""
    yarn = {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}
    with pytest.raises(BadCheckpoint, match="rope_type 'yarn' is not supported"):
        hybrid_config({**PUBLISHED, **yarn})
    plain = {"rope_scaling": {"type": "default", "rope_theta": 5e6}}
    assert hybrid_config({**PUBLISHED, **plain}).rope_theta == 5e6


@pytest.mark.parametrize(
    "change, says",
    [
        ({"num_experts": None}, "num_experts is missing"),
        ({"moe_intermediate_size": None}, "moe_intermediate_size is missing"),
        ({"num_experts": 10**9}, "1,000,000,000 experts are more than 4,096"),
        ({"num_experts": "many"}, "moe experts must be positive, not many"),
        ({"num_experts_per_tok": 513}, "513 of 512 experts a token"),
        ({"norm_topk_prob": "yes"}, "norm_topk_prob is 'yes', neither true nor false"),
        ({"mlp_only_layers": 3}, "mlp_only_layers is no list"),
        ({"mlp_only_layers": [-1]}, "not layers"),
        ({"rope_theta": None}, "rope_theta is missing"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_type 'yarn' is not supported"),
        ({"decoder_sparse_step": 0}, "moe every must be positive, not 0"),
    ],
)
def test_experts_refused_in_one_line(change: dict[str, Any], says: str) -> None:
    with pytest.raises(BadCheckpoint, match=says) as caught:
        hybrid_config({**NEXT, **change})
    assert "\n" not in str(caught.value)


# the tower

VISION: dict[str, Any] = {
    "depth": 27,
    "hidden_size": 1_152,
    "hidden_act": "gelu_pytorch_tanh",
    "intermediate_size": 4_304,
    "num_heads": 16,
    "in_channels": 3,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 5_120,
    "num_position_embeddings": 2_304,
    "deepstack_visual_indexes": [],
}
BOTH = {"model_type": "qwen3_5", "text_config": PUBLISHED, "vision_config": VISION}


def test_published_tower_and_sections() -> None:
    config = hybrid_config(BOTH)
    assert config.vision == VisionConfig(1_152, 27, 16, 4_304)
    assert (config.vision.head_dim, config.vision.side) == (72, 48)
    assert config.mrope_section == (11, 11, 10)
    assert hybrid_config(BOTH, vision=None).vision is None
    turned = {**BOTH, "vision_config": {**VISION, "rope_parameters": {"rope_theta": 5_000}}}
    assert config.vision.rope_theta == 10_000.0
    assert hybrid_config(turned).vision == replace(config.vision, rope_theta=5_000.0)
    assert hybrid_config(PUBLISHED).vision is None
    rope = PUBLISHED["rope_parameters"] | {"mrope_section": [8, 12, 12]}
    other = hybrid_config({**PUBLISHED, "rope_parameters": rope})
    assert other.mrope_section == (8, 12, 12)


@pytest.mark.parametrize(
    "change, says",
    [
        ({"hidden_act": "relu"}, "hidden_act"),
        ({"deepstack_visual_indexes": [8, 16]}, "plain vision tower"),
        ({"in_channels": 1}, "three channels"),
        ({"out_hidden_size": 2_048}, "2048 channels, not 5120"),
        ({"out_hidden_size": 8_192}, "8192 channels, not 5120"),
        ({"num_position_embeddings": 2_300}, "no square"),
        ({"num_position_embeddings": 1}, "no square"),
        ({"num_heads": 7}, "1152/7"),
        ({"num_heads": 192}, "1152/192"),
        ({"depth": True}, "depth must be positive, not True"),
        ({"depth": 10**9}, "depth 1,000,000,000 is more than 1,024"),
        ({"depth": 0}, "depth must be positive, not 0"),
        ({"patch_size": [16, 14]}, "patch must be positive"),
    ],
)
def test_a_tower_refused_in_one_line(change: dict[str, Any], says: str) -> None:
    with pytest.raises(BadCheckpoint, match=says) as caught:
        hybrid_config({**BOTH, "vision_config": {**VISION, **change}})
    assert "\n" not in str(caught.value)


def test_a_towers_missing_key_is_named() -> None:
    vision = {key: value for key, value in VISION.items() if key != "num_heads"}
    with pytest.raises(BadCheckpoint, match="vision num_heads is missing"):
        hybrid_config({**BOTH, "vision_config": vision})


@pytest.mark.parametrize(
    "rope, says",
    [
        ({"mrope_section": [16, 16]}, "not three counts"),
        ({"mrope_section": [16, -1, 3]}, "not three counts"),
        ({"mrope_section": "abc"}, "not three counts"),
        ({"mrope_interleaved": False}, "mrope_interleaved"),
    ],
)
def test_sections_refused_in_one_line(rope: dict[str, Any], says: str) -> None:
    with pytest.raises(BadCheckpoint, match=says):
        parameters = PUBLISHED["rope_parameters"] | rope
        hybrid_config({**PUBLISHED, "rope_parameters": parameters})


@pytest.mark.parametrize(
    "change",
    [
        {"layers": 3},
        {"full_attention_interval": 1},
        {"conv_kernel": 1},
        {"rotary_fraction": 0.05},
        {"rotary_fraction": 2.0},
        {"rms_eps": 0.0},
        {"head_dim": 12, "rotary_fraction": 0.25},
    ],
)
def test_shapes_that_cannot_run(change: dict[str, Any]) -> None:
    with pytest.raises(BadCheckpoint):
        HybridConfig.tiny(**change)
