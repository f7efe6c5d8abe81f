"""The description of a trace against figures counted by hand, and against the ideal itself.

Method: one small trace whose every figure is worked out below, and arbitrary ones for the bounds.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from traces import small, traces

from replay.describe import describe
from replay.trace import Header, Image, Trace


def test_figures_counted_by_hand() -> None:
    requests = (
        small(0, [(-1, 0, 100)], [(-1, 0, 20)], session="a", client="opencode"),
        small(1, [(0, 0, 120), (-1, 0, 30)], [(-1, 0, 10)], session="a", client="opencode",
              extends=0),
        small(2, [(-1, 0, 10)], [], client="other", kind="title"),
        small(4, [(1, 0, 130), (-1, 1, 70)], [(-1, 0, 4)], session="a", client="opencode",
              aborted_after=2),
    )  # fmt: skip
    trace = Trace("night", Header(clients={"opencode": "1"}), requests)
    figures = describe(trace)
    assert figures["name"] == "night" and figures["clients"] == {"opencode": "1"}
    assert figures["requests"] == 4 and figures["sessions"] == 1
    assert figures["without_session"] == 1 and figures["timing"] == "recorded"
    assert figures["kinds"] == {"turn": 3, "title": 1}
    assert figures["requests_by_client"] == {"opencode": 3, "other": 1}
    assert figures["span_s"] == 4.0 and figures["aborted"] == 1
    assert figures["prompt_tokens"] == {"sum": 460, "p50": 100, "p90": 200, "max": 200}
    assert figures["output_tokens"] == {"sum": 34, "p50": 4, "p90": 20, "max": 20}
    assert figures["extends"] == 1 and figures["extends_share"] == 0.25
    assert figures["growth"] == {"sum": 50, "p50": 50, "p90": 50, "max": 50}
    # Rows with answers: 120 of the second, 130 of the last. Prompts alone: 100, then 130 of 150,
    # in whole blocks of 16: 96 and 128; of 64: 64 and 128; none of 512.
    assert figures["ideal_cached_tokens"] == 250
    assert figures["ideal_share"] == pytest.approx(250 / 460)
    assert {size: found["cached_tokens"] for size, found in figures["by_block"].items()} == {
        "16": 96 + 128,
        "64": 64 + 128,
        "512": 0,
    }


def test_images_are_counted_as_often_as_they_are_sent() -> None:
    one, two = Image(3, 9, "a" * 64), Image(20, 64, "b" * 64)
    requests = (
        small(0, [(-1, 0, 100)], [], images=(one, two)),
        small(1, [(0, 0, 100), (-1, 0, 30)], [], images=(one, two)),
        small(2, [(-1, 0, 10)], []),
    )
    figures = describe(Trace("t", Header(), requests))
    assert (figures["images"], figures["image_tokens"]) == (4, 146)
    # Copied as they were: the whole first prompt, its pictures too.
    assert figures["ideal_cached_tokens"] == 100


@given(traces())
@settings(deadline=None, max_examples=30)
def test_any_trace_is_described_within_bounds(trace: Trace) -> None:
    figures = describe(trace)
    json.dumps(figures, allow_nan=False)
    shares = [found["share"] for found in figures["by_block"].values()]
    assert all(0.0 <= share <= figures["ideal_share"] <= 1.0 for share in shares)
    assert figures["prompt_tokens"]["sum"] == sum(r.prompt_tokens for r in trace.requests)


def test_an_empty_trace_has_zeros() -> None:
    figures = describe(Trace("none", Header(), ()))
    assert figures["requests"] == 0 and figures["ideal_share"] == 0.0
    assert figures["growth"] == {"sum": 0, "p50": 0, "p90": 0, "max": 0}
