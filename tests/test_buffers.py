"""A hybrid's buffers: named views whose parts are what layers write.

Goal: engine.buffers gives every view its shape, dtype and token axis, plain and e4m3, with any
number of draft layers; what a layer writes is in the views, and copies of views are all a layer
needs. Method: a row written through each layer's part is looked for in every view.
"""

from __future__ import annotations

import pytest
import torch

from engine.buffers import ROW_AXIS, Buffers, Stack
from engine.config import HybridConfig
from engine.layers.e4m3 import DTYPE

CPU = torch.device("cpu")


def stack(layers: int, name: str = "draft.", **changes: object) -> Stack:
    """Of a window of 30."""
    return Stack(name, HybridConfig.tiny(**changes), layers, 30, CPU)


def test_plain_views() -> None:
    of = stack(3, dtype="bfloat16")
    found = {v.name: (tuple(v.tensor.shape), v.tensor.dtype, v.axis) for v in of.views}
    assert found == {
        "draft.K": ((3, 2, 30, 16), torch.bfloat16, 2),
        "draft.V": ((3, 2, 30, 16), torch.bfloat16, 2),
    }


def test_coded_views() -> None:
    of = stack(3, "", kv="e4m3", dtype="bfloat16")
    found = {v.name: (tuple(v.tensor.shape), v.tensor.dtype, v.axis) for v in of.views}
    assert found == {
        "K": ((3, 2, 30, 16), DTYPE, 2),
        "V": ((3, 2, 30, 16), DTYPE, 2),
        "K.scale": ((3, 2, 30), torch.float32, 2),
        "V.scale": ((3, 2, 30), torch.float32, 2),
    }
    assert all(view.rows(4, 9).shape[ROW_AXIS] == 5 for view in of.views)


@pytest.mark.parametrize("kv", ["model", "e4m3"])
def test_a_layers_rows_are_its_part_of_every_view(kv: str) -> None:
    of = stack(3, kv=kv)
    of.layers[1].write(7, torch.ones(2, 2, 16), torch.full((2, 2, 16), 2.0))
    by_name = {view.name: view.tensor.float() for view in of.views}
    for name, value in (("draft.K", 1.0), ("draft.V", 2.0)):
        rows = by_name[name][1, :, 7:9]
        if f"{name}.scale" in by_name:
            rows = rows * by_name[f"{name}.scale"][1, :, 7:9, None]
        torch.testing.assert_close(rows, torch.full((2, 2, 16), value))
    for view in of.views:
        wide = view.tensor.float()
        assert wide[1, :, 7:9].all()
        wide[1, :, 7:9] = 0
        assert not wide.any()


def test_rows_put_back_into_the_views_are_all_a_layer_needs() -> None:
    of, other = stack(2, kv="e4m3"), stack(2, kv="e4m3")
    generator = torch.Generator().manual_seed(0)
    for layer in of.layers:
        k, v = (torch.empty(9, 2, 16).normal_(generator=generator) for _ in "KV")
        layer.write(0, k, v)
    for view, into in zip(of.views, other.views, strict=True):
        into.rows(0, 9).copy_(view.rows(0, 9))
    for layer, same in zip(of.layers, other.layers, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(layer.read(9), same.read(9), strict=True))


def test_what_is_absent_takes_nothing() -> None:
    bare = Buffers(HybridConfig.tiny(draft=False), 30, CPU)
    assert bare.draft_rows.layers == [] and len(bare.rows.layers) == 1
    assert sum(view.tensor.nbytes for view in bare.draft_rows.views) == 0


def test_reading_codes_takes_room_that_plain_rows_do_not() -> None:
    assert stack(2).read_bytes == 0
    assert stack(2, kv="e4m3").read_bytes == 2 * 2 * 16 * (4 + 4)
    assert stack(2, kv="e4m3", dtype="bfloat16").read_bytes == 2 * 2 * 16 * (4 + 2)


def test_sections_lie_where_the_parts_are() -> None:
    of = Buffers(HybridConfig.tiny(layers=8), 30, CPU)
    assert of.state.shape == (6, 4, 12, 20) and of.state.dtype is torch.float32
    assert of.tail.shape == (6, 2 * 2 * 12 + 4 * 20, 3) and of.hidden.shape == (48,)
    of.states[2].fill_(3)
    of.tails[1].fill_(4)
    assert (of.all_heads[8:12] == 3).all() and of.all_heads.shape == (24, 12, 20)
    assert (of.tail[1] == 4).all() and not of.tail[0].any()
