"""The night under memory limits: as they are, with less room, and a prompt that can't be read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd
from rich.console import Console

from cache.budget import LEVELS
from experiments.figure import Figure
from experiments.traffic import GIB, Traffic, fresh, message, refuse_failures, whole
from replay.commands import traces_of
from replay.driver import Options, Replay
from replay.ledger import to_frame
from replay.progress import progress
from replay.summary import summarise
from replay.trace import Header, Trace
from sim.profile import Profile

NAME = "memory-night"
ABOUT = "what the memory limits cost: as they are, a third tighter, a prompt too long (--traces)"
TRACES = ("night",)

PART = 2 / 3
"""Of the room that the limits leave above weights and buffers, in the tighter night."""
WORKSPACE = {
    "workspace_floor_bytes": 11 * GIB // 4,
    "workspace_row_bytes": 76_309,
    "workspace_cap_bytes": 43 * GIB // 4,
}
"""Of the second model in the seed: sparse attention whose scores grow with the context."""
TRUTH = 1.3
"""How much more than that a prefill takes, in the night that has to learn it."""
SHORT, LONG = 20_000, 150_000
"""Tokens of a prompt that can be read beside that workspace, and of one that can't."""


@dataclass(frozen=True, slots=True)
class Night:
    """A replay and what its budget did."""

    ledger: pd.DataFrame
    declined: int
    """Times that a cache asked for room and was not given any."""


def replayed(board: Profile, traces: Sequence[Trace]) -> Night:
    """Every request verified; raises GateFailed."""
    replay = Replay(traces, Options(board))
    total = sum(request.prompt_tokens for trace in traces for request in trace.requests)
    rows = []
    with progress("replaying", total, unit="tokens") as advance:
        for row in replay:
            rows.append(row)
            advance(row.prompt + row.unread)
    ledger, budget = to_frame(rows), replay.box.budget
    refuse_failures(ledger)
    assert budget is not None
    counts = budget.counters
    return Night(ledger, sum(n for name, n in counts.items() if name.startswith("declined.")))


def limited(board: Profile, part: float) -> Profile:
    """The board with a part of the room that its limits leave above what is loaded."""
    base = board.loaded_bytes
    return replace(
        board,
        ceiling_bytes=base + int(part * (board.ceiling_bytes - base)),
        peak_bytes=base + int(part * (board.peak_bytes - base)),
    )


def unlimited(board: Profile) -> Profile:
    """The board with limits that its caches can't reach."""
    far = 2 * board.peak_bytes + board.board_bytes
    return replace(board, ceiling_bytes=far, peak_bytes=far)


def run(board: Profile, names: Sequence[str], skip_bad: bool = False) -> list[Figure]:
    """The nights, and a prompt that has to be refused."""
    traces, _ = traces_of(names, skip_bad, Console(stderr=True), board=board)
    wide = replace(board, **WORKSPACE)
    nights = {
        "free": unlimited(board),
        "as_is": board,
        "tight": limited(board, PART),
        "wide": wide,
        "learned": replace(wide, workspace_factor=TRUTH),
    }
    figures = []
    for name, one in nights.items():
        seen = replayed(one, traces)
        figures += night_figures(name, one, seen)
    return figures + refusal_figures(board)


def night_figures(name: str, board: Profile, seen: Night) -> list[Figure]:
    """One night: what was held, what was given back for it, and what that cost."""
    summary = summarise(seen.ledger, wall_s=0.0, seed=0, board=board)
    memory, gib = summary["memory"], 2.0**30
    note = f"ceiling {board.ceiling_bytes / gib:.1f}, peak {board.peak_bytes / gib:.1f}"
    if name == "free":
        note = "no limits"
    elif board.workspace_row_bytes:
        note += f"; workspace {board.workspace_factor:g} x up to {cap_gib(board):.2f}"
    # Measured with every cache full, a prompt of 261,611 tokens, nothing given back.
    seed = 68.35 if name == "as_is" else None
    figures = [
        Figure(f"{name}.most_gib", seed, summary["peak_bytes"]["total"] / gib, "GiB", note),
        Figure(f"{name}.over_peak_s", None, memory["over_s"]["peak"], "s", "during prefills"),
        Figure(
            f"{name}.over_ceiling_s", None, memory["over_s"]["ceiling"], "s", "between requests"
        ),
        Figure(f"{name}.reread_tokens", None, summary["reread_tokens"], "tokens"),
        Figure(f"{name}.prefill_s", None, summary["prefill_s"], "s"),
        Figure(f"{name}.refused", None, summary["no_room"], "requests"),
        Figure(f"{name}.declined", None, seen.declined, "times"),
        Figure(f"{name}.failed", None, summary["verified"]["failed"], "requests"),
    ]
    shed = memory["shed_bytes"]
    return figures + [
        Figure(f"{name}.shed_{level}_gib", None, shed[level] / gib, "GiB") for level in LEVELS
    ]


def cap_gib(board: Profile) -> float:
    """The most workspace that is expected of any prefill, in GiB."""
    return board.cost.workspace_bytes(board.window) / 2**30


def refusal_figures(board: Profile) -> list[Figure]:
    """A chat, a prompt whose workspace is a byte too much for the peak, and the next turn."""
    short, long = min(SHORT, board.window // 8), min(LONG, board.window - 1_000)
    wide = replace(board, **WORKSPACE)
    peak = wide.loaded_bytes + wide.cost.workspace_bytes(long) - 1
    small = replace(wide, peak_bytes=peak, ceiling_bytes=min(wide.ceiling_bytes, peak))
    traffic = Traffic()
    first = traffic.ask(fresh(short), answer=500, session="a")
    traffic.ask(fresh(long), answer=100, session="b")
    traffic.ask(whole(first), *message(100), answer=100, session="a", extends=first)
    trace = Trace("made", Header(timing="synthetic"), tuple(traffic.requests))
    before, refused, after = replayed(small, [trace]).ledger.to_dict("records")
    note = f"{long:,} tokens; peak {peak / 2**30:.1f} GiB"
    return [
        Figure("impossible.refused", None, int(refused["no_room"]), "requests", note),
        Figure("impossible.retry_after_s", None, refused["retry_after_s"], "s"),
        Figure("impossible.shed_bytes", None, sum(refused[f"shed_{n}"] for n in LEVELS), "bytes"),
        Figure("impossible.next_cached", None, after["cached"], "tokens", "the chat's next turn"),
        Figure("impossible.next_reread", None, after["reread"], "tokens"),
        Figure("impossible.most_gib", None, max(before["peak"], after["peak"]) / 2**30, "GiB"),
    ]
