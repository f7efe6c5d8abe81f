"""The experiments that make their own requests: what must hold between their figures.

Covers experiments.figure, experiments.registry and experiments.traffic through them.

Method: each at its full size, or a smaller one where that takes seconds; the ways it compares are
each other's canary, since with the feature off the figure must be the bad one. What was measured
elsewhere is met where the policy is the same, and a fault in the caches stops an experiment.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cache.stack import Stack
from engine.bad import BadInput
from experiments import (
    a_b_a,
    a_b_c_a,
    compaction_head,
    guest_sizes,
    think_33k,
    title_guest,
    traffic,
)
from experiments.figure import Figure
from experiments.registry import MODULES, find
from experiments.traffic import without_tiers
from replay.ledger import LedgerRow
from sim.profile import ALIGNMENTS, load

BOARD = replace(load("spark-27b"), disk=False, spill=False)
"""As the registry gives it to those that ask about the caches in memory."""


def by_key(figures: list[Figure]) -> dict[str, float]:
    return {figure.key: figure.ours for figure in figures}


# title-guest


@pytest.fixture(scope="module")
def titles() -> dict[str, tuple[LedgerRow, LedgerRow]]:
    ways = title_guest.boards(BOARD)
    return {name: title_guest.served(way, 20_000) for name, way in ways.items()}


def test_a_title_request_costs_the_next_turn_nothing(
    titles: dict[str, tuple[LedgerRow, LedgerRow]],
) -> None:
    for name in ("guest", "side_slot", "parked"):
        title, after = titles[name]
        assert (after.reread, after.source.split(".")[-1]) == (0, "end"), name
        assert title.guest == (name == "guest") and title.slot == (name == "side_slot")


def test_canary_without_guests_and_a_park_the_conversation_is_read_again(
    titles: dict[str, tuple[LedgerRow, LedgerRow]],
) -> None:
    _, after = titles["off"]
    # An answer's last token is usually not forwarded.
    assert 20_000 + title_guest.ANSWER - 1 <= after.reread <= 20_000 + title_guest.ANSWER
    assert after.ttft_s is not None and titles["guest"][1].ttft_s is not None
    assert after.ttft_s > 50 * titles["guest"][1].ttft_s


def test_a_guest_copies_its_rows_and_a_side_slot_none(
    titles: dict[str, tuple[LedgerRow, LedgerRow]],
) -> None:
    copied = {name: title.held_stash + title.held_park for name, (title, _) in titles.items()}
    rows = copied["guest"] // BOARD.row_bytes
    assert title_guest.TITLE + 512 <= rows <= title_guest.TITLE + 2 * 512 + 1_024
    assert copied["side_slot"] == copied["off"] == 0
    assert copied["parked"] > 10 * copied["guest"]


# guest-sizes


def test_the_stash_follows_the_answer_and_never_passes_the_rule_by_max_tokens() -> None:
    short, long = (guest_sizes.stashed_bytes(BOARD, answer) for answer in (12, 2_000))
    by_rule = guest_sizes.seeds_rows(410, guest_sizes.MAX_TOKENS, monitor=False)
    assert short < long < by_rule * BOARD.row_bytes
    assert long - short >= (2_000 - 2 * 512) * BOARD.row_bytes


def test_a_stash_without_room_cuts_the_rows_and_all_gates_hold() -> None:
    bare = without_tiers(BOARD)
    small = replace(bare, guest_tokens=8_192, stash_bytes=1_500 * BOARD.row_bytes)
    _, guest, after = guest_sizes.served(small, 2_000)
    assert guest.guest and guest.held_stash <= small.stash_bytes
    # What the guest wrote over without a copy is gone, and nothing below it.
    assert guest.held_rows == guest.held_stash and after.cached <= 1_500
    _, _, kept = guest_sizes.served(BOARD, 2_000)
    assert (kept.source, kept.reread) == ("end", 0)


# a-b-a and a-b-c-a


def test_a_comes_back_as_the_seed_measured_it_under_the_seeds_policy() -> None:
    rows = {name: a_b_a.served(*way) for name, way in a_b_a.boards(BOARD).items()}
    seeds, none = rows["seed_policy"], rows["no_park"]
    assert (seeds.cached, seeds.forwarded) == (41_984, 11_225)
    assert seeds.ttft_s == pytest.approx(16.4, rel=0.05)
    assert none.forwarded == pytest.approx(45_000, rel=0.001)
    assert rows["park"].reread == 0 and rows["park"].source == "park.end"
    assert 0 < rows["park_no_end"].reread < BOARD.grid
    assert rows["park_no_end"].source == "park.grid"
    # Sharing more, A fits the seed's park whole, and still comes back at a grid line.
    whole = a_b_a.served(*a_b_a.boards(BOARD)["seed_policy"], shared=25_000)
    assert whole.source == "park.grid" and whole.cached == 50_176


def test_a_pool_brings_three_back_where_a_park_of_one_does_not() -> None:
    reread = {
        name: sum(row.reread for row in a_b_c_a.served(way))
        for name, way in a_b_c_a.boards(BOARD).items()
    }
    assert reread["pool"] == 0 < reread["park_of_one"] <= reread["no_park"]
    two = a_b_c_a.served(a_b_c_a.boards(BOARD)["park_of_one"], sessions=2)
    assert sum(row.reread for row in two) == 0


# compaction-head


def test_the_head_outlives_a_compaction_only_when_pinned() -> None:
    pinned = compaction_head.served(BOARD)
    heads = compaction_head.served(replace(BOARD, anchor_rule="heads"))
    bare = compaction_head.served(replace(BOARD, pin_bytes=0, park_bytes=0, store_bytes=0))
    head = compaction_head.TOOLS + compaction_head.SYSTEM
    assert pinned.compaction.cached == bare.compaction.cached == 0
    assert pinned.compaction.forwarded == compaction_head.COMPACTED
    assert heads.after.cached == head // 4_096 * 4_096
    # The line at the head's end is among the few that were left so far below the conversation's.
    assert pinned.after.cached == head // BOARD.grid * BOARD.grid
    assert (bare.after.cached, bare.after.reread) == (0, head)
    assert 2 <= pinned.pin_anchors <= 8 and bare.pin_anchors == 0
    rows, copies = pinned.pin_rows, pinned.pin_anchors
    assert rows * BOARD.row_bytes + copies * BOARD.anchor_bytes <= BOARD.pin_bytes


# think-33k


def test_the_turn_after_a_thinking_resumes_at_its_end() -> None:
    rows = {
        name: think_33k.served(way, thinking=3_000, new=90)
        for name, way in think_33k.boards(BOARD).items()
    }
    for name in ("end", "end_only"):
        assert (rows[name].source, rows[name].reread) == ("end", 0)
        assert rows[name].forwarded <= 90 + 4
    assert rows["checkpoints_only"].source == "checkpoint"
    assert 0 < rows["checkpoints_only"].reread < BOARD.checkpoint_tokens + 4
    # As measured: the last grid line of the prompt, and the whole thinking again.
    assert rows["neither"].cached == 33_792
    assert rows["neither"].reread >= think_33k.PROMPT - 33_792 + 3_000


def test_the_sizes_add_up_to_the_measured_prompt() -> None:
    """Turn 2's prompt is turn 1's prompt and answer, and what is left for the tool result."""
    assert 0 < think_33k.TOOL_RESULT < 200
    assert think_33k.NEXT - 33_792 == 33_172


def test_a_hidden_phrase_costs_nothing_when_it_is_put_back() -> None:
    """Canary: a copy that is held to the rows token by token parts where the phrase begins."""
    rows = {
        alignment: think_33k.served(replace(BOARD, alignment=alignment), 3_000, 90, phrase=13)
        for alignment in ALIGNMENTS
    }
    for alignment in ("spans", "full"):
        row = rows[alignment]
        assert (row.source, row.put_back, row.reread) == ("end", 13, 0)
        assert row.forwarded <= 90 + 4
    exact = rows["off"]
    assert exact.source == "checkpoint" and exact.parted_at == think_33k.PROMPT + 3_000 - 1
    assert exact.forwarded > 90 + think_33k.CALL
    none = replace(BOARD, alignment="off", checkpoint_tokens=0)
    assert think_33k.served(none, 3_000, 90, phrase=13).cached == 33_792


# all of them


def test_every_experiment_is_found_and_says_what_it_asks() -> None:
    for name in MODULES:
        experiment = find(name)
        assert experiment.name == name and 20 < len(experiment.about) < 90
        assert experiment.curves is None or not experiment.traces
    with pytest.raises(BadInput, match="'nope' is none of list, title-guest"):
        find("nope")


def test_figures_are_the_same_again_and_follow_the_board() -> None:
    run = find("compaction-head").run
    first, again = run(BOARD), run(BOARD)
    assert first == again
    coarse = by_key(run(replace(BOARD, grid=4_096)))
    assert coarse.keys() == by_key(first).keys()
    # A quarter of the chunks, and as many passes over the weights saved.
    assert 0.8 < coarse["manual.all_s"] / by_key(first)["manual.all_s"] < 1
    assert coarse["pin.cached_tokens"] % 4_096 == 0


def test_traces_are_refused_where_the_requests_are_made() -> None:
    with pytest.raises(BadInput, match="makes its own requests"):
        find("a-b-a").run(BOARD, ["night"])


def test_canary_a_wrong_row_stops_an_experiment() -> None:
    """A bit of the end anchor flips between two turns: no figure may come of that."""

    def spoil(row: LedgerRow, stack: Stack) -> None:
        end = stack.resident.account.end
        assert end is not None
        end.tensors[0].view(-1)[0] += 1

    made = traffic.Traffic()
    first = made.ask(traffic.fresh(3_000), answer=20, session="a")
    made.ask(traffic.whole(first), traffic.fresh(50), answer=20, session="a", extends=first)
    assert len(made.replayed(BOARD)) == 2
    with pytest.raises(traffic.GateFailed, match=r"request 1: row 30\d\d stands for other"):
        made.replayed(BOARD, watch=spoil)


def test_parts_of_a_made_request() -> None:
    made = traffic.Traffic()
    first = made.ask(traffic.fresh(100), answer=20, session="a", tools=30, system=20)
    second = made.ask(
        traffic.head(first, 50), traffic.fresh(7), answer=1, session="a", extends=first
    )
    assert (first.parts.history, second.prompt_tokens, second.extends) == (50, 57, 0)
    assert (first.output_tokens, second.output_tokens) == (20, 1)
    assert np.diff([request.t_s for request in made.requests]).min() > 0
