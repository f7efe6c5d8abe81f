"""Gated MLP: down(silu(gate x) * up x)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F


class Mlp:
    """One layer's weights."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """`tensors` by their names inside `mlp.`."""
        self._in = torch.cat((tensors["gate_proj.weight"], tensors["up_proj.weight"]))
        self._out = tensors["down_proj.weight"]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Forward x [n, hidden]."""
        gate, up = F.linear(x, self._in).chunk(2, -1)
        return F.linear(F.silu(gate) * up, self._out)
