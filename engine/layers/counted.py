"""One layer's rows where a block's first row is a number on the device, as a graph needs it"""

from __future__ import annotations

import torch

from engine.device import kernels_for
from engine.layers.attend import attend
from engine.layers.kv import Kv


class Counted(Kv):
    """The rows of a `Kv`, written and read at `start` int64 [1], wherever callers say they are.

    What a graph captures is fixed but for what lies in memory, so a row's place must lie there.
    """

    def __init__(self, rows: Kv, start: torch.Tensor, places: torch.Tensor) -> None:
        """`places` int64 [n]: start, start + 1 and so on."""
        super().__init__(rows.keys, rows.values, rows.scales, rows.dtype)
        self._start, self._places = start, places

    def put(self, into: torch.Tensor, start: int, rows: torch.Tensor) -> None:
        """Rows [heads, n, ...] at the counted places of [heads, window, ...]."""
        if rows.itemsize == 1:
            # Codes as they are: nothing moves floats of eight bits by their places.
            into, rows = into.view(torch.uint8), rows.view(torch.uint8)
        into.index_copy_(1, self._places, rows)

    def attend(self, q: torch.Tensor, past: int) -> torch.Tensor:
        """Causal attention of q [kv heads, group, n, head_dim] from `start` on."""
        kernels = kernels_for(q.device)
        if kernels is not None:
            scales = self.scales or None
            return kernels.attend_rows(q, self._start, self.keys, self.values, scales)
        past = int(self._start)
        return attend(q, past, *self.read(past + q.shape[2]))
