"""What a compaction costs as it is sent, continued and written ahead, at the seed's sizes.

Method: the experiment's own requests through the replay, every one verified, at the smaller size.
"""

from __future__ import annotations

import pytest

from experiments import compaction_continued
from experiments.compaction_continued import COMPACTED, SUMMARY, SYSTEM, TOOLS, TURN, Way, served
from experiments.registry import find
from sim.profile import load

BOARD = load("spark-27b")
SMALL, RECORD = 40_000, 20_000


def test_a_continuation_reads_its_turn_alone() -> None:
    ways: tuple[Way, ...] = ("sent", "continued", "prepared")
    sent, continued, prepared = (served(BOARD, way, SMALL, RECORD) for way in ways)
    assert (sent.forwarded, continued.forwarded, prepared.forwarded) == (RECORD, TURN + 1, TURN)
    assert continued.prefill_s < sent.prefill_s / 10
    assert prepared.prefill_s == pytest.approx(continued.prefill_s, rel=0.01)
    assert prepared.all_s == pytest.approx(continued.all_s, rel=0.02)
    assert 0 < prepared.step_s <= 1.01 * continued.prefill_s
    heads = [seen.after.cached for seen in (sent, continued, prepared)]
    assert heads == [(TOOLS + SYSTEM) // BOARD.grid * BOARD.grid] * 3


def test_it_is_found_and_gives_the_seeds_figures_beside_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compaction_continued, "LONG_CONVERSATION", 42_000)
    monkeypatch.setattr(compaction_continued, "CONVERSATION", SMALL)
    figures = {figure.key: figure for figure in find("compaction-continued").run(BOARD)}
    assert figures["manual.sent.forwarded_tokens"].seed == COMPACTED
    assert figures["manual.sent.all_s"].seed == 189.8
    assert figures["automatic.continued.forwarded_tokens"].ours == TURN + 1
    assert SUMMARY == 2_000
