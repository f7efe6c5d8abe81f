"""The experiments on drafts and on a store's growth: rounds that add up, copies that are found.

Covers experiments.drafts and experiments.suffix_growth.

Method: a small made trace whose answers are copies, new, or both; rounds and tokens counted by hand
and by naive sums.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from nights import Builder, small_night

from cache.suffix_store import SuffixConfig
from experiments import drafts, suffix_growth
from experiments.drafts import GIVEN, WAYS, Tally, tallies
from replay.suffixes import scratch_store, tokenizer_of
from replay.trace import FRESH, TEXT, Run, Trace
from replay.tracefile import write_trace
from sim.profile import load

BOARD = replace(load("spark-27b"), grid=64, window=4_096)
Shell = Callable[..., tuple[int, str, str]]


def copying() -> Trace:
    """One answer that is new, one that copies its own prompt, one that copies another request's."""
    made = Builder()
    first = made.fresh(300, 60)
    made.part(first, 280, 20, 60, "b")
    made.change(output=(Run(FRESH, TEXT, 10), Run(first.number, 100, 50)))
    made.fresh(300, 60, "c")
    made.change(output=(Run(FRESH, TEXT, 10), Run(first.number, 200, 50)))
    return made.trace()


def rounds(text: int, drafts_a_round: int) -> int:
    return -(-text // (drafts_a_round + 1))


def test_copies_are_drafted_from_the_prompt_and_from_the_store() -> None:
    counted = tallies(BOARD, [copying()], WAYS)
    assert counted["none"].rounds == 3 * 59 and counted["none"].accepted == 0
    # A copy of 50 tokens: three are written before they are found again, then four a round.
    copied = 3 + rounds(47, 3)
    assert counted["prompt"].rounds == 2 * 59 + 9 + copied
    assert counted["store"].rounds == 59 + 2 * (9 + copied) == counted["frequent"].rounds
    assert counted["both_8"].rounds < counted["both"].rounds < counted["layer"].rounds
    for tally in counted.values():
        assert tally.rounds + tally.accepted == 3 * 59
        assert tally.accepted <= tally.drafted
    assert len(counted["store"].seconds) == 3 * 59 and not counted["both"].seconds


def test_what_was_recorded_is_what_the_layer_accepts() -> None:
    made = Builder()
    made.fresh(100, 12)
    made.change(accepts=(3, 0, 1, 3))
    counted = tallies(BOARD, [made.trace()], WAYS)
    # 1 + (3 + 1) + (0 + 1) + (1 + 1) + (3 + 1) = 12 tokens.
    assert (counted["layer"].rounds, counted["layer"].accepted) == (4, 7)


def test_a_round_is_judged_as_greedy_decoding_would() -> None:
    tally = Tally()
    assert tally.took([5, 6, 9], [4, 5, 6, 7, 8], 1) == 3
    assert tally.took([1, 5], [4, 5, 6], 1) == 1
    assert tally.took([5, 6], [4, 5, 6], 1) == 2, "the last token is the round's own"
    assert (tally.rounds, tally.accepted, tally.drafted) == (3, 3, 7)


def test_a_given_store_is_one_way_more() -> None:
    trace = copying()
    with scratch_store(SuffixConfig(), tokenizer_of([trace], BOARD, 0)) as given:
        given.add(np.arange(9_000, 9_100).astype(np.int32), [])
        counted = tallies(BOARD, [trace], (*WAYS, *GIVEN), given)
    assert counted["given"].rounds == counted["prompt"].rounds
    assert counted["given_both"].rounds < counted["given"].rounds


def test_growth_counts_every_token_or_what_is_new(tmp_path: Path) -> None:
    night = small_night(2, 25)
    write_trace(night, tmp_path / "n.jsonl")
    found = {f.key: f.ours for f in suffix_growth.run(BOARD, [str(tmp_path / "n.jsonl")])}
    sent = sum(request.prompt_tokens + request.output_tokens for request in night.requests)
    assert found["n.jsonl.whole.added_tokens"] == sent
    assert found["n.jsonl.new.added_tokens"] < sent
    assert found["n.jsonl.new_of_whole"] == pytest.approx(
        100 * found["n.jsonl.new.added_tokens"] / sent
    )
    assert found["n.jsonl.rebuilds_a_turn"] <= len(night.requests)
    assert found["n.jsonl.new.rebuilds"] <= found["n.jsonl.whole.rebuilds"] < len(night.requests)


def test_of_a_large_pack_the_whole_is_counted_and_not_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_trace(small_night(2, 25), tmp_path / "n.jsonl")
    done = {f.key: f.ours for f in suffix_growth.run(BOARD, [str(tmp_path / "n.jsonl")])}
    monkeypatch.setattr(suffix_growth, "WHOLE_MOST", 1)
    counted = {f.key: f.ours for f in suffix_growth.run(BOARD, [str(tmp_path / "n.jsonl")])}
    left_out = set(done) - set(counted)
    assert left_out and all(".whole." in key or ".last_" in key for key in left_out)
    some = [done[f"n.jsonl.{key}.added_tokens"] for key in ("last_1", "last_2", "new", "last_8")]
    assert some == sorted(some, reverse=True) and some[0] > some[-1]
    same = ("whole.added_tokens", "new.added_tokens", "new_of_whole", "new.file_bytes")
    assert all(done[f"n.jsonl.{key}"] == counted[f"n.jsonl.{key}"] for key in same)


def test_one_conversation_grows_by_what_is_new_and_the_lead_in() -> None:
    made = Builder()
    last = made.fresh(500, 20)
    for _ in range(9):
        last = made.extend(last, 30, 20)
    trace = made.trace()
    with scratch_store(SuffixConfig(), tokenizer_of([trace], BOARD, 0)) as store:
        suffix_growth.fill(store, BOARD, [trace], "new")
        assert store.stats.added_tokens == 520 + 9 * (50 + 8)


def test_both_are_in_the_list_and_print(run: Shell, tmp_path: Path) -> None:
    write_trace(copying(), tmp_path / "n.jsonl")
    for name, key in ((drafts.NAME, "both.accepted"), (suffix_growth.NAME, "n.jsonl.new_of_whole")):
        code, out, _ = run("experiment", name, "--traces", tmp_path / "n.jsonl")
        assert code == 0 and key in out
