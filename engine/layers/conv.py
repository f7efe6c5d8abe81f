"""Causal depthwise convolution that carries the last columns before its input as a tail."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from engine.layers.norm import rounded


def causal_conv(
    rows: torch.Tensor, tail: torch.Tensor, taps: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """silu(conv(rows)) and the rows with the tail in front, from which the next tail is cut.

    rows [n, channels]; tail [channels, kernel - 1], the columns before rows, oldest first; taps
    kernel times [channels], float32. Returns [n, channels] and [kernel - 1 + n, channels] in rows'
    dtype. The sum is taken in float32, oldest tap first, and rounded before silu.
    """
    joined = torch.cat((tail.t(), rows))
    wide, n = joined.float(), len(rows)
    total = wide[:n] * taps[0]
    for at, tap in enumerate(taps[1:], 1):
        total.addcmul_(wide[at : at + n], tap)
    return F.silu(rounded(total, rows)), joined


def causal_conv_into(
    outs: Sequence[torch.Tensor],
    window: torch.Tensor,
    taps: Sequence[Sequence[torch.Tensor]],
) -> None:
    """`causal_conv` of a few rows, float32, its channels parted among `outs` [n, channels].

    window [kernel - 1 + n, all channels], in whose dtype the sum and its silu are rounded; taps an
    out's own, kernel times [channels], float32.
    """
    wide, first = window.float(), 0
    for out, own in zip(outs, taps, strict=True):
        n, channels = out.shape
        columns = wide[:, first : first + channels]
        first += channels
        torch.mul(columns[:n], own[0], out=out)
        for at, tap in enumerate(own[1:], 1):
            out.addcmul_(columns[at : at + n], tap)
        if window.dtype is out.dtype:
            F.silu(out, inplace=True)
        else:
            out.copy_(F.silu(out.to(window.dtype), inplace=True))


def next_tail(joined: torch.Tensor, count: int, kernel: int) -> torch.Tensor:
    """The tail [..., channels, kernel - 1] once `count` rows behind the old tail are absorbed.

    joined [..., kernel - 1 + n, channels]: a layer's, or several layers' at once.
    """
    return joined[..., count : count + kernel - 1, :].transpose(-1, -2)
