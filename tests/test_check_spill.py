"""`moorage check spill`: the gate goes red for what is wrong, and nothing is left on the drive.

Goal: one object with every figure; exit 1 for a gate that failed and 2 for input that can't be
used; the folder is gone whatever ended the check. No rate is judged here.
Method: the command line on a small board and real files, once with processes of its own; elsewhere
the new process is another home in this one. The canaries plant one fault each, and the gate must
say where. Covers replay.check_spill, replay.spill_gate and replay.spill_home.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cache.anchors import Tensors
from cache.host import OsFiles
from cache.spill import reader as reader_module
from cache.spill import saver as saver_module
from cache.spill.codec import Mode
from cache.spill.entry import Copy
from cache.spill.reader import Reader
from cache.spill.saver import Saver
from cache.spill.sums import Sums
from cache.types import Ids
from replay import check_spill as check_module
from replay import place as place_module
from replay import spill_gate as gate_module
from replay.gate_case import Case
from replay.rounds import RATES
from replay.spill_gate import STEPS, gate
from replay.spill_home import Said, Seen, look
from replay.spill_rates import Bench

Run = Callable[..., tuple[int, str, str]]
SMALL = (
    *("--set", "grid=64", "--set", "row_bytes=4100", "--set", "anchor_bytes=200000"),
    *("--gib", "0.0005", "--rounds", "2"),
)
CASE = Case("random", "spark-27b", (("grid", "64"),), 0)
WITNESS = replace(CASE, model="witness")


def beside(case: Case, folder: Path, mode: Mode, ids: Ids) -> Seen | str:
    """A new process, played in this one."""
    seen = look(case, folder, mode, ids)
    if "why" in seen:
        return str(seen["why"])
    return Seen(**seen | {"said": Said(**seen["said"])})


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "fresh", beside)


@pytest.fixture
def no_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_module, "gate", lambda *_: "")


def test_gate_and_rates_as_one_object_and_nothing_is_left(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One codec, whose new processes are real ones.
    monkeypatch.setattr(gate_module, "MODES", ("planes",))
    code, out, err = run("check", "spill", "--dir", tmp_path, *SMALL, "--json")
    found = json.loads(out)
    assert (code, found["gate"], err) == (0, "ok", "")
    more = {"gate", "codec", "direct", "conversation_bytes", "codecs"}
    assert set(found) == {*RATES, *more} and found["codec"] == "raw"
    assert list(found["codecs"]) == ["raw", "planes"]
    for of in found["codecs"].values():
        assert len(of["rounds"]) == len(of["warm_up"]) == 2
        assert all(of[name] > 0 for name in RATES)
        assert [one["first"] for one in of["rounds"]] == ["ours", "raw"]
        for side in ("read", "write"):
            share = found["conversation_bytes"] / of["file_bytes"]
            ratio = of[f"conversation_{side}_ratio"]
            assert ratio == pytest.approx(of[f"{side}_ratio"] * share)
    raw, planes = found["codecs"].values()
    assert planes["file_bytes"] < found["conversation_bytes"] < raw["file_bytes"]
    assert all(found[name] == raw[name] for name in RATES)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("in_this_process")
def test_the_gate_holds_and_tells_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    assert gate(tmp_path / "both", WITNESS, steps.append) == ""
    assert sum(steps) == STEPS
    monkeypatch.setattr(gate_module, "MODES", ("raw",))
    assert gate(tmp_path / "real", CASE) == ""


@pytest.mark.usefixtures("no_gate")
@pytest.mark.parametrize("codec", ("raw", "planes"))
def test_a_person_gets_tables(run: Run, tmp_path: Path, codec: str) -> None:
    code, out, _ = run("check", "spill", "--dir", tmp_path, *SMALL, "--codec", codec)
    assert code == 0 and out.startswith("gate  ok") and f"as {codec}, of" in out
    words = ("median", "ratio", "sums", "pack", "checksum", "fsync", "manifest", "raw write")
    for word in (*words, "of the conversation's own bytes: save"):
        assert word in out
    assert out.count("raw; restore") == 1, "the other codec was not asked for"


# canaries: one fault each, and the gate is red


@pytest.mark.usefixtures("in_this_process")
def test_canary_a_reader_that_does_not_look_at_sums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Blind(tuple[Sums, ...]):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = tuple.__hash__

    monkeypatch.setattr(reader_module, "tuple", Blind, raising=False)
    assert "raw: a block of other rows: nobody noticed" in gate(tmp_path / "gate", WITNESS)


@pytest.mark.usefixtures("in_this_process")
def test_canary_a_row_off(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Reader.read

    def off(self: Reader, entry: Any, copies: Any, base: int, line: int, *rest: Any) -> Any:
        done = read(self, entry, copies, base, line, *rest)
        for view in rest[1].cache_state().views:
            view.rows(line - 1, line).copy_(view.rows(line - 2, line - 1).clone())
        return done

    monkeypatch.setattr(Reader, "read", off)
    code, out, _ = run("check", "spill", "--dir", tmp_path, *SMALL, "--model", "witness", "--json")
    found = json.loads(out)
    assert code == 1 and found["gate"].startswith("raw: after an eviction: ")
    assert found["read_ratio"] is None and found["codecs"] == {}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("in_this_process")
def test_canary_one_bit_of_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = Reader._copied

    def off(self: Reader, copy: Copy, *rest: Any) -> str:
        why = copied(self, copy, *rest)
        tensors: Tensors = rest[-1].copies[copy]
        if copy.kind == "end":
            tensors[0].view(-1).view(torch.uint8)[0] ^= 1
        return why

    monkeypatch.setattr(Reader, "_copied", off)
    assert gate(tmp_path / "gate", WITNESS).startswith("raw: after an eviction: ")


@pytest.mark.usefixtures("in_this_process")
def test_canary_a_save_that_writes_all_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Saver, "_kept", lambda *_: None)
    assert "raw: a second save: 0 blocks kept" in gate(tmp_path / "gate", WITNESS)


@pytest.mark.usefixtures("in_this_process")
def test_canary_sums_that_see_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (saver_module, reader_module):
        monkeypatch.setattr(module, "sums_of", lambda rows: [(0, 0)] * len(rows))
    assert "raw: a block of other rows: nobody noticed" in gate(tmp_path / "gate", WITNESS)


def test_canary_a_process_that_breaks_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    found = gate(tmp_path / "gate", WITNESS)
    assert found == "raw: in a new process: the process ended with 1: it said nothing"


@pytest.mark.usefixtures("no_gate")
def test_canary_what_the_bench_restores_is_changed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_at = Bench._look

    def other(self: Bench, spilled: Any) -> None:
        next(iter(spilled.copies.values()))[-1].view(-1)[0] += 1
        look_at(self, spilled)

    monkeypatch.setattr(Bench, "_look", other)
    code, out, _ = run("check", "spill", "--dir", tmp_path, *SMALL, "--json")
    why = "copies that came back are not those that were saved"
    assert code == 1 and json.loads(out)["gate"] == why
    assert list(tmp_path.iterdir()) == []


# bad input


@pytest.mark.parametrize(
    ("arguments", "line"),
    (
        (("--codec", "zip"), "--codec: 'zip' is none of raw, planes, both"),
        (("--gib", "0"), "--gib: 0.0 is no amount to write"),
        (("--gib", "1e12"), "bytes are needed"),
        (("--rounds", "0"), "--rounds: 0 is not within 1 and"),
        (("--model", "moon"), "'moon' is none of witness, random"),
        (("--profile", "moon"), "unknown profile 'moon'"),
        (("--set", "grid=none"), "grid='none' is not a number"),
    ),
)
def test_a_bad_option_is_one_line(
    run: Run, tmp_path: Path, arguments: tuple[str, ...], line: str
) -> None:
    code, out, err = run("check", "spill", "--dir", tmp_path, *SMALL, *arguments)
    assert (code, out) == (2, "") and line in err and len(err.splitlines()) == 1, err
    assert list(tmp_path.iterdir()) == []


def test_a_bad_place_is_one_line(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, err = run("check", "spill", "--dir", tmp_path / "none", *SMALL)
    assert (code, out) == (2, "") and "No such file or directory" in err
    monkeypatch.setattr(place_module, "free_memory_bytes", lambda: 9)
    code, out, err = run("check", "spill", "--dir", tmp_path, *SMALL)
    assert (code, out) == (2, "") and "bytes of memory are needed, 9 are free" in err
    assert len(err.splitlines()) == 1 and list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_gate")
def test_a_drive_that_fails_on_the_way_is_one_line(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: OsFiles, handle: int, nbytes: int) -> None:
        if nbytes > 100_000:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(OsFiles, "preallocate", failing)
    code, out, err = run("check", "spill", "--dir", tmp_path, *SMALL)
    assert (code, out) == (2, "") and "--dir: nothing was saved: ENOSPC" in err
    assert len(err.splitlines()) == 1 and list(tmp_path.iterdir()) == []
