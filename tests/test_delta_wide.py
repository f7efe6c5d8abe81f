"""A layer's chunk for wide heads, engine.layers.delta_wide, beside the form for narrow ones.

Goal: the same layer gives the same numbers in both forms, whole or in several tiles, whole inner
chunks or what is left over, from any state and tail; which form it takes hangs on its heads.
Method: a layer whose state is over the line runs both; the narrow form is held to the oracle
elsewhere (tests/test_layers.py). float32 sums in another order; in bfloat16 the rounded steps are
the same ones, so that only the last sums differ, by a unit of the output here and there.
"""

from __future__ import annotations

import pytest
import torch

from engine.config import HybridConfig
from engine.layers import tiles
from engine.layers.delta_net import DeltaNet
from engine.layers.delta_rule import INNER
from engine.layers.delta_wide import PIECE, pieces
from engine.layers.draft import under
from engine.weights import random_weights

WIDE = {"key_dim": 48, "value_dim": 64}
CLOSE = {"float32": 1e-5, "bfloat16": 2**-6}


def layer_of(dtype: str = "float32", **changes: int) -> tuple[HybridConfig, DeltaNet]:
    """A layer with random weights."""
    config = HybridConfig.tiny(dtype=dtype, **changes)
    return config, DeltaNet(config, under(random_weights(config, 5).tensors, PREFIX))


PREFIX = "model.layers.0.linear_attn."


def draw(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Normal noise."""
    return torch.empty(shape).normal_(generator=torch.Generator().manual_seed(seed)).to(dtype)


def both(dtype: str, n: int, at_once: int = 0) -> list[list[torch.Tensor]]:
    """Output, state and tail after n rows, in the narrow and the wide form.

    In pieces of `at_once` rows, unless that is 0.
    """
    config, layer = layer_of(dtype, **WIDE)
    wide, found = layer._wide, []
    assert wide is not None
    for form in (None, wide):
        layer._wide = form
        state = draw(config.value_heads, config.key_dim, config.value_dim, seed=7)
        tail = draw(config.channels, 3, seed=8, dtype=config.torch_dtype)
        x = draw(n, config.hidden, seed=9, dtype=config.torch_dtype)
        pieces = [layer.chunk(piece, state, tail) for piece in x.split(at_once or n)]
        found.append([torch.cat(pieces), state, tail])
    return found


def same(found: list[list[torch.Tensor]], bound: float) -> bool:
    """Whether both forms gave the same, the tails bit for bit."""
    (o, state, tail), (o_wide, state_wide, tail_wide) = found
    near = [
        torch.allclose(a.float(), b.float(), rtol=0.0, atol=bound)
        for a, b in ((o, o_wide), (state, state_wide))
    ]
    return all(near) and torch.equal(tail, tail_wide)


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 63, 64, 65, 128, 200, 300])
@pytest.mark.parametrize("tile", [1, 1 << 17])
def test_both_forms_give_the_same(
    dtype: str, n: int, tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiles, "TILE_NUMBERS", tile)
    assert same(both(dtype, n), CLOSE[dtype])


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("at_once", [1, 2, 70])
def test_a_chunk_goes_on_where_the_last_one_ended(dtype: str, at_once: int) -> None:
    assert same(both(dtype, 75, at_once), CLOSE[dtype])


def test_tiles_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done by tiles is done row by row."""
    whole = both("float32", 192)[1]
    monkeypatch.setattr(tiles, "TILE_NUMBERS", 1)
    assert all(map(torch.equal, both("float32", 192)[1], whole))


def test_canary_a_chunk_that_does_not_see_the_rows_before_it_is_seen() -> None:
    config, layer = layer_of(**WIDE)
    assert layer._wide is not None
    x = draw(128, config.hidden, seed=9)
    state = draw(config.value_heads, config.key_dim, config.value_dim, seed=7)
    tail = draw(config.channels, 3, seed=8)
    want = layer.chunk(x, state.clone(), tail.clone())
    first = layer.chunk(x[:64], state, tail)
    cut = layer.chunk(x[64:], state, torch.zeros_like(tail))
    assert torch.allclose(first, want[:64], atol=1e-5)
    assert not torch.allclose(cut, want[64:], atol=1e-3)


@pytest.mark.parametrize("rows", [1, 63, 64, 65, 256, 257, 320, 1_024, 1_087])
def test_pieces_are_whole_inner_chunks_and_what_is_left(rows: int) -> None:
    found = list(pieces(rows))
    assert [at for piece in found for at in range(*piece)] == list(range(rows))
    sizes = [stop - start for start, stop in found]
    assert all(size % INNER == 0 and size <= PIECE for size in sizes[:-1])
    assert sizes[-1] % INNER == 0 or sizes[-1] == rows % INNER


def test_narrow_heads_keep_the_form_of_fewer_calls() -> None:
    assert layer_of()[1]._wide is None
    assert layer_of(key_dim=32, value_dim=64)[1]._wide is not None
