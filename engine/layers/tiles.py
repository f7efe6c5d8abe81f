"""Long tensors taken a few rows at a time, so that one step's output is in a cache for the next"""

from __future__ import annotations

from collections.abc import Iterator

TILE_NUMBERS = 1 << 17
"""Of a tile: half a mebibyte of float32, what a core's own cache holds."""


def tiles(rows: int, numbers: int, multiple: int = 1) -> Iterator[tuple[int, int]]:
    """Where tiles begin and end: `rows` of so many numbers each, by a multiple of `multiple` rows.

    They hang on nothing else, so that equal pieces are computed by equal steps.
    """
    step = max(1, TILE_NUMBERS // (numbers * multiple)) * multiple
    for start in range(0, rows, step):
        yield start, min(rows, start + step)
