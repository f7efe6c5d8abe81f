"""Residual streams: what a branch reads of them, and how it writes back (docs/flash.md)"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from engine.layers.norm import centred


class Branch:
    """A mixer, an MLP or a per-layer embedding on the residual streams [streams, n, hidden]."""

    def __init__(
        self, tensors: Mapping[str, torch.Tensor], norm: str, streams: str, eps: float
    ) -> None:
        """`norm` and `streams` are the names inside the layer's `tensors`."""
        read, mix = tensors[f"{streams}.read"], tensors[f"{streams}.mix"]
        # What it reads and what it leaves are one product over the streams.
        self._ahead = torch.cat((read[None], mix))
        self._write = tensors[f"{streams}.write"].view(-1, 1, 1)
        self._norm = centred(tensors[f"{norm}.weight"], eps)

    def alone(self, x: torch.Tensor) -> torch.Tensor:
        """The normed input [n, hidden] of its function, where nothing is written back."""
        return self._norm(stream_sum(self._ahead[:1], x)[0])

    def read(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The normed input [n, hidden] of its function, and the mixed streams for `write`."""
        mixed = stream_sum(self._ahead, x)
        return self._norm(mixed[0]), mixed[1:]

    def write(self, mixed: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The streams after it, in place of what `read` gave; y [n, hidden] is the function's."""
        return mixed.addcmul_(self._write, y)


def stream_sum(weights: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Sums [rows, n, hidden] of the streams x [streams, n, hidden], by weights [rows, streams]."""
    return torch.mm(weights, x.reshape(len(x), -1)).view(-1, *x.shape[1:])
