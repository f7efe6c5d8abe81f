"""Several draft layers one after the other, whose rows all come back.

Goal: engine.layers.draft with one, two and three layers writes the reference's rows and guesses its
tokens; no row hangs on a later token; a resume gives a cold prefill's rows and guesses, bit for
bit. Method: engine.oracle.draft in float64, token by token; copies of views put into another
engine. Canaries leave one layer's rows behind, or skip what lies before the last layer's rows.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

from cache.types import Ids
from engine.config import HybridConfig
from engine.hybrid import Hybrid
from engine.layers.decoder import Decoder
from engine.layers.draft import Draft
from engine.oracle.hybrid import Oracle
from engine.weights import Weights, random_weights

GRID = 32
CARRIED = 2e-4
"""Absolute, on rows of order one: a few times the largest error seen."""


def config(layers: int, **changes: object) -> HybridConfig:
    """A small model with so many draft layers."""
    return HybridConfig.tiny(draft_layers=layers, **changes)


@cache
def weights(layers: int, kv: str = "model") -> Weights:
    """Drawn once."""
    return random_weights(config(layers, kv=kv), 3)


def engine(layers: int, kv: str = "model", window: int = 200) -> Hybrid:
    """An empty one."""
    return Hybrid(Decoder(weights(layers, kv)), grid=GRID, window=window)


def ids_of(count: int, seed: int = 0) -> Ids:
    """Random token ids."""
    return np.random.default_rng(seed).integers(0, 499, count).astype(np.int32)


def feed(of: Hybrid, ids: Ids) -> torch.Tensor:
    """Prefill the rest of `ids`."""
    for start in range(of.length, len(ids), GRID):
        logits = of.prefill(ids[start : start + GRID])
    return logits


def draft_rows(of: Hybrid) -> list[torch.Tensor]:
    """Of all draft layers, up to the length: [layers, kv heads, n, ...]."""
    views = of.cache_state().views
    return [v.rows(0, of.length).clone() for v in views if v.name.startswith("draft.")]


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_rows_and_guesses_are_the_references(layers: int) -> None:
    of, oracle, ids = engine(layers), Oracle(config(layers), weights(layers).tensors), ids_of(70)
    feed(of, ids)
    oracle.read(ids.tolist())
    state = oracle.state()
    for got, name in zip(draft_rows(of), ("draft.K", "draft.V"), strict=True):
        assert got.shape[0] == layers
        torch.testing.assert_close(got.double(), state[name], atol=CARRIED, rtol=0.0)
    for token in (7, 300):
        assert of.draft(token, 4) == oracle.draft(token, 4)


@pytest.mark.parametrize("layers", [2, 3])
def test_rows_of_a_block_are_those_of_a_prefill(layers: int) -> None:
    of, whole, ids = engine(layers), engine(layers), ids_of(64)
    feed(whole, ids)
    feed(of, ids[:60])
    of.verify(ids[60:])
    of.accept(4)
    of.settle()
    for got, want in zip(draft_rows(of), draft_rows(whole), strict=True):
        torch.testing.assert_close(got, want, atol=CARRIED, rtol=0.0)


def test_no_row_hangs_on_a_later_token() -> None:
    of, other, ids = engine(3), engine(3), ids_of(GRID)
    of.prefill(ids)
    ids[20:] = ids_of(GRID - 20, seed=5)
    other.prefill(ids)
    for got, want in zip(draft_rows(of), draft_rows(other), strict=True):
        torch.testing.assert_close(got[:, :, :20], want[:, :, :20], atol=CARRIED, rtol=0.0)
        assert not torch.equal(got[:, :, 20:], want[:, :, 20:])


def put_back(of: Hybrid, into: Hybrid, length: int, leave: int | None = None) -> None:
    """Sections and rows below `length`, but for the draft rows of layer `leave`."""
    state, back = of.cache_state(), into.cache_state()
    for section, target in zip(state.sections, back.sections, strict=True):
        target.tensor.copy_(section.tensor)
    for view, rows in zip(state.views, back.views, strict=True):
        rows.tensor.fill_(torch.nan)
        rows.rows(0, length).copy_(view.rows(0, length))
        if leave is not None and view.name.startswith("draft."):
            rows.tensor[leave] = 0
    into.resume_at(length)


def resumed(layers: int, kv: str, leave: int | None = None) -> list[bool]:
    """Whether a resume equals a cold prefill: rows at and past the line, and guesses."""
    of, cold, into, ids = (
        engine(layers, kv),
        engine(layers, kv),
        engine(layers, kv, 150),
        ids_of(90),
    )
    feed(of, ids[: 2 * GRID])
    put_back(of, into, 2 * GRID, leave)
    feed(into, ids)
    feed(cold, ids)
    fresh = [rows[:, :, 2 * GRID :].view(torch.uint8) for rows in draft_rows(into)]
    wanted = [rows[:, :, 2 * GRID :].view(torch.uint8) for rows in draft_rows(cold)]
    same = [torch.equal(a, b) for a, b in zip(fresh, wanted, strict=True)]
    tokens = range(0, 499, 25)
    return [*same, [into.draft(at, 2) for at in tokens] == [cold.draft(at, 2) for at in tokens]]


@pytest.mark.parametrize("kv", ["model", "e4m3"])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_a_resume_is_a_cold_prefill(layers: int, kv: str) -> None:
    assert all(resumed(layers, kv))


@pytest.mark.parametrize("kv", ["model", "e4m3"])
@pytest.mark.parametrize("leave", [0, 1])
def test_canary_one_layers_rows_left_behind(leave: int, kv: str) -> None:
    """The first layer's move the second's rows; the second's own only its guesses."""
    found = resumed(2, kv, leave)
    assert not all(found)
    assert all(found[:-1]) == (leave == 1)


def test_canary_a_last_layer_that_reads_what_the_first_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of, ids = engine(2), ids_of(GRID)
    of.prefill(ids)
    want = draft_rows(of)
    monkeypatch.setattr("engine.layers.draft.DraftLayer.__call__", lambda self, x, *of: x)
    other = engine(2)
    other.prefill(ids)
    got = draft_rows(other)
    assert float((got[0][1] - want[0][1]).abs().max()) > 100 * CARRIED


def test_one_layer_runs_neither_attention_nor_mlp_for_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """With several only the last one is spared them."""
    count = list[int]()
    whole = Draft.rows

    def counted(self: Draft, *args: object) -> None:
        def called(layer: object, x: torch.Tensor, *rest: object) -> torch.Tensor:
            count.append(1)
            return x

        with monkeypatch.context() as patch:
            patch.setattr("engine.layers.draft.DraftLayer.__call__", called)
            whole(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Draft, "rows", counted)
    for layers in (1, 3):
        count.clear()
        engine(layers).prefill(ids_of(GRID))
        assert len(count) == layers - 1
