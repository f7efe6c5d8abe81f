"""The experiments about whole conversations on the drive, beside what the seed measured.

Covers experiments.deploy, experiments.stranger and experiments.second_eviction.

Method: the seed's figures at their full size, every request verified; each is held to what was
measured, and each way without the spill is the other's canary.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from experiments import deploy, registry, second_eviction, stranger
from experiments.figure import Figure
from sim.profile import load

BOARD = load("spark-27b")


def by_key(figures: list[Figure]) -> dict[str, float]:
    return {figure.key: figure.ours for figure in figures}


def test_the_next_turn_after_a_deploy_resumes_at_its_end() -> None:
    figures = registry.find(deploy.NAME).run(BOARD)
    ours = by_key(figures)
    off = {f.key: f.ours / f.seed - 1 for f in figures if f.seed}
    assert len(off) == 3 and all(abs(error) < 0.01 for error in off.values()), off
    assert ours["heads.reread_tokens"] == deploy.ROWS - 25_600
    for way in ("spill", "spill_ahead"):
        assert ours[f"{way}.cached_tokens"] == deploy.ROWS and ours[f"{way}.reread_tokens"] == 0
        assert ours[f"{way}.new_tokens"] == deploy.MESSAGE
        assert ours[f"{way}.first_token_s"] < ours["heads.first_token_s"] / 20
        assert 0 < ours[f"{way}.read_back_s"] < 5
    rows_gb = deploy.ROWS * BOARD.cost.spilled_row_bytes / 1e9
    copies_gb = 5 * BOARD.anchor_bytes / 1e9
    assert ours["spill.drain_gb"] == pytest.approx(rows_gb + copies_gb, rel=0.01)
    # As long as the codec takes for its rows, about; ahead there is nothing left to do.
    codec_s = deploy.ROWS * BOARD.row_bytes / BOARD.pack_bytes_s
    assert codec_s < ours["spill.drain_s"] < 1.1 * codec_s
    assert ours["spill_ahead.drain_s"] < 0.1 and ours["spill_ahead.drain_gb"] < 1e-4


def test_a_stranger_costs_the_conversation_a_restore() -> None:
    figures = registry.find(stranger.NAME).run(BOARD)
    ours = by_key(figures)
    assert ours["pinned_head.first_token_s"] == pytest.approx(165, rel=0.01)
    assert ours["rows_in_place.reread_tokens"] > 100_000
    for way in ("spill", "spill_ahead"):
        assert ours[f"{way}.cached_tokens"] == stranger.ROWS
        assert ours[f"{way}.reread_tokens"] == 0 < ours[f"{way}.restore_s"] < 3
        assert ours[f"{way}.first_token_s"] < ours["rows_in_place.first_token_s"] / 20
    waits = {way: ours[f"{way}.stranger_waits_s"] for way in stranger.ways(BOARD)}
    assert waits["rows_in_place"] == waits["pool"] == 0 and waits["spill_ahead"] < 0.1
    codec_s = stranger.ROWS * BOARD.row_bytes / BOARD.pack_bytes_s
    assert codec_s < waits["spill"] < 1.1 * codec_s
    alone = ours["rows_in_place.stranger_first_token_s"]
    assert ours["spill.stranger_first_token_s"] == pytest.approx(alone + waits["spill"], abs=0.1)


def test_a_second_eviction_writes_one_block_and_the_end() -> None:
    figures = registry.find(second_eviction.NAME).run(BOARD)
    ours = by_key(figures)
    off = {f.key: f.ours / f.seed - 1 for f in figures if f.seed}
    assert len(off) == 2 and all(abs(error) < 0.005 for error in off.values()), off
    for codec in ("raw", "planes"):
        assert ours[f"{codec}.second_gb"] < ours[f"{codec}.first_gb"] / 15
        assert ours[f"{codec}.drain_gb"] < 0.4 and ours[f"{codec}.drain_again_gb"] < 1e-4
        assert ours[f"{codec}.last_reread_tokens"] == 0
    last = second_eviction.ROWS % 1_024 * BOARD.cost.spilled_row_bytes + BOARD.anchor_bytes
    assert ours["planes.second_gb"] == pytest.approx(last / 1e9, rel=0.01)


def test_canary_a_chat_that_grows_past_its_block_writes_more() -> None:
    board = replace(BOARD, spill_codec="raw")
    longer = second_eviction.served(board, grows=2_400)
    assert longer.second.spill_written > 0.4e9 > second_eviction.served(board).second.spill_written


@pytest.mark.parametrize("name", ["a-b-a", "stranger-10k", "deploy-mid-afternoon"])
def test_only_those_that_ask_about_it_have_it_on(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = registry.find(name)
    module = registry.import_module(registry.MODULES[name])
    seen = []
    monkeypatch.setattr(module, "run", lambda board: seen.append(board) or [])
    found.run(BOARD)
    assert seen[0].spill is (name != "a-b-a")
    assert seen[0].disk is (name == "deploy-mid-afternoon")
