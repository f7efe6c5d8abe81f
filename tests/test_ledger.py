"""The ledger, its summary, the report and the page: figures that add up.

Method: a replayed small night; sums checked against the trace itself; the page parsed.
"""

import io
import json
import re
from dataclasses import replace
from xml.etree import ElementTree

import pandas as pd
import pytest
from nights import Builder, small_night
from rich.console import Console

from cache.why import Why
from replay import page, plots
from replay.columns import reread_by_cause
from replay.driver import Options, Replay
from replay.ledger import HOLDERS, LedgerRow, refused, to_frame
from replay.report import duration, memory_lines, print_failures, print_summary, share
from replay.schedule import Arrival
from replay.summary import summarise
from sim.profile import load, with_settings

BOARD = with_settings(load("spark-27b"), {"grid": "64", "window": "2048"})
FIELDS = (
    "requests",
    "prompt_tokens",
    "cached_tokens",
    "forwarded_tokens",
    "new_tokens",
    "reread_tokens",
    "ideal_cached_tokens",
    "followups",
    "end_resumes",
    "by_source",
    "by_why",
    "ttft_s",
    "written_bytes",
    "read_bytes",
    "verified",
    "peak_bytes",
    "wall_s",
    "seed",
)


@pytest.fixture(scope="module")
def ledger() -> pd.DataFrame:
    return to_frame(Replay([small_night(5, 80)], Options(BOARD)))


def test_every_token_of_the_trace_is_accounted_for(ledger: pd.DataFrame) -> None:
    trace, summary = small_night(5, 80), summarise(ledger, wall_s=1.0, seed=0)
    assert all(field in summary for field in FIELDS)
    total = sum(request.prompt_tokens for request in trace.requests)
    assert summary["prompt_tokens"] + summary["unread_tokens"] == total
    assert summary["over_window"] > 0 and summary["unread_tokens"] > 0
    assert summary["forwarded_tokens"] == summary["prompt_tokens"] - summary["cached_tokens"]
    assert summary["reread_tokens"] == summary["forwarded_tokens"] - summary["new_tokens"]
    assert summary["ideal_cached_tokens"] == summary["prompt_tokens"] - summary["new_tokens"]
    assert sum(summary["by_source"].values()) == summary["cached_tokens"]
    assert sum(summary["by_why"].values()) == summary["reread_tokens"]
    served = summary["requests"] - summary["over_window"]
    assert sum(summary["requests_by_source"].values()) == served
    assert (
        summary["verified"]["bits"] + summary["verified"]["greedy"]
        == (summary["verified"]["checked"])
    )
    assert summary["verified"]["failed"] == 0
    assert 0 < summary["end_resumes"] <= summary["followups"]
    assert 0 < summary["ttft_s"]["p50"] <= summary["ttft_s"]["p99"] <= summary["ttft_s"]["sum"]
    assert json.loads(json.dumps(summary)) == summary


def test_an_empty_ledger_is_all_zeros() -> None:
    summary = summarise(to_frame([]), wall_s=0.0, seed=0)
    assert summary["requests"] == summary["prompt_tokens"] == 0
    assert summary["ttft_s"] == {"p50": 0.0, "p90": 0.0, "p99": 0.0, "sum": 0.0}
    assert page.render("t", "", summary, to_frame([])).endswith("</html>\n")


def test_what_the_cache_cannot_explain_was_replaced() -> None:
    class Turn:
        cached, parted_at, lost = 64, 100, {Why.GRID: 36}

    assert reread_by_cause(Turn(), 500) == {  # type: ignore[arg-type]
        Why.GRID: 36,
        Why.EVICTED: 0,
        Why.UNANCHORED: 0,
        Why.SLOW: 0,
        Why.REPLACED: 400,
    }
    # The last token of a prompt sent again.
    assert reread_by_cause(Turn(), 100)[Why.REPLACED] == 0  # type: ignore[arg-type]
    # A prefill that was cancelled before it had read what was lost.
    assert sum(reread_by_cause(Turn(), 80).values()) == 16  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="past the 10 tokens ever held"):
        reread_by_cause(Turn(), 10)  # type: ignore[arg-type]


def test_the_frame_has_its_columns_and_survives_parquet(
    ledger: pd.DataFrame, tmp_path: pytest.TempPathFactory
) -> None:
    assert list(to_frame([]).columns) == list(LedgerRow.__dataclass_fields__)
    path = tmp_path / "ledger.parquet"  # type: ignore[operator]
    ledger.to_parquet(path)
    pd.testing.assert_frame_equal(pd.read_parquet(path), ledger)


def test_the_report_prints_what_the_summary_holds(ledger: pd.DataFrame) -> None:
    summary = summarise(ledger, wall_s=2.0, seed=3)
    text = io.StringIO()
    print_summary(Console(file=text, width=120), "a night", summary)
    printed = text.getvalue()
    for key in ("prompt_tokens", "cached_tokens", "reread_tokens", "new_tokens"):
        assert f"{summary[key]:,}" in printed
    assert f"{summary['verified']['checked']:,} checked, 0 failed" in printed
    assert "seed 3" in printed


def test_failures_are_named(ledger: pd.DataFrame) -> None:
    broken = ledger.copy()
    broken.loc[:14, "failure"] = "rows of K differ"
    text = io.StringIO()
    print_failures(Console(file=text, width=120), broken)
    assert text.getvalue().count("rows of K differ") == 10
    assert "and 5 more" in text.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.1234, "0.12 s"), (44.44, "44.4 s"), (158, "2.6 min"), (9_000, "2.5 h")],
)
def test_durations_as_a_person_says_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_share_of_nothing_is_a_dash() -> None:
    assert (share(1, 4), share(0, 0)) == ("25.0 %", "-")


@pytest.mark.parametrize("name", list(plots.FIGURES))
def test_a_figure_is_one_svg_and_the_same_again(name: str, ledger: pd.DataFrame) -> None:
    draw = plots.FIGURES[name][1]
    served = ledger[~ledger["over_window"]]
    first, again = plots.to_svg(draw(served)), plots.to_svg(draw(served))
    assert first == again
    assert ElementTree.fromstring(first).tag.endswith("svg")


def test_the_page_needs_nothing_from_elsewhere(ledger: pd.DataFrame) -> None:
    summary = summarise(ledger, wall_s=2.0, seed=3)
    text = page.render("<night>", "a & b", summary, ledger)
    assert "<night>" not in text and "&lt;night&gt;" in text and "a &amp; b" in text
    assert text.count("<svg") == len(plots.FIGURES)
    limited = summarise(ledger, wall_s=2.0, seed=3, board=BOARD)
    assert page.render("t", "", limited, ledger).count("<svg") == len(plots.FIGURES) + 1
    for outside in ("src=", "@import", "<script", "<link"):
        assert outside not in text


def test_one_request_makes_a_page_too() -> None:
    build = Builder()
    build.fresh(100, 5)
    frame = to_frame(Replay([build.trace()], Options(BOARD)))
    assert "<svg" in page.render("t", "", summarise(frame, wall_s=1.0, seed=0), frame)


# memory


def test_what_lay_on_the_board_adds_up(ledger: pd.DataFrame) -> None:
    """After a request: load, caches and reserve; while it was served no less, and its workspace."""
    served = ledger[~ledger["over_window"]]
    beside = served[[f"held_{name}" for name in HOLDERS if name != "rows"]].sum(axis=1)
    assert (served["peak"] >= BOARD.loaded_bytes + beside + served["reserve"]).all()
    assert (served["workspace"] <= BOARD.workspace_floor_bytes).all() and beside.max() > 0
    summary = summarise(ledger, wall_s=1.0, seed=0, board=BOARD)
    assert summary["peak_bytes"]["total"] == served["peak"].max()
    assert summary["peak_bytes"]["workspace"] == BOARD.workspace_floor_bytes
    assert summary["memory"]["limits"]["ceiling_bytes"] == BOARD.ceiling_bytes
    assert summary["memory"]["requests_over_board"] == 0


def test_a_run_over_its_limits_is_seen_and_said(ledger: pd.DataFrame) -> None:
    over = ledger.assign(over_peak_s=0.5, shed_store=2**30)
    less = int(ledger["peak"].max()) - 1
    low = replace(BOARD, peak_bytes=less, ceiling_bytes=min(less, BOARD.ceiling_bytes))
    summary = summarise(over, wall_s=1.0, seed=0, board=low)
    assert summary["memory"]["requests_over_peak"] > 0
    said = dict(memory_lines(summary))
    assert "the peak for" in said["passed"]
    assert said["given back"].startswith(f"store {len(over):.2f} GiB")
    assert '<div class="card bad"><b>' in page.render("t", "", summary, over)


def test_a_refusal_is_a_row_that_counts_nothing(ledger: pd.DataFrame) -> None:
    build = Builder()
    build.fresh(100, 5)
    trace = build.trace()
    row = refused("t", Arrival(1.0, 0, 0, 0), trace.requests[0], 0.0, retry_after_s=30)
    assert (row.no_room, row.over_window, row.retry_after_s) == (True, False, 30)
    both = pd.concat([ledger, to_frame([row])], ignore_index=True)
    before, after = (summarise(frame, wall_s=1.0, seed=0) for frame in (ledger, both))
    assert after["no_room"] == 1 and after["requests"] == before["requests"] + 1
    assert after["unread_tokens"] == before["unread_tokens"] + 100
    for key in ("prompt_tokens", "forwarded_tokens", "requests_by_source", "verified"):
        assert after[key] == before[key]
    text = io.StringIO()
    print_summary(Console(file=text, width=120), "a night", after)
    assert "1 refused, no memory" in text.getvalue()
    assert "refused, no memory" in page.render("t", "", after, both)


def test_the_memory_of_many_requests_is_drawn_from_the_fullest(ledger: pd.DataFrame) -> None:
    limits = summarise(ledger, wall_s=1.0, seed=0, board=BOARD)["memory"]["limits"]
    served = ledger[~ledger["over_window"]]
    text = plots.to_svg(plots.memory_over_time(served, limits, most=20))
    assert text == plots.to_svg(plots.memory_over_time(served, limits, most=20))
    few, all_ = (plots._fullest(served, most) for most in (20, len(served)))
    assert len(few) <= 20 < len(all_) and few["peak"].max() == all_["peak"].max()
    for name in ("ceiling", "peak", "anchors", "highest during a request"):
        assert re.search(rf">{name}", text), name


def test_the_drive_is_drawn_with_its_budget_where_that_is_near(ledger: pd.DataFrame) -> None:
    moved = ledger.assign(disk_held=2 * 10**9, disk_written=10**8, disk_read=10**7)
    near, far = (plots.to_svg(plots.drive_over_time(moved, gb * 10**9)) for gb in (3, 300))
    assert near == plots.to_svg(plots.drive_over_time(moved, 3 * 10**9))
    assert near.count("stroke-dasharray") > far.count("stroke-dasharray")
    for label in ("on the drive", "written so far", "read so far"):
        assert f">{label}<" in near
