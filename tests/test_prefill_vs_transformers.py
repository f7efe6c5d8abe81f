"""Prefill beside transformers: experiments.prefill_vs_transformers, tiered and roofline.

Goal: every figure is there and says what it was over; logits that are apart from transformers' stop
it; without transformers it is one line; a comparison ends when enough time went by; a box with
tiers writes and one without keeps nothing; a prefill's operations are those of its products.
Method: a model of a few channels at one thread, planted faults, and torch's own counter of
operations. No ratio is asked for: they are of machines.
"""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from engine.bad import BadInput
from engine.checkpoint.save import save_checkpoint
from engine.config import HybridConfig
from engine.hybrid import Hybrid
from engine.weights import random_weights
from experiments import prefill_vs_transformers as module
from experiments.prefill_vs_transformers import Sizes, in_turn, run
from experiments.roofline import operations, rate_per_s
from experiments.tiered import bare, tiered
from experiments.traffic import GateFailed
from serve.house import House
from sim.profile import load

BOARD = load("spark-27b")
SMALL = Sizes(prompt=2_048, rounds=1, answer=12, threads=(1,), shape=HybridConfig.tiny(draft=False))


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_every_ratio_is_there_and_says_over_what() -> None:
    pytest.importorskip("transformers", reason="the other implementation")
    before, threads = torch.get_num_threads(), 3
    torch.set_num_threads(threads)
    try:
        found = {figure.key: figure for figure in run(BOARD, SMALL)}
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    prefills = [f"prefill.{kind}.threads_1" for kind in ("float32", "bfloat16")]
    drafts = [f"decode.{way}_ratio" for way in ("mtp", "lookup", "accepted")]
    wanted = [f"{key}{ends}" for key in prefills for ends in ("_ratio", "_bound_ratio")]
    assert list(found) == [*wanted, "tiers_ratio", *drafts]
    assert all(math.isfinite(figure.ours) and figure.ours > 0 for figure in found.values())
    assert all("in chunks" in found[f"{key}_ratio"].note for key in prefills)
    assert all(found[f"{key}_bound_ratio"].ours > found[f"{key}_ratio"].ours for key in prefills)


def test_without_transformers_it_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(BadInput, match="needs transformers") as raised:
        run(BOARD, SMALL)
    assert "\n" not in str(raised.value)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_canary_other_logits_stop_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers", reason="the other implementation")
    theirs = module.their_prefill
    monkeypatch.setattr(module, "their_prefill", lambda *asked: theirs(*asked) * 1.1)
    with pytest.raises(GateFailed, match="apart from transformers'"):
        run(BOARD, SMALL)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("slow", ["chunks", "whole"])
def test_the_faster_of_their_ways_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, slow: str
) -> None:
    peers = pytest.importorskip("transformers", reason="the other implementation")
    took = {"here": 1.0, "chunks": 2.0, "whole": 2.0, slow: 5.0}
    monkeypatch.setattr(module, "in_turn", lambda *_: took)
    save_checkpoint(random_weights(SMALL.shape, 0), tmp_path, kind="qwen3_5_text")
    ratio, _ = module._prefill(peers, tmp_path, "float32", 1, SMALL)
    assert ratio.ours == 2.0


def test_no_round_begins_when_enough_time_went_by() -> None:
    ticks: Iterator[int] = iter(range(1_000))
    calls: list[str] = []
    ways = {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}
    took = in_turn(ways, Sizes(rounds=9, enough_s=8.0), lambda: float(next(ticks)))
    # Five ticks a round and the question: the second round begins at 6, the third would at 11.
    assert calls == ["a", "b"] * 2 and took == {"a": 1.0, "b": 1.0}


def test_a_box_with_tiers_writes_and_one_without_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, close = list[House](), House.close

    def noted(self: House) -> None:
        close(self)
        closed.append(self)

    monkeypatch.setattr(House, "close", noted)
    ids = np.random.default_rng(0).integers(0, 499, 128).astype(np.int32)
    config = HybridConfig.tiny(draft=False)
    made = [Hybrid.random(config, 0, grid=64, window=256) for _ in range(2)]
    with bare(made[0]) as none, tiered(made[1], tmp_path) as every:
        for box in (none, every):
            assert all(box.cold_s(ids, number) > 0 for number in range(2))
        assert none.wrote_bytes == 0 < every.wrote_bytes
        # The same prompt again is no cold turn where something keeps it, and one where nothing is.
        with pytest.raises(GateFailed, match="served from"):
            every.cold_s(ids, 1)
        assert not closed
    assert len(closed) == 1


def counted(config: HybridConfig, tokens: int) -> float:
    """What torch counts of a prefill's products, in one chunk."""
    engine = Hybrid.random(config, 0, grid=tokens, window=tokens)

    def added(self: Any, a: Any, b: Any, *rest: Any, **named: Any) -> int:
        batch, rows, inner = a
        return 2 * batch * rows * inner * b[2]

    ids = np.zeros(tokens, np.int32)
    with FlopCounterMode(display=False, custom_mapping={torch.ops.aten.baddbmm_: added}) as counter:
        engine.prefill(ids)
    return float(counter.get_total_flops())


def test_operations_are_those_of_the_products() -> None:
    """The only attention layer is the last one, whose scores for one row nobody counts."""
    config = HybridConfig.tiny(draft=False, key_dim=48, value_dim=64)
    assert operations(config, 1_024) == pytest.approx(counted(config, 1_024), rel=0.002)


def test_attention_takes_half_of_all_pairs() -> None:
    few, many = (HybridConfig.tiny(draft=False, layers=layers) for layers in (4, 8))
    grown = [operations(many, n) / n - operations(few, n) / n for n in (1_024, 3_072)]
    # Two products of a multiplication and an addition a pair, four query heads of 16 channels.
    assert grown[1] - grown[0] == pytest.approx(2_048 / 2 * 2 * 2 * 4 * 16)


def test_the_rate_is_of_a_product_of_this_model() -> None:
    # The second round is the quickest: it takes one tick, all others two.
    ticks = itertools.accumulate(1 if at == 3 else 2 for at in range(100))
    config = HybridConfig.tiny()
    rate = rate_per_s(config, torch.float32, lambda: float(next(ticks)))
    assert rate == 2.0 * 1_024 * 2 * config.intermediate * config.hidden
