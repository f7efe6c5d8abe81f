"""Long tensors taken a few rows at a time, so that one step's output is in a cache for the next"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

TILE_NUMBERS = 1 << 17
"""Of a tile: half a mebibyte of float32, what a core's own cache holds."""


def tiles(rows: int, numbers: int, multiple: int = 1) -> Iterator[tuple[int, int]]:
    """Where tiles begin and end: `rows` of so many numbers each, by a multiple of `multiple` rows.

    They hang on nothing else, so that equal pieces are computed by equal steps.
    """
    step = max(1, TILE_NUMBERS // (numbers * multiple)) * multiple
    for start in range(0, rows, step):
        yield start, min(rows, start + step)


def by_tiles(compute: Callable[..., torch.Tensor], *rows: torch.Tensor) -> torch.Tensor:
    """`compute` of tensors of equal shape, row by row whatever it is: whole where they are small.

    To cut even once is a call a tensor, which a narrow model's few rows would feel.
    """
    first = rows[0]
    if first.numel() <= TILE_NUMBERS:
        return compute(*rows)
    places = tiles(len(first), first[0].numel())
    return torch.cat([compute(*(x[start:stop] for x in rows)) for start, stop in places])
