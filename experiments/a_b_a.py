"""Two sessions in turn: A, B, and A again, with B's rows where A's were.

The seed's hold of 2026-10-01: A came back with 41,984 of 53,209 tokens reused and 11,225 re-read in
16.4 s, where it would have re-read about 45,000. That figure says how much they share: the rows in
place would have served A up to 8,192 (53,209 - 8,192 = 45,017), and the next anchor that a head
keeps is at 12,288. The seed has heads that part at 9,468, where one holds two tools more. 41,984
is then the highest line that 4 GiB hold with four anchors, counted from 8,192 on.
"""

from __future__ import annotations

from dataclasses import replace

from cache.config import StackConfig
from experiments.figure import Curve, Figure
from experiments.traffic import Traffic, fresh, head, seeds_policy, sweep, whole
from replay.ledger import LedgerRow
from sim.profile import Profile

NAME = "a-b-a"
ABOUT = "two sessions in turn: what the first re-reads when it comes back"

HEAD = 9_468
"""Tokens the two share."""
PROMPT_A, ANSWER_A = 50_700, 420
"""A's turn before B's. Anchors down to 41,984 must be left, which holds below 51,200."""
PROMPT_B, ANSWER_B = 48_000, 300
RETURN_A = 53_209


def served(board: Profile, policy: StackConfig | None = None, shared: int = HEAD) -> LedgerRow:
    """A's turn after B's."""
    traffic = Traffic()
    first = traffic.ask(fresh(PROMPT_A), answer=ANSWER_A, session="a")
    traffic.ask(head(first, shared), fresh(PROMPT_B - shared), answer=ANSWER_B, session="b")
    new = RETURN_A - PROMPT_A - ANSWER_A
    traffic.ask(whole(first), fresh(new), answer=200, session="a", extends=first)
    return traffic.replayed(board, policy)[-1]


def boards(board: Profile) -> dict[str, tuple[Profile, StackConfig | None]]:
    """The ways to keep A: with everything on, without the end, as the seed did, not at all."""
    return {
        "park": (board, None),
        "park_no_end": (replace(board, end_anchor=False, checkpoint_tokens=0), None),
        "seed_policy": (board, seeds_policy(board)),
        "no_park": (board, seeds_policy(replace(board, park_bytes=0))),
    }


SEED = {
    "seed_policy": (41_984, 11_225, 16.4),
    "no_park": (None, 45_000, None),
}
"""Reused, re-read, seconds. The seed calls re-read all that was forwarded."""
NOTES = {
    "park": "parked whole, with the end of its last answer",
    "park_no_end": "parked up to its last grid line",
    "seed_policy": "grid lines alone, the newest four, 4 GiB",
    "no_park": "the rows in place alone; the seed's is about",
}


def run(board: Profile) -> list[Figure]:
    """What A's turn after B's costs, each way."""
    figures = []
    for name, (changed, policy) in boards(board).items():
        row = served(changed, policy)
        cached, forwarded, seconds = SEED.get(name, (None, None, None))
        first_s = row.ttft_s or 0.0
        figures += [
            Figure(f"{name}.cached_tokens", cached, row.cached, "tokens", NOTES[name]),
            Figure(f"{name}.forwarded_tokens", forwarded, row.forwarded, "tokens"),
            Figure(
                f"{name}.reread_tokens", None, row.reread, "tokens", "of these, computed before"
            ),
            Figure(f"{name}.first_token_s", seconds, first_s, "s"),
        ]
    return figures


def curves(board: Profile) -> list[Curve]:
    """Tokens forwarded over the length of the shared head."""
    heads = (512, 4_500, HEAD, 13_954, 20_000, 25_000, 30_000)
    lines = sweep(boards(board), heads, lambda way, size: served(*way, size).forwarded)
    return [Curve("A comes back after B", "tokens A and B share", "tokens forwarded", lines)]
