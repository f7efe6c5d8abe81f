"""A prefill of which only the last row is read: engine.layers.attention, decoder and forward.

Goal: without draft layers a chunk's logits, states and rows are those of a pass that keeps every
row, and the last layer forwards one row; with draft layers, which read every row, all are kept.
Method: the same weights with and without draft layers, and rows counted at the last layer's MLP.
Bits differ, as one row's products round otherwise: float32 to 1e-5 of values of order one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from engine.config import HybridConfig
from engine.hybrid import Hybrid
from engine.layers.decoder import Decoder
from engine.layers.mlp import Mlp
from engine.weights import random_weights

IDS = np.random.default_rng(3).integers(0, 499, 150).astype(np.int32)


def engines(**changes: Any) -> tuple[Hybrid, Hybrid]:
    """One whose draft layers read every row, and one over the same text weights without any."""
    config = HybridConfig.tiny(**changes)
    weights = random_weights(config, 4)
    plain = HybridConfig.tiny(draft=False, **changes)
    return tuple(
        Hybrid(Decoder(replace(weights, config=shape)), grid=64, window=192)
        for shape in (config, plain)
    )


def fed(engine: Hybrid) -> list[torch.Tensor]:
    """The logits of three chunks, and the states, tails and rows after them."""
    logits = [engine.prefill(IDS[start : start + 64]) for start in range(0, 150, 64)]
    state = engine.cache_state()
    sections = [section.tensor for section in state.sections[:2]]
    return [*logits, *sections, *(view.rows(0, 150) for view in state.views[:2])]


@pytest.mark.parametrize(
    "changes",
    [{}, {"kv": "e4m3"}, {"full_attention_interval": 3}, {"key_dim": 48, "value_dim": 64}],
)
def test_one_row_gives_what_all_rows_give(changes: dict[str, Any]) -> None:
    """With an interval of 3 the last of 4 layers is a gated delta net."""
    whole, last = map(fed, engines(**changes))
    for want, got in zip(whole, last, strict=True):
        assert want.shape == got.shape
        # A row that was rounded otherwise before it was coded may be the next code, 1/8 away.
        bound = 0.15 if changes.get("kv") else 1e-5
        torch.testing.assert_close(got.float(), want.float(), atol=bound, rtol=0.0)


def test_the_last_layer_forwards_one_row_where_no_draft_layer_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows: list[int] = []
    forward = Mlp.__call__

    def counted(self: Mlp, x: torch.Tensor) -> torch.Tensor:
        rows.append(len(x))
        return forward(self, x)

    monkeypatch.setattr(Mlp, "__call__", counted)
    for engine, want in zip(engines(), ([64] * 4, [64, 64, 64, 1]), strict=True):
        rows.clear()
        engine.prefill(IDS[:64])
        assert rows == want


def test_canary_the_row_before_the_last_is_seen() -> None:
    _, engine = engines()
    other = engine.twin(192)
    got, late = fed(engine)[0], other.prefill(IDS[:63])
    assert not torch.allclose(got, late, atol=1e-2)
