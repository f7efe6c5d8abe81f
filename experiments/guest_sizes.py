"""What a guest's stash holds over its answer's length: copied at once, or as it grows.

The seed sizes the stash by what the request may write: its prompt, its max_tokens, an allowance for
hidden tokens when a monitor runs, and two margins. Most answers are far shorter than they may be.
Here the prompt and a margin are copied first, and the rest a margin ahead of the answer.
"""

from __future__ import annotations

from engine.bad import BadInput
from experiments.figure import Curve, Figure
from experiments.traffic import GIB, MIB, Traffic, fresh, sweep, whole
from replay.ledger import LedgerRow
from sim.profile import Profile

NAME = "guest-sizes"
ABOUT = "bytes put aside for a guest, over the length of its answer"

CONVERSATION = 53_209
QUESTION = 410
MAX_TOKENS = 8_192
ANSWERS = (12, 400, 2_000, 6_000)
MARGIN, ALLOWANCE = 512, 2_048
"""Rows; the seed's."""


def seeds_rows(prompt: int, max_tokens: int, *, monitor: bool) -> int:
    """Rows the seed copies before the guest starts."""
    return prompt + max_tokens + (ALLOWANCE if monitor else 0) + 2 * MARGIN


def served(board: Profile, answer: int, conversation: int = CONVERSATION) -> list[LedgerRow]:
    """The conversation, the guest, and the conversation again, its rows put back."""
    traffic = Traffic()
    first = traffic.ask(fresh(conversation), answer=40, session="a")
    traffic.ask(fresh(QUESTION), answer=answer, session="b", max_tokens=MAX_TOKENS)
    traffic.ask(whole(first), fresh(100), answer=40, session="a", extends=first)
    return traffic.replayed(board)


def stashed_bytes(board: Profile, answer: int) -> int:
    """What was copied for a guest by the end of its answer; raises BadInput where it is none."""
    guest = served(board, answer)[1]
    if not guest.guest:
        raise BadInput("--set", None, f"a question of {QUESTION} tokens is no guest on this board")
    return guest.held_stash


def run(board: Profile) -> list[Figure]:
    """Bytes for a 410-token question with each answer."""
    row, limit = board.row_bytes, board.stash_bytes
    figures = [
        Figure("whole_stash.bytes", GIB, limit, "bytes", "before the seed sized it, for 410 tokens")
    ]
    for monitor in (False, True):
        rows = seeds_rows(QUESTION, MAX_TOKENS, monitor=monitor)
        name = "seed_rule_monitor" if monitor else "seed_rule"
        note = f"{rows:,} rows for max_tokens {MAX_TOKENS:,}, whatever the answer"
        figures.append(Figure(f"{name}.bytes", None, min(rows * row, limit), "bytes", note))
    for answer in ANSWERS:
        key, note = f"answer_{answer}.bytes", f"an answer of {answer:,} tokens"
        figures.append(Figure(key, None, stashed_bytes(board, answer), "bytes", note))
    return figures


def curves(board: Profile) -> list[Curve]:
    """Bytes over the answer's length."""
    rows = seeds_rows(QUESTION, MAX_TOKENS, monitor=False)
    sized = min(rows * board.row_bytes, board.stash_bytes) / MIB
    ways = {
        "as the answer grows": lambda answer: stashed_bytes(board, answer) / MIB,
        "at once, by max_tokens": lambda answer: sized,
    }
    answers = (12, 100, 400, 1_000, 2_000, 4_000, 6_000)
    lines = sweep(ways, answers, lambda way, answer: way(answer))
    return [Curve("Stash of a 410-token guest", "tokens of the answer", "MiB", lines)]
