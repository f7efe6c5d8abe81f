"""Follow-ups that resume at the end of the last answer, and what stops the others.

A follow-up extends its conversation's previous turn with no edit by the user. Of 4,607 turns that
followed another, the seed counted 3,844 (83 %) whose prompt held the visible answer's every token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pandas as pd
from rich.console import Console

from experiments.figure import Figure
from experiments.traffic import refuse_failures
from replay.commands import replayed, traces_of
from replay.driver import Options
from replay.trace import Trace
from sim.profile import ALIGNMENTS, Profile

NAME = "end-resumes"
ABOUT = "follow-ups that resume at the end of the last answer, and why not (--traces)"
TRACES = ("night",)

SEED_SHARE = 100 * 3_844 / 4_607
SEED_NOTE = "the seed: copies that held the answer's every token"
LOST = ("replaced", "evicted", "previous_not_served")
"""Reasons that are a matter of memory, not of the client's copy."""


def boards(board: Profile) -> dict[str, Profile]:
    """The board at every alignment."""
    return {value: replace(board, alignment=value) for value in ALIGNMENTS}


def run(board: Profile, names: Sequence[str], skip_bad: bool = False) -> list[Figure]:
    """Shares in all and by client, and reasons, at every alignment."""
    traces, _ = traces_of(names, skip_bad, Console(stderr=True))
    figures = []
    for alignment, changed in boards(board).items():
        figures += counted(alignment, ledger_of(changed, traces))
    return figures


def ledger_of(board: Profile, traces: Sequence[Trace]) -> pd.DataFrame:
    """A replay of the traces, one after another, at the recorded times; raises GateFailed."""
    ledger, _ = replayed(traces, Options(board))
    refuse_failures(ledger)
    return ledger


def counted(alignment: str, ledger: pd.DataFrame) -> list[Figure]:
    """The figures of one ledger."""
    asked = ledger[ledger["followup"] & ~ledger["over_window"]]
    resumed = int(asked["end_resume"].sum())
    figures = [
        Figure(f"{alignment}.followups", None, len(asked), "requests"),
        Figure(f"{alignment}.at_the_end", None, resumed, "requests"),
        Figure(f"{alignment}.share", SEED_SHARE, percent(resumed, len(asked)), "%", SEED_NOTE),
    ]
    for client, group in asked.groupby("client"):
        share = percent(int(group["end_resume"].sum()), len(group))
        note = f"of {len(group)} follow-ups"
        figures.append(Figure(f"{alignment}.share.{client or 'unnamed'}", None, share, "%", note))
    reasons = reasons_of(ledger, asked[~asked["end_resume"]])
    held = len(asked) - sum(count for reason, count in reasons.items() if reason in LOST)
    note = "of those whose rows no other request had taken"
    figures.append(Figure(f"{alignment}.share_of_held", None, percent(resumed, held), "%", note))
    figures += [
        Figure(f"{alignment}.why.{reason}", None, count, "requests")
        for reason, count in sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    ]
    return figures


def reasons_of(ledger: pd.DataFrame, others: pd.DataFrame) -> Counter[str]:
    """Why follow-ups did not resume at the end of the turn they extend.

    Either that turn kept no end anchor, and says why; or the prompt parts from its rows, in some
    region; or the rows or the anchor were gone.
    """
    before = {(row.trace, row.number): row for row in ledger.itertuples()}
    reasons: Counter[str] = Counter()
    for row in others.itertuples():
        earlier = before.get((row.trace, row.extends))
        if earlier is None or earlier.over_window:
            reasons["previous_not_served"] += 1
        elif earlier.end != "kept":
            reasons[f"no_end_anchor_{earlier.end or 'prefill'}"] += 1
        elif isinstance(row.parted_in, str) and row.why == "parted":
            reasons[f"parted_in_{row.parted_in}"] += 1
        else:
            reasons[str(row.why)] += 1
    return reasons


def percent(part: int, of: int) -> float:
    """A share in percent; 0 of nothing."""
    return 100 * part / of if of else 0.0
