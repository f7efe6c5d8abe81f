"""Gated MLP: down(silu(gate x) * up x)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F

from engine.layers.linear import linear
from engine.layers.tiles import by_tiles


class Mlp:
    """One layer's weights."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """`tensors` by their names inside `mlp.`."""
        self._in = torch.cat((tensors["gate_proj.weight"], tensors["up_proj.weight"]))
        self._out = tensors["down_proj.weight"]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Forward x [n, hidden]."""
        gate, up = linear(x, self._in).chunk(2, -1)
        return linear(by_tiles(_gated, gate.new_empty(gate.shape), gate, up), self._out)


def _gated(out: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> None:
    torch.mul(F.silu(gate), up, out=out)
