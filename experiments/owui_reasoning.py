"""A chat's first follow-up without the answer's reasoning: aligned, or parted at the first thought.

Measured by the seed on two releases without alignment: six of six Open WebUI chats whose first
answer thought re-read it on the first follow-up, cached 0.71 to 0.89 of the prompt, 2.5 to 5.0 s to
the first token. With it, in one build: resumed at the end anchor, 6,324 to 6,340 of about 6,340
client tokens, 0.112 to 0.131 s.
"""

from __future__ import annotations

from dataclasses import replace

from experiments.figure import Curve, Figure
from experiments.traffic import Traffic, fresh, head, mark, message, sweep
from replay.ledger import LedgerRow
from replay.trace import Run
from sim.profile import ALIGNMENTS, Profile

NAME = "owui-reasoning"
ABOUT = "a chat's follow-up whose copy leaves the reasoning out, at every alignment"

HEAD = 5_930
"""Open WebUI's tool block, as its recordings render."""
QUESTION = 60
THOUGHTS = (150, 400, 1_200)
"""A short first thinking, a common one, a long one."""
ANSWERS = (300, 500, 900)


def served(board: Profile, thought: int, answer: int) -> LedgerRow:
    """The follow-up to one question."""
    traffic = Traffic()
    first = traffic.ask(
        fresh(HEAD + QUESTION - 1),
        mark(),
        answer=(fresh(thought), mark(), fresh(answer - 1), mark()),
        session="a",
        tools=HEAD,
        think_end=thought + 1,
    )
    asked = first.prompt_tokens
    back = Run(first.number, asked + thought, 1 + answer)
    traffic.ask(head(first, asked), back, *message(QUESTION), answer=80, session="a", extends=first)
    return traffic.replayed(board)[-1]


def run(board: Profile) -> list[Figure]:
    """The share of the prompt that is cached, and the time to the first token. With grid lines
    alone there is no checkpoint where the answer begins, as on the system that was measured."""
    figures = []
    ways = {name: replace(board, alignment=name) for name in ALIGNMENTS}
    ways = {"grid_lines": replace(board, alignment="off", checkpoint_tokens=0), **ways}
    for alignment, way in ways.items():
        rows = [served(way, *sizes) for sizes in zip(THOUGHTS, ANSWERS, strict=True)]
        shares = [row.cached / row.prompt for row in rows]
        seconds = [row.ttft_s for row in rows if row.ttft_s is not None]
        known = {"grid_lines": (0.71, 0.89, 2.5, 5.0), "full": (None, None, 0.112, 0.131)}
        low, high, fast, slow = known.get(alignment, (None, None, None, None))
        sources = ", ".join(sorted({row.source for row in rows}))
        figures += [
            Figure(f"{alignment}.cached_share_min", low, min(shares), "of the prompt", sources),
            Figure(f"{alignment}.cached_share_max", high, max(shares), "of the prompt"),
            Figure(f"{alignment}.ttft_min_s", fast, min(seconds), "s"),
            Figure(f"{alignment}.ttft_max_s", slow, max(seconds), "s"),
            Figure(f"{alignment}.reread_tokens", None, sum(r.reread for r in rows), "tokens"),
        ]
    return figures


def curves(board: Profile) -> list[Curve]:
    """Tokens re-read over the length of the answer."""
    ways = {name: replace(board, alignment=name) for name in ALIGNMENTS}
    lines = sweep(ways, (100, 500, 1_500, 3_000), lambda way, size: served(way, 400, size).reread)
    return [Curve("A follow-up without its reasoning", "tokens of answer", "tokens re-read", lines)]
