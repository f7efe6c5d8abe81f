"""A tool loop whose client writes every call's arguments anew: matched by value, or parted there.

opencode sends arguments back as compact JSON: spaces gone, 10.0 as 10, escapes undone. The engine
wrote other tokens. Bytes alone part at the first such argument of each turn.
"""

from __future__ import annotations

from dataclasses import replace

from experiments.figure import Curve, Figure
from experiments.traffic import Traffic, fresh, head, mark, message, sweep
from replay.ledger import LedgerRow
from replay.trace import Request, Run
from sim.profile import ALIGNMENTS, Profile

NAME = "reserialised-tools"
ABOUT = "a tool loop whose calls come back re-serialised, at every alignment"

HEAD, ANSWER, CALL, RESULT = 25_616, 120, 90, 700
"""opencode's head; text, call and tool result of a turn, in tokens."""
SHORTER = 8
"""Tokens that the compact form of a call saves."""
TURNS = 12


def served(board: Profile, turns: int = TURNS, call: int = CALL) -> list[LedgerRow]:
    """The turns after the first."""
    traffic = Traffic()
    last: Request | None = None
    for number in range(turns):
        start = [fresh(HEAD - 1), mark()] if last is None else _back(last, call)
        size = sum(run.length for run in start)
        values = [(size + ANSWER, call, number)]
        if last is not None:
            values.insert(0, (last.prompt_tokens + ANSWER, call - SHORTER, number - 1))
        last = traffic.ask(
            *start,
            answer=(fresh(ANSWER), mark(), fresh(call - 2), mark(), mark()),
            session="a",
            extends=last,
            tools=HEAD // 2,
            values=tuple(values),
        )
    return traffic.replayed(board)[1:]


def _back(last: Request, call: int) -> list[Run]:
    """A prompt, its answer with the call written anew, the answer's end, and a result."""
    asked = last.prompt_tokens
    begin = asked + ANSWER
    return [
        head(last, begin + 1),
        fresh(call - SHORTER - 2),
        Run(last.number, begin + call - 1, 2),
        *message(RESULT - 1),
        mark(),
    ]


def run(board: Profile) -> list[Figure]:
    """Resumes at the end, and what is read again."""
    figures = []
    for alignment in ALIGNMENTS:
        rows = served(replace(board, alignment=alignment))
        ends = sum(row.source == "end" for row in rows)
        reread, seconds = sum(row.reread for row in rows), sum(row.prefill_s for row in rows)
        figures += [
            Figure(f"{alignment}.end_resumes", None, ends, "turns", f"of {len(rows)}"),
            Figure(f"{alignment}.reread_tokens", None, reread, "tokens"),
            Figure(f"{alignment}.prefill_s", None, seconds, "s", "all turns"),
        ]
    return figures


def curves(board: Profile) -> list[Curve]:
    """Tokens re-read over the length of a call: a file written is a long one."""
    ways = {name: replace(board, alignment=name) for name in ALIGNMENTS}

    def reread(way: Profile, size: int) -> int:
        return sum(row.reread for row in served(way, turns=4, call=size))

    lines = sweep(ways, (50, 500, 2_000, 6_000), reread)
    return [Curve("A loop of four turns", "tokens of a call", "tokens re-read", lines)]
