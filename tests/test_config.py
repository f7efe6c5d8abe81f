"""The model's shape: what it derives, what it reads from a published config, what it refuses.

Goal: a published config.json gives the published shape, and numbers that don't fit together are
refused in one line. Method: the 27B's figures, and one broken number at a time.
"""

from __future__ import annotations

from typing import Any

import pytest

from engine.config import BadCheckpoint, HybridConfig, VisionConfig

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
    config = HybridConfig.from_hf(PUBLISHED)
    assert (config.channels, config.rotary_dim) == (10_240, 64)
    assert (config.delta_layers, config.attention_layers) == (48, 16)
    assert [at for at in range(12) if config.is_attention(at)] == [3, 7, 11]
    assert config.draft and not config.tie_embeddings and config.dtype == "bfloat16"


def test_text_model_inside_a_multimodal_config() -> None:
    nested = {"model_type": "qwen3_5", "text_config": PUBLISHED, "tie_word_embeddings": True}
    assert HybridConfig.from_hf(nested).tie_embeddings


def test_interval_from_layer_types_alone_and_changes() -> None:
    text = {key: value for key, value in PUBLISHED.items() if key != "full_attention_interval"}
    text |= {"num_hidden_layers": 6, "layer_types": ["linear_attention", "full_attention"] * 3}
    config = HybridConfig.from_hf(text, dtype="float32", draft=False)
    assert config.full_attention_interval == 2
    assert config.dtype == "float32" and not config.draft


@pytest.mark.parametrize(
    "change, says",
    [
        ({"model_type": "qwen2"}, "model_type"),
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"layer_types": ["full_attention"] * 64}, "layer_types"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e7}}, "rope_type"),
        ({"rope_parameters": {"rope_type": "default"}}, "rope_theta is missing"),
        ({"dtype": "float16"}, "float16"),
        ({"hidden_size": 0}, "hidden"),
        ({"num_key_value_heads": 5}, "kv_heads"),
        ({"linear_num_value_heads": 24}, "value_heads"),
    ],
)
def test_refused_in_one_line(change: dict[str, Any], says: str) -> None:
    with pytest.raises(BadCheckpoint, match=says) as caught:
        HybridConfig.from_hf({**PUBLISHED, **change})
    assert "\n" not in str(caught.value)


def test_missing_key_is_named() -> None:
    text = {key: value for key, value in PUBLISHED.items() if key != "head_dim"}
    with pytest.raises(BadCheckpoint, match="head_dim is missing"):
        HybridConfig.from_hf(text)


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
    config = HybridConfig.from_hf(BOTH)
    assert config.vision == VisionConfig(1_152, 27, 16, 4_304)
    assert (config.vision.head_dim, config.vision.side) == (72, 48)
    assert config.mrope_section == (11, 11, 10)
    assert HybridConfig.from_hf(BOTH, vision=None).vision is None
    assert HybridConfig.from_hf(PUBLISHED).vision is None
    rope = PUBLISHED["rope_parameters"] | {"mrope_section": [8, 12, 12]}
    other = HybridConfig.from_hf({**PUBLISHED, "rope_parameters": rope})
    assert other.mrope_section == (8, 12, 12)


@pytest.mark.parametrize(
    "change, says",
    [
        ({"hidden_act": "relu"}, "hidden_act"),
        ({"deepstack_visual_indexes": [8, 16]}, "plain vision tower"),
        ({"in_channels": 1}, "three channels"),
        ({"out_hidden_size": 2_048}, "2048 channels, not 5120"),
        ({"num_position_embeddings": 2_300}, "no square"),
        ({"num_position_embeddings": 1}, "no square"),
        ({"num_heads": 7}, "1152/7"),
        ({"num_heads": 192}, "1152/192"),
        ({"depth": 0}, "depth must be positive, not 0"),
        ({"patch_size": [16, 14]}, "patch must be positive"),
    ],
)
def test_a_tower_refused_in_one_line(change: dict[str, Any], says: str) -> None:
    with pytest.raises(BadCheckpoint, match=says) as caught:
        HybridConfig.from_hf({**BOTH, "vision_config": {**VISION, **change}})
    assert "\n" not in str(caught.value)


def test_a_towers_missing_key_is_named() -> None:
    vision = {key: value for key, value in VISION.items() if key != "num_heads"}
    with pytest.raises(BadCheckpoint, match="vision num_heads is missing"):
        HybridConfig.from_hf({**BOTH, "vision_config": vision})


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
        HybridConfig.from_hf({**PUBLISHED, "rope_parameters": parameters})


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
