"""Causal depthwise convolution that carries the last columns before its input as a tail."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from engine.layers.linear import widens
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


def causal_conv_wide(
    rows: torch.Tensor, tail: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """`causal_conv` in one call, which many channels are worth; weight [channels, 1, kernel].

    `weight` is in rows' dtype. The sum, in float32, goes through the taps in the library's order.
    """
    joined = torch.cat((tail.t(), rows))
    if widens(joined):
        made = rounded(_depthwise(joined.float(), weight.float()), rows)
    else:
        made = _depthwise(joined, weight)
    return F.silu(made, inplace=True), joined


def _depthwise(window: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    # Rows as they lie are the pixels of a picture one line high whose channels come last.
    n, channels = window.shape
    size, strides = (1, channels, 1, n), (n * channels, 1, n * channels, channels)
    picture = window.as_strided(size, strides)
    return F.conv2d(picture, weight.unsqueeze(2), groups=channels)[0, :, 0].t()


def next_tail(joined: torch.Tensor, count: int, kernel: int) -> torch.Tensor:
    """The tail [..., channels, kernel - 1] once `count` rows behind the old tail are absorbed.

    joined [..., kernel - 1 + n, channels]: a layer's, or several layers' at once.
    """
    return joined[..., count : count + kernel - 1, :].transpose(-1, -2)
