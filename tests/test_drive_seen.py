"""The seed's figures of its drive, and the fit of the model to them.

Covers sim.drive_seen, sim.drive_fit, experiments.drive_rested_and_not and experiments.pacing.

Method: the board's drive against every figure within a stated bound; the fit again from other
starts; the scanned figures against a drive booked file by file; drives that recover wrongly.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict, replace
from itertools import pairwise

import pytest

from experiments import drive_rested_and_not, pacing
from sim import drive_fit, drive_seen, nvme
from sim.drive import Rates
from sim.drive_seen import ALONE, BURSTS, GB, OBSERVED, Files, after, beside, free_that_gives, seen
from sim.profile import load

BOARD = load("spark-27b")
RATES = Rates.of(BOARD)
OTHER_STARTS = (
    drive_fit.FITTED,
    {
        "write_bytes_s": 4.2 * GB,
        "sustained_bytes_s": 0.45 * GB,
        "cache_bytes": 17 * GB,
        "recover_bytes_s": 0.1 * GB,
        "settle_s": 12.0,
        "pause_bytes_s": 0.003 * GB,
        "fsync_s": 0.001,
    },
)


def test_every_figure_is_met_within_its_residual() -> None:
    """What is fitted within 7 %; of the checks, a drain's whole time is more than its writes."""
    ours = seen(RATES)
    off = {one.key: ours[one.key] / one.seed - 1 for one in OBSERVED}
    fitted = [one.key for one in OBSERVED if one.error and one.error < 0.1]
    assert len(fitted) == 9 and all(abs(off[key]) < 0.07 for key in fitted), off
    assert abs(off["rested_4_6"]) < 0.02 and abs(off["rested_7_3"]) < 0.01
    assert off["rested_3_57"] == pytest.approx(-0.22, abs=0.01)
    # The ranges that the seed gives.
    assert 0.3 < ours["sustained"] < 1.3 and 16 < ours["cache"] < 24
    assert 4 * GB < RATES.write_bytes_s < 5.6 * GB


@pytest.mark.parametrize("start", OTHER_STARTS)
def test_the_fit_finds_the_boards_numbers_from_anywhere(start: dict[str, float]) -> None:
    params, misses = drive_fit.fitted(start)
    found, boards = params._asdict(), asdict(RATES)
    assert found.keys() == boards.keys()
    assert found == pytest.approx(boards, rel=0.01)
    assert misses == pytest.approx(6.41, abs=0.01)


def test_what_one_figure_tells_is_less_sure_than_what_many_do() -> None:
    errors = drive_fit.standard_errors(RATES.params)
    assert errors["write_bytes_s"] < 0.02 < 0.1 < errors["settle_s"] < 0.4
    assert 0.15 < errors["pause_bytes_s"] < 0.3


def test_the_scanned_figures_are_those_of_a_drive_booked_file_by_file() -> None:
    for rates in (RATES, replace(RATES, cache_bytes=15 * GB, settle_s=1.0, fsync_s=0.02)):
        assert drive_fit.figures(rates.params) == pytest.approx(seen(rates), rel=1e-9)


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        ({"recover_bytes_s": 0.0}, "rest_120"),
        ({"settle_s": 0.0}, "paced_7_77"),
        ({"pause_bytes_s": 0.0}, "paced_7_77"),
        ({"cache_bytes": 1e18}, "after_7_77"),
        ({"sustained_bytes_s": 1.3e9}, "after_7_77"),
    ],
)
def test_canary_a_drive_without_a_part_misses_a_figure(wrong: dict[str, float], key: str) -> None:
    seed = {one.key: one.seed for one in OBSERVED}[key]
    assert abs(seen(replace(RATES, **wrong))[key] / seed - 1) > 0.3


def test_canary_a_fit_of_a_model_that_never_recovers_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nvme, "gained", lambda params, rest_s, xp: 0.0)
    with pytest.raises(AssertionError):
        test_every_figure_is_met_within_its_residual()


def test_two_writers_share_a_queue() -> None:
    """As long as both take together on a rested drive; with less cache, at the sustained rate."""
    both_s = (drive_seen.SAVED_BYTES + drive_seen.TIERS_BYTES) / RATES.write_bytes_s
    assert beside(RATES, RATES.cache_bytes) == pytest.approx(both_s + RATES.fsync_s, rel=1e-3)
    free = free_that_gives(RATES, 7.23)
    assert 1 * GB < free < 3 * GB and beside(RATES, free) == pytest.approx(7.23, abs=0.01)
    assert beside(RATES, 0.0) > 9 and free_that_gives(RATES, 1e6) == pytest.approx(0, abs=1e6)


def test_a_save_after_files_in_one_burst_counts_their_syncs() -> None:
    """On a drive that never ends its cache, and that loses nothing in the pause of a sync."""
    endless = Rates(4 * GB, 7 * GB, 0.25, cache_bytes=30 * GB)
    assert after(endless, Files(8 * GB, 0.0, 4 * GB)) == pytest.approx((1.0, 22 * GB))
    assert after(replace(endless, recover_bytes_s=GB), Files(8 * GB, 0.0, GB), 5.0)[1] == 30 * GB


def test_a_replay_does_not_pay_for_jax() -> None:
    """Only the fit and the sweep import it, when they are asked for."""
    modules = "moorage, replay.driver, experiments.pacing, experiments.drive_rested_and_not"
    code = f"import sys, {modules}, experiments.budget_sweep; print('jax' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"
    code = "import sys, sim.drive_fit; print('jax' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "True\n", "the test would see it"


# the experiments


def test_drive_rested_and_not_tells_residuals_and_the_fit() -> None:
    figures = {figure.key: figure for figure in drive_rested_and_not.run(BOARD)}
    assert set(ALONE) | set(BURSTS) <= set(figures)
    assert figures["rested_7_77"].seed == 1.46 and figures["rested_7_77"].note.startswith("+2.5 %")
    assert figures["after_7_77"].ours > 3 * figures["rested_7_77"].ours
    assert figures["beside_5_20"].note.startswith("-81.3 %"), "not the drive's, or not rested"
    assert figures["fit.cache"].ours == pytest.approx(BOARD.drive_cache_bytes / GB, rel=0.01)
    assert figures["fit.fsync"].ours == pytest.approx(4.35, rel=0.01)
    rows = drive_rested_and_not.tables(BOARD)["residuals"]
    assert [row["key"] for row in rows] == [one.key for one in OBSERVED]
    # Another drive is told as it is.
    fast = drive_rested_and_not.tables(replace(BOARD, drive_write_bytes_s=1e10))["residuals"]
    assert float(fast[0]["ours"]) == pytest.approx(0.52)


def test_curves_fall_with_rest_and_rise_with_what_was_written() -> None:
    before, rests = drive_rested_and_not.curves(BOARD)
    seconds = [y for _, y in before.lines["the board's"]]
    assert all(b > a - 1e-9 for a, b in pairwise(seconds)) and seconds[-1] > 5 * seconds[0]
    for line in rests.lines.values():
        later = [y for x, y in line if x >= 30]
        assert all(b < a + 1e-9 for a, b in pairwise(later)) and later[-1] == pytest.approx(
            seconds[0]
        )


def pacing_does_not_help() -> dict[str, float]:
    ours = {figure.key: figure.ours for figure in pacing.run(BOARD)}
    assert ours["pause_s"] < ours["settle_s"]
    assert ours["paced.save_s"] > 1.5 * ours["burst.save_s"]
    assert ours["paced.cache_free"] < ours["burst.cache_free"]
    return ours


def test_pacing_does_not_help_and_a_rest_does() -> None:
    ours = pacing_does_not_help()
    assert ours["burst_then_rest.save_s"] < 1.6
    # Pauses of settle_s and more, 160 of them.
    assert ours["helps_over_s"] > 160 * BOARD.drive_settle_s
    endless = {f.key: f.ours for f in pacing.run(replace(BOARD, drive_cache_bytes=2**60))}
    assert endless["paced.save_s"] == pytest.approx(1.5, abs=0.01) and endless["helps_over_s"] == 0
    rows = pacing.tables(BOARD)["paces"]
    assert len(rows) == 4 * len(pacing.OVER_S)
    assert all(len(curve.lines) == 4 for curve in pacing.curves(BOARD))


@pytest.mark.parametrize("gives", [0.0, 1.0])
def test_canary_drives_that_never_recover_or_do_in_any_pause_are_seen(
    gives: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        nvme, "gained", lambda params, rest_s, xp: gives * rest_s * params.recover_bytes_s
    )
    with pytest.raises(AssertionError):
        test_pacing_does_not_help_and_a_rest_does()
