"""The experiments on what clients do to answers: what must hold between their figures.

Method: each at a smaller size; the alignment that is off is the canary of the one that is on. The
chat that is timed is grown to a few thousand tokens, and must meet its rows to their end.
"""

from __future__ import annotations

from dataclasses import replace

from experiments import align_speed, owui_reasoning, reserialised_tools
from sim.profile import load

BOARD = load("spark-27b")
OFF = replace(BOARD, alignment="off")


def test_a_chat_without_its_reasoning_resumes_at_the_end() -> None:
    row = owui_reasoning.served(BOARD, 400, 500)
    assert row.source == "end" and row.end_resume and row.reread == 0
    assert row.forwarded <= owui_reasoning.QUESTION + 2


def test_canary_without_alignment_it_reads_its_answer_again() -> None:
    plain = owui_reasoning.served(replace(OFF, checkpoint_tokens=0), 400, 500)
    assert plain.source == "grid" and plain.reread >= 500
    # Where the checkpoint stands at the answer's begin, only what differs is read.
    assert owui_reasoning.served(OFF, 400, 500).source == "checkpoint"


def test_the_measured_shares_are_those_of_grid_lines() -> None:
    """0.71 to 0.89 of the prompt were cached."""
    ours = {figure.key: figure.ours for figure in owui_reasoning.run(BOARD)}
    assert 0.70 <= ours["grid_lines.cached_share_min"] <= ours["grid_lines.cached_share_max"] <= 0.9
    assert ours["full.cached_share_min"] > 0.98
    assert ours["full.ttft_max_s"] < ours["grid_lines.ttft_min_s"] / 10


def test_a_tool_loop_resumes_at_every_end() -> None:
    rows = reserialised_tools.served(BOARD, turns=5)
    assert [row.source for row in rows] == ["end"] * 4
    assert sum(row.reread for row in rows) == 0


def test_canary_without_values_it_parts_at_every_call() -> None:
    for alignment in ("off", "spans"):
        rows = reserialised_tools.served(replace(BOARD, alignment=alignment), turns=5)
        assert not any(row.source == "end" for row in rows)
        assert sum(row.reread for row in rows) > 0


def test_the_timed_chat_meets_its_rows() -> None:
    figures = align_speed.run(BOARD, prompt_min=4_000)
    assert {f.key.split(".")[0] for f in figures} == {
        "as_written",
        "no_reasoning",
        "rewritten_calls",
        "both",
    }
    assert all(figure.ours > 0 for figure in figures)
