"""Norms over the last axis: root mean square, unit length, and the gated one."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

UNIT_EPS = 1e-6
"""Added to the squared length of a key or query before its root is taken."""


class Norm:
    """scale * x / sqrt(|x|^2 + eps), |x| the Euclidean length over the last axis.

    Computed in float32 and rounded once to x's dtype. `scale` broadcasts against x. By way of
    vector_norm and hypot that is four calls; torch's own rms_norm makes about eight on a CPU and
    takes three times as long on the few rows of a verify block.
    """

    def __init__(self, scale: torch.Tensor, eps: float) -> None:
        self._scale = scale.float()
        self._floor = torch.full((), math.sqrt(eps), device=scale.device)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise over the last axis; shape and dtype stay."""
        if x.dtype is torch.float32:
            return x * self.factor(x)
        wide = x.float()
        return wide.mul_(self.factor(wide)).to(x.dtype)

    def factor(self, x: torch.Tensor) -> torch.Tensor:
        """What float32 x is multiplied by."""
        return self._scale / torch.hypot(torch.linalg.vector_norm(x, 2, -1, True), self._floor)

    def into(self, out: torch.Tensor, x: torch.Tensor) -> None:
        """The same of float32 x, written where it is needed: x is a view of `out`'s shape."""
        torch.mul(x.view(out.shape), self.factor(x).view(*out.shape[:-1], 1), out=out)


def rms(scale: torch.Tensor, eps: float) -> Norm:
    """scale * x / sqrt(mean x^2 + eps), the mean over scale's last axis."""
    channels = scale.shape[-1]
    return Norm(scale.float() * math.sqrt(channels), eps * channels)


def centred(weight: torch.Tensor, eps: float) -> Norm:
    """The family's usual norm, whose weights are stored around zero: scale 1 + weight."""
    return rms(1.0 + weight.float(), eps)


class GatedNorm:
    """weight * rms(x) * silu(gate): norm before gate, weights stored around one."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self._weight = weight
        channels = len(weight)
        # One scale for all channels: what is divided by a length is then one number a row.
        self._rms = Norm(
            weight.new_full((1,), math.sqrt(channels), dtype=torch.float32), eps * channels
        )

    def __call__(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """x and gate [..., channels]; rounds to gate's dtype after each factor but the gate's own.

        x itself is rounded first.
        """
        out = torch.empty(x.shape, dtype=gate.dtype, device=x.device)
        self.into(out, x, gate)
        return out

    def into(self, out: torch.Tensor, x: torch.Tensor, gate: torch.Tensor) -> None:
        """The same into `out` of gate's dtype."""
        factor = F.silu(gate.float())
        if out.dtype is torch.float32:
            torch.mul(self._rms(x).mul_(self._weight), factor, out=out)
            return
        wide = rounded(x, out).float()
        out.copy_(wide.mul_(self._rms.factor(wide)))
        out.mul_(self._weight)
        out.copy_(wide.copy_(out).mul_(factor))


def rounded(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """x in the dtype of `like`. Asking first: a cast that does nothing is a microsecond too."""
    return x if x.dtype is like.dtype else x.to(like.dtype)
