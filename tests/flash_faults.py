"""Faults in the layers of the flash model, one at a time: a wrong sign, order, row or tie."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from engine.flash import indexer, ple, rows, sparse_attention
from engine.flash.config import FlashConfig
from engine.flash.mtp import Mtp
from engine.flash.ple import PleBranch
from engine.flash.sparse_attention import SparseAttention
from engine.flash.streams import Branch
from engine.layers import delta_rule
from engine.layers.norm import GatedNorm
from engine.layers.rope import Angles, Rope

Plant = Callable[[pytest.MonkeyPatch], None]


def wrapped(of: Any, name: str, change: Callable[..., Any], patch: pytest.MonkeyPatch) -> None:
    """Put `change`, which is given what is there and then its arguments, in place of it."""
    patch.setattr(of, name, partial(change, getattr(of, name)))


def context_order(patch: pytest.MonkeyPatch) -> None:
    def planted(plain: Any, tokens: torch.Tensor, longest: int, rows: int) -> torch.Tensor:
        """Each n-gram from its newest token to its oldest: of every two, the other way round."""
        n, keys = len(tokens) - longest + 1, []
        for order in range(2, longest + 1):
            grams = torch.stack([tokens[longest - order :][i : i + order] for i in range(n)])
            turned = [
                plain(
                    torch.cat((torch.zeros(longest - order, dtype=torch.int64), gram.flip(0))),
                    longest,
                    rows,
                )[-1, order - 2]
                for gram in grams
            ]
            keys.append(torch.stack(turned))
        return torch.stack(keys, 1)

    wrapped(ple, "ngram_keys", planted, patch)


def ple_conv_order(patch: pytest.MonkeyPatch) -> None:
    wrapped(ple, "causal_conv", lambda conv, x, tail, taps: conv(x, tail, taps[::-1]), patch)


def ple_gate(patch: pytest.MonkeyPatch) -> None:
    plain = PleBranch.__call__
    patch.setattr(PleBranch, "__call__", lambda self, x, own: plain(self, x, -own))


def pooled_mean(patch: pytest.MonkeyPatch) -> None:
    """The first row of a block in place of all."""

    def planted(plain: Any, keys: torch.Tensor, size: int) -> torch.Tensor:
        first = keys.view(*keys.shape[:-2], -1, size, keys.shape[-1])[..., :1, :]
        return plain(first.expand(*first.shape[:-2], size, -1).flatten(-3, -2), size)

    wrapped(rows, "pooled", planted, patch)


def score_sign(patch: pytest.MonkeyPatch) -> None:
    wrapped(sparse_attention, "scores", lambda scores, q, w, blocks: scores(q, -w, blocks), patch)


def block_tie(patch: pytest.MonkeyPatch) -> None:
    wrapped(indexer, "order_keys", lambda keys, of, blocks: keys(of, -blocks), patch)


def stream_mix(patch: pytest.MonkeyPatch) -> None:
    plain = Branch.__init__

    def planted(self: Branch, tensors: Any, norm: str, streams: str, eps: float) -> None:
        mix = f"{streams}.mix"
        plain(self, {**tensors, mix: tensors[mix].t()}, norm, streams, eps)

    patch.setattr(Branch, "__init__", planted)


def output_gate(patch: pytest.MonkeyPatch) -> None:
    plain = SparseAttention.__init__

    def planted(self: SparseAttention, config: FlashConfig, tensors: Any) -> None:
        q, gate = tensors["q_proj.weight"].view(config.q_heads, 2, -1, config.hidden).unbind(1)
        turned = torch.stack((q, -gate), 1).view_as(tensors["q_proj.weight"])
        plain(self, config, {**tensors, "q_proj.weight": turned})

    patch.setattr(SparseAttention, "__init__", planted)


def mtp_sides(patch: pytest.MonkeyPatch) -> None:
    plain = Mtp.__init__

    def planted(self: Mtp, config: FlashConfig, tensors: Any) -> None:
        plain(self, config, {**tensors, "fc.weight": tensors["fc.weight"].roll(config.hidden, 1)})

    patch.setattr(Mtp, "__init__", planted)


def rotary(patch: pytest.MonkeyPatch) -> None:
    plain = Rope.rows

    def planted(self: Rope, start: int, stop: int) -> Angles:
        angles = plain(self, start, stop)
        return Angles(angles._cos, -angles._sin)

    patch.setattr(Rope, "rows", planted)


def decay_grows(patch: pytest.MonkeyPatch) -> None:
    wrapped(delta_rule, "solve", lambda solve, q, k, v, g, beta: solve(q, k, v, -g, beta), patch)


def norm_gate(patch: pytest.MonkeyPatch) -> None:
    plain = GatedNorm.into
    patch.setattr(GatedNorm, "into", lambda self, out, x, gate: plain(self, out, x, -gate))


FAULTS: tuple[Plant, ...] = (
    context_order,
    ple_conv_order,
    ple_gate,
    pooled_mean,
    score_sign,
    stream_mix,
    output_gate,
    mtp_sides,
    rotary,
    decay_grows,
    norm_gate,
)
