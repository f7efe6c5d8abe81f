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


def by_tiles(
    compute: Callable[..., object], out: torch.Tensor, *rows: torch.Tensor
) -> torch.Tensor:
    """`out`, into which `compute(out, *rows)` writes, row by row whatever it is; all have one
    length. Whole where `out` is small: each cut is a few calls, which few rows would feel.
    """
    if out.numel() <= TILE_NUMBERS:
        compute(out, *rows)
        return out
    for start, stop in tiles(len(out), out[0].numel()):
        compute(out[start:stop], *(x[start:stop] for x in rows))
    return out
