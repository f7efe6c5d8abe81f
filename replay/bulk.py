"""A model of a board's sizes and no arithmetic, for what moving its bytes takes"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from math import prod

import numpy as np
import numpy.typing as npt
import torch

from cache.checksum import crc32
from cache.types import CacheState, Cost, Ids, Manifest, Section, View
from engine.capture import Turns

LINE = 256
"""bf16 elements of one head's row: 512 bytes, the shortest piece that lies in one place."""
_HEAD_BYTES = 2 * LINE
POOL = 1 << 22
"""Gaussian numbers that are drawn once."""
_STATE = 128
"""Channels of a state, either way."""
_STATE_BYTES = 4 * _STATE * _STATE
_WIPED = 0xA5


class Bulk:
    """Rows and sections as a 27B's lie in memory: K and V of its layers by head, the drafters'
    beside them, float32 states and bf16 tails.

    Of 208 head's rows a token 64 are K, 64 V and 40 each the drafters' K and V, and all but 2 % of
    an anchor are states: the bytes of the 27B. Another board has them in the same proportion.
    The buffers are touched when they are made, as an engine's are long before its first request.
    """

    def __init__(self, grid: int, rows: int, cost: Cost, seed: int) -> None:
        """Buffers of `rows` rows, all of them and the sections full of seeded random bytes.

        Raises RuntimeError where the machine has no memory for them.
        """
        self.grid = grid
        self.window = rows
        self.length = 0
        self._cost = cost
        self._lock = Turns()
        self._memory: list[torch.Tensor] = []
        views = [
            self._view(name, heads, rows) for name, heads in _heads(cost.row_bytes // _HEAD_BYTES)
        ]
        if rest := cost.row_bytes % _HEAD_BYTES:
            views.append(View("rest", self._bytes((rows, rest)), 0))
        states = cost.anchor_bytes * 2_304 // 2_349 // _STATE_BYTES
        tail = cost.anchor_bytes - states * _STATE_BYTES
        sections = [Section("conv", self._bytes((tail,)))]
        if states:
            shape = (states, _STATE, _STATE)
            sections.insert(0, Section("S", self._bytes((*shape, 4)).view(torch.float32)[..., 0]))
        self._state = CacheState(tuple(sections), tuple(views))
        self.fill(seed)

    def _view(self, name: str, heads: int, rows: int) -> View:
        tensor = self._bytes((heads, rows, _HEAD_BYTES)).view(torch.bfloat16)
        return View(name, tensor, 1)

    def _bytes(self, shape: Sequence[int]) -> torch.Tensor:
        # Whole words, so that they can be filled by words.
        flat = torch.empty(-(-prod(shape) // 8) * 8, dtype=torch.uint8)
        self._memory.append(flat)
        return flat[: prod(shape)].view(*shape)

    def fill(self, seed: int) -> None:
        """Random bytes everywhere."""
        draw = torch.Generator().manual_seed(seed)
        for flat in self._memory:
            flat.view(torch.int64).random_(generator=draw)

    def fill_numbers(self, seed: int) -> None:
        """Gaussian numbers in all rows and states, as near to a model's as random ones are.

        They are stretches of one pool, begun anywhere in it: so many can't be drawn in no time.
        """
        draw = torch.Generator().manual_seed(seed)
        pool = torch.randn(POOL, generator=draw)
        state = self._state
        numbers = [view.tensor for view in state.views] + [s.tensor for s in state.sections]
        for tensor in numbers:
            if not tensor.is_floating_point():
                continue
            flat, drawn = tensor.view(-1), pool.to(tensor.dtype)
            for start in range(0, len(flat), POOL // 2):
                piece = flat[start : start + POOL // 2]
                at = int(torch.randint(POOL - len(piece) + 1, (1,), generator=draw))
                piece.copy_(drawn[at : at + len(piece)])

    def wipe(self) -> None:
        """The same byte everywhere: nothing of what was there is left."""
        for flat in self._memory:
            flat.fill_(_WIPED)

    def sums(self, stop: int) -> list[int]:
        """A checksum of rows [0, stop) of every view, and of every section."""
        rows = [view.rows(0, stop) for view in self._state.views]
        return summed([*rows, *(section.tensor for section in self._state.sections)])

    # the Model port

    def cache_state(self) -> CacheState:
        """Views K, V, draft.K and draft.V; sections S and conv."""
        return self._state

    def settle(self) -> None:
        """Nothing is ever pending."""

    def trim_pending(self, length: int) -> bool:
        """Nothing is ever pending."""
        return length == self.length

    def resume_at(self, length: int) -> None:
        """Nothing is derived from rows."""
        self.length = length

    def cost(self) -> Cost:
        """The board's."""
        return self._cost

    def manifest(self) -> Manifest:
        """Nothing computes its rows."""
        return Manifest((), {}, "random bytes", self.grid, {})

    def device_calls(self) -> AbstractContextManager[object]:
        """A lock of its own."""
        return self._lock


def _heads(count: int) -> list[tuple[str, int]]:
    """(view, heads) of so many head's rows a token; none of no heads."""
    kv, draft = count * 64 // 208, count * 40 // 208
    found = {"K": kv, "V": kv, "draft.K": draft, "draft.V": count - 2 * kv - draft}
    return [(name, heads) for name, heads in found.items() if heads]


def summed(tensors: Sequence[torch.Tensor]) -> list[int]:
    """A checksum of each tensor's bytes, in the order of its elements."""
    sums = []
    for tensor in tensors:
        total = 0
        # Each part lies in one place, or is copied to one.
        for part in tensor if tensor.dim() > 2 else [tensor]:
            flat: npt.NDArray[np.uint8] = part.contiguous().view(torch.uint8).numpy()
            total = crc32(flat.reshape(-1).data, total)
        sums.append(total)
    return sums


def random_ids(count: int, seed: int) -> Ids:
    """Token ids."""
    draw = torch.Generator().manual_seed(seed)
    ids: Ids = torch.randint(0, 1 << 17, (count,), generator=draw, dtype=torch.int32).numpy()
    return ids
