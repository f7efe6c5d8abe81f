"""Patch-by-patch reference of the vision tower: the oracle of its tests

Written from the formulas alone, in float64, with the published tensors as they are; nothing is
shared with engine/layers but the configuration.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import torch

from engine.config import VisionConfig

Tensors = Mapping[str, torch.Tensor]


def layer_norm(x: torch.Tensor, w: Tensors, name: str) -> torch.Tensor:
    """(x - mean) / sqrt(variance + 1e-6) * weight + bias."""
    centred = x - x.mean(-1, keepdim=True)
    scaled = centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + 1e-6)
    return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]


def affine(x: torch.Tensor, w: Tensors, name: str) -> torch.Tensor:
    """weight x + bias, x [n, channels]."""
    return torch.stack([w[f"{name}.weight"].flatten(1) @ row + w[f"{name}.bias"] for row in x])


def learned(config: VisionConfig, w: Tensors, at: int, of: int, x: int, wide: int) -> torch.Tensor:
    """The learned position of patch (at, x) of `of` x `wide`: the square grid's corners are the
    picture's, and between four of its points values are mixed by distance.
    """
    side, out = config.side, torch.zeros_like(w["pos_embed.weight"][0])
    y, z = (i * (side - 1) / max(n - 1, 1) for i, n in ((at, of), (x, wide)))
    for a, b in itertools.product(range(side), repeat=2):
        near = max(0.0, 1 - abs(y - a)) * max(0.0, 1 - abs(z - b))
        out += near * w["pos_embed.weight"][a * side + b]
    return out


def tower(
    config: VisionConfig, tensors: Tensors, patches: torch.Tensor, grid: tuple[int, int, int]
) -> torch.Tensor:
    """A still's rows [rows, out] from its bytes [n, 3 * patch * patch], merge blocks in order."""
    w = {name: tensor.double() for name, tensor in tensors.items()}
    (_, high, wide), merge, d = grid, config.merge, config.head_dim
    blocks = itertools.product(range(high // merge), range(wide // merge))
    inside = list(itertools.product(range(merge), repeat=2))
    spots = [(a * merge + y, b * merge + x) for a, b in blocks for y, x in inside]
    seen = ((patches.double() / 255 - 0.5) / 0.5).view(len(spots), 3, 1, -1)
    x = affine(torch.cat([seen] * config.temporal, dim=2).flatten(1), w, "patch_embed.proj")
    x = x + torch.stack([learned(config, w, a, high, b, wide) for a, b in spots])
    for block in range(config.depth):
        prefix = f"blocks.{block}."
        own = {n.removeprefix(prefix): t for n, t in w.items() if n.startswith(prefix)}
        qkv = affine(layer_norm(x, own, "norm1"), own, "attn.qkv").view(-1, 3, config.heads, d)
        for n, (a, b) in enumerate(spots):
            for side in range(2):
                # A head's first half: d/4 angles of the height, then d/4 of the width.
                turned = qkv[n, side].clone()
                for i in range(d // 2):
                    place, rate = (a, i) if i < d // 4 else (b, i - d // 4)
                    angle = torch.tensor(place * config.rope_theta ** (-rate / (d // 4))).double()
                    one, two = qkv[n, side, :, i], qkv[n, side, :, i + d // 2]
                    turned[:, i] = one * angle.cos() - two * angle.sin()
                    turned[:, i + d // 2] = two * angle.cos() + one * angle.sin()
                qkv[n, side] = turned
        heads = []
        for q, k, v in (qkv[:, :, head].unbind(1) for head in range(config.heads)):
            heads.append(torch.softmax(q @ k.T / d**0.5, dim=-1) @ v)
        x = x + affine(torch.cat(heads, dim=-1), own, "attn.proj")
        inner = affine(layer_norm(x, own, "norm2"), own, "mlp.linear_fc1")
        gelu = inner / 2 * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (inner + 0.044715 * inner**3)))
        x = x + affine(gelu, own, "mlp.linear_fc2")
    rows = layer_norm(x, w, "merger.norm").view(-1, merge**2 * config.hidden)
    inner = affine(rows, w, "merger.linear_fc1")
    return affine(inner / 2 * (1 + torch.erf(inner / 2**0.5)), w, "merger.linear_fc2")
