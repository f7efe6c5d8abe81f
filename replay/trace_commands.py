"""What the commands about traces do: show, scrub, import, export."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from engine.bad import BadInput, refuse
from replay.commands import SkippedLines, traces_of
from replay.describe import describe
from replay.open import stem
from replay.progress import progress
from replay.readers.exchange import Exchange
from replay.readers.raw import exchanges
from replay.report import duration, share
from replay.scrub import scrub
from replay.trace import Trace
from replay.tracefile import write_trace
from replay.writers import bailian, mooncake

IMPORTS = ("weka", "mooncake", "bailian")
WRITERS = {"mooncake": mooncake, "bailian": bailian}


def run_show(names: Sequence[str], *, skip_bad: bool, as_json: bool) -> None:
    """`moorage trace show`: one description a trace; with --json a list when there are several."""
    console = Console(stderr=as_json)
    traces, _ = traces_of(names, skip_bad, console)
    described = []
    with progress("measuring", len(traces), unit="traces") as advance:
        for trace in traces:
            described.append(describe(trace))
            advance(1)
    if as_json:
        sys.stdout.write(json.dumps(described[0] if len(described) == 1 else described) + "\n")
        return
    for trace, figures in zip(traces, described, strict=True):
        _print_description(console, trace, figures)


def run_scrub(
    raw: Sequence[Path],
    out: Path,
    *,
    clients: Sequence[str],
    licence: str,
    notes: str,
    skip_bad: bool,
) -> None:
    """`moorage scrub`: raw recordings to one trace."""
    console = Console(stderr=True)
    skipped = SkippedLines(console)
    versions = dict[str, str]()
    for client in clients:
        name, equals, version = client.partition("=")
        if not equals:
            raise BadInput("--client", None, f"{client!r} is not NAME=VERSION")
        versions[name] = version
    found: list[Exchange] = []
    with progress("reading", len(raw), unit="files") as advance:
        for path in raw:
            found += exchanges(path, skipped if skip_bad else refuse)
            advance(1)
    with progress(f"scrubbing {len(found):,} requests", None, unit=""):
        trace = scrub(found, name=stem(out), versions=versions, licence=licence, notes=notes)
    _write(trace, out, console, skipped.count)


def run_import(format_: str, files: Sequence[Path], out: Path, *, skip_bad: bool) -> None:
    """`moorage import`: each file becomes a trace; several go into a folder."""
    if format_ not in IMPORTS:
        raise BadInput("import", None, f"{format_!r} is none of {', '.join(IMPORTS)}")
    console = Console(stderr=True)
    traces, skipped = traces_of([str(path) for path in files], skip_bad, console, format_)
    if len(traces) == 1 and not out.is_dir():
        _write(traces[0], out, console, skipped)
        return
    if out.is_file():
        raise BadInput(str(out), None, f"{len(traces)} traces need a folder, not a file")
    out.mkdir(parents=True, exist_ok=True)
    for trace in traces:
        _write(trace, out / f"{trace.name}.jsonl.zst", console, 0)
    if skipped:
        console.print(f"{skipped:,} bad lines skipped")


def run_export(format_: str, name: str, out: Path, *, block: int | None) -> None:
    """`moorage export`: a trace in a public format."""
    if format_ not in WRITERS:
        raise BadInput("export", None, f"{format_!r} is none of {', '.join(WRITERS)}")
    console = Console(stderr=True)
    traces, _ = traces_of([name], False, console)
    if len(traces) != 1:
        raise BadInput(name, None, f"{len(traces)} traces; export one at a time")
    writer = WRITERS[format_]
    writer.write(traces[0], out, block or writer.BLOCK)
    console.print(f"{out}: {len(traces[0].requests):,} requests", highlight=False)


def _write(trace: Trace, out: Path, console: Console, skipped: int) -> None:
    write_trace(trace, out)
    bad = f", {skipped:,} bad lines skipped" if skipped else ""
    size = out.stat().st_size
    console.print(f"{out}: {len(trace.requests):,} requests, {size:,} bytes{bad}", highlight=False)


def _print_description(console: Console, trace: Trace, figures: dict[str, Any]) -> None:
    table = Table(title=trace.name, title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column()
    prompts, outputs, growth = (
        figures[key] for key in ("prompt_tokens", "output_tokens", "growth")
    )
    table.add_row("requests", f"{figures['requests']:,} in {figures['sessions']:,} sessions")
    table.add_row("kinds", _pairs(figures["kinds"]))
    clients = ", ".join(f"{name} {version}" for name, version in figures["clients"].items())
    table.add_row("clients", clients or "-")
    table.add_row("span", f"{duration(figures['span_s'])}, {figures['timing']} times")
    for label, sizes in (("prompts", prompts), ("outputs", outputs), ("growth a turn", growth)):
        table.add_row(label, _pairs(sizes))
    if figures["images"]:
        rows = share(figures["image_tokens"], prompts["sum"])
        table.add_row("images", f"{figures['images']:,} sent, {rows} of the prompt tokens")
    table.add_row("extend a turn", f"{figures['extends']:,} ({figures['extends_share']:.1%})")
    table.add_row("left early", f"{figures['aborted']:,}")
    total = prompts["sum"]
    table.add_row("ideal reuse", f"{share(figures['ideal_cached_tokens'], total)} to the token")
    blocks = (
        f"{share(found['cached_tokens'], total)} in blocks of {size}"
        for size, found in figures["by_block"].items()
    )
    table.add_row("of prompts alone", ", ".join(blocks))
    if trace.header.notes:
        table.add_row("notes", trace.header.notes)
    console.print(table)


def _pairs(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())
