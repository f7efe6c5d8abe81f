"""`moorage fingerprint`: what computes rows here, and what two fingerprints have apart.

Goal: the printed fingerprint is the one that the disk tier uses; every input that differs between
two folders is named, and none that does not; bad input is one line and exit 2.
Method: the command line over real folders, as a tier's start leaves them. The canary compares a
record whose inputs were changed by hand. Covers replay.fingerprints.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from cache.adopt import INPUTS, accepted
from cache.fingerprint import digest
from cache.format import read_record, write_record
from cache.host import OsFiles
from engine.identity import identity_of
from replay.commands import board_of
from replay.models import build

Run = Callable[..., tuple[int, str, str]]
HERE = {"file engine/rows.py": "1" * 64, "knob eps": "1e-6", "threads": "2"}


def started(folder: Path, inputs: Mapping[str, str]) -> Path:
    """A folder in which a tier was opened with these inputs."""
    accepted(OsFiles(folder), inputs, {})
    return folder


def test_it_prints_the_fingerprint_that_the_tier_uses(run: Run) -> None:
    engine = build("witness", board_of("spark-27b", ["grid=512"]), 0)
    code, out, _ = run("fingerprint", "--json", "--set", "grid=512")
    found = json.loads(out)
    assert code == 0 and found["fingerprint"] == identity_of(engine).fingerprint
    assert found["inputs"]["grid"] == "512" and found["formula"] == "2"
    assert digest(found["inputs"]) == found["fingerprint"]
    assert len(found["older"]["1"]) == 1
    code, out, _ = run("fingerprint", "--set", "grid=512")
    assert code == 0 and found["fingerprint"] in out and "engine/witness.py" in out


def test_the_random_model_is_made_of_more(run: Run) -> None:
    code, out, _ = run("fingerprint", "--model", "random", "--json", "--seed", "5")
    found = json.loads(out)["inputs"]
    assert code == 0 and found["weights"] == "random seed=5" and found["threads"] == "1"
    assert {"library torch", "library numpy", "instruction set", "knob rope_theta"} <= set(found)


def test_a_folder_it_came_from_is_tried(run: Run, tmp_path: Path) -> None:
    _, out, _ = run("fingerprint", "--json", "--adopt-from", tmp_path)
    assert len(set(json.loads(out)["older"]["1"])) == 2


def test_two_folders_are_held_against_each_other(run: Run, tmp_path: Path) -> None:
    a = started(tmp_path / "a", HERE)
    b = started(tmp_path / "b", HERE | {"threads": "1", "library torch": "2.13.0"})
    code, out, _ = run("fingerprint", a, b, "--json")
    found = json.loads(out)
    assert code == 0 and found["a"]["fingerprint"] == digest(HERE)
    assert found["apart"] == [
        {"name": "library torch", "a": None, "b": "2.13.0"},
        {"name": "threads", "a": "2", "b": "1"},
    ]
    code, out, _ = run("fingerprint", a, b)
    assert code == 0 and "threads" in out and "eps" not in out
    code, out, _ = run("fingerprint", a, a)
    assert code == 0 and "the same" in out


def test_the_last_start_of_a_folder_counts_and_a_record_may_be_named(
    run: Run, tmp_path: Path
) -> None:
    folder = started(tmp_path / "a", HERE)
    later = HERE | {"knob eps": "1e-5"}
    started(folder, later)
    record = folder / f"{INPUTS}-{digest(HERE)[:12]}"
    code, out, _ = run("fingerprint", record, folder, "--json")
    assert code == 0
    assert json.loads(out)["apart"] == [{"name": "knob eps", "a": "1e-6", "b": "1e-5"}]


def test_one_folder_is_held_against_this_tree(run: Run, tmp_path: Path) -> None:
    engine = build("witness", board_of("spark-27b", []), 0)
    files = OsFiles(tmp_path / "a")
    identity_of(engine).accepts(files)
    code, out, _ = run("fingerprint", tmp_path / "a", "--json")
    assert code == 0 and json.loads(out)["apart"] == []
    code, out, _ = run("fingerprint", tmp_path / "a", "--json", "--set", "grid=512")
    assert [row["name"] for row in json.loads(out)["apart"]] == ["grid"]


def nowhere(folder: Path) -> str:
    return str(folder / "nowhere")


def empty(folder: Path) -> str:
    return str(folder)


def text(folder: Path) -> str:
    (folder / "x").write_text("notes\n")
    return str(folder / "x")


def fifo(folder: Path) -> str:
    os.mkfifo(folder / "pipe")
    return str(folder / "pipe")


def torn(folder: Path) -> str:
    record = started(folder, HERE) / f"{INPUTS}-{digest(HERE)[:12]}"
    record.write_bytes(record.read_bytes()[:90])
    return str(record)


def canary_changed(folder: Path) -> str:
    """A sound file, whose inputs are not its fingerprint's."""
    files, name = OsFiles(started(folder, HERE)), f"{INPUTS}-{digest(HERE)[:12]}"
    found = read_record(files, name, INPUTS)
    assert isinstance(found, dict)
    write_record(files, name, INPUTS, found | {"inputs": HERE | {"threads": "1"}})
    return str(folder / name)


@pytest.mark.parametrize("bad", [nowhere, empty, text, fifo, torn, canary_changed])
def test_bad_input_is_one_line(run: Run, tmp_path: Path, bad: Callable[[Path], str]) -> None:
    place = bad(tmp_path)
    for arguments in ((place,), (place, place)):
        code, out, err = run("fingerprint", *arguments)
        assert (code, out) == (2, "")
        assert err.startswith(f"moorage: {place}: ") and err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("a", "b", "c"),
        ("--model", "none"),
        ("--profile", "none"),
        ("--set", "grid=x"),
    ],
)
def test_bad_settings_are_one_line(run: Run, arguments: tuple[str, ...]) -> None:
    code, out, err = run("fingerprint", *arguments)
    assert (code, out) == (2, "") and err.startswith("moorage: ") and err.count("\n") == 1
