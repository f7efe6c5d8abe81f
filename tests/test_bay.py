"""The disk tier in a replay: files that outlive a process, on a modelled drive or in a directory.

Covers replay.process, too. Method: a small made night on a board whose drive keeps short heads, its
process ended twice, every request verified on both models; the same night into a real directory
must give the same ledger, and a second replay there starts from what the first one left. The
canaries are a night that restarts on an empty drive, and jobs that let a request's time pass.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from nights import Builder, small_night

from cache.disk.config import DiskConfig
from cache.suffix_store import SuffixConfig
from engine.bad import BadInput
from engine.config import HybridConfig
from replay import bay
from replay.driver import Options, Replay
from replay.ledger import to_frame
from replay.restarts import Restart
from replay.suffixes import scratch_store, tokenizer_of
from replay.trace import Trace
from replay.worst import staging_of
from sim.clock import VirtualClock
from sim.profile import Profile, load

BOARD = replace(
    load("spark-27b"),
    grid=64,
    window=4_096,
    resident_bytes=9 * 153_944_064,
    park_bytes=0,
    pin_bytes=0,
    store_bytes=0,
    disk_tokens_min=200,
    spill=False,
)
RESTARTS = (Restart(20, kills=True), Restart(40, kills=True))


def started(traces: Sequence[Trace], profile: Profile = BOARD, **more: object) -> Replay:
    return Replay(traces, Options(profile=profile, **more))  # type: ignore[arg-type]


def ledger(traces: Sequence[Trace], profile: Profile = BOARD, **more: object) -> pd.DataFrame:
    return to_frame(started(traces, profile, **more))


@pytest.fixture(scope="module")
def night() -> Trace:
    return small_night(3, 60)


@pytest.fixture(scope="module")
def restarted(night: Trace) -> tuple[Replay, pd.DataFrame]:
    replay = started([night], restarts=RESTARTS, seed=5)
    return replay, to_frame(replay)


@pytest.fixture
def any_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tier that leaves a real file system no free space: this machine may have little."""
    plain = bay.disk_config

    def config(profile: Profile) -> DiskConfig:
        return replace(plain(profile), min_free_bytes=0, floor_bytes=0)

    monkeypatch.setattr(bay, "disk_config", config)


def test_every_request_holds_its_gate_over_restarts(
    restarted: tuple[Replay, pd.DataFrame],
) -> None:
    replay, rows = restarted
    read = rows[rows["unread"] == 0]
    assert (rows["failure"] == "").all() and read["checked"].notna().all()
    assert (rows["cached"] + rows["reread"] + rows["new"] == rows["prompt"]).all()
    assert rows["process"].tolist() == [0] * 20 + [1] * 20 + [2] * (len(rows) - 40)
    from_drive = rows[rows["source"] == "disk.grid"]
    assert set(from_drive["process"]) >= {1, 2} and (from_drive["gate"] == "bits").all()
    assert (from_drive["restore_s"] > 0).all() and (from_drive["disk_read"] > 0).all()
    assert (rows.loc[rows["source"] != "disk.grid", "restore_s"] == 0).all()
    replay.box.stack.check()
    disk = replay.disk
    assert disk is not None and disk["hits"] == len(from_drive) and not disk["failed_restores"]
    assert disk["written_bytes"] >= rows["disk_written"].sum() > 0
    assert disk["read_bytes"] == rows["disk_read"].sum()
    assert disk["anchors_written"] >= rows["disk_anchors"].sum() > 0
    assert 0 < disk["held_bytes"] <= BOARD.disk_bytes


def test_canary_without_the_drive_a_restart_starts_from_nothing(
    night: Trace, restarted: tuple[Replay, pd.DataFrame]
) -> None:
    _, with_drive = restarted
    without = ledger([night], replace(BOARD, disk=False), restarts=RESTARTS, seed=5)
    for rows in (with_drive, without):
        assert (rows["failure"] == "").all()
    assert without["reread"].sum() > with_drive["reread"].sum()
    assert (without.iloc[[20, 40]]["source"] == "cold").all()
    assert not without[[name for name in without if name.startswith("disk_")]].any().any()
    assert started([night], replace(BOARD, disk=False)).disk is None


def test_a_seed_replays_with_the_drive_and_its_jobs(
    night: Trace, restarted: tuple[Replay, pd.DataFrame]
) -> None:
    _, first = restarted
    pd.testing.assert_frame_equal(first, ledger([night], restarts=RESTARTS, seed=5))
    other = ledger([night], restarts=RESTARTS, seed=6)
    assert first["rounds"].sum() != other["rounds"].sum()


def test_the_random_model_reads_back_what_the_witness_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def tiny(**changes: object) -> HybridConfig:
        return HybridConfig.tiny(**{"vocab": BOARD.vocab, "hidden": 32, **changes})

    monkeypatch.setattr(HybridConfig, "replay", tiny)
    seen, computed = (
        ledger([small_night(3, 10)], restarts=(Restart(6),), model=model)
        for model in ("witness", "random")
    )
    assert (computed["failure"] == "").all(), computed[computed["failure"] != ""]
    assert (computed["source"] == "disk.grid").any()
    # Headers weigh what they weigh, and there are more sections to name.
    decided = ["source", "cached", "reread", "new", "gate", "why", "disk_anchors", "disk_drops"]
    pd.testing.assert_frame_equal(seen[decided], computed[decided])


def test_writing_costs_no_request_anything(night: Trace) -> None:
    """A request that reads nothing back takes as long as without the drive."""
    with_drive, without = ledger([night]), ledger([night], replace(BOARD, disk=False))
    alike = (with_drive["cached"] == without["cached"]) & (with_drive["restore_s"] == 0)
    assert alike.sum() > 30 and with_drive["disk_written"].sum() > 0
    chunk_s = BOARD.grid * BOARD.row_bytes / BOARD.device_copy_bytes_s
    late = (with_drive["ttft_s"] - without["ttft_s"])[alike].abs()
    assert late.max() <= chunk_s


def test_canary_jobs_that_let_a_requests_time_pass_are_seen(
    night: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(VirtualClock, "aside", lambda self, at_s: nullcontext())
    with pytest.raises(AssertionError):
        test_writing_costs_no_request_anything(night)


def test_a_side_slot_reads_the_drive_too() -> None:
    board = replace(BOARD, side_slots=1, side_window=2_048, guest_tokens=2_000, answer_tokens=64)
    replay = started([small_night(1, 60)], replace(board, disk_tokens_min=64), restarts=RESTARTS)
    rows = to_frame(replay)
    assert (rows["failure"] == "").all()
    assert set(rows[rows["source"] == "disk.grid"]["slot"]) == {0, 1}
    # Both share its buffers, which are held once.
    assert rows["held_disk"].max() <= staging_of(board)


def test_a_suffix_stores_jobs_go_on_beside_the_drives(night: Trace) -> None:
    tokenizer = tokenizer_of([night], BOARD, 0)
    with scratch_store(SuffixConfig(), tokenizer) as store:
        replay = started([night], restarts=RESTARTS, suffixes=store)
        rows = to_frame(replay)
        assert store.documents > 0 and store.tokens > 0, "its jobs were pumped"
    assert (rows["failure"] == "").all() and (rows["source"] == "disk.grid").any()
    # What it reads and writes takes no board time.
    pd.testing.assert_frame_equal(rows, ledger([night], restarts=RESTARTS))


# a real directory


def test_a_real_directory_gives_the_same_ledger(tmp_path: Path, any_room: None) -> None:
    there, brief = tmp_path / "tier", [small_night(3, 15)]
    simulated, real = (ledger(brief, restarts=(Restart(8),), cache_dir=at) for at in (None, there))
    pd.testing.assert_frame_equal(real, simulated)
    assert (real["source"] == "disk.grid").any()
    names = sorted(path.name for path in there.iterdir())
    assert {"moorage-disk", "lock", "counts"} <= set(names)
    assert any(name.endswith(".anchor") for name in names)
    assert not any(name.endswith(".tmp") for name in names)
    assert there.stat().st_mode & 0o077 == 0


def test_a_job_under_way_at_a_restart_leaves_nothing_half_done(
    tmp_path: Path, any_room: None
) -> None:
    """A slow drive, so that the process ends while a file is written; the next start removes it."""
    slow = replace(BOARD, drive_write_bytes_s=1e6)
    replay = started(
        [small_night(3, 6)], slow, restarts=(Restart(1, kills=True),), cache_dir=tmp_path
    )
    rows = to_frame(replay)
    assert (rows["failure"] == "").all() and replay.disk is not None
    assert replay.disk["sweep"] > 0 and replay.disk["stuck"] == 0
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".tmp")]


def test_a_second_replay_starts_from_what_the_first_one_left(
    tmp_path: Path, any_room: None
) -> None:
    brief = [small_night(3, 6)]
    first, again = (ledger(brief, cache_dir=tmp_path / "tier") for _ in range(2))
    assert (first.iloc[0]["source"], again.iloc[0]["source"]) == ("cold", "disk.grid")
    assert (again["failure"] == "").all()
    # What no request of this replay had held is reused all the same, and not new.
    assert again["cached"].sum() > first["cached"].sum()
    assert (again["cached"] + again["reread"] + again["new"] == again["prompt"]).all()
    other = ledger(brief, cache_dir=tmp_path / "tier", seed=1)
    assert other.iloc[0]["source"] == "cold", "other tokens"


def foreign(there: Path) -> str:
    there.mkdir()
    (there / "notes.txt").write_text("mine")
    return "holds notes.txt, which is no disk tier's"


def a_file(there: Path) -> str:
    there.write_text("mine")
    return ": not a directory"


def no_parent(there: Path) -> str:
    there.parent.joinpath("file").write_text("mine")
    return "cannot be used: Not a directory"


def broken_marker(there: Path) -> str:
    there.mkdir()
    (there / "moorage-disk").write_bytes(b"another program's" + bytes(4_079))
    return "/moorage-disk: is no disk tier's marker"


@pytest.mark.parametrize("make", [foreign, a_file, no_parent, broken_marker])
def test_a_directory_that_is_no_tiers_is_refused_in_one_line(
    make: Callable[[Path], str], night: Trace, tmp_path: Path
) -> None:
    there = tmp_path / ("file/tier" if make is no_parent else "tier")
    why = make(tmp_path / "tier")
    before = sorted((path, path.lstat().st_mode) for path in tmp_path.rglob("*"))
    with pytest.raises(BadInput) as caught:
        started([night], cache_dir=there)
    assert str(caught.value).startswith(str(there)) and why in str(caught.value)
    assert "\n" not in str(caught.value)
    after = sorted((path, path.lstat().st_mode) for path in tmp_path.rglob("*"))
    assert after == before  # Modes too: a refused folder stays open to whom it was.


def test_a_directory_becomes_private_once_it_is_a_tiers(
    night: Trace, tmp_path: Path, any_room: None
) -> None:
    there = tmp_path / "tier"
    there.mkdir(mode=0o755)
    started([night], cache_dir=there).close()
    assert there.stat().st_mode & 0o777 == 0o700


def test_a_directory_in_use_is_refused(night: Trace, tmp_path: Path, any_room: None) -> None:
    there = tmp_path / "tier"
    started([night], cache_dir=there).close()
    with (there / "lock").open("r+b") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(BadInput, match="/lock: another process uses this directory"):
            started([night], cache_dir=there)


def test_two_replays_of_one_process_do_not_share_a_directory(
    night: Trace, tmp_path: Path, any_room: None
) -> None:
    first = started([night], cache_dir=tmp_path / "tier")
    with pytest.raises(BadInput, match="another process uses this directory"):
        started([night], cache_dir=tmp_path / "tier")
    first.close()
    started([night], cache_dir=tmp_path / "tier").close()


# deploys


def test_a_deploy_sweeps_the_files_and_keeps_the_counts() -> None:
    """After one cold read and a deploy, the next one is the second: its longest line is kept."""
    build = Builder()
    build.fresh(700, 20, tools=100, system=100)
    head = build.requests[0]
    for session in "bc":
        build.part(head, 600, 100, 20, session)
    trace = build.trace()
    kept, swept = (
        started([trace], restarts=(Restart(1, deploys=deploys, kills=True), Restart(2, kills=True)))
        for deploys in (False, True)
    )
    rows = to_frame(kept)
    assert rows["source"].tolist() == ["cold", "disk.grid", "disk.grid"]
    rows = to_frame(swept)
    assert rows["source"].tolist() == ["cold", "cold", "disk.grid"]
    assert rows["cached"].tolist()[-1] == 576 and swept.disk is not None
    assert swept.disk["sweep"] > 0
