"""The command line as a user meets it: figures, files, exit codes, one line for bad input.

Covers replay.commands and replay.trace_commands through it.

Method: main() in this process on small files; every kind of bad input must give exit 2, one line on
standard error that names file and line, and no traceback.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from nights import small_night
from photos import data_url, photo

from replay import commands
from replay.tracefile import trace_lines, write_trace

SMALL = ("--set", "grid=64", "--set", "window=4096", "--set", "resident_bytes=1400000000")


@pytest.fixture
def night(tmp_path: Path) -> Path:
    path = tmp_path / "small.jsonl.zst"
    write_trace(small_night(1, 30), path)
    return path


Run = Callable[..., tuple[int, str, str]]


def test_replay_prints_a_table_and_writes_the_report(run: Run, night: Path, tmp_path: Path) -> None:
    code, out, _ = run("replay", night, *SMALL, "--out", tmp_path / "out")
    assert code == 0
    assert "re-read" in out and "0 failed" in out
    frame = pd.read_parquet(tmp_path / "out" / "ledger.parquet")
    journal = (tmp_path / "out" / "journal.jsonl").read_text().splitlines()
    assert len(frame) == len(small_night(1, 30).requests)
    turns = [line for line in map(json.loads, journal) if "event" not in line]
    assert len(turns) == (~frame["over_window"]).sum()
    assert json.loads(journal[0])["why"] == "new"
    assert "<svg" in (tmp_path / "out" / "report.html").read_text()


def test_a_second_run_into_the_same_folder_replaces_the_report(
    run: Run, night: Path, tmp_path: Path
) -> None:
    for _ in range(2):
        run("replay", night, *SMALL, "--out", tmp_path / "out")
    frame = pd.read_parquet(tmp_path / "out" / "ledger.parquet")
    journal = (tmp_path / "out" / "journal.jsonl").read_text().splitlines()
    turns = [line for line in map(json.loads, journal) if "event" not in line]
    assert len(turns) == (~frame["over_window"]).sum()


def test_replay_json_is_one_object_on_standard_output(run: Run, night: Path) -> None:
    code, out, _ = run("replay", night, *SMALL, "--json")
    summary = json.loads(out)
    assert code == 0
    assert summary["requests"] == len(small_night(1, 30).requests)
    assert summary["verified"]["failed"] == 0 < summary["verified"]["checked"]


def test_the_same_trace_plain_gzip_and_in_a_folder(run: Run, night: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    write_trace(small_night(1, 30), folder / "a.jsonl.gz")
    plain = tmp_path / "a.jsonl"
    write_trace(small_night(1, 30), plain)
    totals = {
        json.loads(run("replay", path, *SMALL, "--json")[1])["cached_tokens"]
        for path in (night, folder, plain)
    }
    assert len(totals) == 1


DISK = (*SMALL, "--set", "disk_tokens_min=200", "--set", "spill=off")


def test_a_restart_reads_heads_back_from_the_drive(run: Run, night: Path, tmp_path: Path) -> None:
    out_dir = tmp_path / "out"
    code, out, _ = run(
        "replay", night, *DISK, "--kill", 10, "--restart", "50%", "--json", "--out", out_dir
    )
    summary = json.loads(out)
    assert code == 0 and summary["restarts"] == 2 and summary["verified"]["failed"] == 0
    assert summary["by_source"]["disk.grid"] > 0 and summary["restore_s"] > 0
    disk = summary["disk"]
    assert summary["written_bytes"] == {"tier": disk["written_bytes"], "spill": 0}
    assert summary["read_bytes"] == disk["read_bytes"] > 0 and disk["hits"] > 0
    assert 0 < disk["held_bytes"] <= disk["budget_bytes"]
    events = map(json.loads, (out_dir / "journal.jsonl").read_text().splitlines())
    told = [event["event"] for event in events if event.get("tier") == "disk"]
    assert told.count("hit") == disk["hits"] and told.count("write") == disk["anchors_written"]
    page = (out_dir / "report.html").read_text()
    assert "What lies on" in page and "read back from the drive" in page
    text = run("replay", night, *DISK, "--restart", 10)[1]
    assert "restored" in text and "on the drive" in text and "restarts" in text


def test_without_the_drive_nothing_is_said_of_it(run: Run, night: Path, tmp_path: Path) -> None:
    off = (*DISK, "--set", "disk=off")
    code, out, _ = run("replay", night, *off, "--json", "--out", tmp_path / "out")
    summary = json.loads(out)
    assert code == 0 and summary["disk"] is None
    assert summary["written_bytes"]["tier"] == summary["read_bytes"] == 0
    assert "anchors written" not in run("replay", night, *off)[1]
    assert "the drive" not in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--restart", "0"), "--restart: '0' leaves no request before or after it"),
        (("--restart", "half"), "--restart: 'half' is neither a number of requests nor a share"),
        (("--kill", "half"), "--kill: 'half' is neither a number of requests nor a share"),
        (("--restart", "5", "--restart", "100%"), "--restart: '100%' leaves no request"),
        (("--cache-dir", "{}/file"), "file: not a directory"),
        (("--cache-dir", "{}/file/tier"), "file/tier: cannot be used: Not a directory"),
        (("--cache-dir", "{}/full"), "full: holds mine.txt, which is no disk tier's"),
        (("--cache-dir", "{}/new", "--set", "disk=off"), "--cache-dir: is for the drive"),
        (("--adopt-from", "{}"), "--adopt-from: needs --cache-dir"),
        (("--set", "disk_bytes=-1"), "--set: disk_bytes must not be negative"),
        (("--set", "drive_read_bytes_s=0"), "--set: drive_read_bytes_s must be positive"),
    ],
)
def test_bad_flags_of_the_drive_are_one_line(
    run: Run, night: Path, tmp_path: Path, flags: tuple[str, ...], said: str
) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    code, out, err = run("replay", night, *DISK, *(flag.format(tmp_path) for flag in flags))
    assert code == 2 and not out and said in one_line(err)
    assert sorted(tmp_path.rglob("*")) == before


def test_several_users(run: Run, night: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    write_trace(small_night(2, 20), other)
    code, out, _ = run(
        "replay", night, other, *SMALL, "--users", 2, "--arrivals", "closed", "--json"
    )
    assert code == 0
    assert json.loads(out)["verified"]["failed"] == 0


def test_a_failed_gate_is_exit_1_and_named(
    run: Run, night: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cache import resident

    # Nothing is put back: the next prefill goes on from whatever state the engine is in.
    monkeypatch.setattr(resident, "write_sections", lambda state, tensors: None)
    code, out, _ = run("replay", night, *SMALL)
    assert code == 1
    assert " gate: row " in out


def test_doctor_and_show(run: Run, night: Path) -> None:
    code, out, _ = run("doctor", night, *SMALL, "--json")
    assert code == 0
    found = json.loads(out)
    assert found["partings"] and found["causes"]
    code, out, _ = run("doctor", night, *SMALL)
    assert code == 0 and "would mend" in out
    code, out, _ = run("trace", "show", night, "--json")
    assert json.loads(out)["requests"] == len(small_night(1, 30).requests)
    code, out, _ = run("trace", "show", night)
    assert code == 0 and "ideal reuse" in out


def test_profile(run: Run) -> None:
    code, out, _ = run("profile", "spark-27b", "--prefill", 0, 131_072, "--json")
    assert code == 0 and json.loads(out)["prefill_s"] == pytest.approx(208.3)
    code, out, _ = run("profile", "spark-27b", "--json")
    assert json.loads(out)["anchor_bytes"] == 153_944_064
    assert "17 anchors" in run("profile")[1]
    assert "up to 16 GB" in run("profile")[1] and "5.19 written, 7.35 read" in run("profile")[1]
    assert "up to 16 GB" not in run("profile", "--set", "disk=off")[1]
    assert run("profile", "--prefill", 0, 32_768)[1] == "44.4 s\n"


@pytest.mark.parametrize("format_", ["mooncake", "bailian"])
def test_export_and_import_again(run: Run, night: Path, tmp_path: Path, format_: str) -> None:
    exported, back = tmp_path / "x.jsonl", tmp_path / "back.jsonl.zst"
    assert run("export", format_, night, "--out", exported)[0] == 0
    assert run("import", format_, exported, "--out", back)[0] == 0
    code, out, _ = run("trace", "show", back, "--json")
    before = json.loads(run("trace", "show", night, "--json")[1])
    assert code == 0
    assert json.loads(out)["prompt_tokens"] == before["prompt_tokens"]


def one_line(err: str) -> str:
    lines = err.strip().splitlines()
    assert len(lines) == 1, err
    assert "Traceback" not in err
    return lines[0]


def broken(night: Path, change: Callable[[list[str]], list[str]]) -> Path:
    path = night.parent / "broken.jsonl"
    lines = list(trace_lines(small_night(1, 30)))
    path.write_text("\n".join(change(lines)))
    return path


BROKEN: dict[str, tuple[Callable[[list[str]], list[str]], str]] = {
    "unknown version": (lambda x: [x[0].replace('"version":1', '"version":9'), *x[1:]], ":1: "),
    "truncated line": (lambda x: [*x[:5], x[5][:40]], ":6: "),
    "not json": (lambda x: [*x[:3], "hello", *x[4:]], ":4: "),
    "run past its source": (
        lambda x: [*x[:2], x[2].replace('"prompt":[[', '"prompt":[[0,90000,5],['), *x[3:]],
        ":3: ",
    ),
    "negative length": (
        lambda x: [*x[:2], x[2].replace('"prompt":[[', '"prompt":[[-1,0,-5],['), *x[3:]],
        ":3: ",
    ),
    "empty file": (lambda x: [], ""),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_bad_trace_is_one_line_with_its_number(run: Run, night: Path, name: str) -> None:
    change, where = BROKEN[name]
    path = broken(night, change)
    code, out, err = run("replay", path, *SMALL, "--json")
    assert (code, out) == (2, "")
    assert f"{path}{where}" in one_line(err)


def test_skip_bad_counts_and_goes_on(run: Run, night: Path) -> None:
    path = broken(night, BROKEN["not json"][0])
    code, out, err = run("replay", path, *SMALL, "--json", "--skip-bad")
    summary = json.loads(out)
    assert code == 0
    assert summary["skipped_lines"] >= 1
    assert summary["requests"] + summary["skipped_lines"] == len(small_night(1, 30).requests)
    assert f"{path}:4: " in err


def raw_line(messages: list[object]) -> str:
    """A line as our recorder writes one."""
    body = {"model": "m", "messages": messages, "stream": True}
    reply = {
        "status": 200,
        "parts": [["reasoning", "Hm."], ["content", "Hello."]],
        "finish_reason": "stop",
        "usage": None,
        "aborted": False,
        "frames": 3,
    }
    times = {"t": 1_000.0, "t_end": 1_001.0}
    where = {"method": "POST", "path": "/v1/chat/completions", "headers": []}
    line = {"format": "moorage.raw", "version": 1, **times, **where, "body": body, "reply": reply}
    return json.dumps(line)


GOOD = {"role": "user", "content": "Good evening."}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


@pytest.mark.parametrize(
    "bad", [{"role": "user", "content": [IMAGE]}, {"role": "wizard", "content": "x"}]
)
@pytest.mark.parametrize("command", ["replay", "scrub"])
def test_a_recording_with_what_nobody_knows_is_one_line(
    run: Run, tmp_path: Path, bad: dict[str, object], command: str
) -> None:
    path, out = tmp_path / "raw.jsonl", tmp_path / "out.jsonl"
    path.write_text("\n".join([raw_line([GOOD]), raw_line([GOOD, bad])]))
    more = ("--out", out) if command == "scrub" else ()
    code, printed, err = run(command, path, *more)
    assert (code, printed) == (2, "")
    assert f"{path}:2: " in one_line(err) and not out.exists()
    code, printed, err = run(command, path, *more, "--skip-bad")
    assert code == 0 and f"{path}:2: " in err + printed


def test_a_raw_recording_replays_and_its_scrub_holds_no_text(run: Run, tmp_path: Path) -> None:
    path, out = tmp_path / "raw.jsonl", tmp_path / "out.jsonl"
    path.write_text(raw_line([GOOD]))
    summary = json.loads(run("replay", path, "--json")[1])
    assert (summary["requests"], summary["verified"]["failed"]) == (1, 0)
    assert run("scrub", path, "--out", out, "--licence", "Apache-2.0")[0] == 0
    assert "evening" not in out.read_text() and "Hello" not in out.read_text()
    again = json.loads(run("replay", out, "--json")[1])
    assert again["prompt_tokens"] == summary["prompt_tokens"]


def test_images_of_a_recording_are_read_counted_and_scrubbed(run: Run, tmp_path: Path) -> None:
    part = {"type": "image_url", "image_url": {"url": data_url(photo(1))}}
    shown = {"role": "user", "content": [{"type": "text", "text": "What is it?"}, part]}
    path, out = tmp_path / "raw.jsonl", tmp_path / "out.jsonl"
    path.write_text("\n".join([raw_line([GOOD]), raw_line([shown])]))
    summary = json.loads(run("replay", path, "--json")[1])
    assert (summary["requests"], summary["verified"]["failed"]) == (2, 0)
    assert run("scrub", path, "--out", out)[0] == 0
    assert "base64" not in out.read_text()
    again = json.loads(run("replay", out, "--json")[1])
    assert again["prompt_tokens"] == summary["prompt_tokens"]
    code, printed, _ = run("trace", "show", out)
    assert code == 0 and "1 sent, " in printed
    assert json.loads(run("trace", "show", path, "--json")[1])["image_tokens"] == 64
    four = {"role": "user", "content": [part, part, part, part]}
    path.write_text(raw_line([four]))
    tokens = [
        json.loads(run("replay", path, "--json", "--set", f"images_max={most}")[1])["prompt_tokens"]
        for most in (4, 2)
    ]
    assert tokens[0] - tokens[1] > 2 * 64 - 30
    code, _, err = run("replay", path, "--set", "images_max=0")
    assert code == 2 and "images_max must be positive" in one_line(err)
    broken = out.read_text().replace('"images":[[', '"images":[[-', 1)
    out.write_text(broken)
    code, _, err = run("replay", out)
    assert code == 2 and f"{out}:3: a start in 'images'" in one_line(err)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--profile", "moon"), "unknown profile 'moon'"),
        (("--model", "gpt"), "none of witness, random"),
        (("--set", "window"), "not KEY=VALUE"),
        (("--set", "window=-1"), "window must be positive"),
        (("--set", "nothing=1"), "unknown setting"),
        (("--arrivals", "never"), "neither recorded nor closed"),
        (("--verify", "some"), "not all, none or a percentage"),
        (("--verify", "101"), "not all, none or a percentage"),
    ],
)
def test_a_bad_option_is_one_line(
    run: Run, night: Path, arguments: tuple[str, ...], line: str
) -> None:
    code, out, err = run("replay", night, *arguments)
    assert (code, out) == (2, "")
    assert line in one_line(err)


def test_a_missing_file_and_a_file_in_the_way_are_one_line(
    run: Run, night: Path, tmp_path: Path
) -> None:
    code, _, err = run("replay", tmp_path / "none.jsonl")
    assert code == 2 and "none.jsonl" in one_line(err)
    code, _, err = run("replay", night, *SMALL, "--out", night)
    assert code == 2 and str(night) in one_line(err)


def test_the_bundled_night_is_where_it_is_looked_for() -> None:
    assert commands.NIGHT.is_file()
    assert commands.NIGHT.stat().st_size < 2_000_000
