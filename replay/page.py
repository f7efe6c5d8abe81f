"""The report as one HTML page with its plots inside; needs nothing from elsewhere."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

import pandas as pd

from replay.plots import FIGURES, drive_over_time, memory_over_time, to_svg
from replay.report import duration, share

STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1d2b33; margin: 2rem auto; max-width: 62rem;
       padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.1rem; margin-top: 2.2rem; }
p.about { color: #5b6b73; margin-top: 0; }
.cards { display: flex; flex-wrap: wrap; gap: .8rem; margin: 1.2rem 0; }
.card { border: 1px solid #d8dfe2; border-radius: .5rem; padding: .6rem .9rem; min-width: 8.5rem; }
.card b { display: block; font-size: 1.35rem; font-variant-numeric: tabular-nums; }
.card span { color: #5b6b73; font-size: .85rem; } .bad b { color: #d1495b; }
svg { width: 100%; height: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { padding: .25rem .8rem .25rem 0; text-align: left; border-bottom: 1px solid #e6ebed; }
td.number, th.number { text-align: right; }
"""


def render(title: str, about: str, summary: Mapping[str, Any], ledger: pd.DataFrame) -> str:
    """The whole page."""
    served = ledger[~ledger["over_window"] & ~ledger["no_room"]]
    drawn = [(name, draw(served)) for name, draw in (FIGURES.values() if len(served) else ())]
    limits = summary["memory"].get("limits")
    if limits and len(served):
        drawn.append(("What lies on the board", memory_over_time(served, limits)))
    disk = summary["disk"]
    if disk is not None and len(served):
        name = "The drive: what lies on it, and what was moved"
        drawn.append((name, drive_over_time(served, disk["budget_bytes"])))
    spill = summary["spill"]
    if spill is not None and len(served):
        name = "Whole conversations on the drive"
        drawn.append((name, drive_over_time(served, spill["budget_bytes"], "spill")))
    figures = "".join(f"<h2>{html.escape(name)}</h2>\n{to_svg(one)}\n" for name, one in drawn)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body>\n"
        f'<h1>{html.escape(title)}</h1><p class="about">{html.escape(about)}</p>\n'
        f"{_cards(summary)}{figures}<h2>By client and kind</h2>\n{_kinds(served)}\n"
        "</body></html>\n"
    )


def _cards(summary: Mapping[str, Any]) -> str:
    prompt, verified = summary["prompt_tokens"], summary["verified"]
    cards = [
        ("requests", f"{summary['requests']:,}", ""),
        ("prompt tokens", f"{prompt / 1e6:.2f} M", ""),
        ("reused", share(summary["cached_tokens"], prompt), ""),
        ("re-read / new", share(summary["reread_tokens"], summary["new_tokens"]), ""),
        ("first token, p50", duration(summary["ttft_s"]["p50"]), ""),
        ("first token, p99", duration(summary["ttft_s"]["p99"]), ""),
        ("resumed at the end", f"{summary['end_resumes']:,} of {summary['followups']:,}", ""),
        *_memory_cards(summary),
        *_disk_cards(summary),
        *_spill_cards(summary),
        ("checked", f"{verified['checked']:,}", ""),
        ("gates that failed", f"{verified['failed']:,}", "bad" if verified["failed"] else ""),
    ]
    inner = "".join(
        f'<div class="card {kind}"><b>{html.escape(value)}</b><span>{label}</span></div>'
        for label, value, kind in cards
    )
    return f'<div class="cards">{inner}</div>\n'


def _memory_cards(summary: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    peak, over = summary["peak_bytes"]["total"], summary["memory"]["over_s"]["peak"]
    cards = []
    if peak:
        cards.append(("most memory", f"{peak / 2**30:.1f} GiB", "bad" if over else ""))
    if summary["no_room"]:
        cards.append(("refused, no memory", f"{summary['no_room']:,}", ""))
    return cards


def _disk_cards(summary: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    disk = summary["disk"]
    if disk is None:
        return []
    failed = sum(disk["failed_restores"].values())
    return [
        ("read back from the drive", f"{disk['hits']:,}", "bad" if failed else ""),
        ("written to the drive", f"{disk['written_bytes'] / 1e9:.1f} GB", ""),
    ]


def _spill_cards(summary: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    spill = summary["spill"]
    if spill is None:
        return []
    failed = sum(spill["failed_restores"].values())
    return [
        ("conversations brought back", f"{spill['hits']:,}", "bad" if failed else ""),
        ("of them written", f"{spill['written_bytes'] / 1e9:.1f} GB", ""),
        ("waiting they saved", duration(max(0.0, spill["saved_s"])), ""),
    ]


def _kinds(served: pd.DataFrame) -> str:
    heads = ("client", "kind", "requests", "prompt", "reused", "re-read", "new", "first token p50")
    rows = []
    for (client, kind), group in served.groupby(["client", "kind"]):
        tokens = [int(group[name].sum()) for name in ("prompt", "cached", "reread", "new")]
        median = group["ttft_s"].median()
        cells = [f"{len(group):,}", *(f"{count:,}" for count in tokens)]
        cells.append("-" if pd.isna(median) else duration(float(median)))
        left = f"<td>{html.escape(str(client) or '-')}</td><td>{html.escape(str(kind))}</td>"
        rows.append(f"<tr>{left}{''.join(f'<td class=number>{cell}</td>' for cell in cells)}</tr>")
    head = "".join(
        f'<th class="{"number" if at > 1 else ""}">{name}</th>' for at, name in enumerate(heads)
    )
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>"
