"""The worst case: every budget full at once, beside the limits and the board.

Method: the board's own figures summed by hand, and settings that pass a limit or the board. Covers
cache.worst and replay.worst, and what `moorage profile` says of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

from cache.types import Cost, Limits
from cache.worst import worst_case
from replay.worst import caches_of, headroom, spill_staging_of, staging_of, worst_of
from sim.profile import load, with_settings

BOARD = load("spark-27b")
GIB = 2**30
Run = Callable[..., tuple[int, str, str]]


def test_the_sums_are_of_what_rests_and_what_passes() -> None:
    cost = Cost(1, 1, workspace_floor_bytes=7, workspace_row_bytes=2)
    worst = worst_case(Limits(90, 130, 5), cost, 10, 60, {"store": 20}, {"a block": 3})
    assert worst.resting == {"weights and buffers": 60, "store": 20}
    assert worst.passing == {"a block": 3, "a prefill's workspace": 27}
    assert (worst.resting_bytes, worst.passing_bytes, worst.most_bytes) == (85, 110, 110)
    tight = replace(worst, limits=Limits(90, 100, 5))
    assert tight.most_bytes == 100


def test_every_budget_of_the_board_is_in_it() -> None:
    """A cache that may hold more makes the worst case worse, whichever it is."""
    base = worst_of(BOARD)
    anchors = BOARD.resident_bytes // BOARD.anchor_bytes
    copies = (anchors + 1 + 2) * BOARD.anchor_bytes
    buffers = staging_of(BOARD)
    held = 4 * BOARD.anchor_bytes + 2 * BOARD.grid * BOARD.row_bytes
    assert held < buffers < 1.001 * held
    spilled = spill_staging_of(BOARD)
    held = 2 * BOARD.anchor_bytes + 2 * 1_024 * BOARD.row_bytes
    assert held < spilled < 1.001 * held
    assert worst_of(replace(BOARD, spill=False)).resting_bytes == base.resting_bytes - spilled
    assert sum(caches_of(BOARD).values()) == copies + buffers + spilled + int(11.5 * GIB)
    assert worst_of(replace(BOARD, disk=False)).resting_bytes == base.resting_bytes - buffers
    for name in ("park", "pin", "stash", "store", "encoded"):
        more = replace(BOARD, **{f"{name}_bytes": getattr(BOARD, f"{name}_bytes") + GIB})
        assert worst_of(more).resting_bytes == base.resting_bytes + GIB
    more = replace(BOARD, resident_bytes=BOARD.resident_bytes + BOARD.anchor_bytes)
    assert worst_of(more).resting_bytes == base.resting_bytes + BOARD.anchor_bytes
    sides = replace(BOARD, side_slots=1)
    side = BOARD.side_window * BOARD.row_bytes + 6 * BOARD.anchor_bytes
    assert worst_of(sides).resting_bytes == base.resting_bytes + side
    none = replace(BOARD, resident_bytes=0)
    assert caches_of(none)["anchors"] == 4 * BOARD.anchor_bytes
    every = replace(BOARD, anchor_rule="every", checkpoint_tokens=0)
    assert caches_of(every)["anchors"] == 256 * BOARD.anchor_bytes


def test_the_line_says_whether_the_rest_of_the_box_keeps_its_memory() -> None:
    assert headroom(BOARD, worst_of(BOARD)).endswith("are left, 15.00 should be")
    for settings, said in (
        ({"peak_bytes": "120_000_000_000", "park_bytes": "80_000_000_000"}, "7.45 are left"),
        ({"window": "1_000_000"}, "more than the board has"),
    ):
        board = with_settings(BOARD, settings)
        line = headroom(board, worst_of(board))
        assert said in line and line.startswith("[red bold]")


def test_the_command_shows_it_for_a_set_of_budgets(run: Run) -> None:
    code, out, _ = run("profile", "spark-27b", "--set", "store_bytes=3221225472")
    assert code == 0
    row = next(line for line in out.splitlines() if "state store" in line)
    assert "3.00" in row
    assert "ceiling 70.00" in out and "peak 77.00" in out and "15.00 should be" in out
    code, out, _ = run("profile", "--json", "--set", "store_bytes=3221225472")
    worst = json.loads(out)["worst_case"]
    assert code == 0 and worst["resting"]["state store"] == 3 * GIB
    assert worst["resting_bytes"] == sum(worst["resting"].values()) + BOARD.slack_bytes
    assert worst["keeps_headroom"] is True
    code, _, err = run("profile", "--set", "peak_bytes=1")
    assert code == 2 and err.strip() == "moorage: --set: peak_bytes must not be below ceiling_bytes"
