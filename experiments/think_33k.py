"""The turn after a long thinking: resumed at the answer's end, or at the prompt's last line.

Measured by the seed on 2026-10-02: turn 1 prefilled 34,038 tokens and thought 32,773; turn 2's
prompt of 66,964 tokens resumed at 33,792 = 33 x 1,024 and re-read 33,172 in about 44 s.
"""

from __future__ import annotations

from dataclasses import replace

from experiments.figure import Curve, Figure
from experiments.traffic import Traffic, fresh, head, mark, message, sweep, written
from replay.ledger import LedgerRow
from replay.trace import Run
from sim.profile import ALIGNMENTS, Profile

NAME = "think-33k"
ABOUT = "the turn after a 33k thinking, with the end anchor and without"

PROMPT, THINKING, NEXT = 34_038, 32_773, 66_964
CALL = 60
"""Tokens of the answer after the thinking: a tool call."""
TOOL_RESULT = NEXT - PROMPT - THINKING - CALL
"""The rest of turn 2's prompt: what the tool said, and the template's glue."""
PHRASE = 13
"""Tokens that closed the thinking, put in before its last one, which no client sees."""


def boards(board: Profile) -> dict[str, Profile]:
    """With the end anchor and the checkpoints, with one of them, with neither."""
    return {
        "end": board,
        "end_only": replace(board, checkpoint_tokens=0),
        "checkpoints_only": replace(board, end_anchor=False),
        "neither": replace(board, end_anchor=False, checkpoint_tokens=0),
    }


def served(
    board: Profile, thinking: int = THINKING, new: int = TOOL_RESULT, phrase: int = 0
) -> LedgerRow:
    """Turn 2, whose client saw all of turn 1 but the phrase."""
    traffic = Traffic()
    first = traffic.ask(
        fresh(PROMPT),
        answer=(fresh(thinking - 1 + phrase), mark(), *written(CALL)),
        session="a",
        think_end=thinking + phrase,
        hidden=((thinking - 1, phrase),) if phrase else (),
    )
    before = PROMPT + thinking - 1
    after = Run(first.number, before + phrase, 1 + CALL)
    traffic.ask(head(first, before), after, *message(new), answer=100, session="a", extends=first)
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
    for alignment in ALIGNMENTS:
        row = served(replace(board, alignment=alignment), phrase=PHRASE)
        key, note = f"phrase_{alignment}.forwarded_tokens", f"a hidden phrase, source {row.source}"
        figures.append(Figure(key, None, row.forwarded, "tokens", note))
    return figures


def curves(board: Profile) -> list[Curve]:
    """Tokens re-read over the length of the thinking."""
    lengths = (500, 2_000, 8_000, 16_000)
    lines = sweep(boards(board), lengths, lambda way, size: served(way, thinking=size).reread)
    return [Curve("The turn after a thinking", "tokens of thinking", "tokens re-read", lines)]
