"""Weights: published names, one seed one set of bits, taken part by part.

Goal: a seed gives every tensor that a config needs, the same ones always. Method: random sets of
several configs, compared tensor by tensor. What is read from files is in test_open_weights.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.config import HybridConfig
from engine.vision_config import VisionConfig
from engine.weights import (
    DECAY_FASTEST,
    DECAY_SLOWEST,
    expected_shapes,
    file_digest,
    random_weights,
)

CONFIG = HybridConfig.tiny()


def test_a_seed_gives_the_same_bits_and_another_seed_others() -> None:
    once, again, other = (random_weights(CONFIG, seed) for seed in (3, 3, 4))
    assert all(torch.equal(once.tensors[name], again.tensors[name]) for name in once.tensors)
    assert not torch.equal(once.tensors["mtp.fc.weight"], other.tensors["mtp.fc.weight"])
    assert once.recipe == again.recipe != other.recipe


def test_bfloat16_set_is_the_float32_set_rounded() -> None:
    wide = random_weights(CONFIG, 3).tensors
    narrow = random_weights(HybridConfig.tiny(dtype="bfloat16"), 3).tensors
    assert all(torch.equal(narrow[name], wide[name].bfloat16()) for name in wide)


def test_random_heads_remember_for_ten_to_a_thousand_tokens() -> None:
    """A head that forgets within a token would hide a wrong state from every test."""
    tensors = random_weights(HybridConfig.tiny(layers=8, value_heads=16), 5).tensors
    layers = [name.removesuffix("A_log") for name in tensors if name.endswith("A_log")]
    assert len(layers) == 6
    rates = torch.cat(
        [
            tensors[f"{name}A_log"].exp() * torch.nn.functional.softplus(tensors[f"{name}dt_bias"])
            for name in layers
        ]
    )
    assert rates.min() >= DECAY_SLOWEST * 0.999 and rates.max() <= DECAY_FASTEST * 1.001
    assert rates.max() > 10 * rates.min()


def test_names_follow_the_config() -> None:
    names = set(expected_shapes(CONFIG))
    assert "model.layers.0.linear_attn.in_proj_qkv.weight" in names
    assert "model.layers.3.self_attn.q_norm.weight" in names
    assert {"mtp.fc.weight", "mtp.layers.0.self_attn.o_proj.weight"} <= names
    assert "lm_head.weight" not in names
    bare = set(expected_shapes(HybridConfig.tiny(draft=False, tie_embeddings=False)))
    assert "lm_head.weight" in bare and not any(name.startswith("mtp.") for name in bare)


def test_a_tower_comes_last_and_leaves_the_texts_weights_alone() -> None:
    seeing = HybridConfig.tiny(vision=VisionConfig.small())
    whole, text = (list(expected_shapes(config)) for config in (seeing, CONFIG))
    assert whole[: len(text)] == text
    assert all(name.startswith("model.visual.") for name in whole[len(text) :])
    drawn, plain = random_weights(seeing, 3).tensors, random_weights(CONFIG, 3).tensors
    assert all(torch.equal(drawn[name], plain[name]) for name in text)
    assert drawn["model.visual.blocks.1.norm2.weight"].mean() > 0.8


def test_a_part_is_taken_by_the_rest_of_its_names_and_given_back() -> None:
    weights, given_back = random_weights(CONFIG, 3), list[str]()
    counted = replace(weights, release=lambda: given_back.append("all"))
    with counted.below("model.layers.1.mlp.") as tensors:
        assert not given_back
        assert set(tensors) == {f"{side}_proj.weight" for side in ("gate", "up", "down")}
        assert tensors["up_proj.weight"] is weights.tensors["model.layers.1.mlp.up_proj.weight"]
    assert given_back == ["all"]


def test_a_file_s_digest_sees_its_size_and_a_bit(tmp_path: Path) -> None:
    path, digests = tmp_path / "a.safetensors", set[str]()
    for data in (b"abc", b"abd", b"abcd"):
        path.write_bytes(data)
        digests.add(file_digest(str(path)))
    assert len(digests) == 3 and any(text.startswith("4 bytes") for text in digests)
    with pytest.raises(OSError, match="nowhere"):
        file_digest(str(tmp_path / "nowhere"))
