"""Three users on one box for a night: what each tier on the drive is worth.

They take turns at the engine, so that conversations lose their place to one another all the time.
The same hours without the spill, without the tier, and without either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console

from experiments.figure import Figure
from experiments.traffic import refuse_failures
from replay.commands import traces_of
from replay.driver import Options, Replay
from replay.ledger import LedgerRow, to_frame
from replay.progress import progress
from replay.schedule import Arrivals
from replay.summary import summarise
from replay.trace import Trace
from sim.profile import Profile

NAME = "three-at-night"
ABOUT = "three users on one box for a night: re-read and bytes, each tier on and off (--traces)"
TRACES = ("night",)
DISK = SPILL = True

USERS, NIGHT_S = 3, 8 * 3_600.0
GB = 1e9


def boards(board: Profile) -> dict[str, Profile]:
    """All tiers, and without some."""
    return {
        "all": board,
        "no_spill": replace(board, spill=False),
        "no_tier": replace(board, disk=False),
        "neither": replace(board, disk=False, spill=False),
    }


def night(board: Profile, traces: Sequence[Trace], night_s: float = NIGHT_S) -> dict[str, Any]:
    """The figures of the night's requests, every one verified; raises GateFailed."""
    options = Options(board, arrivals=Arrivals.CLOSED, users=USERS)
    replay, rows = Replay(traces, options), list[LedgerRow]()
    with progress("replaying", round(night_s), unit="seconds") as advance:
        done_s = 0.0
        for row in replay:
            rows.append(row)
            advance(round(max(0.0, row.arrival_s - done_s)))
            done_s = max(done_s, row.arrival_s)
            if done_s >= night_s:
                replay.stop()
    ledger = to_frame(rows)
    refuse_failures(ledger)
    return summarise(ledger, wall_s=0.0, seed=options.seed, board=board, **replay.drive)


def run(board: Profile, names: Sequence[str], skip_bad: bool = False) -> list[Figure]:
    """Each way. With fewer traces than users, users replay the same one with other tokens."""
    read, _ = traces_of(names, skip_bad, Console(stderr=True))
    traces = [read[at % len(read)] for at in range(max(USERS, len(read)))]
    figures = []
    for name, one in boards(board).items():
        seen = night(one, traces)
        per_new = seen["reread_tokens"] / max(1, seen["new_tokens"])
        served = f"{seen['verified']['checked']:,} requests verified"
        checked = f"{served}, {seen['over_window']:,} over the window"
        figures += [
            Figure(f"{name}.reread_per_new", None, per_new, "tokens a new token", checked),
            Figure(f"{name}.reread_tokens", None, seen["reread_tokens"], "tokens"),
            Figure(f"{name}.new_tokens", None, seen["new_tokens"], "tokens"),
            Figure(f"{name}.first_token_p50_s", None, seen["ttft_s"]["p50"], "s"),
            Figure(f"{name}.first_token_p99_s", None, seen["ttft_s"]["p99"], "s"),
            Figure(f"{name}.first_token_sum_s", None, seen["ttft_s"]["sum"], "s"),
        ]
        for tier in ("disk", "spill"):
            if seen.get(tier):
                figures += _of_tier(name, tier, seen[tier])
        if seen.get("writes"):
            days = seen["writes"]["days"]
            most = max((day["tier_bytes"] + day["spill_bytes"] for day in days), default=0)
            level = seen["writes"]["level"]
            figures.append(Figure(f"{name}.written_gb", None, most / GB, "GB", f"level {level}"))
    return figures


def _of_tier(name: str, tier: str, seen: Any) -> list[Figure]:
    return [
        Figure(f"{name}.{tier}_written_gb", None, seen["written_bytes"] / GB, "GB"),
        Figure(f"{name}.{tier}_read_gb", None, seen["read_bytes"] / GB, "GB"),
        Figure(
            f"{name}.{tier}_saved_s_per_gb", None, seen["saved_s_per_gb"] or 0.0, "s a GB written"
        ),
        Figure(f"{name}.{tier}_saved_s", None, seen["saved_s"], "s", "less what was waited for it"),
    ]
