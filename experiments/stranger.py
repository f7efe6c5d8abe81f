"""A stranger's 10,216 tokens in the place of a long conversation: what each of them waits.

The seed's at 15:37 on 2026-10-03: too long for a guest, the request replaced the rows in place, and
the pool in memory could not hold all that were above its own. The conversation's next turn read
everything above 32,768 again, the highest anchor that a pinned head keeps: 165 s, which is what
131,600 tokens take from there. Since then the rows go to the drive first, and the stranger waits
for that; or they went there already, while nobody asked for anything.

Our pool puts aside only the rows that the stranger overwrites, and serves the turn at its end
(`pool`). The other ways do without it, as the seed had to.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from experiments.figure import Figure
from experiments.traffic import Traffic, fresh, message, whole
from replay.ledger import LedgerRow
from sim.compute import PrefillTime
from sim.profile import Profile

NAME = "stranger-10k"
ABOUT = "another client's 10,216 tokens replace a long conversation: what both of them wait"
SPILL = True

STRANGER, HEAD = 10_216, 32_768
"""Its tokens, and what the seed had kept of the conversation."""
FIRST, ROWS, MESSAGE, ANSWER = 40_000, 129_000, 2_600, 300
"""Tokens of the first prompt, of all before the stranger comes, and of the turn after it."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Both requests."""

    stranger: LedgerRow
    back: LedgerRow


def served(board: Profile) -> Seen:
    """The stranger, and the conversation's next turn."""
    traffic = Traffic()
    first = traffic.ask(fresh(FIRST), answer=ANSWER, session="a")
    read = ROWS - first.prompt_tokens - 2 * ANSWER
    work = traffic.ask(whole(first), *message(read), answer=ANSWER, session="a", extends=first)
    traffic.ask(fresh(STRANGER), answer=ANSWER, session="b")
    traffic.ask(whole(work), *message(MESSAGE), answer=ANSWER, session="a", extends=work)
    *_, stranger, back = traffic.replayed(board)
    return Seen(stranger, back)


def ways(board: Profile) -> dict[str, Profile]:
    """Rows in place alone; our pool; and the spill without it, when it is wanted or ahead."""
    bare = replace(board, park_bytes=0, pin_bytes=0)
    return {
        "rows_in_place": replace(bare, spill=False),
        "pool": replace(board, spill=False),
        "spill": replace(bare, spill_idle_s=0.0),
        "spill_ahead": bare,
    }


def run(board: Profile) -> list[Figure]:
    """What each way costs both."""
    size = ROWS + MESSAGE
    head_s = PrefillTime.fit(board).seconds(min(HEAD, size), size)
    note = "by the board's prefill time"
    figures = [Figure("pinned_head.first_token_s", 165.0, head_s, "s", note)]
    for name, changed in ways(board).items():
        seen = served(changed)
        stranger, back = seen.stranger, seen.back
        note = f"source {back.source}"
        figures += [
            Figure(f"{name}.cached_tokens", None, back.cached, "tokens", note),
            Figure(f"{name}.reread_tokens", None, back.reread, "tokens"),
            Figure(f"{name}.first_token_s", None, back.ttft_s or 0.0, "s"),
            Figure(f"{name}.restore_s", None, back.restore_s, "s"),
            Figure(f"{name}.stranger_waits_s", None, stranger.save_s, "s", "for the write"),
            Figure(f"{name}.stranger_first_token_s", None, stranger.ttft_s or 0.0, "s"),
        ]
    return figures
