"""Signals that end a replay into a directory: a planned stop, or where it is when asked twice.

Method: `moorage replay` as a process of its own that says when it saves and is slow there; signals
reach it in the middle of a save and in the middle of the planned stop. The next replay in the
directory must find what the first one says that it left, every request verified. A replay without
a directory is the canary.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from nights import small_night
from test_lives import any_room

from replay.driver import Options, Replay
from replay.ending import SIGNALS, asked_to_end
from replay.ledger import to_frame
from replay.trace import Trace
from replay.tracefile import write_trace
from sim.profile import load, with_settings

SET = (
    *("grid=64", "window=4096", "park_bytes=0", "pin_bytes=0", "store_bytes=0", "guest_tokens=0"),
    *("disk_tokens_min=200", "spill_tokens_min=128", "spill_idle_s=0"),
)
BOARD = [flag for setting in SET for flag in ("--set", setting)]
TRACE = small_night(3, 12)


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ending") / "night.jsonl"
    write_trace(TRACE, path)
    return path


@dataclass
class Ended:
    status: int
    said: list[str]
    summary: dict[str, Any] | None


def replayed(night: Path, wanted: str, *flags: object, signals: dict[str, int]) -> Ended:
    """Run it, and send a signal when it says so."""
    words = ["replay", night, *BOARD, "--json", *flags]
    with subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("ended.py")), wanted, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
    ) as process:
        assert process.stderr is not None and process.stdout is not None
        said, errors = [], []
        for line in process.stderr:
            word = line.strip()
            errors.append(line)
            if word in ("saving", "draining"):
                said.append(word)
                if word in signals:
                    process.send_signal(signals[word])
        out = process.stdout.read()
        status = process.wait(60)
    assert status in (0, *(128 + n for n in SIGNALS), *(-n for n in SIGNALS)), errors
    return Ended(status, said, json.loads(out) if out else None)


def again(trace: Trace, there: Path) -> Replay:
    """The next replay in that directory."""
    board = with_settings(load("spark-27b"), dict(setting.split("=") for setting in SET))
    replay = Replay([trace], Options(board, cache_dir=there))
    rows = to_frame(replay)
    assert len(rows) == len(trace.requests) and (rows["failure"] == "").all()
    seen = replay.spill
    assert seen is not None and not seen["failed_restores"] and not seen["damage"]
    assert not list(there.rglob("*.tmp"))
    return replay


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_the_first_signal_is_a_planned_stop(
    night: Path, tmp_path: Path, any_room: None, number: int
) -> None:
    there = tmp_path / "tier"
    flags = ("--cache-dir", there, "--out", tmp_path / "out")
    ended = replayed(night, "saving", *flags, signals={"saving": number})
    assert ended.status == 128 + number and ended.said == ["saving"]
    summary = ended.summary
    assert summary is not None and summary["ended_by"] == signal.Signals(number).name
    assert 0 < summary["requests"] < len(TRACE.requests) and summary["verified"]["failed"] == 0
    assert len(summary["spill"]["drains"]) == 1 and summary["spill"]["drains"][0]["conversations"]
    assert (tmp_path / "out" / "report.html").exists()
    later = again(TRACE, there).spill
    assert later is not None and len(later["read_backs"]) == 1


def test_a_second_signal_in_the_planned_stop_spoils_nothing(
    night: Path, tmp_path: Path, any_room: None
) -> None:
    there = tmp_path / "tier"
    signals = {"saving": signal.SIGTERM, "draining": signal.SIGTERM}
    ended = replayed(night, "saving,draining", "--cache-dir", there, signals=signals)
    assert ended.said == ["saving", "draining"]
    assert ended.status == -signal.SIGTERM and ended.summary is None
    later = again(TRACE, there).spill
    assert later is not None and later["sweep"], "it ended in the middle of a save"


@pytest.mark.slow
def test_canary_without_a_directory_it_ends_at_once(night: Path) -> None:
    ended = replayed(night, "saving", signals={"saving": signal.SIGTERM})
    assert ended.status == -signal.SIGTERM and ended.summary is None


def test_handlers_are_as_they_were_afterwards() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    calls = []
    with asked_to_end(lambda: calls.append("stop")) as asked:
        assert asked.status == 0
        os.kill(os.getpid(), signal.SIGTERM)
        assert calls == ["stop"] and asked.status == 143
    assert [signal.getsignal(number) for number in SIGNALS] == before


__all__ = ("any_room",)
