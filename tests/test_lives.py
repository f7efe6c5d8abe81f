"""A replay with the spill: conversations on the drive, over evictions, stops, deaths and pauses.

Covers replay.spilling, replay.columns and replay.noted, too.

Method: a small made night on a board that parks next to nothing, every request verified on both
models, beside the same night without the spill and with ends that are killed; a real directory
must give the same ledger as simulated files. What counts time and bytes is held to the board's own
figures. The canaries are a spill that is never read back, and one whose codec takes no time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from nights import small_night
from test_bay import BOARD as HEADS

from cache.disk.config import SESSIONS, DiskConfig
from cache.journal import CacheEvent, Journal
from cache.ports import PAGE
from cache.saving import TMP
from cache.spill.config import SpillConfig
from cache.spill.names import manifest_name
from engine.bad import BadInput
from engine.config import HybridConfig
from replay import bay, lives, models
from replay.columns import spill_columns
from replay.driver import Options, Replay
from replay.ledger import to_frame
from replay.noted import Noted
from replay.restarts import Restart
from replay.spilling import guard_config, spill_config, workers_of
from replay.summary import summarise
from replay.trace import Trace
from replay.worst import spill_staging_of
from sim.clock import VirtualClock
from sim.profile import Profile, load

BOARD = replace(
    HEADS,
    guest_tokens=0,
    spill=True,
    spill_tokens_min=256,
    spill_park_tokens_min=64,
    spill_idle_s=0.0,
)
STOPS, KILLS = ((Restart(12), Restart(24)), (Restart(12, kills=True), Restart(24, kills=True)))


def started(traces: Sequence[Trace], profile: Profile = BOARD, **more: object) -> Replay:
    return Replay(traces, Options(profile=profile, **more))  # type: ignore[arg-type]


def run(
    traces: Sequence[Trace], profile: Profile = BOARD, **more: object
) -> tuple[Replay, pd.DataFrame]:
    replay = started(traces, profile, **more)
    rows = to_frame(replay)
    read = rows[rows["unread"] == 0]
    assert (rows["failure"] == "").all(), rows[rows["failure"] != ""]["failure"].tolist()
    assert read["checked"].notna().all()
    assert (rows["cached"] + rows["reread"] + rows["new"] == rows["prompt"]).all()
    replay.box.stack.check()
    return replay, rows


@pytest.fixture(scope="module")
def night() -> Trace:
    return small_night(3, 36)


@pytest.fixture(scope="module")
def stopped(night: Trace) -> tuple[Replay, pd.DataFrame]:
    return run([night], restarts=STOPS, seed=5)


@pytest.fixture
def any_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiers that leave a real file system no free space: this machine may have little."""
    disk, spill = bay.disk_config, bay.spill_config

    def heads(profile: Profile) -> DiskConfig:
        return replace(disk(profile), min_free_bytes=0, floor_bytes=0)

    def conversations(profile: Profile) -> SpillConfig:
        return replace(spill(profile), min_free_bytes=0, floor_bytes=0)

    monkeypatch.setattr(bay, "disk_config", heads)
    monkeypatch.setattr(bay, "spill_config", conversations)


def test_every_request_holds_its_gate_and_conversations_come_back(
    stopped: tuple[Replay, pd.DataFrame],
) -> None:
    replay, rows = stopped
    back = rows[rows["source"].str.startswith("spill.")]
    assert len(back) > 3 and (back["restore_s"] > 0).all() and (back["spill_read"] > 0).all()
    seen = replay.spill
    assert seen is not None and seen["hits"] >= len(back) and not seen["failed_restores"]
    assert len(seen["drains"]) == 2 and all(drain["conversations"] for drain in seen["drains"])
    assert [len(seen["read_backs"]) > 0, seen["saves"].get("drain", 0) > 0] == [True, True]
    assert seen["read_bytes"] >= rows["spill_read"].sum() > 0
    assert seen["written_bytes"] == rows["spill_written"].sum()
    assert 0 < seen["held_bytes"] <= BOARD.spill_bytes
    assert rows["process"].max() == 2


def test_canary_killed_processes_and_none_at_all_read_more_again(
    night: Trace, stopped: tuple[Replay, pd.DataFrame]
) -> None:
    _, planned_rows = stopped
    killed, killed_rows = run([night], restarts=KILLS, seed=5)
    without, plain_rows = run([night], replace(BOARD, spill=False), restarts=STOPS, seed=5)
    assert planned_rows["reread"].sum() < killed_rows["reread"].sum() < plain_rows["reread"].sum()
    assert killed.spill is not None and not killed.spill["drains"]
    assert not killed.spill["read_backs"], "what was in place was not written"
    assert without.spill is None and without.drive["writes"] is not None
    columns = [name for name in plain_rows if name.startswith("spill_")]
    assert not plain_rows[[*columns, "save_s", "held_spill"]].any().any()


def test_the_random_model_keeps_what_the_witness_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def tiny(**changes: object) -> HybridConfig:
        return HybridConfig.tiny(**{"vocab": BOARD.vocab, "hidden": 32, **changes})

    monkeypatch.setattr(HybridConfig, "replay", tiny)
    (_, seen), (_, computed) = (
        run([small_night(3, 7)], restarts=(Restart(4),), model=model)
        for model in ("witness", "random")
    )
    assert computed["source"].str.startswith("spill.").any() or computed["process"].max() == 1
    decided = ["source", "cached", "reread", "new", "gate", "why", "spill_saves"]
    pd.testing.assert_frame_equal(seen[decided], computed[decided])


def test_a_real_directory_gives_the_same_ledger(tmp_path: Path, any_room: None) -> None:
    there, brief = tmp_path / "tier", [small_night(3, 15)]
    (_, simulated), (_, real) = (
        run(brief, restarts=(Restart(8),), cache_dir=at) for at in (None, there)
    )
    pd.testing.assert_frame_equal(real, simulated)
    folder = there / SESSIONS
    names = sorted(path.name for path in folder.iterdir())
    assert {"moorage-spill", "lock", "last"} <= set(names)
    assert any(name.endswith(".manifest") for name in names)
    assert not any(name.endswith(".tmp") for name in names)
    assert (there / "writes").exists() and folder.stat().st_mode & 0o077 == 0


def test_a_second_replay_starts_from_the_conversation_that_was_in_place(
    tmp_path: Path, any_room: None
) -> None:
    brief = [small_night(3, 6)]
    _, first = run(brief, cache_dir=tmp_path / "tier")
    replay, again = run(brief, cache_dir=tmp_path / "tier")
    assert again["cached"].sum() > first["cached"].sum()
    assert replay.spill is not None and replay.spill["read_backs"]
    days = replay.drive["writes"]["days"]  # type: ignore[index]
    assert days[-1]["spill_bytes"] > replay.spill["written_bytes"], "the day's count goes on"


@pytest.mark.parametrize("disk", [True, False])
def test_the_days_count_is_what_both_wrote(night: Trace, disk: bool) -> None:
    replay, _ = run([small_night(3, 20)], replace(BOARD, disk=disk), restarts=(Restart(10),))
    heads, seen = replay.disk, replay.spill
    writes = replay.drive["writes"]
    assert seen is not None and writes is not None
    days = writes["days"]
    spilled = sum(day["spill_bytes"] for day in days)
    assert spilled == seen["written_bytes"] > 0
    if heads is not None:
        # A process that ends has not counted the record that it wrote last.
        counted = sum(day["tier_bytes"] for day in days)
        assert 0 < heads["written_bytes"] - counted <= 4 * PAGE
    assert {day["level"] for day in days} == {"ok"}


@pytest.mark.parametrize("full", ["notes.txt", SESSIONS])
def test_a_strangers_folder_is_refused_without_the_tier_too(tmp_path: Path, full: str) -> None:
    """And a folder of that name inside, which holds something else."""
    there = tmp_path / "tier"
    (there / SESSIONS).mkdir(parents=True)
    inside = there / SESSIONS if full == SESSIONS else there
    (inside / "notes.txt").write_text("mine")
    with pytest.raises(BadInput) as caught:
        started([small_night(3, 2)], replace(BOARD, disk=False), cache_dir=there)
    said = str(caught.value)
    assert said.startswith(str(inside)) and "notes.txt" in said and "\n" not in said
    assert sorted(path.name for path in inside.iterdir()) == sorted(
        {"notes.txt", *([SESSIONS] if full != SESSIONS else [])}
    )


def test_over_the_days_budget_only_planned_stops_are_written(night: Trace) -> None:
    replay, rows = run([night], replace(BOARD, write_budget_bytes=0), restarts=STOPS)
    seen, writes = replay.spill, replay.drive["writes"]
    assert seen is not None and set(seen["saves"]) == {"drain"}
    assert writes is not None and writes["level"] == "hard" and writes["skipped"]
    assert rows["save_s"].sum() == 0


def test_a_save_is_waited_for_and_a_codec_takes_its_time(night: Trace) -> None:
    brief = [small_night(3, 15)]
    slow, half, none = (
        run(brief, replace(BOARD, pack_bytes_s=rate, disk=False))[1]["save_s"].sum()
        for rate in (1e8, 5e7, 1e15)
    )
    assert slow > 3 * none > 0
    assert half == pytest.approx(2 * slow, rel=0.1)


def test_raw_conversations_weigh_what_their_rows_do(night: Trace) -> None:
    planes, raw = (
        run([night], replace(BOARD, spill_codec=codec, disk=False))[1]["spill_written"].sum()
        for codec in ("planes", "raw")
    )
    assert BOARD.spill_ratio < planes / raw < 1, "anchors are written as they are"


def test_files_weigh_what_the_budget_counts(stopped: tuple[Replay, pd.DataFrame]) -> None:
    spill = stopped[0].box.stack.spill
    assert spill is not None and len(spill.shelf.whole()) > 1
    weigh = spill.shapes.weigh
    for entry in spill.shelf.whole():
        for piece in entry.pieces:
            assert weigh(piece.name, piece.nbytes) == piece.weight > piece.nbytes
            assert weigh(piece.name + TMP, piece.nbytes) == piece.weight
            assert weigh(piece.name, PAGE) == PAGE, "a header"
        name = manifest_name(entry.key)
        assert weigh(name, entry.manifest_bytes) == entry.manifest_bytes


def test_its_buffers_are_in_the_worst_case(stopped: tuple[Replay, pd.DataFrame]) -> None:
    rows = stopped[1]
    assert 0.999 * spill_staging_of(BOARD) < rows["held_spill"].max() <= spill_staging_of(BOARD)


def test_pauses_write_ahead_and_end_when_somebody_asks(night: Trace) -> None:
    patient = replace(BOARD, spill_idle_s=1.0)
    replay, rows = run([night], patient)
    seen = replay.spill
    assert seen is not None and seen["saves"]["idle"] > 0
    never, plain = run([night])
    assert never.spill is not None and "idle" not in never.spill["saves"]
    assert rows["save_s"].sum() < plain["save_s"].sum(), "less is left to write"
    assert rows["wait_s"].sum() <= plain["wait_s"].sum() + 1.0


def test_canary_a_spill_that_nobody_reads_back_is_seen(
    night: Trace, stopped: tuple[Replay, pd.DataFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lives, "read_back", lambda stack, model: None)
    replay, _ = run([night], restarts=STOPS, seed=5)
    with pytest.raises(AssertionError):
        test_every_request_holds_its_gate_and_conversations_come_back((replay, _))


def test_seconds_saved_are_what_was_spared_less_what_was_waited_for(
    stopped: tuple[Replay, pd.DataFrame],
) -> None:
    replay, rows = stopped
    summary = summarise(rows, wall_s=1.0, seed=5, board=BOARD, **replay.drive)
    for tier in ("disk", "spill"):
        seen, spared_s, waited_s = summary[tier], 0.0, 0.0
        for row in rows.itertuples():
            mine = row.source.startswith(f"{tier}.")
            spared_s += row.spared_s if mine else 0.0
            waited_s += max(0.0, row.restore_s - row.save_s) if mine else 0.0
            waited_s += row.save_s if tier == "spill" else 0.0
        assert seen["saved_s"] == pytest.approx(spared_s - waited_s)
        gb = seen["written_bytes"] / 1e9
        assert seen["saved_s_per_gb"] == pytest.approx((spared_s - waited_s) / gb)
    assert summary["spill"]["spared_s"] > 0
    assert summary["written_bytes"]["spill"] == summary["spill"]["written_bytes"]
    assert summary["read_bytes"] == summary["disk"]["read_bytes"] + summary["spill"]["read_bytes"]


def test_a_board_says_how_conversations_are_kept() -> None:
    board = load("spark-27b")
    config = spill_config(board)
    assert (config.budget_bytes, config.ttl_s) == (64_000_000_000, 48 * 3_600)
    assert (config.tokens_min, config.park_tokens_min, config.idle_s) == (16_384, 4_096, 30.0)
    assert config.codec.mode == "planes" and guard_config(board).budget_bytes == 200_000_000_000
    assert board.cost.spilled_row_bytes == round(106_496 * 0.585)
    assert replace(board, spill_codec="raw").cost.spilled_row_bytes == 106_496


@pytest.mark.parametrize("kind", ["pack", "unpack", "copy"])
def test_workers_take_what_the_boards_rows_would(kind: str) -> None:
    engine, clock = models.build("witness", BOARD, 0), VirtualClock()
    workers = workers_of(BOARD, clock, engine)
    real = sum(view.rows(0, 1_000).nbytes for view in engine.cache_state().views)
    workers.start(kind, real, lambda: None).wait()
    rate = BOARD.pack_bytes_s if kind == "pack" else BOARD.unpack_bytes_s
    assert clock.mono_s() == pytest.approx(1_000 * BOARD.row_bytes / rate)


def test_what_was_noted_is_taken_once_and_only_a_tiers_own() -> None:
    journal = Journal(rows_kept=4)
    noted = Noted(journal, "spill")
    for event in ("write", "hit"):
        journal.note(CacheEvent("spill", event, "a", 1), 0.0)
        journal.note(CacheEvent("disk", event, "a", 1), 0.0)
    assert [event.event for event in noted.take()] == ["write", "hit"]
    assert noted.take() == []
    for _ in range(5):
        journal.note(CacheEvent("spill", "hit", "a", 1), 0.0)
    with pytest.raises(AssertionError, match="more than the journal keeps"):
        noted.take()


def test_without_a_spill_the_columns_stay_empty() -> None:
    assert spill_columns(None) == {}
