"""The turn after a long thinking: resumed at the answer's end, or at the prompt's last line.

Measured by the seed on 2026-10-02: turn 1 prefilled 34,038 tokens and thought 32,773; turn 2's
prompt of 66,964 tokens resumed at 33,792 = 33 x 1,024 and re-read 33,172 in about 44 s.
"""

from __future__ import annotations

from dataclasses import replace

from experiments.figure import Curve, Figure
from experiments.traffic import Traffic, fresh, sweep, whole
from replay.ledger import LedgerRow
from sim.profile import Profile

NAME = "think-33k"
ABOUT = "the turn after a 33k thinking, with the end anchor and without"

PROMPT, THINKING, NEXT = 34_038, 32_773, 66_964
CALL = 60
"""Tokens of the answer after the thinking: a tool call. Its result and the glue are the rest."""
HIDDEN: tuple[tuple[int, int], ...] = ()
"""Spans of the answer that the client never sees."""


def boards(board: Profile) -> dict[str, Profile]:
    """With the end anchor and the checkpoints, with one of them, with neither."""
    return {
        "end": board,
        "end_only": replace(board, checkpoint_tokens=0),
        "checkpoints_only": replace(board, end_anchor=False),
        "neither": replace(board, end_anchor=False, checkpoint_tokens=0),
    }


def served(
    board: Profile, prompt: int = PROMPT, thinking: int = THINKING, new: int | None = None
) -> LedgerRow:
    """Turn 2."""
    traffic = Traffic()
    first = traffic.ask(
        fresh(prompt), answer=thinking + CALL, session="a", think_end=thinking, hidden=HIDDEN
    )
    more = NEXT - PROMPT - THINKING - CALL if new is None else new
    traffic.ask(whole(first), fresh(more), answer=100, session="a", extends=first)
    return traffic.replayed(board)[-1]


def run(board: Profile) -> list[Figure]:
    """Turn 2 each way."""
    figures = []
    for name, changed in boards(board).items():
        row = served(changed)
        known = (33_792, 33_172, 44.0) if name == "neither" else (None, None, None)
        figures += [
            Figure(f"{name}.cached_tokens", known[0], row.cached, "tokens", f"source {row.source}"),
            Figure(f"{name}.forwarded_tokens", known[1], row.forwarded, "tokens"),
            Figure(
                f"{name}.reread_tokens", None, row.reread, "tokens", "of these, computed before"
            ),
            Figure(f"{name}.prefill_s", known[2], row.prefill_s, "s"),
        ]
    return figures


def curves(board: Profile) -> list[Curve]:
    """Tokens re-read over the length of the thinking."""
    lengths = (500, 2_000, 8_000, 16_000)
    lines = sweep(boards(board), lengths, lambda way, size: served(way, thinking=size).reread)
    return [Curve("The turn after a thinking", "tokens of thinking", "tokens re-read", lines)]
