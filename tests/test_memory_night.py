"""The night under memory limits, and a prompt that can't be read. Covers experiments.memory_night.

Method: a small made night under limits that its caches reach; figures that must stand in an order
whatever their size. The refusal runs at the board's own sizes. The canary is a night without any
limits.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from nights import small_night
from rich.console import Console

from cache.budget import LEVELS
from experiments import memory_night
from replay.commands import traces_of
from replay.tracefile import write_trace
from sim.profile import load

GIB = 2**30
BOARD = replace(
    load("spark-27b"),
    grid=64,
    window=4_096,
    park_bytes=GIB,
    pin_bytes=GIB // 2,
    ceiling_bytes=int(60.5 * GIB),
    peak_bytes=62 * GIB,
    slack_bytes=GIB // 2,
)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("memory") / "small.jsonl.zst"
    write_trace(small_night(3, 40), path)
    return path


@pytest.fixture(scope="module")
def figures(trace: Path) -> dict[str, float]:
    return {figure.key: figure.ours for figure in memory_night.run(BOARD, [str(trace)])}


def shed(figures: dict[str, float], night: str) -> float:
    return sum(figures[f"{night}.shed_{level}_gib"] for level in LEVELS)


def test_the_limits_hold_and_cost_what_they_must(figures: dict[str, float]) -> None:
    assert figures["free.most_gib"] > BOARD.ceiling_bytes / GIB
    assert figures["free.most_gib"] > figures["as_is.most_gib"] > figures["tight.most_gib"]
    for night in ("as_is", "tight"):
        assert shed(figures, night) > 0
        assert figures[f"{night}.over_ceiling_s"] == figures[f"{night}.over_peak_s"] == 0
    for night in ("free", "as_is", "tight", "wide", "learned"):
        assert figures[f"{night}.failed"] == figures[f"{night}.refused"] == 0


def test_with_hardly_any_room_starts_are_colder(figures: dict[str, float], trace: Path) -> None:
    """How much a third costs hangs on what the small pool happened to hold; this does not."""
    traces = traces_of([str(trace)], False, Console(stderr=True), board=BOARD)[0]
    night = memory_night.replayed(memory_night.limited(BOARD, 0.25), traces)
    assert night.ledger["reread"].sum() > 2 * figures["free.reread_tokens"]
    assert (night.ledger["failure"] == "").all() and not night.ledger["no_room"].any()


def test_canary_without_limits_nobody_gives_anything(figures: dict[str, float]) -> None:
    assert shed(figures, "free") == figures["free.declined"] == 0


def test_a_prompt_that_cant_be_read_leaves_the_caches_as_they_were() -> None:
    seen = {f.key: f.ours for f in memory_night.refusal_figures(load("spark-27b"))}
    assert seen["impossible.refused"] == 1 and seen["impossible.retry_after_s"] == 30
    assert seen["impossible.shed_bytes"] == seen["impossible.next_reread"] == 0
    assert seen["impossible.next_cached"] >= memory_night.SHORT
