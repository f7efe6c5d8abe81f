"""The report in the terminal: a night's figures as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table

from cache.why import Why
from replay.diskseen import disk_lines
from replay.spillseen import saved_line, spill_lines, writes_lines
from sim.profile import Profile

MEANING = {
    Why.GRID: "from the nearest grid line to the parting or the prompt's end",
    Why.EVICTED: "an anchor that was there had been evicted",
    Why.UNANCHORED: "inside an answer, which carries no anchors",
    Why.SLOW: "on the drive, and slower to read than to forward",
    Why.REPLACED: "another prompt had overwritten the rows",
}


def share(part: float, whole: float) -> str:
    """A percentage, or a dash of nothing."""
    return f"{100 * part / whole:.1f} %" if whole else "-"


def duration(seconds: float) -> str:
    """Seconds in the unit a person would say."""
    if seconds < 120:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def print_summary(console: Console, title: str, summary: Mapping[str, Any]) -> None:
    """The table a replay ends with."""
    prompt = summary["prompt_tokens"]
    table = Table(title=title, title_justify="left", header_style="bold")
    for column, justify in (("", "left"), ("tokens", "right"), ("of prompts", "right")):
        table.add_column(column, justify="right" if justify == "right" else "left")
    for label, key in (
        ("prompts", "prompt_tokens"),
        ("reused", "cached_tokens"),
        ("  an unlimited cache", "ideal_cached_tokens"),
        ("forwarded", "forwarded_tokens"),
        ("  new", "new_tokens"),
        ("  re-read", "reread_tokens"),
    ):
        table.add_row(label, f"{summary[key]:,}", share(summary[key], prompt))
    for cause, tokens in summary["by_why"].items():
        if tokens:
            table.add_row(
                f"    {cause}: {MEANING[Why(cause)]}", f"{tokens:,}", share(tokens, prompt)
            )
    console.print(table)
    _print_lines(console, summary)


def _print_lines(console: Console, summary: Mapping[str, Any]) -> None:
    verified, ttft, wait = summary["verified"], summary["ttft_s"], summary["wait_s"]
    new = summary["new_tokens"]
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    refused = f", {summary['over_window']:,} over the window" if summary["over_window"] else ""
    refused += f", {summary['no_room']:,} refused, no memory" if summary["no_room"] else ""
    followups, ends = summary["followups"], summary["end_resumes"]
    table.add_row("requests", f"{summary['requests']:,}{refused}")
    table.add_row("re-read / new", share(summary["reread_tokens"], new))
    table.add_row("follow-ups", f"{ends:,} of {followups:,} resumed at the end of the turn before")
    table.add_row("resumed at", _pairs(summary["requests_by_source"]))
    table.add_row("why not later", _pairs(summary["requests_by_why"]))
    table.add_row("first token", "   ".join(f"{k} {duration(v)}" for k, v in ttft.items()))
    table.add_row("queue before it", "   ".join(f"{k} {duration(v)}" for k, v in wait.items()))
    table.add_row(
        "the box worked",
        f"{duration(summary['prefill_s'])} prefill, {duration(summary['decode_s'])} decode",
    )
    style = "red bold" if verified["failed"] else "green"
    table.add_row(
        "verified",
        f"[{style}]{verified['checked']:,} checked, {verified['failed']:,} failed[/{style}]"
        f" ({verified['bits']:,} bit for bit, {verified['greedy']:,} under the greedy gate)",
    )
    peaks = {name: size for name, size in summary["peak_bytes"].items() if name != "total"}
    table.add_row("peak", _sizes(peaks))
    for label, text in memory_lines(summary):
        table.add_row(label, text)
    if summary["disk"] is not None:
        for label, text in disk_lines(summary["disk"]):
            table.add_row(label, text)
        table.add_row("heads were worth", saved_line(summary["disk"]))
    if summary["spill"] is not None:
        for label, text in spill_lines(summary["spill"]):
            table.add_row(label, text)
        table.add_row("they were worth", saved_line(summary["spill"]))
    if summary["writes"] is not None:
        for label, text in writes_lines(summary["writes"]):
            table.add_row(label, text)
    if "ended_by" in summary:
        table.add_row("ended early", f"by {summary['ended_by']}, after the request in flight")
    if summary["restarts"]:
        table.add_row("restarts", f"{summary['restarts']:,}")
    table.add_row(
        "replayed in",
        f"{duration(summary['wall_s'])}, {summary['prompt_tokens_per_wall_s'] / 1e6:.2f} M prompt "
        f"tokens a second, seed {summary['seed']}",
    )
    console.print(table)


def memory_lines(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the board held at most, and what its budget gave back and let pass."""
    memory, most = summary["memory"], summary["peak_bytes"]["total"]
    lines = []
    if limits := memory.get("limits"):
        named = {name: limits[f"{name}_bytes"] for name in ("ceiling", "peak", "board")}
        lines.append(("memory", f"at most {most / 2**30:.2f} GiB; limits: {_sizes(named)}"))
    if any(memory["shed_bytes"].values()):
        lines.append(("given back", _sizes(memory["shed_bytes"])))
    passed = {name: seconds for name, seconds in memory["over_s"].items() if seconds}
    if passed:
        text = ", ".join(f"the {name} for {duration(seconds)}" for name, seconds in passed.items())
        lines.append(("passed", f"[red bold]{text}[/red bold]"))
    return lines


def _sizes(sizes: Mapping[str, int]) -> str:
    """Bytes by name; what holds none is left out."""
    return "   ".join(f"{name} {size / 2**30:.2f} GiB" for name, size in sizes.items() if size)


def print_failures(console: Console, ledger: pd.DataFrame, most: int = 10) -> None:
    """The first requests whose gate did not hold."""
    failed = ledger[ledger["failure"] != ""]
    for row in failed.head(most).itertuples():
        console.print(
            f"[red]{row.trace} request {row.number}: {row.gate} gate: {row.failure}[/red]"
        )
    if len(failed) > most:
        console.print(f"[red]and {len(failed) - most} more[/red]")


def print_profile(console: Console, board: Profile, checks: Sequence[Mapping[str, Any]]) -> None:
    """A board's numbers, and its time model beside measurements it was not fitted to."""
    console.print(f"[bold]{board.name}[/bold]: {board.about}", highlight=False)
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    table.add_row("grid, window", f"{board.grid:,} and {board.window:,} tokens")
    table.add_row("a token's rows", f"{board.row_bytes:,} bytes")
    table.add_row("an anchor", f"{board.anchor_bytes:,} bytes")
    table.add_row(
        "anchor budget",
        f"{board.resident_bytes:,} bytes: {board.resident_bytes // board.anchor_bytes} anchors",
    )
    gb = 1e9
    if board.disk:
        table.add_row("heads on the drive", f"up to {board.disk_bytes / gb:g} GB")
    if board.spill:
        kept = f"up to {board.spill_bytes / gb:g} GB, {board.spill_ttl_hours:g} hours"
        table.add_row("conversations there", kept)
    if board.disk or board.spill:
        table.add_row("written in a day", f"up to {board.write_budget_bytes / gb:g} GB")
    rates = f"{board.drive_write_bytes_s / gb:g} written, {board.drive_read_bytes_s / gb:g} read"
    table.add_row("the drive", f"{board.drive_bytes / gb:g} GB; GB a second: {rates}")
    past = f"{board.drive_sustained_bytes_s / gb:g} GB a second past it"
    table.add_row("its write cache", f"{board.drive_cache_bytes / gb:g} GB; {past}")
    table.add_row("decode", f"{board.decode_tokens_s:g} tokens a second, {board.drafts} drafts")
    console.print(table)
    table = Table(title="Prefill seconds", title_justify="left", header_style="bold")
    table.add_column("what")
    for name in ("from", "to", "measured", "model", "error"):
        table.add_column(name, justify="right")
    for tokens, seconds in board.prefill_fit:
        table.add_row("fitted", "0", f"{tokens:,}", f"{seconds:g} s", f"{seconds:g} s", "0.0 %")
    for check in checks:
        error = check["predicted_s"] / check["seconds"] - 1
        times = (f"{check['seconds']:g} s", f"{check['predicted_s']:.2f} s")
        span = (f"{check['start']:,}", f"{check['stop']:,}")
        table.add_row(check["what"], *span, *times, f"{100 * error:+.1f} %")
    console.print(table)


def _pairs(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())
