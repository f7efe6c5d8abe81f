"""Rows taken tile by tile, engine.layers.tiles.

Goal: tiles cover all rows once, in order, by whole multiples, and hang on nothing but their
arguments; what is computed by tiles is what is computed at once. Method: many sizes.
"""

from __future__ import annotations

import itertools

import pytest
import torch

from engine.layers import tiles as module
from engine.layers.tiles import TILE_NUMBERS, by_tiles, tiles


@pytest.mark.parametrize("rows", [1, 63, 64, 128, 1_000])
@pytest.mark.parametrize("numbers", [1, 300, 5_000, TILE_NUMBERS, 3 * TILE_NUMBERS])
@pytest.mark.parametrize("multiple", [1, 64])
def test_tiles_cover_all_rows_once(rows: int, numbers: int, multiple: int) -> None:
    found = list(tiles(rows, numbers, multiple))
    assert found[0][0] == 0 and found[-1][1] == rows
    assert all(stop == start for (_, stop), (start, _) in itertools.pairwise(found))
    assert all(start % multiple == 0 for start, _ in found)
    sizes = {stop - start for start, stop in found[:-1]}
    assert len(sizes) <= 1
    assert all(size * numbers <= max(TILE_NUMBERS, multiple * numbers) for size in sizes)


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 100])
def test_by_tiles_is_at_once(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TILE_NUMBERS", 4 * 16)
    x, y = (torch.arange(count * 16.0).view(count, 2, 8) + at for at in range(2))
    calls = []

    def product(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
        calls.append(len(a))
        torch.mul(a, b, out=out)

    assert torch.equal(by_tiles(product, torch.empty_like(x), x, y), x * y)
    assert sum(calls) == count and max(calls) <= 4
