"""`moorage check disk`: the gate goes red for what is wrong, and nothing is left on the drive.

Goal: one object with every figure; exit 1 for a gate that failed and 2 for input that can't be
used; the folder is gone whatever ended the check. No rate is judged here.
Method: the command line on a small board and real files, once with a process of its own; elsewhere
the fresh process is another house in this one. The canaries plant one fault each, and the gate must
say where. Covers replay.check_disk, replay.disk_gate, replay.gate_case, replay.place and
replay.found.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cache.disk import reader as reader_module
from cache.disk.writer import DiskWriter
from cache.format import Header, Layout
from cache.host import OsFiles
from cache.types import CacheState
from replay import check_disk as check_module
from replay import check_spill
from replay import disk_gate as gate_module
from replay import place as place_module
from replay.disk_gate import STEPS, Seen, gate, house, wrong
from replay.drive_rates import Bench
from replay.gate_case import Case
from replay.place import free_memory_bytes, own_folder
from replay.rounds import RATES

Run = Callable[..., tuple[int, str, str]]
SMALL = (
    *("--set", "grid=64", "--set", "row_bytes=4100", "--set", "anchor_bytes=200000"),
    *("--gib", "0.0005", "--rounds", "2"),
)
CASE = Case("random", "spark-27b", (("grid", "64"),), 0)
WITNESS = replace(CASE, model="witness")


def beside(case: Case, folder: Path, number: int) -> Seen:
    """A fresh process, played in this one."""
    with house(case, folder) as one:
        return one.session(number)


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "fresh", beside)


@pytest.fixture
def no_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_module, "gate", lambda *_: "")


def test_gate_and_rates_as_one_object_and_nothing_is_left(run: Run, tmp_path: Path) -> None:
    code, out, err = run("check", "disk", "--dir", tmp_path, *SMALL, "--json")
    found = json.loads(out)
    assert (code, found["gate"], err) == (0, "ok", "")
    assert set(found) == {"gate", *RATES, "direct", "bytes", "rounds", "warm_up"}
    assert len(found["rounds"]) == len(found["warm_up"]) == 2
    assert all(found[name] > 0 for name in RATES) and isinstance(found["direct"], bool)
    first, second = found["rounds"]
    assert (first["first"], second["first"]) == ("raw", "ours")
    for name in ("read", "write"):
        ratio = first[f"{name}_bytes_s"] / first[f"raw_{name}_bytes_s"]
        assert first[f"{name}_ratio"] == pytest.approx(ratio)
        assert first[f"{name}_s"]["all"] == pytest.approx(found["bytes"] / first[f"{name}_bytes_s"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("case", (WITNESS, CASE), ids=("witness", "random"))
def test_the_gate_holds_and_tells_how_far_it_is(case: Case, tmp_path: Path) -> None:
    steps: list[int] = []
    assert gate(tmp_path / "gate", case, steps.append) == ""
    assert sum(steps) == STEPS


@pytest.mark.usefixtures("no_gate")
def test_a_person_gets_tables(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("check", "disk", "--dir", tmp_path, *SMALL, "--model", "witness")
    assert code == 0 and out.startswith("gate  ok")
    for word in ("median", "ratio", "checksum", "fsync", "raw write", "restore"):
        assert word in out


@pytest.mark.usefixtures("no_gate")
def test_where_direct_io_is_refused_it_is_said(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def refuse(path: str, flags: int, *rest: Any, **more: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return opened(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", refuse)
    _, out, _ = run("check", "disk", "--dir", tmp_path, *SMALL, "--json")
    assert json.loads(out)["direct"] is False
    _, out, _ = run("check", "disk", "--dir", tmp_path, *SMALL)
    assert "the file system refuses O_DIRECT" in out


# whatever ends it, the folder is gone


@pytest.mark.parametrize("how", (KeyboardInterrupt, SystemExit, RuntimeError))
def test_the_folder_is_gone_whatever_ends_the_check(tmp_path: Path, how: type) -> None:
    with pytest.raises(how), own_folder(tmp_path) as folder:
        assert folder.parent == tmp_path and folder.stat().st_mode & 0o777 == 0o700
        (folder / "some").write_text("bytes")
        raise how
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_gate")
def test_sigterm_in_the_middle_of_a_save_leaves_nothing(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefilled = DiskWriter.prefilled

    def killed(self: DiskWriter) -> None:
        prefilled(self)
        if self._open:
            assert list(tmp_path.iterdir()) != []
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(DiskWriter, "prefilled", killed)
    code, out, _ = run("check", "disk", "--dir", tmp_path, *SMALL, "--json")
    assert (code, out) == (128 + signal.SIGTERM, "")
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


# canaries: one fault each, and the gate is red


def test_canary_rows_short_of_one(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = reader_module.put_chunk

    def short(tensors: Any, state: CacheState, start: int, stop: int) -> None:
        put(tensors, state, start, stop)
        for view in state.views:
            view.rows(stop - 1, stop).zero_()

    monkeypatch.setattr(reader_module, "put_chunk", short)
    code, out, _ = run("check", "disk", "--dir", tmp_path, *SMALL, "--json")
    found = json.loads(out)
    assert code == 1 and found["gate"].startswith("in the same process: rows of K differ")
    assert found["read_ratio"] is None and found["rounds"] == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("case", (WITNESS, CASE), ids=("witness", "random"))
def test_canary_one_bit_of_a_state(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = reader_module._copies

    def off(tensors: Any, state: CacheState) -> Any:
        made = copies(tensors, state)
        assert made is not None
        made[0].view(-1)[0] += 1
        return made

    monkeypatch.setattr(reader_module, "_copies", off)
    assert gate(tmp_path / "gate", case).startswith("in the same process: ")


@pytest.mark.usefixtures("in_this_process")
def test_canary_checksums_are_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def careless(header: Header, image: memoryview, layout: Layout) -> str:
        return ""

    monkeypatch.setattr(reader_module, "unsealed", careless)
    assert "after a damaged file: nobody noticed" in gate(tmp_path / "gate", CASE)


def test_canary_a_process_that_computes_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = gate_module.fresh

    def other(case: Case, folder: Path, number: int) -> Seen:
        return fresh(replace(case, settings=(*case.settings, ("grid", "32"))), folder, number)

    monkeypatch.setattr(gate_module, "fresh", other)
    assert gate(tmp_path / "gate", WITNESS).startswith("in a fresh process: cold, 0 rows instead")


def test_canary_a_process_that_breaks_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    found = gate(tmp_path / "gate", WITNESS)
    assert "in a fresh process: the process ended with 1: it said nothing" in found


@pytest.mark.usefixtures("no_gate")
def test_canary_what_the_bench_restores_is_changed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    restore = Bench._restore

    def other(self: Bench, sums: list[int]) -> Any:
        return restore(self, [sums[0] ^ 1, *sums[1:]])

    monkeypatch.setattr(Bench, "_restore", other)
    code, out, _ = run("check", "disk", "--dir", tmp_path, *SMALL, "--json")
    assert code == 1 and json.loads(out)["gate"] == "what came back is not what was saved"


def test_a_source_or_a_line_that_is_not_the_wanted_one_is_wrong() -> None:
    good = Seen("disk.grid", 320, "")
    assert wrong("x", good, "disk.grid", 320) == "" == wrong("x", good, None, 320)
    assert wrong("x", good, "grid", 320) and wrong("x", good, "disk.grid", 256)
    assert "drop: ENOSPC" in wrong("x", Seen("cold", 0, "", ("drop: ENOSPC",)), "disk.grid", 320)
    assert wrong("x", Seen("disk.grid", 320, "logits differ"), "disk.grid", 320)


# bad input


@pytest.mark.parametrize(
    ("arguments", "line"),
    (
        (("--gib", "0"), "--gib: 0.0 is no amount to write"),
        (("--gib", "nan"), "--gib: nan is no amount"),
        (("--gib", "inf"), "--gib: inf is no amount"),
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
    code, out, err = run("check", "disk", "--dir", tmp_path, *SMALL, *arguments)
    assert (code, out) == (2, "") and line in err and len(err.splitlines()) == 1, err
    assert list(tmp_path.iterdir()) == []


BAD_PLACES: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str]] = {
    "unwritable": (
        lambda patch: patch.setattr(os, "access", lambda *_, **__: False),
        "cannot be written by this user",
    ),
    "another's": (
        lambda patch: patch.setattr(os, "geteuid", lambda: os.getuid() + 1),
        "belongs to another user",
    ),
    "full": (
        lambda patch: patch.setattr(OsFiles, "free_bytes", lambda self: 1_000),
        "bytes are needed, 1,000 are free",
    ),
    "no memory": (
        lambda patch: patch.setattr(place_module, "free_memory_bytes", lambda: 9),
        "bytes of memory are needed, 9 are free",
    ),
}


@pytest.mark.parametrize("name", BAD_PLACES)
def test_a_bad_place_is_one_line(
    run: Run, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant, line = BAD_PLACES[name]
    plant(monkeypatch)
    code, out, err = run("check", "disk", "--dir", tmp_path, *SMALL)
    assert (code, out) == (2, "") and line in err and len(err.splitlines()) == 1, err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("made", (False, True))
def test_what_is_no_directory_is_one_line(run: Run, tmp_path: Path, made: bool) -> None:
    place = tmp_path / "place"
    if made:
        place.touch()
    code, out, err = run("check", "disk", "--dir", place, *SMALL)
    why = "not a directory" if made else "No such file or directory"
    assert (code, out) == (2, "") and f"{place}: {why}" in err and len(err.splitlines()) == 1


@pytest.mark.parametrize("tier", ("disk", "spill"))
def test_other_processes_find_a_model_that_is_named_from_here(
    tier: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fresh processes run elsewhere: a folder's name must say where it is."""
    named: list[str] = []

    def gate(_folder: Path, case: Case, *_: object) -> str:
        named.append(case.model)
        return "seen"

    module = check_module if tier == "disk" else check_spill
    monkeypatch.setattr(module, "gate", gate)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    code, _, err = run("check", tier, "--dir", tmp_path, *SMALL, "--model", "model")
    assert code == 1, err
    assert set(named) == {str(tmp_path / "model")}


@pytest.mark.usefixtures("no_gate")
def test_a_drive_that_fails_on_the_way_is_one_line(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(OsFiles, "preallocate", failing)
    code, out, err = run("check", "disk", "--dir", tmp_path, *SMALL)
    assert (code, out) == (2, "") and "cannot be written: Input/output error" in err
    assert list(tmp_path.iterdir()) == []


def test_free_memory_is_what_the_machine_and_the_group_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place_module, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(place_module, "_CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(place_module, "_CGROUPS", tmp_path)
    assert free_memory_bytes() is None
    (tmp_path / "meminfo").write_text("MemTotal:   900 kB\nMemAvailable:   50 kB\n")
    assert free_memory_bytes() == 51_200
    (tmp_path / "cgroup").write_text("0::/box\n")
    (tmp_path / "box").mkdir()
    (tmp_path / "box" / "memory.max").write_text("max\n")
    (tmp_path / "box" / "memory.current").write_text("1000\n")
    assert free_memory_bytes() == 51_200
    (tmp_path / "box" / "memory.max").write_text("9000\n")
    assert free_memory_bytes() == 8_000
