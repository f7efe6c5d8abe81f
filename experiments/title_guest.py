"""A title request between two turns: a guest in the rows, beside them, or in their place.

An agent client asks for a conversation's title between its turns. The request is short and shares
nothing with the conversation, so whoever serves it in the engine's only rows overwrites what the
next turn needs.
"""

from __future__ import annotations

from dataclasses import replace

from experiments.figure import Curve, Figure
from experiments.traffic import Traffic, fresh, sweep, whole, without_tiers
from replay.ledger import LedgerRow
from sim.profile import Profile

NAME = "title-guest"
ABOUT = "a title request between two turns: what the next turn re-reads"

CONVERSATION = 53_209
TITLE, TITLE_ANSWER = 410, 12
"""The seed's short question has 410 tokens."""
ANSWER, NEW = 160, 197
"""New tokens of an agent's turn at the median, on a night of the seed's."""


def boards(board: Profile) -> dict[str, Profile]:
    """The ways to serve the title request."""
    return {
        "guest": board,
        "side_slot": replace(board, side_slots=1),
        "parked": replace(board, guest_tokens=0),
        "off": without_tiers(board),
    }


def served(board: Profile, conversation: int = CONVERSATION) -> tuple[LedgerRow, LedgerRow]:
    """The title request, and the conversation's turn after it."""
    traffic = Traffic()
    first = traffic.ask(fresh(conversation), answer=ANSWER, session="a")
    traffic.ask(fresh(TITLE), answer=TITLE_ANSWER, session="a", kind="title")
    traffic.ask(whole(first), fresh(NEW), answer=ANSWER, session="a", extends=first)
    _, title, after = traffic.replayed(board)
    return title, after


def run(board: Profile) -> list[Figure]:
    """Tokens, seconds and bytes of each way."""
    notes = {
        "guest": "rows stashed and put back",
        "side_slot": "another sequence over the same weights",
        "parked": "no guests: the conversation is parked and comes back",
        "off": "no guests, no park",
    }
    figures = []
    for name, changed in boards(board).items():
        title, after = served(changed)
        figures += [
            Figure(f"{name}.reread_tokens", None, after.reread, "tokens", notes[name]),
            Figure(f"{name}.title_first_token_s", None, title.ttft_s or 0.0, "s"),
            Figure(f"{name}.next_first_token_s", None, after.ttft_s or 0.0, "s"),
            Figure(f"{name}.copied_bytes", None, title.held_stash + title.held_park, "bytes"),
        ]
    return figures


def curves(board: Profile) -> list[Curve]:
    """Seconds to the next turn's first token over the conversation's length."""
    lengths = (4_096, 16_384, 32_768, 65_536, 131_072)
    lines = sweep(boards(board), lengths, lambda way, size: served(way, size)[1].ttft_s or 0.0)
    return [Curve("After a title request", "tokens of the conversation", "s to first token", lines)]
