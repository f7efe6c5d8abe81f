"""Sparse attention over chosen blocks (engine.flash.sparse_attention).

Goal: every query attends the rows of its fixed and chosen blocks up to itself and no others, in
chunks, tiles and single steps, whatever lies behind the last row. Method: a plain float64 twin that
goes query by query over an explicit list of rows; and the layer over all blocks, which must differ
once some are left out.
"""

from __future__ import annotations

from functools import cache

import pytest
import torch
import torch.nn.functional as F

from engine.flash import sparse_attention
from engine.flash.config import FlashConfig
from engine.flash.rows import SparseRows
from engine.flash.sparse_attention import SparseAttention
from engine.flash.weights import random_weights
from engine.layers.rope import Rope

CONFIG = FlashConfig.tiny()
WINDOW = 304
PREFIX = "model.layers.3.self_attn."


def layer(**changes: int) -> SparseAttention:
    """Always the same weights."""
    config = FlashConfig.tiny(**changes)
    tensors = random_weights(config, 3).tensors
    own = {n.removeprefix(PREFIX): t for n, t in tensors.items() if n.startswith(PREFIX)}
    return SparseAttention(config, own)


def empty(dtype: torch.dtype = torch.float32) -> SparseRows:
    """Rows that are no numbers."""
    sides = (torch.full((2, WINDOW, 16), torch.nan, dtype=dtype) for _ in range(2))
    return SparseRows(*sides, torch.full((WINDOW, 14), torch.nan, dtype=dtype), 8)


def inputs(count: int) -> torch.Tensor:
    return torch.empty(count, 48).normal_(generator=torch.Generator().manual_seed(5))


ROPE = Rope(4, CONFIG.rope_theta, WINDOW, torch.float32)


def run(of: SparseAttention, x: torch.Tensor, cuts: list[int]) -> tuple[torch.Tensor, SparseRows]:
    """Outputs of x, forwarded in pieces that end at `cuts`."""
    rows, start, outputs = empty(), 0, []
    for stop in cuts:
        outputs.append(of(x[start:stop], start, rows, ROPE.rows(start, stop)))
        start = stop
    return torch.cat(outputs), rows


@cache
def twin() -> tuple[torch.Tensor, list[set[int]]]:
    """Outputs [n, hidden] in float64, and the blocks of every query."""
    return _twin(inputs(150), CONFIG.top_blocks)


def _twin(x: torch.Tensor, top: int) -> tuple[torch.Tensor, list[set[int]]]:
    tensors = random_weights(CONFIG, 3).tensors
    w = {n.removeprefix(PREFIX): t.double() for n, t in tensors.items() if n.startswith(PREFIX)}
    wide = x.double()

    def norm(y: torch.Tensor, name: str) -> torch.Tensor:
        return F.rms_norm(y, y.shape[-1:], 1.0 + w[f"{name}.weight"], 1e-6)

    def turned(y: torch.Tensor, at: int) -> torch.Tensor:
        angle = at * CONFIG.rope_theta ** -(torch.arange(0, 4, 2).double() / 4)
        a, b = y[..., :2].clone(), y[..., 2:4].clone()
        y[..., :2] = a * angle.cos() - b * angle.sin()
        y[..., 2:4] = b * angle.cos() + a * angle.sin()
        return y

    keys, values, index, outputs, blocks = [], [], [], [], []
    for at, row in enumerate(wide):
        q, gate = (w["q_proj.weight"] @ row).view(4, 2, 16).unbind(1)
        q = turned(norm(q, "q_norm"), at)
        keys.append(turned(norm((w["k_proj.weight"] @ row).view(2, 16), "k_norm"), at))
        values.append((w["v_proj.weight"] @ row).view(2, 16))
        index.append(norm(w["index_k_proj.weight"] @ row, "index_k_norm"))
        index_q = norm((w["index_q_proj.weight"] @ row).view(3, 14), "index_q_norm")
        index_w = w["index_weights_proj.weight"] @ row
        own = at // 8
        score = {
            n: float(index_w @ (index_q @ torch.stack(index[8 * n : 8 * n + 8]).mean(0)).relu())
            for n in range(1, own - 1)
        }
        best = sorted(score, key=lambda n: (-score[n], n))[:top]
        blocks.append({*best, 0, max(own - 1, 0), own})
        seen = [n for n in range(at + 1) if n // 8 in blocks[-1]]
        mixed = []
        for head in range(4):
            k, v = (torch.stack([side[n][head // 2] for n in seen]) for side in (keys, values))
            mixed.append((k @ q[head] / 4.0).softmax(0) @ v)
        outputs.append(w["o_proj.weight"] @ (torch.stack(mixed) * gate.sigmoid()).flatten())
    return torch.stack(outputs), blocks


@pytest.mark.parametrize("cuts", [[150], [64, 128, 150], [37, 38, 40, 41, 103, 150], [1, 149, 150]])
def test_each_query_attends_its_blocks_and_nothing_else(cuts: list[int]) -> None:
    x = inputs(150)
    want, blocks = twin()
    got, _ = run(layer(), x, cuts)
    torch.testing.assert_close(got.double(), want, atol=2e-5, rtol=0.0)
    sizes = [len(own) for own in blocks]
    assert sizes[:40] == [1 + at // 8 for at in range(40)] and set(sizes[40:]) == {5}
    assert len({frozenset(own) for own in blocks}) > 30, "queries of a block choose apart"


def test_tiles_of_any_size_are_the_same_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    x = inputs(150)
    want, _ = run(layer(), x, [150])
    for tile in (1, 7, 150):
        monkeypatch.setattr(sparse_attention, "TILE", tile)
        torch.testing.assert_close(run(layer(), x, [150])[0], want, atol=2e-6, rtol=0.0)


def test_canary_all_blocks_are_another_attention() -> None:
    """As long as they are the chosen ones there is no difference, and then there is."""
    x = inputs(150)
    (sparse, _), (full, _) = (run(of, x, [40, 150]) for of in (layer(), layer(top_blocks=99)))
    assert torch.equal(sparse[:40], full[:40])
    apart = (sparse - full).abs().amax(1)
    assert (apart[48:] > 1e-3).float().mean() > 0.9


def test_rows_alone_are_those_of_the_whole_layer() -> None:
    x, of = inputs(90), layer()
    _, want = run(of, x, [90])
    rows = empty()
    of.rows(x, 0, rows, ROPE.rows(0, 90))
    for name in ("keys", "values"):
        a, b = getattr(rows, name)[:, :90], getattr(want, name)[:, :90]
        torch.testing.assert_close(a, b, atol=2e-6, rtol=0.0)
        assert getattr(rows, name)[:, 90:].isnan().all()
    torch.testing.assert_close(rows.index[:90], want.index[:90], atol=2e-6, rtol=0.0)
    torch.testing.assert_close(rows.pooled[:11], want.pooled[:11], atol=2e-6, rtol=0.0)


def test_what_lies_behind_the_last_row_is_not_read() -> None:
    """Rows, index keys and pooled keys there are no numbers, or numbers that would win."""
    x = inputs(150)
    want, _ = run(layer(), x, [100, 150])
    of, rows = layer(), empty()
    for side in (rows.keys, rows.values, rows.index, rows.pooled):
        side.fill_(1e4)
    got = [of(x[a:b], a, rows, ROPE.rows(a, b)) for a, b in ((0, 100), (100, 150))]
    assert torch.equal(torch.cat(got), want)
