"""The shapes of the spill's files: what lies in a block, in a copy, and what they weigh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import torch

from cache.format import Layout, Part
from cache.ports import PAGE, Model
from cache.saving import TMP
from cache.spill.names import BLOCK, COPY, rows_of

FRAMES = "frames"
"""In a block's meta: of every byte plane its frames' lengths, or null where it lies as it is."""
PLANES = "planes"
"""The section of a packed block: all planes, one after another."""


class Shapes:
    """How one model's rows and sections lie in blocks and copies. Copies nothing."""

    def __init__(self, model: Model, fingerprint: str, block_rows: int) -> None:
        """`fingerprint` is what computes the rows, as every file says of itself."""
        state, cost = model.cache_state(), model.cost()
        self.fingerprint, self.block_rows, self.grid = fingerprint, block_rows, model.grid
        self._views = [
            (view.name, view.tensor.dtype, tuple(view.rows(0, 1).shape), view.axis)
            for view in state.views
        ]
        self.sections = tuple(
            Part(section.name, section.tensor.dtype, tuple(section.tensor.shape))
            for section in state.sections
        )
        self.row_bytes = sum(view.rows(0, 1).nbytes for view in state.views)
        anchor = sum(section.tensor.nbytes for section in state.sections)
        # A simulated board's rows are larger than those that really move: budgets count its own.
        self._rows_as = cost.spilled_row_bytes
        self._board_more = cost.row_bytes - self.row_bytes
        self._more = cost.anchor_bytes - anchor

    def rows(self, count: int) -> tuple[Part, ...]:
        """So many rows of every view."""
        return tuple(
            Part(name, dtype, (*shape[:axis], count, *shape[axis + 1 :]))
            for name, dtype, shape, axis in self._views
        )

    def described(self) -> list[list[Any]]:
        """Every buffer's name, dtype, shape and token axis, for an entry to say what it holds."""
        views = [[n, str(d), list(shape), axis] for n, d, shape, axis in self._views]
        return [*views, *([p.name, str(p.dtype), list(p.shape), None] for p in self.sections)]

    def planes(self, count: int) -> list[tuple[int, int]]:
        """(planes, bytes of each) of so many rows of every view."""
        return [(part.dtype.itemsize, prod(part.shape)) for part in self.rows(count)]

    def planes_bytes(self, count: int) -> int:
        """Of all of them."""
        return count * self.row_bytes

    def raw_block(self, meta: Mapping[str, Any], count: int) -> Layout:
        """A block's file with its rows as they are."""
        return Layout(BLOCK, meta, self.rows(count))

    def packed_block(self, meta: Mapping[str, Any], nbytes: int) -> Layout:
        """A block's file with `nbytes` of packed planes."""
        return Layout(BLOCK, meta, (Part(PLANES, torch.uint8, (nbytes,)),))

    def copy(self, meta: Mapping[str, Any]) -> Layout:
        """A copy's file: every section."""
        return Layout(COPY, meta, self.sections)

    def meta(self, key: int, start: int, stop: int, frames: Sequence[Any] | None) -> dict[str, Any]:
        """What a block's file says of itself."""
        return self._own(key) | {"start": start, "stop": stop, FRAMES: frames}

    def copy_meta(self, key: int, tokens: int, kind: str) -> dict[str, Any]:
        """What a copy's file says of itself."""
        return self._own(key) | {"tokens": tokens, "kind": kind}

    def _own(self, key: int) -> dict[str, Any]:
        return {"fingerprint": self.fingerprint, "entry": f"{key:016x}"}

    def block_weight(self, rows: int, nbytes: int) -> int:
        """What a block's file counts for under the budget: its size, or the board's."""
        return rows * self._rows_as if self._rows_as else nbytes

    def copy_weight(self, nbytes: int) -> int:
        """What a copy's file counts for under the budget."""
        return max(0, nbytes + self._more)

    def weigh(self, name: str, nbytes: int) -> int:
        """What real bytes of the file of this name stand for, a passing name or not.

        A page alone is a header, and weighs what it is.
        """
        plain = name.removesuffix(TMP)
        rows = rows_of(plain)
        if nbytes <= PAGE or not (rows or plain.endswith(f".{COPY}")):
            return nbytes
        return self.block_weight(rows, nbytes) if rows else self.copy_weight(nbytes)

    def expected_weight(self, rows: int, copies: int) -> int:
        """What so many rows and copies, yet to be written, will count for at most, about."""
        sections = sum(prod(part.shape) * part.dtype.itemsize for part in self.sections)
        pages = -(-rows // self.block_rows) * PAGE  # Their headers.
        blocks = self.block_weight(rows, rows * self.row_bytes + pages)
        return blocks + copies * self.copy_weight(sections + PAGE)

    def buffer_weight(self, nbytes: int) -> int:
        """What a buffer of a block's size counts for among the engine's memory."""
        return nbytes + self.block_rows * self._board_more

    def image_weight(self, nbytes: int) -> int:
        """What a buffer for any file counts for: a board's anchor may be larger than its block."""
        return nbytes + max(self.block_rows * self._board_more, self._more)

    def image_bytes(self, frame_bytes: int) -> int:
        """A buffer for any file of an entry but its manifest."""
        count = self.block_rows
        frames = [
            [frame_bytes] * (-(-size // frame_bytes))
            for n, size in self.planes(count)
            for _ in range(n)
        ]
        most = self.meta(2**64 - 1, 10**8 - 1, 10**8 - 1, frames)
        packed = self.packed_block(most, self.planes_bytes(count)).nbytes
        raw = self.raw_block(most, count).nbytes
        return max(
            packed, raw, self.copy(self.copy_meta(2**64 - 1, 10**8 - 1, "checkpoint")).nbytes
        )
