"""Chunk sizes compared: the fitted line, this machine's ratios, and nights on several grids.

Method: a clock that counts the engine's calls, so that every ratio is known; two small made nights
on fine grids, their seconds taken apart into the curve's and the chunks'. The canary is a board
that was measured in one chunk size: all grids then cost what their tokens cost.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from nights import small_night

from engine.adapter import Engine
from engine.bad import BadInput
from experiments import chunk_size
from replay.trace import Trace
from replay.tracefile import write_trace
from sim.chunks import ChunkTimes
from sim.profile import load

TIMES = ChunkTimes(1_724, 256, ((1_724, 2.508), (1_024, 2.858), (256, 3.940)))
BOARD = replace(
    load("spark-27b"),
    vocab=499,
    window=4_096,
    resident_bytes=6 * 153_944_064,
    chunk_times=TIMES,
)


def by_key(figures: list[chunk_size.Figure]) -> dict[str, float]:
    return {figure.key: figure.ours for figure in figures}


def test_the_line_stands_beside_what_was_measured() -> None:
    figures = {f.key: f for f in chunk_size.fitted(TIMES)}
    assert figures["board.chunks_256_s"].seed == 3.940
    assert figures["board.one_piece_s"].note == "1 chunks, off by +54 ms"
    rebuilt = figures["board.chunk_s"].ours * 7 + figures["board.rest_s"].ours
    assert rebuilt == pytest.approx(figures["board.chunks_256_s"].ours)


def test_ratios_of_this_machine_are_those_of_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that ticks at every forward: one piece, two chunks, seven."""
    calls = 0
    prefill = Engine.prefill

    def counted(self: Engine, ids: chunk_size.Ids) -> object:
        nonlocal calls
        calls += 1
        return prefill(self, ids)

    monkeypatch.setattr(Engine, "prefill", counted)
    figures = chunk_size.on_this_machine(BOARD, TIMES, rounds=2, now=lambda: float(calls))
    assert by_key(figures) == {
        "here.one_piece": 1.0,
        "here.chunks_1024": 2.0,
        "here.chunks_256": 7.0,
    }
    assert figures[2].seed == pytest.approx(3.940 / 2.508)
    assert calls == 3 * (1 + 2 + 7)


def nights() -> list[Trace]:
    return [small_night(seed=at) for at in range(2)]


def test_a_finer_grid_reads_less_again_and_pays_for_its_chunks() -> None:
    seen = {
        grid: by_key(chunk_size.replayed_on("x", replace(BOARD, grid=grid), nights()))
        for grid in (64, 256, 1_024)
    }
    assert seen[64]["x.reread_grid"] < seen[256]["x.reread_grid"] < seen[1_024]["x.reread_grid"]
    assert seen[64]["x.chunks_s"] > 0 == seen[256]["x.chunks_s"] > seen[1_024]["x.chunks_s"]
    for grid, figures in seen.items():
        plain = replace(BOARD, grid=grid, chunk_times=None)
        without = by_key(chunk_size.replayed_on("x", plain, nights()))
        assert without["x.chunks_s"] == 0 and without["x.reread"] == figures["x.reread"]
        added = figures["x.prefill_s"] - without["x.prefill_s"]
        # Two prefills were cancelled, and each retry is charged as if it went on.
        assert abs(added - figures["x.chunks_s"]) < 2.01 * TIMES.chunk_s


def test_the_whole_experiment_and_a_board_without_the_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_size, "GRIDS", (64, 256))
    monkeypatch.setattr(chunk_size, "ROUNDS", 1)
    write_trace(small_night(seed=0), tmp_path / "one.jsonl")
    figures = by_key(chunk_size.run(BOARD, [str(tmp_path / "one.jsonl")]))
    assert {"board.chunk_s", "here.chunks_256", "one.jsonl.grid_64.reread"} <= figures.keys()
    with pytest.raises(BadInput, match="no prefill measured in two chunk sizes"):
        chunk_size.run(replace(BOARD, chunk_times=None), [])
