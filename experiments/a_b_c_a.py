"""Three sessions in turn: a park that holds one conversation, or a pool that holds several."""

from __future__ import annotations

from dataclasses import replace

from experiments.figure import Curve, Figure
from experiments.traffic import Traffic, fresh, head, sweep, whole
from replay.ledger import LedgerRow
from replay.trace import Request
from sim.profile import Profile

NAME = "a-b-c-a"
ABOUT = "conversations in turn: a pool of parked ones against a park of one"

HEAD = 13_954
"""Tokens that sessions in different folders share, by the seed's files."""
PROMPT, ANSWER, NEW = 30_000, 400, 500
ROUNDS = 3


def served(
    board: Profile, sessions: int = 3, prompt: int = PROMPT, shared: int = HEAD
) -> list[LedgerRow]:
    """The turns in which somebody comes back, for so many rounds."""
    traffic, last = Traffic(), dict[int, Request]()
    for _ in range(ROUNDS):
        for who in range(sessions):
            before = last.get(who)
            if before is not None:
                runs = [whole(before), fresh(NEW)]
            elif last:
                runs = [head(last[0], shared), fresh(prompt - shared)]
            else:
                runs = [fresh(prompt)]
            last[who] = traffic.ask(*runs, answer=ANSWER, session=f"s{who}", extends=before)
    return traffic.replayed(board)[sessions:]


def boards(board: Profile, prompt: int = PROMPT, shared: int = HEAD) -> dict[str, Profile]:
    """The pool, a budget for one conversation above the shared head, and none."""
    # Eight copies of the sections go with a conversation, those of the one that comes count as
    # long as the swap takes, and each round adds rows.
    rows = prompt - shared // board.grid * board.grid + ROUNDS * (ANSWER + NEW) + board.grid
    one = rows * board.row_bytes + 16 * board.anchor_bytes
    return {
        "pool": board,
        "park_of_one": replace(board, park_bytes=one, pin_bytes=0),
        "no_park": replace(board, park_bytes=0, pin_bytes=0),
    }


def run(board: Profile) -> list[Figure]:
    """What the turns of those who come back cost."""
    figures = []
    for name, changed in boards(board).items():
        back = served(changed)
        seconds = sum(row.ttft_s or 0.0 for row in back) / len(back)
        figures += [
            Figure(f"{name}.reread_tokens", None, sum(row.reread for row in back), "tokens"),
            Figure(f"{name}.cached_tokens", None, sum(row.cached for row in back), "tokens"),
            Figure(f"{name}.first_token_s", None, seconds, "s", "the mean of six turns"),
            Figure(f"{name}.peak_bytes", None, max(row.held_park for row in back), "bytes"),
        ]
    return figures


def curves(board: Profile) -> list[Curve]:
    """Re-read of a returning turn over how many conversations there are."""

    def mean(way: Profile, sessions: int) -> float:
        back = served(way, sessions)
        return sum(row.reread for row in back) / len(back)

    lines = sweep(boards(board), (1, 2, 3, 4, 5, 6), mean)
    return [Curve("Conversations in turn", "conversations", "tokens re-read a turn", lines)]
