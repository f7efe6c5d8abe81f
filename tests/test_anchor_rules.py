"""Rules of which anchor goes, compared: figures of every rule, and the order they must have.

Method: a small board with room for six anchors, two small made nights, and edits of a short
conversation.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from nights import small_night

from experiments import anchor_rules
from replay.tracefile import write_trace
from sim.profile import ANCHOR_RULES, load

BOARD = replace(
    load("spark-27b"), grid=64, window=8_192, resident_bytes=6 * 153_944_064, checkpoint_tokens=64
)


def test_every_rule_has_figures_and_none_beats_no_budget(tmp_path: Path) -> None:
    for at in range(2):
        write_trace(small_night(seed=at, turns=20), tmp_path / f"night{at}.jsonl")
    figures = {f.key: f.ours for f in anchor_rules.run(BOARD, [str(tmp_path)])}
    name = tmp_path.name
    for rule in ANCHOR_RULES:
        for part in ("all", "even_half", "odd_half", "grid", "evicted", "unanchored", "replaced"):
            assert figures[f"{rule}.{name}.{part}"] >= 0
        assert figures[f"{rule}.edits"] >= figures["every.edits"]
    assert figures["worth.edits"] < figures["newest.edits"]
