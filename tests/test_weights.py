"""Weights: published names, one seed one set of bits, and one line for a file that doesn't fit.

Goal: what goes in by name comes out checked and cast, and a digest sees a single changed bit.
Method: random sets written to safetensors files and read back, whole, nested and broken.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from engine.config import BadCheckpoint, HybridConfig, VisionConfig
from engine.weights import (
    DECAY_FASTEST,
    DECAY_SLOWEST,
    digest,
    expected_shapes,
    random_weights,
    read_safetensors,
    weights_from,
)

CONFIG = HybridConfig.tiny()


def test_a_seed_gives_the_same_bits_and_another_seed_others() -> None:
    once, again, other = (random_weights(CONFIG, seed) for seed in (3, 3, 4))
    assert digest(once.tensors) == digest(again.tensors) != digest(other.tensors)
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
    left_out = weights_from(CONFIG, drawn).tensors
    assert set(left_out) == set(text)
    with pytest.raises(BadCheckpoint, match=r"model.visual.pos_embed.weight is missing"):
        weights_from(seeing, plain)


def test_files_read_back_to_the_same_bits(tmp_path: Path) -> None:
    tensors = dict(random_weights(CONFIG, 3).tensors)
    names = sorted(tensors)
    files = [str(tmp_path / "a.safetensors"), str(tmp_path / "b.safetensors")]
    save_file({name: tensors[name] for name in names[:9]}, files[0])
    save_file({name: tensors[name] for name in names[9:]}, files[1])
    read = read_safetensors(CONFIG, files)
    assert digest(read.tensors) == digest(tensors)
    assert read.recipe == "files" and sorted(read.files) == files
    sizes = [Path(file).stat().st_size for file in files]
    digests = [read.files[file] for file in files]
    assert digests[0] != digests[1]
    assert [text.startswith(f"{n} bytes") for text, n in zip(digests, sizes, strict=True)]


def test_multimodal_names_extra_tensors_and_cast() -> None:
    config = HybridConfig.tiny(dtype="bfloat16", draft=False)
    tensors = {
        name.replace("model.", "model.language_model.", 1): tensor
        for name, tensor in random_weights(HybridConfig.tiny(), 3).tensors.items()
    }
    tensors["model.visual.blocks.0.norm1.weight"] = torch.zeros(3)
    made = weights_from(config, tensors, recipe="by hand").tensors
    assert set(made) == set(expected_shapes(config))
    # Decay rates are read in float32: rounding them on the way would change the model.
    assert {made[name].dtype for name in made if name.endswith("A_log")} == {torch.float32}
    assert made["model.norm.weight"].dtype == torch.bfloat16


def test_digest_sees_one_bit_and_one_name() -> None:
    tensors = dict(random_weights(CONFIG, 3).tensors)
    before = digest(tensors)
    changed = tensors["model.norm.weight"].clone()
    changed.view(torch.uint8)[0] ^= 1
    assert digest({**tensors, "model.norm.weight": changed}) != before
    renamed = {name + "x" * (name == "model.norm.weight"): t for name, t in tensors.items()}
    assert digest(renamed) != before


def test_missing_misshapen_and_integer_tensors_are_named() -> None:
    tensors = dict(random_weights(CONFIG, 3).tensors)
    name = "model.layers.1.linear_attn.dt_bias"
    with pytest.raises(BadCheckpoint, match=f"{name} is missing"):
        weights_from(CONFIG, {n: t for n, t in tensors.items() if n != name})
    with pytest.raises(BadCheckpoint, match=rf"{name} is \(5,\), not \(4,\)"):
        weights_from(CONFIG, {**tensors, name: torch.zeros(5)})
    with pytest.raises(BadCheckpoint, match="int8"):
        weights_from(CONFIG, {**tensors, name: torch.zeros(4, dtype=torch.int8)})


def test_unreadable_file_is_one_line(tmp_path: Path) -> None:
    torn = tmp_path / "torn.safetensors"
    torn.write_bytes(b"\x10\0\0\0\0\0\0\0{not json at all")
    for file in (torn, tmp_path / "nowhere.safetensors"):
        with pytest.raises(BadCheckpoint, match=file.name) as caught:
            read_safetensors(CONFIG, [str(file)])
        assert "\n" not in str(caught.value)
