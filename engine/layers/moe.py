"""Mixture of experts: a router's few experts for every token, and one that all tokens take"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F

from engine.layers.linear import linear
from engine.layers.mlp import Mlp
from engine.layers.norm import rounded
from engine.moe_config import MoeConfig

Expert = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Weights of one expert: gate and up [inner, hidden], down [hidden, inner]."""
_SIDES = ("gate_proj", "up_proj", "down_proj")


class Moe:
    """One layer's experts, each where the weights lie: none is copied.

    What a row gives hangs on the other rows of its call, by how many of them meet at an expert, and
    on nothing else; so a piece of the grid gives the same bits whatever was before it.
    """

    def __init__(self, config: MoeConfig, tensors: Mapping[str, torch.Tensor]) -> None:
        """`tensors` by their names inside `mlp.`."""
        self._per_token, self._renormalise = config.per_token, config.renormalise
        self._router = tensors["gate.weight"]
        self._experts: list[Expert] = []
        for at in range(config.experts):
            gate, up, down = (tensors[f"experts.{at}.{side}.weight"] for side in _SIDES)
            self._experts.append((gate, up, down))
        self._shared = Mlp({f"{n}.weight": tensors[f"shared_expert.{n}.weight"] for n in _SIDES})
        self._shared_gate = tensors["shared_expert_gate.weight"]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Forward x [n, hidden]."""
        shared = linear(x, self._shared_gate).sigmoid() * self._shared(x)
        return self._chosen(x) + shared

    def route(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The experts of every row, int64, and their shares in x's dtype, both [n, per token].

        Shares are softmax(router x) in float32, of the highest ones, highest first.
        """
        odds = linear(x, self._router).softmax(-1, torch.float32)
        share, chosen = odds.topk(self._per_token, -1)
        if self._renormalise:
            share = share / share.sum(-1, keepdim=True)
        return chosen, rounded(share, x)

    def _chosen(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of every row's experts by their shares, taken in float32 and rounded once."""
        chosen, share = self.route(x)
        # Pairs of row and expert, by expert: its rows are one product, however they lie.
        pairs = chosen.flatten()
        order = pairs.argsort(stable=True)
        counts = torch.bincount(pairs, minlength=len(self._experts)).tolist()
        rows = x[order // self._per_token]
        made, start = torch.empty_like(rows), 0
        for expert, count in zip(self._experts, counts, strict=True):
            if count:
                made[start : start + count] = _forward(expert, rows[start : start + count])
                start += count
        made *= share.flatten()[order, None]
        back = torch.empty_like(made)
        back[order] = made
        total = back.view(len(x), self._per_token, -1).sum(1, dtype=torch.float32)
        return rounded(total, x)


def mlp_of(config: MoeConfig | None, tensors: Mapping[str, torch.Tensor]) -> Mlp | Moe:
    """What a layer has: experts where `tensors` (named inside `mlp.`) have a router, or an MLP."""
    if "gate.weight" not in tensors:
        return Mlp(tensors)
    assert config is not None, "experts without a shape"
    return Moe(config, tensors)


def _forward(expert: Expert, x: torch.Tensor) -> torch.Tensor:
    gate, up, down = expert
    return linear(F.silu(linear(x, gate)) * linear(x, up), down)
