"""One box for one user and for three: what is re-read, by cause, when they take turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from experiments.figure import Figure
from experiments.traffic import refuse_failures
from replay.commands import replayed, traces_of
from replay.driver import Options
from replay.schedule import Arrivals
from replay.summary import summarise
from replay.trace import Trace
from sim.profile import Profile

NAME = "three-users"
ABOUT = "re-read by cause with one user and with three on one box (--traces)"
TRACES = ("night",)

USERS = 3


def summary(board: Profile, traces: Sequence[Trace], users: int) -> dict[str, Any]:
    """The replay's figures, closed loop, every request verified; raises GateFailed."""
    options = Options(board, arrivals=Arrivals.CLOSED, users=users)
    ledger, wall_s = replayed(traces, options)
    refuse_failures(ledger)
    return summarise(ledger, wall_s=wall_s, seed=options.seed)


def run(board: Profile, names: Sequence[str], skip_bad: bool = False) -> list[Figure]:
    """Both loads. With fewer traces than users, users replay the same one with other tokens."""
    read, _ = traces_of(names, skip_bad, Console(stderr=True))
    traces = [read[at % len(read)] for at in range(max(USERS, len(read)))]
    figures = []
    for users in (1, USERS):
        seen = summary(board, traces, users)
        name = "one" if users == 1 else "three"
        load = f"{len(traces)} traces, {users} at once"
        per_new = seen["reread_tokens"] / max(1, seen["new_tokens"])
        figures += [
            Figure(f"{name}.reread_per_new", None, per_new, "tokens a new token", load),
            Figure(f"{name}.new_tokens", None, seen["new_tokens"], "tokens"),
            Figure(f"{name}.reread_tokens", None, seen["reread_tokens"], "tokens"),
        ]
        figures += [
            Figure(f"{name}.reread_{cause}_tokens", None, tokens, "tokens")
            for cause, tokens in seen["by_why"].items()
        ]
        figures += [
            Figure(f"{name}.first_token_p50_s", None, seen["ttft_s"]["p50"], "s"),
            Figure(f"{name}.first_token_p99_s", None, seen["ttft_s"]["p99"], "s"),
            Figure(f"{name}.park_peak_bytes", None, seen["peak_bytes"]["park"], "bytes"),
        ]
    return figures
