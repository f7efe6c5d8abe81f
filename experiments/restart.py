"""A restart in the middle of a night: what is read again, with the drive and without.

A deploy or a restart takes all that memory holds. What the drive holds is heads, as a cold prefill
wrote them: conversations past their first answer are not among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd
from rich.console import Console

from experiments.figure import Figure
from experiments.traffic import refuse_failures
from replay.commands import replayed, traces_of
from replay.driver import Options
from replay.restarts import Restart
from replay.trace import Trace
from sim.profile import Profile

NAME = "restart"
ABOUT = "a restart in the middle: re-read and first tokens after it, with the drive (--traces)"
TRACES = ("night",)
DISK = True

AFTER = 20
"""Requests after the restart that are looked at by themselves."""


@dataclass(frozen=True, slots=True)
class Way:
    """A replay to be compared."""

    board: Profile
    restarts: bool


def ways(board: Profile) -> dict[str, Way]:
    """With the tier and without, restarted and not."""
    without = replace(board, disk=False)
    return {
        "drive": Way(board, restarts=True),
        "no_drive": Way(without, restarts=True),
        "drive_no_restart": Way(board, restarts=False),
        "no_drive_no_restart": Way(without, restarts=False),
    }


def middle(traces: Sequence[Trace]) -> int:
    """Half of the requests."""
    return max(1, sum(len(trace.requests) for trace in traces) // 2)


def ledger_of(way: Way, traces: Sequence[Trace]) -> pd.DataFrame:
    """The requests from the middle on, whether it restarts there or not; raises GateFailed."""
    at = middle(traces)
    restarts = (Restart(at, kills=True),) if way.restarts else ()
    ledger, _ = replayed(traces, Options(way.board, restarts=restarts))
    refuse_failures(ledger)
    return ledger.iloc[at:]


def run(board: Profile, names: Sequence[str], skip_bad: bool = False) -> list[Figure]:
    """The first requests after it, and all of them."""
    traces, _ = traces_of(names, skip_bad, Console(stderr=True), board=board)
    figures = [Figure("requests_before", None, middle(traces), "requests")]
    for name, way in ways(board).items():
        later = ledger_of(way, traces)
        figures += _counted(f"{name}.first", later.head(AFTER), f"the {AFTER} after it")
        figures += _counted(f"{name}.all", later, "all after it")
    return figures


def _counted(key: str, rows: pd.DataFrame, note: str) -> list[Figure]:
    ttft = rows["ttft_s"].dropna()
    from_drive = rows["source"].str.startswith("disk")
    return [
        Figure(f"{key}.reread_tokens", None, int(rows["reread"].sum()), "tokens", note),
        Figure(f"{key}.forwarded_tokens", None, int(rows["forwarded"].sum()), "tokens"),
        Figure(f"{key}.from_drive", None, int(from_drive.sum()), "requests"),
        Figure(f"{key}.restore_s", None, float(rows["restore_s"].sum()), "s"),
        Figure(f"{key}.first_token_sum_s", None, float(ttft.sum()), "s"),
        Figure(f"{key}.first_token_p50_s", None, float(ttft.median()) if len(ttft) else 0.0, "s"),
    ]
