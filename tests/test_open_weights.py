"""Checkpoint directories: what is saved comes back, whatever it is called, or is one line

Goal: a directory of each kind, plain or packed, gives the weights that went in, in the dtype that
is asked for, with the draft layers that are there; what can't be run is named in one line; all that
decides a row's bits counts in the manifest. Method: directories that engine.checkpoint.save and
engine.checkpoint.published made, read by engine.checkpoint.open through engine.checkpoint.names,
engine.checkpoint.tensors and engine.checkpoint.json_file, then broken one part at a time. What the
names mean is held against transformers in test_hybrid_reference.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from test_identity import NOT_ROWS, imported

from cache.fingerprint import inputs
from engine.bad import BadCheckpoint, BadInput
from engine.checkpoint.nvfp4 import dequantise, quantise
from engine.checkpoint.open import MADE_BY, check_tokenizer, open_weights
from engine.checkpoint.save import save_checkpoint
from engine.checkpoint.shards import SINGLE
from engine.config import HybridConfig
from engine.hybrid import Hybrid
from engine.layers.decoder import Decoder
from engine.moe_config import MoeConfig
from engine.vision_config import VisionConfig
from engine.weights import Weights, random_weights

TEXT = HybridConfig.tiny()
NEXT = HybridConfig.tiny(moe=MoeConfig.small(), tie_embeddings=False)
SEEING = HybridConfig.tiny(vision=VisionConfig.small(), dtype="bfloat16")
DIRECTORIES = {
    "text": ("qwen3_5_text", TEXT),
    "drafts": ("qwen3_5_text", HybridConfig.tiny(draft_layers=2, tie_embeddings=False)),
    "bare": ("qwen3_5_text", HybridConfig.tiny(draft=False, dtype="bfloat16", rope_theta=1e4)),
    "seeing": ("qwen3_5", SEEING),
    "next": ("qwen3_next", NEXT),
    "sparse": (
        "qwen3_next",
        replace(NEXT, moe=MoeConfig.small(every=2, dense=(1,), draft=False, renormalise=False)),
    ),
    "dense": ("qwen3_next", HybridConfig.tiny(draft=False, key_heads=1)),
}


def saved(directory: Path, name: str = "text", **how: Any) -> Weights:
    """Random weights, and a directory with them."""
    kind, config = DIRECTORIES[name]
    weights = random_weights(config, 3)
    save_checkpoint(weights, directory, kind=kind, **how)
    return weights


def packed_names(directory: Path) -> set[str]:
    """Published names of what is packed."""
    found = {name for file in directory.glob("*.safetensors") for name in load_file(file)}
    return {name.removesuffix("_packed") for name in found if name.endswith("_packed")}


# what is saved comes back


@pytest.mark.parametrize("name", DIRECTORIES)
@pytest.mark.parametrize("shard_bytes", [40_000, 1 << 30])
def test_every_kind_comes_back(tmp_path: Path, name: str, shard_bytes: int) -> None:
    made = saved(tmp_path, name, shard_bytes=shard_bytes)
    read = open_weights(tmp_path)
    assert read.config == made.config and read.recipe == "files"
    assert list(read.tensors) == list(made.tensors) and len(read.tensors) == len(made.tensors)
    for ours, tensor in made.tensors.items():
        assert torch.equal(read.tensors[ours], tensor), ours
        assert read.tensors[ours].dtype == tensor.dtype, ours
    assert set(read.files) == {str(file) for file in tmp_path.glob("*.safetensors")}


@pytest.mark.parametrize("name", ["text", "seeing", "next"])
def test_packed_weights_are_the_nearest_that_fit(tmp_path: Path, name: str) -> None:
    made = saved(tmp_path, name, nvfp4=True)
    read = open_weights(tmp_path)
    assert read.config == made.config and read.recipe == "files nvfp4"
    packed = packed_names(tmp_path)
    assert len(packed) > 10 and not any("mtp" in n or "visual" in n for n in packed)
    for ours, tensor in made.tensors.items():
        got = read.tensors[ours]
        assert got.dtype == tensor.dtype, ours
        off = (got.float() - tensor.float()).abs().max() / tensor.float().abs().max()
        assert off < 0.2, (ours, off)
        published = ours.replace("model.", "model.language_model.", 1) if name == "seeing" else ours
        if published in packed:
            assert torch.equal(got, dequantise(quantise(tensor), tensor.dtype)), ours
    fused = [n for n in packed if "in_proj_qkvz" in n]
    assert bool(fused) == (name == "next")


def test_a_packed_model_computes_what_its_unpacked_weights_do(tmp_path: Path) -> None:
    saved(tmp_path, "next", nvfp4=True)
    read = open_weights(tmp_path)
    plain = Weights(read.config, dict(read.tensors), "unpacked before")
    ids = np.random.default_rng(0).integers(0, 499, 64).astype(np.int32)
    both = [Hybrid(Decoder(w), grid=64, window=64).prefill(ids) for w in (read, plain)]
    assert torch.equal(*both)
    assert not torch.equal(
        both[0], Hybrid(Decoder(random_weights(NEXT, 3)), grid=64, window=64).prefill(ids)
    )


def test_fused_experts_are_read_too(tmp_path: Path) -> None:
    made = saved(tmp_path, "next")
    tensors = load_file(tmp_path / SINGLE)
    moe = NEXT.moe
    assert moe is not None
    for at in range(NEXT.layers):
        of = f"model.layers.{at}.mlp.experts."
        sides = [
            torch.stack([tensors.pop(f"{of}{e}.{side}_proj.weight") for e in range(moe.experts)])
            for side in ("gate", "up", "down")
        ]
        tensors[f"{of}gate_up_proj"] = torch.cat(sides[:2], dim=1)
        tensors[f"{of}down_proj"] = sides[2]
    save_file(tensors, tmp_path / SINGLE)
    read = open_weights(tmp_path)
    assert all(torch.equal(read.tensors[n], t) for n, t in made.tensors.items())
    views = {
        read.tensors[f"model.layers.0.mlp.experts.2.{side}_proj.weight"]
        for side in ("gate", "up", "down")
    }
    assert all(view.untyped_storage().nbytes() > view.nbytes for view in views), "no copies"


@pytest.mark.parametrize("stored, wanted", [("bfloat16", "float32"), ("float32", "bfloat16")])
def test_a_dtype_is_chosen(tmp_path: Path, stored: str, wanted: str) -> None:
    made = random_weights(replace(TEXT, dtype=stored), 3)
    save_checkpoint(made, tmp_path, kind="qwen3_5_text")
    read = open_weights(tmp_path, dtype=wanted, kv="e4m3")
    assert (read.config.dtype, read.config.kv) == (wanted, "e4m3")
    dtype = read.config.torch_dtype
    for name, tensor in made.tensors.items():
        kept = tensor if name.endswith(("A_log", "dt_bias")) else tensor.to(dtype)
        assert torch.equal(read.tensors[name], kept) and read.tensors[name].dtype == kept.dtype
    with pytest.raises(BadCheckpoint, match=r"dtype float16 is none of"):
        open_weights(tmp_path, dtype="float16")


def test_decay_rates_keep_their_float32(tmp_path: Path) -> None:
    saved(tmp_path, "bare")
    tensors = load_file(tmp_path / SINGLE)
    name = "model.layers.0.linear_attn.A_log"
    tensors[name] = torch.tensor([0.1, 0.2, 0.3, 0.7])
    save_file(tensors, tmp_path / SINGLE)
    assert torch.equal(open_weights(tmp_path).tensors[name], tensors[name])


# draft layers


def edited(
    directory: Path,
    tensors: Callable[[dict[str, torch.Tensor]], object] = dict.copy,
    config: Callable[[dict[str, Any]], object] = dict.copy,
) -> None:
    """Change what lies in a directory of one shard."""
    stored = load_file(directory / SINGLE)
    said = json.loads((directory / "config.json").read_text())
    tensors(stored)
    config(said)
    save_file(stored, directory / SINGLE)
    (directory / "config.json").write_text(json.dumps(said))


def without(prefix: str) -> Callable[[dict[str, torch.Tensor]], object]:
    """Lose the tensors below."""

    def lose(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if name.startswith(prefix)]:
            del tensors[name]

    return lose


def test_a_promised_draft_layer_without_tensors_is_none(tmp_path: Path) -> None:
    saved(tmp_path, "drafts")
    edited(tmp_path, without("mtp."))
    read = open_weights(tmp_path)
    assert not read.config.draft and not any(name.startswith("mtp.") for name in read.tensors)
    assert Decoder(read).draft is None
    edited(tmp_path, config=lambda said: said.update(mtp_num_hidden_layers=3))
    assert open_weights(tmp_path).config == read.config


def test_draft_layers_that_nobody_promised_are_there(tmp_path: Path) -> None:
    saved(tmp_path, "drafts")
    edited(tmp_path, config=lambda said: said.update(mtp_num_hidden_layers=0))
    read = open_weights(tmp_path)
    assert read.config.draft and read.config.draft_layers == 2
    saved(tmp_path, "sparse")
    moe = open_weights(tmp_path).config.moe
    assert moe is not None and not moe.draft


def test_a_draft_layer_that_lacks_a_tensor_is_one_line(tmp_path: Path) -> None:
    saved(tmp_path, "text")
    edited(tmp_path, without("mtp.layers.0.self_attn.q_norm"))
    with pytest.raises(BadCheckpoint, match=r"mtp.layers.0.self_attn.q_norm.weight is missing"):
        open_weights(tmp_path)


# the manifest


def test_what_decides_the_bits_is_in_the_manifest(tmp_path: Path) -> None:
    code = {name for name in imported("engine/checkpoint/open.py") if name not in NOT_ROWS}
    assert set(MADE_BY) == {name for name in code if name.startswith("engine/checkpoint/")}
    saved(tmp_path, "text")
    manifest = Hybrid(Decoder(open_weights(tmp_path)), grid=64, window=64).manifest()
    assert code <= set(manifest.files) and manifest.weights == "files"
    assert set(manifest.weight_files) == {str(tmp_path / SINGLE)}
    random = Hybrid.random(TEXT, 3, grid=64, window=64).manifest()
    assert not set(MADE_BY) & set(random.files), "which reads no directory"


def test_other_files_dtypes_and_packing_are_other_rows(tmp_path: Path) -> None:
    def read(directory: Path, **how: Any) -> dict[str, str]:
        manifest = Hybrid(Decoder(open_weights(directory, **how)), grid=64, window=64).manifest()
        return inputs(manifest, lambda name: b"")

    saved(tmp_path / "a")
    saved(tmp_path / "b")
    saved(tmp_path / "packed", nvfp4=True)
    first = read(tmp_path / "a")
    assert read(tmp_path / "b") == first, "wherever it lies"
    others = [
        read(tmp_path / "a", dtype="bfloat16"),
        read(tmp_path / "a", kv="e4m3"),
        read(tmp_path / "packed"),
    ]
    assert all(other != first for other in others)
    assert others[2]["weights"] == "files nvfp4"
    edited(tmp_path / "b", lambda tensors: tensors["model.norm.weight"].view(-1)[0].neg_())
    assert read(tmp_path / "b") != first


# what is refused


@dataclass(frozen=True)
class Broken:
    """One part of a directory changed, and what is said."""

    says: str
    tensors: Callable[[dict[str, torch.Tensor]], object] = dict.copy
    config: Callable[[dict[str, Any]], object] = dict.copy
    name: str = "text"
    nvfp4: bool = False


def put(name: str, tensor: torch.Tensor) -> Callable[[dict[str, torch.Tensor]], object]:
    """One tensor for another."""
    return lambda tensors: tensors.update({name: tensor})


UP = "model.layers.0.mlp.up_proj.weight"
BROKEN = [
    Broken("model_type is 'llama', none of", config=lambda c: c.update(model_type="llama")),
    Broken("config.json: head_dim is missing", config=lambda c: c.pop("head_dim")),
    Broken("hidden_act 'gelu' is not", config=lambda c: c.update(hidden_act="gelu")),
    Broken(f"{UP} is missing", without(UP)),
    Broken("lm_head.weight is missing", config=lambda c: c.update(tie_word_embeddings=False)),
    Broken(rf"{SINGLE}: {UP} is \(80, 47\), not \(80, 48\)", put(UP, torch.zeros(80, 47))),
    Broken(
        rf"{UP} is torch.float8_e4m3fn, not a plain",
        put(UP, torch.zeros(80, 48).to(torch.float8_e4m3fn)),
    ),
    Broken(rf"{UP} is I32, not a plain", put(UP, torch.zeros(80, 48, dtype=torch.int32))),
    Broken(
        r"in_proj_qkvz.weight is \(208, 47\), not \(208, 48\)",
        put("model.layers.0.linear_attn.in_proj_qkvz.weight", torch.zeros(208, 47)),
        name="next",
    ),
    Broken(
        "layers.2.mlp.experts.6.down_proj.weight is missing",
        without("model.layers.2.mlp.experts.6.down_proj"),
        name="next",
    ),
    Broken(
        "model.visual.merger.norm.bias is missing",
        without("model.visual.merger.norm.bias"),
        name="seeing",
    ),
    Broken(
        "model.language_model.norm.weight is missing",
        without("model.language_model.norm."),
        name="seeing",
    ),
    Broken(
        "fp8 None is not supported",
        config=lambda c: c.update(quantization_config={"quant_method": "fp8"}),
    ),
    Broken(
        "is packed, and config.json does not say how",
        config=lambda c: c.pop("quantization_config"),
        nvfp4=True,
    ),
    Broken(
        "up_proj.weight_packed is packed, and config.json has it ignored",
        config=lambda c: c["quantization_config"]["ignore"].append(r"re:.*layers\.0\.mlp\.up_proj"),
        nvfp4=True,
    ),
    Broken(f"has {UP}_packed, and there is a {UP}", put(UP, torch.zeros(80, 48)), nvfp4=True),
    Broken(
        "draft_layers are more than 1,024",
        put("mtp.layers.99999999.mlp.gate.weight", torch.zeros(1)),
        config=lambda c: c.update(mtp_num_hidden_layers=0),
    ),
    Broken(f"{UP}_scale is missing", without(f"{UP}_scale"), nvfp4=True),
    Broken(f"{UP}_global_scale is missing", without(f"{UP}_global_scale"), nvfp4=True),
    Broken(
        rf"{UP}_packed is \(80, 23\), not \(80, 24\)",
        put(f"{UP}_packed", torch.zeros(80, 23, dtype=torch.uint8)),
        nvfp4=True,
    ),
    Broken(
        rf"{UP}_scale is \(80, 2\), not \(80, 3\)",
        put(f"{UP}_scale", torch.zeros(80, 2).to(torch.float8_e4m3fn)),
        nvfp4=True,
    ),
    Broken(
        f"{UP}_scale is torch.float32, not torch.float8_e4m3fn",
        put(f"{UP}_scale", torch.zeros(80, 3)),
        nvfp4=True,
    ),
    Broken(
        "global_scale is no single positive", put(f"{UP}_global_scale", torch.zeros(1)), nvfp4=True
    ),
    Broken(
        "global_scale is no single positive", put(f"{UP}_global_scale", torch.ones(2)), nvfp4=True
    ),
    Broken(
        "global_scale is no single positive",
        put(f"{UP}_global_scale", torch.tensor([float("nan")])),
        nvfp4=True,
    ),
    Broken(
        "global_scale is no single positive",
        put(f"{UP}_global_scale", torch.tensor([float("inf")])),
        nvfp4=True,
    ),
]


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.says[:40])
def test_what_cannot_be_run_is_one_line(tmp_path: Path, broken: Broken) -> None:
    saved(tmp_path, broken.name, nvfp4=broken.nvfp4)
    edited(tmp_path, broken.tensors, broken.config)
    with pytest.raises(BadInput, match=broken.says) as caught:
        open_weights(tmp_path)
    assert "\n" not in str(caught.value) and str(tmp_path) in str(caught.value)


def test_no_name_of_a_draft_layer_is_too_long_to_read(tmp_path: Path) -> None:
    saved(tmp_path)
    nobody = put(f"mtp.layers.{'9' * 5_000}.x", torch.zeros(1))
    edited(tmp_path, nobody, lambda said: said.update(mtp_num_hidden_layers=0))
    assert open_weights(tmp_path).config.draft_layers == 1


NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize(
    "name, tensor, value, dtype, nvfp4",
    [
        ("text", "model.embed_tokens.weight", NAN, None, False),
        ("text", "model.layers.0.linear_attn.A_log", -INFINITY, None, False),
        ("text", UP, 3.4e38, "bfloat16", False),
        ("next", "model.layers.0.linear_attn.in_proj_qkvz.weight", INFINITY, None, False),
        ("text", f"{UP}_scale", NAN, None, True),
    ],
)
def test_a_weight_that_is_no_number_is_one_line(
    tmp_path: Path, name: str, tensor: str, value: float, dtype: str | None, nvfp4: bool
) -> None:
    """All others are taken, and this one is in the last place of its tensor."""
    saved(tmp_path, name, nvfp4=nvfp4)

    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        flat = tensors[tensor].float().flatten()
        flat[-1] = value
        tensors[tensor] = flat.view(tensors[tensor].shape).to(tensors[tensor].dtype)

    Decoder(open_weights(tmp_path, dtype=dtype))
    edited(tmp_path, spoil)
    read = open_weights(tmp_path, dtype=dtype)
    published = tensor.removesuffix("_scale")
    with pytest.raises(BadCheckpoint, match=f"{published} has a NaN or an infinity as") as caught:
        Decoder(read)
    assert "\n" not in str(caught.value) and str(tmp_path / SINGLE) in str(caught.value)


@pytest.mark.parametrize(
    "text, says",
    [(None, "is missing"), ("{,", "is no JSON"), ("[]", "object"), ("\udc80", "UTF-8")],
)
def test_a_config_that_is_none_is_one_line(tmp_path: Path, text: str | None, says: str) -> None:
    saved(tmp_path)
    path = tmp_path / "config.json"
    path.unlink()
    if text is not None:
        path.write_text(text, errors="surrogateescape")
    with pytest.raises(BadInput, match=rf"config\.json.*{says}") as caught:
        open_weights(tmp_path)
    assert "\n" not in str(caught.value)
    with pytest.raises(BadInput, match="is no directory"):
        open_weights(tmp_path / "nowhere")
    with pytest.raises(BadInput, match="is no directory"):
        open_weights(tmp_path / SINGLE)


def test_a_tokenizer_with_more_ids_than_the_model_is_one_line() -> None:
    @dataclass
    class Ids:
        vocab: int

    check_tokenizer(TEXT.vocab, Ids(499), "tokenizer.json")
    with pytest.raises(BadInput, match="its tokenizer has 500 ids"):
        check_tokenizer(TEXT.vocab, Ids(500), "tokenizer.json")


def test_a_packed_row_that_is_no_group_is_stored_plain(tmp_path: Path) -> None:
    config = HybridConfig.tiny(intermediate=72)
    save_checkpoint(random_weights(config, 3), tmp_path, kind="qwen3_5_text", nvfp4=True)
    names: Mapping[str, torch.Tensor] = load_file(tmp_path / SINGLE)
    assert "model.layers.0.mlp.down_proj.weight" in names and f"{UP}_packed" in names
    said = json.loads((tmp_path / "config.json").read_text())["quantization_config"]["ignore"]
    assert "model.layers.0.mlp.down_proj" in said and "lm_head" in said
    assert open_weights(tmp_path).config == config
