"""The gate of the caches in memory, and the command that holds an engine to every tier's.

Goal: each way back that memory has is taken, says where from, and is held to a cold prefill; a
fault in a copy, a line that serves nobody or a gate on a drive that fails is said, and the command
ends with 1. Method: a narrow random model and the witness at a grid of 64; the drives' gates, which
have tests of their own (tests/test_check_disk.py, tests/test_check_spill.py), are stood in for.
Covers engine.knobs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cache import anchors, park
from engine.bad import BadInput
from engine.knobs import Knobs
from replay import check_gates
from replay.check_gates import run_check_gates
from replay.gate_case import Case
from replay.memory_gate import STEPS, Resumed, Room, resumes

SMALL = (("grid", "64"),)


def seen(model: str = "witness") -> list[Resumed]:
    return list(resumes(Case(model, "spark-27b", SMALL, 0)))


@pytest.mark.parametrize("model", ["witness", "random"])
def test_every_way_back_is_taken_and_held(model: str) -> None:
    found = seen(model)
    assert len(found) == STEPS
    assert [one.why for one in found] == [""] * STEPS
    sources = {one.source for one in found}
    assert sources == {"cold", "end", "grid", "park.grid", "park.end", "store.grid"}
    assert {one.source: one.gate for one in found}["park.end"] == "greedy"
    assert {one.source: one.gate for one in found}["park.grid"] == "bits"


def test_as_many_rows_as_were_to_come_back() -> None:
    room = Room(Case("witness", "spark-27b", SMALL, 0), pools=True)
    ids = room.text(130, 0)
    assert room.sends("a prompt", ids, "cold", 64)[0].why == "cold, 0 rows instead of cold, 64"
    assert room.sends("its copy", ids, "grid", 64)[0].why == "grid, 128 rows instead of grid, 64"
    room.close()


def test_a_room_is_closed_however_far_the_gate_came(monkeypatch: pytest.MonkeyPatch) -> None:
    closed, whole = list[Room](), Room.close

    def counted(self: Room) -> None:
        whole(self)
        closed.append(self)

    monkeypatch.setattr(Room, "close", counted)
    seen()
    assert len(closed) == 2
    begun = iter(resumes(Case("witness", "spark-27b", SMALL, 0)))
    next(begun)
    begun.close()  # type: ignore[attr-defined]
    assert len(closed) == 3


def test_canary_one_bit_of_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = anchors.copy_sections

    def spoiled(*args: Any, **more: Any) -> Any:
        copies = whole(*args, **more)
        copies[0].view(-1).view(-1)[0] += 1
        return copies

    monkeypatch.setattr(anchors, "copy_sections", spoiled)
    assert any("differ" in one.why or "section" in one.why for one in seen("random"))


def test_canary_a_pool_that_offers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(park.Park, "offer", lambda self, ask: None)
    wrong = [one.why for one in seen() if one.why]
    assert any("instead of park.grid, 192" in why for why in wrong)


def command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, why: str, **more: Any
) -> tuple[int, dict[str, Any]]:
    def gate(folder: Path, case: Case, went_on: Any) -> str:
        assert folder.parent.is_dir()
        went_on(1)
        return why

    monkeypatch.setattr(check_gates, "_ON_DRIVE", (("disk", gate, 1),))
    how: dict[str, Any] = {"model": "witness", "profile": "spark-27b", "settings": ["grid=64"]}
    how |= {"seed": 0, "knobs": Knobs(), "as_json": True}
    status = run_check_gates(None, **(how | more))
    out = capsys.readouterr().out
    return status, json.loads(out) if out.startswith("{") else {}


def test_the_command_says_what_held(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    status, said = command(capsys, monkeypatch, "")
    assert status == 0
    assert said["gate"] == "ok" and said["tiers"] == {"memory": "ok", "disk": "ok"}
    assert len(said["resumes"]) == STEPS


def test_a_gate_that_fails_is_an_exit_of_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    status, said = command(capsys, monkeypatch, "after a reopening: rows of K differ")
    assert status == 1
    assert said["gate"] == said["tiers"]["disk"] == "after a reopening: rows of K differ"
    assert command(capsys, monkeypatch, "no", as_json=False)[0] == 1


@pytest.mark.parametrize("model", ["gpt", "no/such/folder"])
def test_a_model_that_is_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    with pytest.raises(BadInput, match="is none of witness, random"):
        command(capsys, monkeypatch, "", model=model)


@pytest.mark.parametrize(
    "wrong", [{"profile": "nope"}, {"settings": ["grid=x"]}, {"settings": ["grid"]}]
)
def test_a_board_that_is_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any]
) -> None:
    with pytest.raises(BadInput):
        command(capsys, monkeypatch, "", **wrong)


@pytest.mark.parametrize(
    ("flag", "value"),
    [("dtype", "float16"), ("kv", "int8"), ("table", "hot"), ("threads", -1)],
)
def test_knobs_that_are_none(flag: str, value: Any) -> None:
    with pytest.raises(BadInput, match=f"--{flag}"):
        Knobs(**{flag: value})
    assert Knobs(threads=1_024).threads == 1_024
    with pytest.raises(BadInput, match="1025 is not in 0"):
        Knobs(threads=1_025)
    with pytest.raises(BadInput, match="--table-cache-mb"):
        Knobs(table_cache_bytes=-1)
