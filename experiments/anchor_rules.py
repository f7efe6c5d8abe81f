"""Which anchor to give up when the budget is full: five rules over recorded and hostile traffic.

`every` has no budget: what it still reads again, no rule can save. The hostile traffic edits a long
conversation at one place after another, nowhere near where the rule by worth expects it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd
from rich.console import Console

from experiments.figure import Figure
from experiments.traffic import Traffic, fresh, head, refuse_failures
from replay.columns import CAUSES
from replay.commands import replayed, traces_of
from replay.driver import Options
from replay.trace import Trace
from sim.profile import ANCHOR_RULES, Profile

NAME = "anchor-rules"
ABOUT = "tokens read again under each rule of which anchor goes (--traces)"
TRACES = ("night",)

LENGTH = 250_000
"""Of the conversation that is edited, in tokens; no longer than the window."""
EDITS = (0.95, 0.35, 0.65, 0.05, 0.85, 0.25, 0.55, 0.15, 0.75, 0.45)
"""Where, as shares of it, in the order they come."""


def run(board: Profile, names: Sequence[str], skip_bad: bool = False) -> list[Figure]:
    """Re-read per new token under each rule, by trace and by half of a pack, with the causes."""
    packs = {name: traces_of([name], skip_bad, Console(stderr=True))[0] for name in names}
    figures = []
    for rule in ANCHOR_RULES:
        changed = replace(board, anchor_rule=rule)
        for name, traces in packs.items():
            figures += shares(f"{rule}.{name.rstrip('/').split('/')[-1]}", changed, traces)
        figures.append(edited(rule, changed))
    return figures


def shares(key: str, board: Profile, traces: Sequence[Trace]) -> list[Figure]:
    """One pack's figures; of several traces, also those of each half, every other one by name."""
    ledger, _ = replayed(traces, Options(board))
    refuse_failures(ledger)
    order = {name: at for at, name in enumerate(sorted(trace.name for trace in traces))}
    half = ledger["trace"].map(order) % 2
    parts = {"all": ledger}
    if len(traces) > 1:
        parts |= {"even_half": ledger[half == 0], "odd_half": ledger[half == 1]}
    figures = [
        Figure(f"{key}.{part}", None, percent_of_new(rows["reread"].sum(), rows), "%", "of new")
        for part, rows in parts.items()
    ]
    figures += [
        Figure(f"{key}.{cause}", None, percent_of_new(ledger[f"reread_{cause}"].sum(), ledger), "%")
        for cause in CAUSES
    ]
    return figures


def percent_of_new(tokens: float, ledger: pd.DataFrame) -> float:
    """Tokens in percent of those that no earlier request's rows held."""
    return 100 * float(tokens) / max(1, int(ledger["new"].sum()))


def edited(rule: str, board: Profile, length: int = LENGTH) -> Figure:
    """Mean tokens read again for an edit, each a copy of the last prompt up to some place."""
    length = min(length, board.window - 2_000)
    traffic = Traffic()
    last = traffic.ask(fresh(length), answer=40, session="a")
    for share in EDITS:
        at = int(share * length)
        last = traffic.ask(head(last, at), fresh(length - at), answer=40, session="a")
    rows = traffic.replayed(board)[1:]
    mean = sum(row.reread for row in rows) / len(rows)
    return Figure(f"{rule}.edits", None, mean, "tokens", f"an edit of {length:,} tokens")
