"""A suffix store from the command line: kept by a replay, refused with one line, never a benchmark.

Method: main() in this process over small made nights; stores that hold the night, that hold other
tokens of the same token space, and that are damaged, foreign or another space's.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from nights import small_night
from rich.console import Console

from cache.suffix_format import HEADER_BYTES, head
from cache.suffix_log import NAME
from cache.suffix_store import SuffixConfig
from engine.bad import BadInput
from replay.commands import traces_of
from replay.suffixes import (
    Flags,
    asked,
    flags_of,
    open_store,
    refuse_seen,
    scratch_store,
    sources_of,
    tokenizer_of,
)
from replay.trace import Trace
from replay.tracefile import write_trace
from sim.profile import load

Run = Callable[..., tuple[int, str, str]]
SMALL = ("--set", "grid=64", "--set", "window=4096")
BOARD = replace(load("spark-27b"), grid=64, window=4_096)


@pytest.fixture
def night(tmp_path: Path) -> Path:
    path = tmp_path / "night.jsonl"
    write_trace(small_night(1, 20), path)
    return path


def trace_of(night: Path) -> Trace:
    return traces_of([str(night)], False, Console())[0][0]


def line(err: str) -> str:
    """The one line of a refusal."""
    lines = err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("moorage: ") and "Traceback" not in err
    return lines[0]


def test_a_replay_keeps_what_it_serves_and_says_so(run: Run, night: Path, tmp_path: Path) -> None:
    place = tmp_path / "store"
    code, out, _ = run("replay", night, *SMALL, "--json")
    plain = json.loads(out)
    assert code == 0 and "suffix" not in plain
    code, out, _ = run("replay", night, *SMALL, "--json", "--suffix-dir", place)
    with_store = json.loads(out)
    kept = with_store.pop("suffix")
    assert code == 0
    assert 0 < kept["added_tokens"] < kept["sent_tokens"] and kept["documents"] > 0
    assert kept["requests"] > 0 and kept["errors"] == 0 and kept["tokens"] == kept["added_tokens"]
    for timed in ("wall_s", "prompt_tokens_per_wall_s"):
        plain.pop(timed), with_store.pop(timed)
    assert with_store == plain, "the store changes nothing that is served"
    assert place.stat().st_mode & 0o777 == 0o700
    code, out, _ = run("replay", night, *SMALL, "--suffix-dir", place)
    assert code == 0 and "suffix store" in out and "were added" in out and "rebuilds" in out


def test_outputs_alone_are_less(run: Run, night: Path, tmp_path: Path) -> None:
    _, out, _ = run(
        *("replay", night, *SMALL, "--json", "--suffix-dir", tmp_path / "a"),
        *("--suffix-scope", "outputs"),
    )
    summary = json.loads(out)
    assert 0 < summary["suffix"]["added_tokens"] <= summary["output_tokens"]


def test_reading_only_writes_nothing(run: Run, night: Path, tmp_path: Path) -> None:
    place = tmp_path / "store"
    run("replay", night, *SMALL, "--json", "--suffix-dir", place)
    before = (place / NAME).read_bytes()
    arguments = ("replay", night, *SMALL, "--json", "--suffix-dir")
    code, out, _ = run(*arguments, place, "--suffix-readonly")
    kept = json.loads(out)["suffix"]
    assert code == 0 and kept["added_tokens"] == 0 and kept["tokens"] > 0
    assert (place / NAME).read_bytes() == before
    code, _, err = run(*arguments, tmp_path / "none", "--suffix-readonly")
    assert code == 2 and "no suffix store" in line(err) and not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--suffix-readonly",), "--suffix-dir: is missing"),
        (("--suffix-scope", "outputs"), "--suffix-dir: is missing"),
        (("--suffix-dir", "X", "--suffix-scope", "prompts"), "--suffix-scope: 'prompts'"),
        (("--suffix-dir", "X", "--suffix-mb", "0"), "--suffix-mb: 0"),
        (("--suffix-dir", "X", "--suffix-mb", "9999"), "--suffix-mb: 9999"),
    ],
)
def test_flags_that_make_no_sense(
    run: Run, night: Path, tmp_path: Path, flags: tuple[str, ...], said: str
) -> None:
    placed = [str(tmp_path / "x") if flag == "X" else flag for flag in flags]
    code, _, err = run("replay", night, *SMALL, "--json", *placed)
    assert code == 2 and said in line(err)


def test_another_token_space_is_refused(run: Run, night: Path, tmp_path: Path) -> None:
    place = tmp_path / "store"
    run("replay", night, *SMALL, "--json", "--suffix-dir", place)
    code, _, err = run("replay", night, *SMALL, "--seed", "1", "--json", "--suffix-dir", place)
    assert code == 2 and str(place / NAME) in line(err) and "tokenizer" in err


def test_token_spaces_differ_by_all_that_draws_them(night: Path) -> None:
    trace = trace_of(night)
    other = replace(trace, header=replace(trace.header, tokenizer="another"))
    wide = replace(BOARD, vocab=9_999)
    spaces = {
        tokenizer_of([trace], BOARD, 0),
        tokenizer_of([trace], BOARD, 1),
        tokenizer_of([trace], wide, 0),
        tokenizer_of([other], BOARD, 0),
    }
    assert len(spaces) == 4
    assert tokenizer_of([trace, trace], BOARD, 0) == tokenizer_of([trace], BOARD, 0)


def test_a_folder_of_other_things_and_a_foreign_file(run: Run, night: Path, tmp_path: Path) -> None:
    place = tmp_path / "mine"
    place.mkdir()
    (place / "letter.txt").write_text("x")
    code, _, err = run("replay", night, *SMALL, "--json", "--suffix-dir", place)
    assert code == 2 and "letter.txt" in line(err)
    (place / "letter.txt").rename(place / NAME)
    code, _, err = run("replay", night, *SMALL, "--json", "--suffix-dir", place)
    assert code == 2 and str(place / NAME) in line(err)
    code, _, err = run("replay", night, *SMALL, "--json", "--suffix-dir", night)
    assert code == 2 and str(night) in line(err)


def waited(*_: object) -> None:
    raise AssertionError("it waits for the pipe's other end")


@pytest.mark.parametrize("readonly", [False, True])
def test_a_pipe_is_refused_at_once(run: Run, night: Path, tmp_path: Path, readonly: bool) -> None:
    place = tmp_path / "store"
    place.mkdir()
    os.mkfifo(place / NAME)
    flags = ("--suffix-readonly",) if readonly else ()
    before = signal.signal(signal.SIGALRM, waited)
    signal.alarm(20)
    try:
        code, _, err = run("replay", night, *SMALL, "--json", "--suffix-dir", place, *flags)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert code == 2 and str(place / NAME) in line(err) and "not a regular file" in line(err)


def test_a_refused_directory_stays_as_it_was(run: Run, night: Path, tmp_path: Path) -> None:
    place = tmp_path / "mine"
    place.mkdir(mode=0o755)
    for data in (b"somebody's log", head(bytes(range(32)))):
        (place / NAME).write_bytes(data)
        code, _, err = run("replay", night, *SMALL, "--json", "--suffix-dir", place)
        assert code == 2 and str(place / NAME) in line(err)
        assert place.stat().st_mode & 0o777 == 0o755 and os.listdir(place) == [NAME]
        assert (place / NAME).read_bytes() == data


ENDED = """
import os, signal, sys
from cache.suffix_store import SuffixConfig
from replay.suffixes import scratch_store
with scratch_store(SuffixConfig(), bytes(range(32))):
    print(os.listdir(os.environ["TMPDIR"]), flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    print("still here")
"""


def test_sigterm_takes_the_scratch_store_away(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", ENDED],
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "moorage-suffix-" in ended.stdout and "still here" not in ended.stdout
    assert ended.returncode == 143 and ended.stderr == ""
    assert os.listdir(tmp_path) == []


def test_sigterm_is_as_before_after_a_scratch_store() -> None:
    with scratch_store(SuffixConfig(), bytes(range(32))):
        assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_damage_is_said_once_and_served_around(run: Run, night: Path, tmp_path: Path) -> None:
    place = tmp_path / "store"
    run("replay", night, *SMALL, "--json", "--suffix-dir", place)
    data = bytearray((place / NAME).read_bytes())
    data[HEADER_BYTES + 40] ^= 16
    (place / NAME).write_bytes(data)
    code, out, _ = run("replay", night, *SMALL, "--suffix-dir", place)
    assert code == 0 and "found damaged: 1 places" in out
    code, out, _ = run("replay", night, *SMALL, "--suffix-dir", place)
    assert code == 0 and "found damaged" not in out


# what a benchmark may read


def drafts(run: Run, night: Path, *more: object) -> tuple[int, str, str]:
    return run("experiment", "drafts", "--traces", night, *SMALL, "--json", *more)


def test_a_store_that_saw_the_benchmark_is_refused(run: Run, night: Path, tmp_path: Path) -> None:
    place = tmp_path / "store"
    run("replay", night, *SMALL, "--json", "--suffix-dir", place)
    before = (place / NAME).read_bytes()
    code, out, err = drafts(run, night, "--suffix-dir", place)
    said = line(err)
    assert code == 2 and out == "" and str(place / NAME) in said and "has seen this bench" in said
    assert (place / NAME).read_bytes() == before


def test_a_clean_store_is_accepted_and_read(run: Run, night: Path, tmp_path: Path) -> None:
    trace, place = trace_of(night), tmp_path / "store"
    store = open_store(Flags(place), tokenizer_of([trace], BOARD, 0), 0)
    store.add(np.random.default_rng(0).integers(0, 200_000, 5_000).astype(np.int32), [])
    store.close()
    code, out, _ = drafts(run, night, "--suffix-dir", place)
    figures = json.loads(out)["figures"]
    assert code == 0 and "given.accepted" in figures and "given_both.rounds" in figures
    code, out, _ = drafts(run, night)
    assert code == 0 and "given.accepted" not in json.loads(out)["figures"]


def test_one_question_of_the_benchmark_is_enough(night: Path, tmp_path: Path) -> None:
    """A store that holds another conversation and the tail of one of the benchmark's prompts."""
    trace, flags = trace_of(night), Flags(tmp_path / "store")
    store = open_store(flags, tokenizer_of([trace], BOARD, 0), 0)
    store.add(np.random.default_rng(0).integers(0, 200_000, 5_000).astype(np.int32), [])
    refuse_seen(store, flags, [trace], BOARD, 0)
    prompt, answer = list(asked([trace], sources_of([trace], BOARD, 0)))[7]
    store.add(np.concatenate([prompt, answer])[-140:], [])
    with pytest.raises(BadInput, match="has seen this benchmark"):
        refuse_seen(store, flags, [trace], BOARD, 0)
    store.close()


def test_an_experiment_that_reads_no_store_says_so(run: Run, tmp_path: Path) -> None:
    code, _, err = run("experiment", "a-b-a", "--suffix-dir", tmp_path)
    assert code == 2 and "reads no suffix store" in line(err)


def test_no_directory_no_flags() -> None:
    assert flags_of(None) is None
    assert flags_of(Path("x")) == Flags(Path("x"))
