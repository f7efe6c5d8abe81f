"""The doctor: where a client's prompts part, what each cause costs, and what would mend it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pandas as pd
from rich.console import Console
from rich.table import Table

from cache.types import Region, common_prefix
from cache.why import Why
from replay.columns import CAUSES
from replay.report import duration
from replay.tokens import Tokens
from replay.trace import FRESH, Request, Trace

Seconds = Callable[[int, int], float]
"""Prefill seconds from one length to another."""

MEND = {
    Region.TOOLS: "send the tools in one fixed order and text; one that comes and goes moves all",
    Region.SYSTEM: "keep dates, folders and other volatile text out of the system text, or last",
    Region.HISTORY: "an earlier message changed: an edit, a reminder that moved, a pruned result",
    Region.REASONING: "send the reasoning back, or let the cache align copies without it",
    Region.ANSWER: "send answers back as they came: re-serialised calls, stripped ends, cut text",
    Why.GRID: "resume at the end of the generation, or at checkpoints inside it",
    Why.EVICTED: "more anchors, or anchors kept where prompts part",
    Why.UNANCHORED: "checkpoints while generating",
    Why.SLOW: "a faster drive, or one with less to write",
    Why.REPLACED: "keep the other conversation: a parked copy in memory, or one on the drive",
}


@dataclass(frozen=True, slots=True)
class Parting:
    """A prompt that leaves its conversation's last sequence before that one's end."""

    number: int
    client: str
    kind: str
    region: Region
    at: int
    """Leading tokens in common."""
    back: int
    """Tokens past the parting that earlier sequences hold elsewhere: text that came back."""
    images: int
    """Those of them that are rows of images."""


def partings(trace: Trace) -> Iterator[Parting]:
    """Every parting of a trace, each prompt against the last one of its session and kind."""
    tokens = Tokens(trace)
    last: dict[tuple[str, str], Request] = {}
    for request in trace.requests:
        if request.session is None:
            continue
        key = (request.session, request.kind)
        before, last[key] = last.get(key), request
        if before is None:
            continue
        # The answer's last token may never have been forwarded; its loss is no parting.
        rows = before.prompt_tokens + max(0, before.output_tokens - 1)
        at = common_prefix(tokens.prompt(request.number), tokens.sequence(before.number)[:rows])
        if at < rows:
            region, back = _region(before, at), _back(request, at)
            images = sum(
                max(0, min(stop, image.offset + image.rows) - max(start, image.offset))
                for start, stop in back
                for image in request.images
            )
            total = sum(stop - start for start, stop in back)
            yield Parting(request.number, request.client, request.kind, region, at, total, images)


def _region(request: Request, at: int) -> Region:
    """Where a position of a request's sequence lies."""
    tools, prompt = request.parts.tools, request.prompt_tokens
    ends = (
        (tools, Region.TOOLS),
        (tools + request.parts.system, Region.SYSTEM),
        (prompt, Region.HISTORY),
        (prompt + (request.think_end or 0), Region.REASONING),
    )
    return next((region for end, region in ends if at < end), Region.ANSWER)


def _back(request: Request, at: int) -> list[tuple[int, int]]:
    """Stretches of the prompt past `at` that are copies of earlier tokens."""
    back: list[tuple[int, int]] = []
    start = 0
    for run in request.prompt:
        stop = start + run.length
        if run.src != FRESH and stop > at:
            back.append((max(start, at), stop))
        start = stop
    return back


def parting_table(traces: Iterable[Trace], seconds: Seconds) -> pd.DataFrame:
    """Partings by client, kind and region: how many, tokens that came back, how many of those are
    rows of images, seconds for all."""
    columns = ["client", "kind", "region", "partings", "tokens_back", "image_tokens", "seconds"]
    columns.append("mend")
    rows = [
        (p.client, p.kind, str(p.region), 1, p.back, p.images, cost, MEND[p.region])
        for trace in traces
        for p in partings(trace)
        for cost in [seconds(p.at, p.at + p.back)]
    ]
    frame = pd.DataFrame(rows, columns=columns)
    grouped = frame.groupby(["client", "kind", "region", "mend"], as_index=False).sum()
    return grouped.sort_values("seconds", ascending=False)[columns].reset_index(drop=True)


def cause_table(ledger: pd.DataFrame, seconds: Seconds) -> pd.DataFrame:
    """What the caches re-read, by cause: requests, tokens, seconds.

    A request's re-read tokens start where it resumed; its causes follow one another from there.
    """
    rows = []
    for cause in CAUSES:
        column = f"reread_{cause}"
        hit = ledger[ledger[column] > 0]
        cost = sum(
            seconds(cached, cached + tokens)
            for cached, tokens in zip(hit["cached"], hit[column], strict=True)
        )
        rows.append((str(cause), len(hit), int(hit[column].sum()), cost, MEND[cause]))
    frame = pd.DataFrame(rows, columns=["cause", "requests", "tokens", "seconds", "mend"])
    return frame[frame["requests"] > 0].sort_values("seconds", ascending=False)


def print_diagnosis(console: Console, parted: pd.DataFrame, causes: pd.DataFrame) -> None:
    """Both tables, costliest first, and what would mend what they show."""
    title = "Where prompts part from their conversation"
    table = Table(title=title, title_justify="left", header_style="bold")
    for name in ("client", "kind", "parts in"):
        table.add_column(name, no_wrap=True)
    for name in ("partings", "tokens that came back", "of images", "prefill"):
        table.add_column(name, justify="right")
    for row in parted.itertuples():
        back = (f"{row.tokens_back:,}", f"{row.image_tokens:,}")
        counts = (f"{row.partings:,}", *back, duration(row.seconds))
        table.add_row(row.client or "-", row.kind, row.region, *counts)
    console.print(table)
    title = "What was computed again"
    table = Table(title=title, title_justify="left", header_style="bold")
    table.add_column("cause")
    for name in ("requests", "tokens", "prefill"):
        table.add_column(name, justify="right")
    for row in causes.itertuples():
        counts = (f"{row.requests:,}", f"{row.tokens:,}", duration(row.seconds))
        table.add_row(row.cause, *counts)
    console.print(table)
    mends = dict(zip(parted["region"], parted["mend"], strict=True))
    mends |= dict(zip(causes["cause"], causes["mend"], strict=True))
    table = Table(title="What would mend it", title_justify="left", show_header=False, box=None)
    for name, mend in mends.items():
        table.add_row(name, mend)
    console.print(table)
