"""Rows copied aside and written back, block by block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from cache.types import CacheState

BLOCK_ROWS = 1_024
"""Rows of a block, where nothing else is said; blocks start at multiples of it, so that
conversations can share them."""


@dataclass(frozen=True, slots=True, eq=False)
class RowBlock:
    """Copies of rows [start, stop) of every view, in the state's order. Never written to again."""

    start: int
    stop: int
    tensors: tuple[torch.Tensor, ...]

    @property
    def rows(self) -> int:
        """How many."""
        return self.stop - self.start


def try_copy(state: CacheState, start: int, stop: int) -> RowBlock | None:
    """Copy rows aside; None when the machine has no room for the copy."""
    try:
        tensors = tuple(view.rows(start, stop).clone() for view in state.views)
    except (MemoryError, RuntimeError):
        # torch says "can't allocate memory" with a RuntimeError, on a device with a subclass of it.
        return None
    return RowBlock(start, stop, tensors)


def write_rows(state: CacheState, block: RowBlock) -> None:
    """Put a block's rows back where they were."""
    for view, tensor in zip(state.views, block.tensors, strict=True):
        live = view.rows(block.start, block.stop)
        assert live.shape == tensor.shape and live.dtype == tensor.dtype, view.name
        live.copy_(tensor)


def write_blocks(state: CacheState, blocks: Iterable[RowBlock]) -> None:
    """Put blocks back where they were."""
    for block in blocks:
        write_rows(state, block)


def block_spans(start: int, stop: int, rows: int) -> Iterator[tuple[int, int]]:
    """[start, stop) in pieces that end at multiples of `rows`."""
    while start < stop:
        edge = min(stop, (start // rows + 1) * rows)
        yield start, edge
        start = edge
