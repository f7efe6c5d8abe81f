"""The experiments that replay traces, and the command line around all of them.

Covers experiments.command, experiments.end_resumes and experiments.three_users.

Method: small made nights on a small board; figures that must add up, loads that must differ, and
reasons counted by hand; main() in this process for tables, JSON, files and exits.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from nights import Builder, small_night

from experiments import end_resumes, three_users
from experiments.command import number
from experiments.traffic import GateFailed, refuse_failures
from replay.driver import Options, Replay
from replay.ledger import to_frame
from replay.tracefile import trace_lines, write_trace
from sim.profile import load

BOARD = replace(
    load("spark-27b"),
    grid=64,
    window=4_096,
    resident_bytes=9 * 153_944_064,
    park_bytes=2**30,
    pin_bytes=0,
    guest_tokens=64,
)
SMALL = (
    *("--set", "grid=64", "--set", "window=4096"),
    *("--set", "park_bytes=1073741824", "--set", "pin_bytes=0"),
)

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def nights(tmp_path: Path) -> Path:
    """A folder of three small nights."""
    folder = tmp_path / "nights"
    folder.mkdir()
    for seed in range(3):
        write_trace(small_night(seed, 25, f"n{seed}"), folder / f"{seed}.jsonl.zst")
    return folder


# three-users


def test_three_users_re_read_more_than_one_and_the_causes_add_up(nights: Path) -> None:
    figures = {f.key: f.ours for f in three_users.run(BOARD, [str(nights)])}
    for load_ in ("one", "three"):
        causes = [v for k, v in figures.items() if k.startswith(f"{load_}.reread_")]
        # The first is the ratio, the second the sum of the rest.
        assert figures[f"{load_}.reread_tokens"] == sum(causes[2:]) > 0
    assert figures["one.reread_replaced_tokens"] < figures["three.reread_replaced_tokens"]
    # The same requests, but an answer's last token is in the rows or not, as its block fell.
    assert figures["one.new_tokens"] == pytest.approx(figures["three.new_tokens"], rel=0.01)


def test_fewer_traces_than_users_are_replayed_again(nights: Path) -> None:
    figures = three_users.run(BOARD, [str(nights / "0.jsonl.zst")])
    assert figures[0].note == "3 traces, 1 at once"


# end-resumes


def test_reasons_are_counted_as_they_were_made() -> None:
    build = Builder()
    first = build.fresh(400, 100)
    second = build.extend(first, 20, 100)
    third = build.drop(second, 525, 530, 20, 100)  # inside the second answer
    build.extend(third, 20, 40)
    guest = build.fresh(40, 8, "b")
    build.extend(guest, 500, 8, "b")
    ledger = end_resumes.ledger_of(BOARD, [build.trace()])
    figures = {f.key: f.ours for f in end_resumes.counted("x", ledger)}
    assert (figures["x.followups"], figures["x.at_the_end"], figures["x.share"]) == (4, 3, 75.0)
    assert figures["x.share.tests"] == figures["x.share_of_held"] == 75.0
    reasons = {k: v for k, v in figures.items() if k.startswith("x.why")}
    assert reasons == {"x.why.parted_in_answer": 1}


def test_canary_without_the_end_anchor_nobody_resumes_at_it() -> None:
    build = Builder()
    first = build.fresh(400, 100)
    build.extend(first, 20, 100)
    off = end_resumes.ledger_of(replace(BOARD, end_anchor=False), [build.trace()])
    figures = {f.key: f.ours for f in end_resumes.counted("x", off)}
    assert figures["x.share"] == 0.0 and figures["x.why.no_end_anchor_off"] == 1


def test_shares_of_a_night_add_up(nights: Path) -> None:
    figures = end_resumes.run(BOARD, [str(nights)])
    for name in end_resumes.boards(BOARD):
        mine = {f.key.removeprefix(f"{name}."): f.ours for f in figures if f.key.startswith(name)}
        others = sum(count for key, count in mine.items() if key.startswith("why."))
        assert mine["followups"] - mine["at_the_end"] == others > 0
        assert mine["share"] == pytest.approx(100 * mine["at_the_end"] / mine["followups"])
        lost = sum(mine.get(f"why.{reason}", 0) for reason in end_resumes.LOST)
        held = mine["followups"] - lost
        assert lost > 0 and mine["share_of_held"] == pytest.approx(100 * mine["at_the_end"] / held)


def test_canary_a_failed_or_missing_check_is_refused() -> None:
    ledger = to_frame(Replay([small_night(0, 10)], Options(BOARD)))
    refuse_failures(ledger)
    ledger.loc[3, "failure"] = "rows differ"
    with pytest.raises(GateFailed, match="small, request 3: rows differ"):
        refuse_failures(ledger)
    unchecked = to_frame(Replay([small_night(0, 10)], Options(BOARD, verify=0.0)))
    with pytest.raises(GateFailed, match="not checked"):
        refuse_failures(unchecked)


# the command line


def test_the_list_names_every_experiment(run: Run) -> None:
    code, out, _ = run("experiment", "list")
    assert code == 0 and "think-33k" in out and "three-users" in out
    code, out, _ = run("experiment", "list", "--json")
    assert code == 0 and set(json.loads(out)) >= {"a-b-a", "end-resumes"}


def test_a_table_shows_the_measured_figure_beside_ours(run: Run) -> None:
    code, out, _ = run("experiment", "a-b-a")
    assert code == 0
    (line,) = [line for line in out.splitlines() if "seed_policy.cached_tokens" in line]
    assert line.count("41,984") == 2


def test_json_is_one_object_and_out_has_the_same(run: Run, tmp_path: Path) -> None:
    out_dir = tmp_path / "a" / "b"
    code, out, _ = run("experiment", "owui-reasoning", "--json", "--out", out_dir)
    assert code == 0
    data = json.loads(out)
    assert data["name"] == "owui-reasoning"
    assert all(set(figure) == {"seed", "ours", "unit"} for figure in data["figures"].values())
    assert data["figures"]["grid_lines.cached_share_min"]["seed"] == 0.71
    assert data["figures"]["off.reread_tokens"]["seed"] is None
    assert json.loads((out_dir / "figures.json").read_text()) == data
    assert (out_dir / "owui-reasoning.png").read_bytes()[:4] == b"\x89PNG"
    page = (out_dir / "index.html").read_text()
    assert page.count("<svg") == 1 and "0.71" in page


def test_traces_and_settings_reach_the_experiment(run: Run, nights: Path, tmp_path: Path) -> None:
    arguments = ("end-resumes", "--traces", nights / "1.jsonl.zst", *SMALL, "--json")
    code, out, _ = run("experiment", *arguments, "--out", tmp_path / "out")
    figures = json.loads(out)["figures"]
    assert code == 0 and next(iter(figures.values()))["ours"] < 30
    assert not list((tmp_path / "out").glob("*.png")) and (tmp_path / "out/index.html").exists()


def test_bad_lines_are_passed_over_when_asked(run: Run, tmp_path: Path) -> None:
    lines = list(trace_lines(small_night(1, 12)))
    broken = tmp_path / "broken.jsonl"
    broken.write_text("\n".join([*lines, "{}"]) + "\n")
    asked = ("experiment", "end-resumes", "--traces", broken, *SMALL)
    code, _, err = run(*asked)
    assert code == 2 and f"{broken}:{len(lines) + 1}:" in err
    assert run(*asked, "--skip-bad")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nope",), "experiment: 'nope' is none of list, title-guest"),
        (("a-b-a", "--traces", "night"), "--traces: experiment a-b-a makes its own requests"),
        (("a-b-a", "--set", "grid"), "--set: 'grid' is not KEY=VALUE"),
        (("a-b-a", "--set", "grids=1"), "unknown setting 'grids'"),
        (("a-b-a", "--profile", "x"), "unknown profile 'x'"),
        (("a-b-a", "--set", "window=50000"), "does not fit the window of 50,000"),
        (("guest-sizes", "--set", "stash_bytes=0"), "is no guest on this board"),
        (("end-resumes", "--traces", "/no/such"), "/no/such"),
        (("a-b-a", "--out", "/proc/no"), "/proc/no: cannot write there"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(run: Run, arguments: tuple[str, ...], said: str) -> None:
    code, out, err = run("experiment", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("moorage: ") and said in err and err.count("\n") == 1


def test_a_failed_gate_is_exit_1(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> pd.DataFrame:
        raise GateFailed("request 1: a row differs")

    monkeypatch.setattr("experiments.a_b_a.run", fails)
    code, out, err = run("experiment", "a-b-a", "--json")
    assert (code, out) == (1, "")
    assert err == "moorage: gate failed: request 1: a row differs\n"


def test_numbers_as_a_person_reads_them() -> None:
    assert [number(v) for v in (None, 0, 41_984, 16.4, 1e9)] == [
        *("-", "0", "41,984", "16.40", "1,000,000,000")
    ]
