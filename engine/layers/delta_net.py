"""Gated delta net layer: projections, causal convolution, delta rule, gated norm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from engine.config import HybridConfig
from engine.layers import delta_rule
from engine.layers.conv import causal_conv, next_tail
from engine.layers.delta_wide import WIDE_NUMBERS, WideChunk
from engine.layers.linear import linear
from engine.layers.norm import UNIT_EPS, GatedNorm, Norm
from engine.layers.tiles import by_tiles


@dataclass(frozen=True, slots=True)
class Held:
    """What a layer keeps of a verify block, so that its first tokens can be absorbed later."""

    keys: torch.Tensor
    """[value heads, block, key_dim]."""
    decay: torch.Tensor
    """[value heads, block]."""
    u: torch.Tensor
    """[value heads, block, value_dim]."""
    joined: torch.Tensor
    """The convolution's input with the tail in front, [kernel - 1 + block, channels]."""


@dataclass(frozen=True, slots=True)
class Projected:
    """The inputs of the delta rule for n tokens, float32, and the gate of the output."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor
    gate: torch.Tensor
    joined: torch.Tensor


class DeltaNet:
    """One layer's weights. State [value heads, key_dim, value_dim] float32, tail [channels, 3]."""

    def __init__(self, config: HybridConfig, tensors: Mapping[str, torch.Tensor]) -> None:
        """`tensors` by their names inside `linear_attn.`."""
        self._key_heads, self._value_heads = config.key_heads, config.value_heads
        self._key_dim, self._value_dim = config.key_dim, config.value_dim
        self._kernel = config.conv_kernel
        self._repeats = config.value_heads // config.key_heads
        values = config.value_heads * config.value_dim
        self._pair_splits = [config.channels - values, values]
        self._conv = tensors["conv1d.weight"]
        self._taps = self._conv.float()[:, 0].t().contiguous().unbind()
        self._rate = -tensors["A_log"].float().exp()
        self._bias = tensors["dt_bias"].float()
        self._norm = GatedNorm(tensors["norm.weight"], config.rms_eps)
        self._out = tensors["out_proj.weight"]
        # Keys get unit length, queries unit length and 1 / sqrt(key_dim) on top.
        lengths = torch.tensor([config.key_dim**-0.5, 1.0]).to(self._out.device)
        self._unit = Norm(lengths.view(2, 1, 1), UNIT_EPS)
        self._wide = self._wide_chunk(config)
        # One product instead of four: on narrow models the calls cost more than the arithmetic.
        names = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
        parts = [tensors[f"{name}.weight"] for name in names]
        self._splits = [len(part) for part in parts]
        self._in = torch.cat(parts)

    def _wide_chunk(self, config: HybridConfig) -> WideChunk | None:
        """On a CPU, where heads are wide enough for it."""
        numbers = config.value_heads * config.key_dim * config.value_dim
        if numbers < WIDE_NUMBERS or self._out.device.type != "cpu":
            return None
        heads = (config.key_heads, config.key_dim, config.value_heads, config.value_dim)
        return WideChunk(*heads, self._unit, self._conv)

    def chunk(self, x: torch.Tensor, state: torch.Tensor, tail: torch.Tensor) -> torch.Tensor:
        """Forward rows x [n, hidden]; `state` and `tail` absorb them, in place."""
        if self._wide is not None:
            rows, gate, b, a = torch.split_with_sizes(linear(x, self._in), self._splits, -1)
            return self._output(self._wide(rows, *self._rates(a, b), state, tail), gate)
        p = self._project(x, tail)
        o = delta_rule.scan(p.q, p.k, p.v, p.g, p.beta, state)
        tail.copy_(next_tail(p.joined, len(x), self._kernel))
        return self._output(o, p.gate)

    def block(
        self, x: torch.Tensor, state: torch.Tensor, tail: torch.Tensor
    ) -> tuple[torch.Tensor, Held]:
        """Forward rows x [n, hidden] and change nothing; what is held absorbs the first of them."""
        p = self._project(x, tail)
        heads = (part.transpose(0, 1) for part in (p.q, p.k, p.v, p.g, p.beta))
        inner = delta_rule.solve(*heads)
        o, u = delta_rule.read(inner, state)
        held = Held(inner.keys, inner.decay, u, p.joined)
        return self._output(o.transpose(0, 1), p.gate), held

    def _project(self, x: torch.Tensor, tail: torch.Tensor) -> Projected:
        rows, gate, b, a = torch.split_with_sizes(linear(x, self._in), self._splits, -1)
        mixed, joined = causal_conv(rows, tail, self._taps)
        n, wide = len(x), mixed.float()
        pair, v = torch.split_with_sizes(wide, self._pair_splits, -1)
        pair = self._unit(pair.view(n, 2, self._key_heads, self._key_dim))
        if self._repeats > 1:
            # A key head serves consecutive value heads.
            pair = pair.repeat_interleave(self._repeats, dim=2)
        q, k = pair.unbind(1)
        shaped = v.view(n, self._value_heads, self._value_dim)
        return Projected(q, k, shaped, *self._rates(a, b), gate, joined)

    def _rates(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """g, the logarithm of a token's decay, and beta: [n, value heads], float32."""
        return F.softplus(a.float() + self._bias).mul_(self._rate), b.sigmoid().float()

    def _output(self, o: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        n = len(gate)
        shaped = gate.view(n, self._value_heads, self._value_dim)
        out = gate.new_empty(shaped.shape)
        return linear(by_tiles(self._norm.into, out, o, shaped).view(n, -1), self._out)
