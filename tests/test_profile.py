"""Profiles and the time model: the seed's board, its settings, its cold prefills.

Method: the shipped file against the seed's figures; bad settings give one line.
"""

from itertools import pairwise
from typing import get_args

import pytest

from cache.spill.codec import Mode
from cache.worth import RULES
from sim.clock import VirtualClock
from sim.compute import Compute, PrefillTime
from sim.profile import ANCHOR_RULES, CODECS, load, parse, with_settings
from sim.settable import SETTABLE

BOARD = load("spark-27b")


def test_the_board_is_the_seeds() -> None:
    assert (BOARD.grid, BOARD.window, BOARD.vocab) == (1_024, 262_144, 248_320)
    assert BOARD.row_bytes == 65_536 + 40_960
    assert BOARD.anchor_bytes == 144 * 2**20 + 48 * 10_240 * 3 * 2
    assert BOARD.resident_bytes // BOARD.anchor_bytes == 17


def test_the_time_model_meets_both_fitted_prefills_exactly() -> None:
    time = PrefillTime.fit(BOARD)
    assert time.seconds(0, 32_768) == pytest.approx(44.4, rel=1e-12)
    assert time.seconds(0, 131_072) == pytest.approx(208.3, rel=1e-12)
    assert time.a > 0 and time.b > 0


def test_prefill_seconds_add_up_whatever_the_cuts() -> None:
    time = PrefillTime.fit(BOARD)
    cuts = [0, 1, 1_024, 50_000, 131_072]
    parts = sum(time.seconds(a, b) for a, b in pairwise(cuts))
    assert parts == pytest.approx(time.seconds(0, 131_072))


def test_what_was_not_fitted_is_predicted() -> None:
    """Errors as docs/results.md states them; the two large ones are explained there."""
    time = PrefillTime.fit(BOARD)
    errors = {
        (check.start, check.stop): time.seconds(check.start, check.stop) / check.seconds - 1
        for check in BOARD.prefill_checks
    }
    assert abs(errors[0, 65_536]) < 0.01
    assert abs(errors[0, 57_008]) < 0.01
    assert abs(errors[0, 25_616]) < 0.03
    assert abs(errors[41_984, 53_209]) < 0.03
    assert abs(errors[12_288, 28_658]) < 0.06
    assert abs(errors[33_792, 66_964]) < 0.15
    assert abs(errors[0, 1_724]) < 0.25


def test_work_moves_the_clock() -> None:
    clock = VirtualClock()
    compute = Compute(BOARD, clock)
    compute.prefilled(0, 32_768)
    compute.decoded(50)
    assert clock.mono_s() == pytest.approx(44.4 + 50 / BOARD.decode_tokens_s)


def test_settings_change_what_they_name() -> None:
    changed = with_settings(BOARD, {"window": "1_000_000", "end_anchor": "off", "accepted": "0.5"})
    assert (changed.window, changed.end_anchor, changed.accepted) == (1_000_000, False, 0.5)
    assert changed.grid == BOARD.grid


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"windows": "3"}, "unknown setting 'windows'"),
        ({"response_bytes": "1"}, "response_bytes can't be set here: a replay forces"),
        ({"window": "many"}, "setting window='many' is not a number"),
        ({"window": "-5"}, "window must be positive"),
        ({"end_anchor": "maybe"}, "is not on or off"),
        ({"alignment": "foo"}, "alignment must be one of off, spans, full"),
        ({"side_slots": "65"}, "side_slots must be at most 64"),
        ({"window": "100000000000"}, "window must be at most 16,777,216"),
        ({"row_bytes": "99999999999999999999"}, "row_bytes must be at most"),
        ({"accepted": "1.5"}, "accepted within 0 and 1"),
        ({"accepted": "nan"}, "accepted within 0 and 1"),
        ({"decode_tokens_s": "0"}, "decode_tokens_s must be positive"),
        ({"decode_tokens_s": "nan"}, "decode_tokens_s must be positive"),
        ({"drafts": "-1"}, "must not be negative"),
        ({"anchor_rule": "oldest"}, "anchor_rule must be one of worth, heads"),
        ({"slack_bytes": "-1"}, "slack_bytes must not be negative"),
        ({"peak_bytes": "70_000_000_000"}, "peak_bytes must not be below ceiling_bytes"),
        ({"slack_bytes": "75_161_927_680"}, "slack_bytes must be below ceiling_bytes"),
        ({"ceiling_bytes": "61_203_283_967"}, "below the 61,203,283,968 bytes that the engine"),
        ({"side_slots": "5"}, "ceiling_bytes must not be below the 79,4"),
        ({"workspace_factor": "0.9"}, "workspace_factor must be within 1 and"),
        ({"workspace_factor": "nan"}, "workspace_factor must be within 1 and"),
        ({"store_boundaries": "-1"}, "store_boundaries must not be negative"),
        ({"workspace_cap_bytes": "10"}, "workspace_cap_bytes must not be below workspace_floor"),
        ({"disk": "maybe"}, "is not on or off"),
        ({"disk_bytes": "-1"}, "disk_bytes must not be negative"),
        ({"disk_bytes": "2_000_000_000_000_000"}, "disk_bytes must be at most"),
        ({"disk_ttl_days": "0"}, "disk_ttl_days must be positive"),
        ({"disk_ttl_days": "nan"}, "disk_ttl_days must be positive"),
        ({"disk_admit_after": "0"}, "disk_admit_after must be at least 1"),
        ({"disk_tokens_min": "0"}, "disk_tokens_min must be at least 1"),
        ({"disk_branches": "-1"}, "disk_branches must not be negative"),
        ({"spill_bytes": "-1"}, "spill_bytes must not be negative"),
        ({"spill_ttl_hours": "0"}, "spill_ttl_hours must be positive"),
        ({"spill_tokens_min": "0"}, "spill_tokens_min must be at least 1"),
        ({"spill_park_tokens_min": "0"}, "spill_park_tokens_min must be at least 1"),
        ({"spill_idle_s": "-1"}, "spill_idle_s must not be negative"),
        ({"spill_codec": "zip"}, "spill_codec must be one of planes, raw"),
        ({"spill_ratio": "0"}, "spill_ratio must be positive"),
        ({"spill_ratio": "1.1"}, "spill_ratio must be at most 1"),
        ({"pack_bytes_s": "0"}, "pack_bytes_s must be positive"),
        ({"unpack_bytes_s": "nan"}, "unpack_bytes_s must be positive"),
        ({"write_budget_bytes": "-1"}, "write_budget_bytes must not be negative"),
        ({"spill": "maybe"}, "setting spill='maybe' is not on or off"),
        ({"drive_read_bytes_s": "0"}, "drive_read_bytes_s must be positive"),
        ({"drive_read_bytes_s": "inf"}, "drive_read_bytes_s must be at most"),
        ({"drive_write_bytes_s": "nan"}, "drive_write_bytes_s must be positive"),
        ({"device_copy_bytes_s": "-1"}, "device_copy_bytes_s must be positive"),
        ({"drive_fsync_s": "nan"}, "drive_fsync_s must not be negative"),
        ({"drive_cache_bytes": "-1"}, "drive_cache_bytes must not be negative"),
        ({"drive_cache_bytes": "2e9"}, "is not a number"),
        ({"drive_sustained_bytes_s": "0"}, "drive_sustained_bytes_s must be positive"),
        ({"drive_recover_bytes_s": "nan"}, "drive_recover_bytes_s must not be negative"),
        ({"drive_settle_s": "inf"}, "drive_settle_s must be at most"),
        ({"drive_pause_bytes_s": "-1"}, "drive_pause_bytes_s must not be negative"),
        ({"grid": "262_145"}, "grid must not be above window"),
    ],
)
def test_a_bad_setting_is_one_line(settings: dict[str, str], line: str) -> None:
    with pytest.raises(ValueError, match=line) as caught:
        with_settings(BOARD, settings)
    assert "\n" not in str(caught.value)


def test_the_memory_is_the_seeds() -> None:
    gib = 2**30
    assert BOARD.base_bytes == BOARD.loaded_bytes == 57 * gib
    assert (BOARD.limits.ceiling_bytes, BOARD.limits.peak_bytes) == (70 * gib, 77 * gib)
    assert BOARD.limits.slack_bytes == 2 * gib
    assert 0 <= BOARD.workspace_floor_bytes - (68.35 - 67.25) * gib < 0.03 * gib
    assert BOARD.board_bytes - BOARD.peak_bytes >= BOARD.headroom_bytes == 15 * gib


def test_the_drive_is_the_seeds() -> None:
    """30 chunks and an anchor at the read rate: 0.47 s, as measured there."""
    assert BOARD.spill and BOARD.spill_bytes == 64 * 10**9 and BOARD.spill_ttl_hours == 48
    assert set(CODECS) == set(get_args(Mode)) and BOARD.write_budget_bytes == 200 * 10**9
    assert BOARD.disk and BOARD.disk_bytes == 16 * 10**9 and BOARD.disk_ttl_days == 7
    assert BOARD.disk_min_free_bytes == 50 * 10**9 and BOARD.drive_bytes == 10**12
    head = 30_720 * BOARD.row_bytes + BOARD.anchor_bytes
    assert head == pytest.approx(3.43e9, rel=2e-3)
    assert head / BOARD.drive_read_bytes_s == pytest.approx(0.47, abs=0.005)


def test_another_window_moves_what_the_engine_holds_and_its_limits() -> None:
    """The caches keep the room they had, unless a limit is set as well."""
    wide = with_settings(BOARD, {"window": "300_000"})
    more = (300_000 - BOARD.window) * BOARD.row_bytes
    for name in ("base_bytes", "ceiling_bytes", "peak_bytes"):
        assert getattr(wide, name) == getattr(BOARD, name) + more
    set_ = with_settings(BOARD, {"window": "300_000", "ceiling_bytes": "76_000_000_000"})
    assert (set_.ceiling_bytes, set_.base_bytes) == (76_000_000_000, wide.base_bytes)
    with pytest.raises(ValueError, match="peak_bytes must not be below"):
        with_settings(BOARD, {"window": "300_000", "peak_bytes": str(BOARD.peak_bytes - 4 * 2**30)})


def test_side_slots_are_held_from_the_load_on() -> None:
    beside = with_settings(BOARD, {"side_slots": "2", "side_window": "1_024"})
    side = 1_024 * BOARD.row_bytes + BOARD.anchor_bytes
    assert beside.loaded_bytes == BOARD.base_bytes + 2 * side


def test_the_anchor_rules_are_the_caches() -> None:
    assert ANCHOR_RULES == RULES
    for rule in RULES:
        assert with_settings(BOARD, {"anchor_rule": rule}).anchor_rule == rule


def test_every_setting_is_a_field_of_its_type() -> None:
    for name, kind in SETTABLE.items():
        assert isinstance(getattr(BOARD, name), kind)


def test_an_unknown_or_broken_profile_is_one_line() -> None:
    with pytest.raises(ValueError, match="unknown profile 'x'; there are: spark-27b"):
        load("x")
    with pytest.raises(ValueError, match="profile y: 'prefill'"):
        parse("y", {})
