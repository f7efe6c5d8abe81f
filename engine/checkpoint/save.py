"""A checkpoint directory made of weights: config.json, shards and their index, NVFP4 if wished"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from errno import EIO
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from engine.checkpoint.nvfp4 import GROUP, quantise
from engine.checkpoint.published import nvfp4_config, published_config
from engine.checkpoint.shards import INDEX, SINGLE
from engine.checkpoint.tensors import parts_of
from engine.config import HybridConfig
from engine.weights import Weights

SHARD_BYTES = 5 << 30
"""What transformers puts into a shard at most."""
_LAYERS = re.compile(r"model\.(language_model\.)?layers\..*\.weight")
_PLAIN = re.compile(r".*(in_proj_(a|b|ba)|mlp\.gate|shared_expert_gate)\.weight")
"""Projections to a few channels, which decide much and take little."""
_IGNORED = ("lm_head", r"re:mtp\..*", r"re:.*\.visual\..*")
"""As published checkpoints have it; modules inside the layers are named one by one."""
Named = tuple[str, torch.Tensor]


def save_checkpoint(
    weights: Weights,
    directory: Path,
    *,
    kind: str,
    nvfp4: bool = False,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write `weights` into a directory, which is made, by the names of `kind` (shape.KINDS).

    With `nvfp4` the projections inside the layers are packed where their rows are whole groups. A
    shard holds `shard_bytes` at most, or one tensor. Raises OSError.
    """
    directory.mkdir(parents=True, exist_ok=True)
    ignored: list[str] = []
    tensors = _published(weights, kind)
    if nvfp4:
        tensors = _packed(tensors, ignored)
    save_shards(directory, tensors, shard_bytes)
    config = published_config(weights.config, kind)
    if nvfp4:
        config["quantization_config"] = nvfp4_config((*_IGNORED, *ignored))
    _write(directory / "config.json", config)


def save_shards(directory: Path, tensors: Iterator[Named], shard_bytes: int = SHARD_BYTES) -> None:
    """Write tensors into a directory that is there, as one file or as shards with their index, in
    place of those it has. A shard holds `shard_bytes` at most, or one tensor. Raises OSError.
    """
    shards, places, total = list[Path](), dict[str, int](), 0
    for shard in _filled(tensors, shard_bytes):
        shards.append(directory / f"shard-{len(shards)}.part")
        _save(shard, shards[-1])
        places |= dict.fromkeys(shard, len(shards))
        total += sum(tensor.nbytes for tensor in shard.values())
    _name(directory, shards, places, total)


def _save(shard: dict[str, torch.Tensor], path: Path) -> None:
    """Write a file that whoever may read the directory's others may read; raises OSError."""
    # The library makes its own for the user alone, and has an error of its own.
    path.touch()
    usual = path.stat().st_mode & 0o777
    try:
        save_file(shard, path, metadata={"format": "pt"})
    except SafetensorError as error:
        path.unlink(missing_ok=True)
        raise OSError(EIO, str(error)) from error
    path.chmod(usual)


def _published(weights: Weights, kind: str) -> Iterator[Named]:
    """Every tensor by its published name, in order."""
    for ours in weights.tensors:
        name, nested = ours, ours.startswith("model.") and not ours.startswith("model.visual.")
        if kind == "qwen3_5" and nested:
            name = "model.language_model." + ours.removeprefix("model.")
        prefix, _, part = name.rpartition("in_proj_")
        if kind != "qwen3_next" or not prefix:
            yield name, weights.tensors[ours]
        elif part in ("qkv.weight", "b.weight"):
            # The two of a pair become one, in the place of the first.
            other = ours.replace("in_proj_qkv.", "in_proj_z.").replace("in_proj_b.", "in_proj_a.")
            pair = weights.tensors[ours], weights.tensors[other]
            fuse = _qkvz if part == "qkv.weight" else _ba
            yield f"{prefix}in_proj_{fuse.__name__[1:]}.weight", fuse(weights.config, *pair)


def _qkvz(config: HybridConfig, qkv: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """Key head by key head its query, its key, its values, its gates."""
    keys = config.key_heads * config.key_dim
    parts = (*qkv.split_with_sizes([keys, keys, len(qkv) - 2 * keys]), z)
    return _by_key_head(config, *parts)


def _ba(config: HybridConfig, b: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    """Key head by key head the b and then the a of its value heads."""
    return _by_key_head(config, b, a)


def _by_key_head(config: HybridConfig, *parts: torch.Tensor) -> torch.Tensor:
    heads = [part.unflatten(0, (config.key_heads, -1)) for part in parts]
    return torch.cat(heads, dim=1).flatten(0, 1)


def _packed(tensors: Iterator[Named], ignored: list[str]) -> Iterator[Named]:
    """The same with projections packed; modules that might be and are not go to `ignored`."""
    for name, tensor in tensors:
        projection = _LAYERS.fullmatch(name) and tensor.ndim == 2
        if projection and not _PLAIN.fullmatch(name) and tensor.shape[1] % GROUP == 0:
            made = quantise(tensor)
            yield from zip(
                parts_of(name), (made.packed, made.scale, made.global_scale), strict=True
            )
            continue
        if projection:
            ignored.append(name.removesuffix(".weight"))
        yield name, tensor


def _filled(tensors: Iterator[Named], shard_bytes: int) -> Iterator[dict[str, torch.Tensor]]:
    """Shards, each as full as it gets in the order of the tensors."""
    shard, held = dict[str, torch.Tensor](), 0
    for name, tensor in tensors:
        if shard and held + tensor.nbytes > shard_bytes:
            yield shard
            shard, held = {}, 0
        whole = tensor.untyped_storage().nbytes() == tensor.nbytes and tensor.is_contiguous()
        # The format has no views: one of a larger tensor would be refused as shared.
        shard[name] = tensor if whole else tensor.clone(memory_format=torch.contiguous_format)
        held += tensor.nbytes
    yield shard


def _name(directory: Path, shards: list[Path], places: dict[str, int], total: int) -> None:
    """Give the shards their names, which say how many there are; more than one get an index."""
    for old in directory.glob("model*.safetensors"):
        old.unlink()
    (directory / INDEX).unlink(missing_ok=True)
    if len(shards) == 1:
        shards[0].rename(directory / SINGLE)
        return
    names = [f"model-{at + 1:05}-of-{len(shards):05}.safetensors" for at in range(len(shards))]
    for shard, name in zip(shards, names, strict=True):
        shard.rename(directory / name)
    named = {name: names[at - 1] for name, at in places.items()}
    _write(directory / INDEX, {"metadata": {"total_size": total}, "weight_map": named})


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")
