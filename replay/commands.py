"""What the commands do, once their arguments are read."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from cache.host import OsFiles, SystemClock
from cache.journal import Journal
from engine.bad import BadInput, OnBad, refuse
from engine.knobs import PLAIN, Knobs
from engine.pictures.leave_out import Cap
from replay.doctor import cause_table, parting_table, print_diagnosis
from replay.driver import Options, Replay
from replay.ending import Asked, asked_to_end
from replay.ledger import LedgerRow, to_frame
from replay.models import board_for, known
from replay.page import render
from replay.progress import progress
from replay.readers.detect import read_traces
from replay.report import duration, print_failures, print_profile, print_summary
from replay.restarts import restarts_of
from replay.schedule import Arrivals
from replay.suffixes import Flags, figures, lines, opened
from replay.summary import summarise
from replay.trace import Trace
from replay.worst import print_worst, worst_data
from sim.compute import PrefillTime
from sim.profile import Profile, load, with_settings

NIGHT = Path(__file__).parent / "data" / "night.jsonl.zst"
DEFAULT_VERIFY = {"witness": "all"}
"""The witness checks every request at little cost; a cold prefill of each is another matter."""


class SkippedLines:
    """Counts bad lines instead of stopping at the first, and says the first few."""

    def __init__(self, console: Console, shown_most: int = 5) -> None:
        self.count = 0
        self._console = console
        self._shown_most = shown_most

    def __call__(self, bad: BadInput) -> None:
        """Take a bad line."""
        self.count += 1
        if self.count <= self._shown_most:
            self._console.print(f"skipped {bad}", markup=False, highlight=False, soft_wrap=True)


def run_replay(
    names: Sequence[str],
    *,
    model: str,
    profile: str,
    arrivals: str,
    users: int,
    settings: Sequence[str],
    verify: str,
    out: Path | None,
    seed: int,
    skip_bad: bool,
    as_json: bool,
    cache_dir: Path | None = None,
    adopt_from: Sequence[str] = (),
    restarts: Sequence[str] = (),
    kills: Sequence[str] = (),
    suffix: Flags | None = None,
    knobs: Knobs = PLAIN,
) -> int:
    """`moorage replay`; returns the exit status: 1 when a gate failed, 128 and the number of the
    signal that ended it early."""
    console = Console(stderr=as_json)
    board = board_of(profile, settings)
    if cache_dir is not None and not (board.disk or board.spill):
        raise BadInput("--cache-dir", None, "is for the drive's tiers; disk=off, spill=off")
    if adopt_from and cache_dir is None:
        raise BadInput("--adopt-from", None, "needs --cache-dir: simulated files are new")
    share = _share(verify or DEFAULT_VERIFY.get(model, "20"))
    spaced = _arrivals(arrivals)
    traces, skipped = traces_of(names, skip_bad, console, board=board)
    board = board_for(known(model), board, traces)
    with opened(suffix, traces, board, seed) as store:
        ends = restarts_of(restarts, sum(len(trace.requests) for trace in traces), kills)
        disk = cache_dir, tuple(adopt_from), ends
        options = Options(board, model, spaced, users, share, seed, store, *disk, knobs)
        replay = started(traces, options, out)
        # Without a directory nothing lasts that an end could leave whole.
        with asked_to_end(replay.stop) if cache_dir is not None else nullcontext(Asked()) as asked:
            ledger, wall_s = driven(replay, traces)
        summary = summarise(ledger, wall_s=wall_s, seed=seed, board=board, **replay.drive)
        if store is not None:
            summary["suffix"] = figures(store)
    if skip_bad:
        summary["skipped_lines"] = skipped
    if asked.by is not None:
        summary["ended_by"] = asked.by.name
    title = f"{', '.join(names)} on {model} as {board.name}, {spaced} arrivals"
    if out is not None:
        write_report(out, title, board, summary, ledger)
    if as_json:
        sys.stdout.write(json.dumps(summary) + "\n")
    else:
        print_summary(console, title, summary)
        for line in lines(summary["suffix"]) if suffix is not None else ():
            console.print(f"[bold]suffix store[/bold]  {line}", highlight=False, soft_wrap=True)
        if out is not None:
            console.print(f"report: {out / 'report.html'}   ledger: {out / 'ledger.parquet'}")
    print_failures(console, ledger)
    return asked.status or int(summary["verified"]["failed"] > 0)


def started(traces: Sequence[Trace], options: Options, out: Path | None = None) -> Replay:
    """A replay, with its journal in a report's folder; raises BadInput."""
    return Replay(traces, options, Journal() if out is None else Journal(_emptied(out)))


def driven(replay: Replay, traces: Sequence[Trace]) -> tuple[pd.DataFrame, float]:
    """Its ledger, with a progress bar, and its wall seconds."""
    clock = SystemClock()
    begun_s = clock.mono_s()
    total = sum(request.prompt_tokens for trace in traces for request in trace.requests)
    rows: list[LedgerRow] = []
    with progress("replaying", total, unit="tokens") as advance:
        for row in replay:
            rows.append(row)
            advance(row.prompt + row.unread)
    return to_frame(rows), clock.mono_s() - begun_s


def replayed(
    traces: Sequence[Trace], options: Options, out: Path | None = None
) -> tuple[pd.DataFrame, float]:
    """The ledger of a replay, with a progress bar, and its wall seconds."""
    return driven(started(traces, options, out), traces)


def write_report(
    out: Path, title: str, board: Profile, summary: dict[str, Any], ledger: pd.DataFrame
) -> None:
    """report.html, ledger.parquet and summary.json in a folder."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "report.html").write_text(render(title, board.about, summary, ledger))
    (out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    ledger.to_parquet(out / "ledger.parquet")


def _emptied(out: Path) -> OsFiles:
    """The report's folder, without the journal of an earlier replay; raises BadInput."""
    try:
        files = OsFiles(out)
        if files.exists(Journal.FILE):
            files.unlink(Journal.FILE)
    except OSError as error:
        raise BadInput(str(out), None, f"cannot write there: {error.strerror}") from None
    return files


def board_of(name: str, settings: Sequence[str]) -> Profile:
    """The profile with its settings; raises BadInput."""
    pairs = dict[str, str]()
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise BadInput("--set", None, f"{setting!r} is not KEY=VALUE")
        pairs[key] = value
    try:
        board = load(name)
    except ValueError as error:
        raise BadInput("--profile", None, str(error)) from None
    try:
        return with_settings(board, pairs)
    except ValueError as error:
        raise BadInput("--set", None, str(error)) from None


def traces_of(
    names: Sequence[str],
    skip_bad: bool,
    console: Console,
    name: str | None = None,
    board: Profile | None = None,
) -> tuple[list[Trace], int]:
    """The traces that names stand for, and how many bad lines were passed over.

    The board bounds the images of a raw recording's prompts.
    """
    cap = Cap(board.images_max, board.image_rows_max) if board else None
    skipped = SkippedLines(console)
    on_bad: OnBad = skipped if skip_bad else refuse
    paths = [NIGHT if name == "night" else Path(name) for name in names]
    with progress("reading", None, unit="files"):
        traces = read_traces(paths, on_bad, name, cap)
    return traces, skipped.count


def _arrivals(name: str) -> Arrivals:
    try:
        return Arrivals(name)
    except ValueError:
        raise BadInput("--arrivals", None, f"{name!r} is neither recorded nor closed") from None


def _share(text: str) -> float:
    """all, none or a percentage, as a share."""
    named = {"all": 1.0, "none": 0.0}
    if text in named:
        return named[text]
    try:
        percent = float(text.removesuffix("%"))
    except ValueError:
        percent = -1.0
    if not 0.0 <= percent <= 100.0:
        raise BadInput("--verify", None, f"{text!r} is not all, none or a percentage")
    return percent / 100.0


def run_doctor(
    names: Sequence[str], *, profile: str, settings: Sequence[str], skip_bad: bool, as_json: bool
) -> None:
    """`moorage doctor`: replays on the witness and prices every parting and every cause."""
    console = Console(stderr=as_json)
    board = board_of(profile, settings)
    seconds = PrefillTime.fit(board).seconds
    traces, _ = traces_of(names, skip_bad, console, board=board)
    options = Options(board, verify=0.0)
    ledger, _ = replayed(traces, options)
    parted, causes = parting_table(traces, seconds), cause_table(ledger, seconds)
    if as_json:
        data = {"partings": parted.to_dict("records"), "causes": causes.to_dict("records")}
        sys.stdout.write(json.dumps(data) + "\n")
    else:
        print_diagnosis(console, parted, causes)


def run_profile(
    name: str, *, settings: Sequence[str], prefill: tuple[int, int] | None, as_json: bool
) -> None:
    """`moorage profile`: a board's numbers, or the seconds of one prefill."""
    console = Console()
    board = board_of(name, settings)
    seconds = PrefillTime.fit(board).seconds
    if prefill is not None:
        start, stop = prefill
        if not 0 <= start <= stop <= board.window:
            raise BadInput("--prefill", None, f"{start} {stop} is not within {board.window} rows")
        cost = {"prefill_s": seconds(start, stop)}
        text = json.dumps(cost) if as_json else duration(cost["prefill_s"])
        sys.stdout.write(text + "\n")
        return
    checks = [
        asdict(check) | {"predicted_s": seconds(check.start, check.stop)}
        for check in board.prefill_checks
    ]
    if as_json:
        more = {"prefill_checks": checks, "worst_case": worst_data(board)}
        sys.stdout.write(json.dumps(asdict(board) | more) + "\n")
        return
    print_profile(console, board, checks)
    print_worst(console, board)
