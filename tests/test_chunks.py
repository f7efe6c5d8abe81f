"""Goal: what a smaller or larger chunk costs follows the measured prompt, and 1,024 costs nothing.

Method: a least-squares line worked out by hand; pieces against a loop that cuts them; prefills of
any start and length under hypothesis, charged to a clock piece by piece. The canary charges every
piece on its own, as if each began a prefill.
"""

from __future__ import annotations

import tomllib
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.chunks import ChunkTimes, pieces
from sim.clock import VirtualClock
from sim.compute import Compute, PrefillTime
from sim.profile import PROFILES, load, parse

BOARD = load("spark-27b")
MEASURED = ChunkTimes(1_724, 1_024, ((1_724, 2.508), (1_024, 2.858), (256, 3.940)))
GRIDS = (64, 256, 512, 1_024, 2_048, 4_096)


def cut(start: int, stop: int, grid: int) -> list[int]:
    """Where the engine's calls begin and end."""
    at, edges = start, [start]
    while at < stop:
        at = min(stop, (at // grid + 1) * grid)
        edges.append(at)
    return edges


def charged(start: int, stop: int, grid: int) -> float:
    """What a clock shows after a prefill in the engine's own calls."""
    clock = VirtualClock()
    compute = Compute(replace(BOARD, grid=grid), clock)
    for a, b in pairwise(cut(start, stop, grid)):
        compute.prefilled(a, b)
    return clock.mono_s()


def test_the_line_through_the_measured_prompt() -> None:
    """(1, 2.508), (2, 2.858), (7, 3.940): slope 4.784 / 20.667, worked out by hand."""
    assert [MEASURED.pieces(chunk) for chunk, _ in MEASURED.seconds] == [1, 2, 7]
    chunk_s, rest_s = MEASURED.line
    assert chunk_s == pytest.approx(0.23148, abs=1e-5)
    assert rest_s == pytest.approx(2.33039, abs=1e-5)
    residuals = [MEASURED.predicted_s(chunk) - took for chunk, took in MEASURED.seconds]
    assert sum(residuals) == pytest.approx(0.0, abs=1e-9)
    assert max(map(abs, residuals)) < 0.065
    assert BOARD.chunk_times == MEASURED


@given(st.integers(0, 9_000), st.integers(0, 9_000), st.sampled_from((*GRIDS, 700)))
def test_pieces_are_the_engines_calls(start: int, size: int, grid: int) -> None:
    assert pieces(start, start + size, grid) == len(cut(start, start + size, grid)) - 1


@settings(max_examples=60)
@given(st.integers(0, 200_000), st.integers(1, 9_000))
def test_on_the_fitted_grid_nothing_is_added(start: int, size: int) -> None:
    time = PrefillTime.fit(BOARD)
    assert BOARD.grid == MEASURED.fit_grid
    assert time.chunks_s(start, start + size) == 0.0
    assert time.seconds(start, start + size) == time.rows_s(start, start + size)


@settings(max_examples=60)
@given(st.integers(0, 200_000), st.integers(1, 9_000), st.sampled_from((*GRIDS, 700)))
def test_a_clock_is_charged_the_same_however_a_prefill_is_cut(
    start: int, size: int, grid: int
) -> None:
    whole = PrefillTime.fit(replace(BOARD, grid=grid)).seconds(start, start + size)
    assert charged(start, start + size, grid) == pytest.approx(whole)
    assert whole > 0


@settings(max_examples=60)
@given(st.integers(0, 200_000), st.integers(1, 9_000))
def test_a_finer_grid_never_takes_less(start: int, size: int) -> None:
    took = [PrefillTime.fit(replace(BOARD, grid=g)).seconds(start, start + size) for g in GRIDS]
    assert all(fine >= coarse for fine, coarse in pairwise(took))


def test_whole_chunks_pay_and_save_a_pass_each() -> None:
    extra = {grid: MEASURED.extra_s(0, 8_192, grid) / MEASURED.chunk_s for grid in GRIDS}
    assert extra == pytest.approx({64: 120, 256: 24, 512: 8, 1_024: 0, 2_048: -4, 4_096: -6})
    # A short turn has one chunk on any grid that is longer than it.
    assert MEASURED.extra_s(8_192, 8_400, 4_096) == 0
    assert MEASURED.extra_s(8_192, 8_400, 64) == pytest.approx(3 * MEASURED.chunk_s)


def test_a_board_of_one_measured_size_charges_none() -> None:
    data = tomllib.loads((PROFILES / "spark-27b.toml").read_text())
    del data["prefill"]["chunks"]
    plain = parse("plain", data)
    assert plain.chunk_times is None
    assert PrefillTime.fit(replace(plain, grid=64)).seconds(0, 5_000) == PrefillTime.fit(
        BOARD
    ).seconds(0, 5_000)


@pytest.mark.parametrize(
    ("seconds", "line"),
    [
        (((2_000, 1.0), (3_000, 2.0)), "unequal numbers"),
        (((1_724, 2.0), (256, 1.0)), "can't take less"),
        (((1_724, 2.0), (0, 1.0)), "must be positive"),
    ],
)
def test_times_that_no_line_fits(seconds: tuple[tuple[int, float], ...], line: str) -> None:
    with pytest.raises(ValueError, match=line):
        ChunkTimes(1_724, 1_024, seconds)


def test_canary_each_piece_as_a_prefill_of_its_own() -> None:
    """A piece of 256 lies within one of 1,024: nothing would ever be charged for it."""
    time = PrefillTime.fit(replace(BOARD, grid=256))
    alone = sum(time.seconds(a, b) for a, b in pairwise(cut(0, 4_096, 256)))
    assert alone == pytest.approx(PrefillTime.fit(BOARD).seconds(0, 4_096))
    assert charged(0, 4_096, 256) > alone + 2
