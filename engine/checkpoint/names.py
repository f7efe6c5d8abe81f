"""Published names of a checkpoint's tensors, and how ours are cut from them

Ours are those of the Qwen3.5 checkpoints, experts one by one (engine.weights.expected_shapes).
Others lie one level down beside a tower, fuse a gated delta net's projections by key head
(`in_proj_qkvz`, `in_proj_ba`), or fuse a layer's experts (`experts.gate_up_proj`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

import torch

from engine.bad import BadCheckpoint
from engine.config import HybridConfig
from engine.weights import Shape, expected_shapes

Cut = Callable[[torch.Tensor], torch.Tensor]
"""Takes some rows of a published tensor, along its leading axes alone, so that it cuts packed
values and their scales as it cuts plain ones.
"""
_NESTED = "model.language_model."
_EXPERT = re.compile(r"(.*mlp\.experts\.)(\d+)\.(gate|up|down)_proj\.weight")
_PROJECTION = re.compile(r"(.*linear_attn\.)in_proj_(qkv|z|b|a)\.weight")
_DRAFT = re.compile(r"mtp\.layers\.(\d{1,9})\.")


@dataclass(frozen=True, slots=True)
class Source:
    """Where one of our tensors comes from."""

    name: str
    """The published one, as if it were not packed."""
    shape: Shape
    """It has that shape."""
    cut: Cut | None = None
    """None when it is used whole."""


def sources(config: HybridConfig, published: Collection[str]) -> dict[str, Source]:
    """Our names in order, each with its source. Raises BadCheckpoint for what is missing."""
    nested = any(name.startswith(_NESTED) for name in published)
    found: dict[str, Source] = {}
    for ours, shape in expected_shapes(config).items():
        options = _options(config, _theirs(ours, nested), shape)
        source = next((option for option in options if option.name in published), None)
        if source is None:
            raise BadCheckpoint(f"weights: {_theirs(ours, nested)} is missing")
        found[ours] = source
    return found


def draft_layers(published: Collection[str]) -> int:
    """Multi-token-prediction layers that are there, 0 when none is."""
    found = [int(match[1]) for name in published if (match := _DRAFT.match(name))]
    return max(found, default=-1) + 1


def draft_has_experts(published: Collection[str]) -> bool:
    """Whether the draft layers have experts."""
    return "mtp.layers.0.mlp.gate.weight" in published


def _theirs(ours: str, nested: bool) -> str:
    if nested and ours.startswith("model.") and not ours.startswith("model.visual."):
        return _NESTED + ours.removeprefix("model.")
    return ours


def _options(config: HybridConfig, name: str, shape: Shape) -> Iterator[Source]:
    yield Source(name, shape)
    if match := _PROJECTION.fullmatch(name):
        yield _fused_projection(config, match[1], match[2])
    if match := _EXPERT.fullmatch(name):
        yield _fused_expert(config, match[1], int(match[2]), match[3])


def _fused_projection(config: HybridConfig, prefix: str, part: str) -> Source:
    """Fused rows go key head by key head: its query, its key, its values, its gates; or the b and
    then the a of its value heads.
    """
    heads, per_head = config.key_heads, config.value_heads // config.key_heads
    key, values = config.key_dim, per_head * config.value_dim
    if part in "ba":
        start = 0 if part == "b" else per_head
        rows = slice(start, start + per_head)
        shape = (2 * config.value_heads, config.hidden)
        return Source(f"{prefix}in_proj_ba.weight", shape, lambda t: _of_heads(t, heads, rows))
    name = f"{prefix}in_proj_qkvz.weight"
    shape = (2 * heads * (key + values), config.hidden)
    if part == "z":
        rows = slice(2 * key + values, None)
        return Source(name, shape, lambda t: _of_heads(t, heads, rows))
    cuts = (slice(0, key), slice(key, 2 * key), slice(2 * key, 2 * key + values))
    return Source(name, shape, lambda t: torch.cat([_of_heads(t, heads, rows) for rows in cuts]))


def _of_heads(tensor: torch.Tensor, heads: int, rows: slice) -> torch.Tensor:
    """The same rows of every key head, head after head."""
    return tensor.unflatten(0, (heads, -1))[:, rows].flatten(0, 1)


def _fused_expert(config: HybridConfig, prefix: str, at: int, side: str) -> Source:
    """Fused experts are one tensor: gates above ups, or downs."""
    assert config.moe is not None
    count, inner = config.moe.experts, config.moe.intermediate
    if side == "down":
        shape: Shape = (count, config.hidden, inner)
        return Source(f"{prefix}down_proj", shape, lambda t: t[at])
    shape = (count, 2 * inner, config.hidden)
    rows = slice(0, inner) if side == "gate" else slice(inner, None)
    return Source(f"{prefix}gate_up_proj", shape, lambda t: t[at, rows])
