"""Verify blocks as graphs: a size is captured once, and replayed over buffers that stay in place"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch

from cache.types import Ids
from engine.capture import capturing

Made = tuple[torch.Tensor, ...]
"""What a block makes. The next replay of its size writes over it."""
Replay = Callable[[], object]
Run = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Made]
"""Forwards a block: `ids`, `start` [1] and `places` [n] (start, start + 1 and so on), int64 on the
device. May read its arguments' memory and the engine's buffers, write rows, and ask nothing that
the device would have to answer. Twice the same call gives the same."""

SIZES_MAX = 8
"""Tokens of a block that is captured: as many as the attention of counted rows takes."""
_WARM_UP = 2
"""Calls before a capture: the first compiles kernels and makes workspaces."""


class Captures(Protocol):
    """How a device captures."""

    def capture(self, run: Callable[[], Made]) -> tuple[Made, Replay]:
        """What `run` makes, and what makes it again in the same place; RuntimeError if it can't."""


class CudaGraphs:
    """CUDA graphs, of one engine: no two of them ever run at once, so they share their memory.

    A block's results are read before the next block is forwarded, whatever its size.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, run: Callable[[], Made]) -> tuple[Made, Replay]:
        """Under the capture lock, from the warm-up on: in global mode a call from any thread would
        spoil it. On the engine's device, whichever the thread's is: of another's stream a graph
        would hold nothing.
        """
        with capturing(), torch.cuda.device(self._device):
            aside, here = torch.cuda.Stream(), torch.cuda.current_stream()
            aside.wait_stream(here)
            with torch.cuda.stream(aside):
                for _ in range(_WARM_UP):
                    run()
            here.wait_stream(aside)
            graph = torch.cuda.CUDAGraph()
            # The stream is named: else it is that of the process's first capture anywhere.
            with torch.cuda.graph(graph, self._pool, aside, capture_error_mode="global"):
                made = run()
        return made, graph.replay


class Again:
    """Runs the same calls again, with results in the same place: what a CPU can do of a capture."""

    def capture(self, run: Callable[[], Made]) -> tuple[Made, Replay]:
        """Under the capture lock, as a device's."""
        with capturing():
            made = run()

        def replay() -> None:
            for into, tensor in zip(made, run(), strict=True):
                into.copy_(tensor)

        return made, replay


def captures_for(device: torch.device) -> Captures | None:
    """How this device captures; None where calls cost too little to be worth it."""
    return CudaGraphs(device) if device.type == "cuda" else None


class Graphs:
    """The blocks of one engine, by their size."""

    def __init__(self, captures: Captures, device: torch.device) -> None:
        self._captures, self._device = captures, device
        self._blocks: dict[int, _Captured] = {}
        self.refused: dict[int, str] = {}
        """Sizes that could not be captured, and why: those are forwarded without a graph."""
        self.replays = 0
        """Blocks that were made by a graph."""

    def forward(self, run: Run, ids: Ids, start: int) -> Made | None:
        """What `run`, the same at every call, makes of a block of these tokens after `start` rows.

        Holds until the next block of any size. None where there is no graph and won't be one.
        """
        n = len(ids)
        if n > SIZES_MAX or n in self.refused:
            return None
        if n not in self._blocks:
            self._blocks[n] = _Captured(n, self._device)
        block = self._blocks[n]
        block.fill(ids, start)
        if block.replay is None:
            try:
                block.made, block.replay = self._captures.capture(lambda: run(*block.given))
            except RuntimeError as error:
                self.refused[n] = str(error)
                del self._blocks[n]
                return None
        block.replay()
        self.replays += 1
        return block.made


class _Captured:
    """One size: the buffers that its calls read, which stay where they are, and what they make."""

    def __init__(self, n: int, device: torch.device) -> None:
        # One buffer, so that one copy fills it: ids, places, and the first place again.
        self._numbers = torch.zeros(2 * n, dtype=torch.int64, device=device)
        ids, places = self._numbers.split(n)
        self.given = ids, places[:1], places
        self.made: Made = ()
        self.replay: Replay | None = None

    def fill(self, ids: Ids, start: int) -> None:
        """The next block's tokens and rows."""
        n = len(ids)
        numbers = np.concatenate((np.asarray(ids, np.int64), np.arange(start, start + n)))
        self._numbers.copy_(torch.from_numpy(numbers))
