"""A client's compaction and the turn after it: the conversation's head, pinned or lost.

The compaction request has no tools and no system text and sends the history as one user message,
so it shares nothing with the conversation. The turn after it starts with the same tools and system
text as every turn before. The seed's two compactions of 2026-10-03 give the sizes; how long their
summaries were it does not say of these, only that one is about 2,000 tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cache.exchange import COMPACTION
from cache.stack import Stack
from experiments.figure import Curve, Figure
from experiments.traffic import GIB, Traffic, fresh, head
from replay.ledger import LedgerRow
from sim.profile import Profile

NAME = "compaction-head"
ABOUT = "a compaction and the turn after it, with the head pinned and without"

TOOLS, SYSTEM = 9_468, 16_148
"""Together 25,616 tokens, the first prompt of an agent session by the seed."""
SUMMARY, NEW = 2_000, 300
CONVERSATION, COMPACTED = 111_636, 63_614
LONG_CONVERSATION, LONG_COMPACTED = 198_030, 129_643


@dataclass(frozen=True, slots=True)
class Seen:
    """The compaction, the turn after it, and the pin in between."""

    compaction: LedgerRow
    after: LedgerRow
    pin_rows: int
    pin_anchors: int


def served(board: Profile, conversation: int = CONVERSATION, compacted: int = COMPACTED) -> Seen:
    """A conversation, its compaction, and its next turn."""
    traffic, fixed = Traffic(), TOOLS + SYSTEM
    first = traffic.ask(fresh(conversation), answer=400, session="a", tools=TOOLS, system=SYSTEM)
    traffic.ask(fresh(compacted), answer=SUMMARY, session="a", kind=COMPACTION)
    traffic.ask(
        head(first, fixed),
        fresh(SUMMARY + NEW),
        answer=200,
        session="a",
        tools=TOOLS,
        system=SYSTEM,
    )
    pins: list[tuple[int, int]] = []

    def watch(row: LedgerRow, stack: Stack) -> None:
        if row.kind == COMPACTION:
            pins.extend((e.top, e.copies) for e in stack.park.entries if e.kind == "pin")

    _, compaction, after = traffic.replayed(board, watch=watch)
    rows, anchors = pins[0] if pins else (0, 0)
    return Seen(compaction, after, rows, anchors)


def run(board: Profile) -> list[Figure]:
    """The compactions as the client sends them, and the turn after with the pin and without."""
    figures = []
    sizes = {
        "manual": (CONVERSATION, COMPACTED, 189.8),
        "automatic": (LONG_CONVERSATION, LONG_COMPACTED, 270.0),
    }
    for name, (conversation, compacted, seconds) in sizes.items():
        row = served(board, conversation, compacted).compaction
        note = f"prefill and a summary of {SUMMARY:,} tokens"
        figures += [
            Figure(f"{name}.forwarded_tokens", compacted, row.forwarded, "tokens"),
            Figure(f"{name}.all_s", seconds, row.prefill_s + row.decode_s, "s", note),
        ]
    ways = {
        "pin": board,
        "pin_heads": replace(board, anchor_rule="heads"),
        "no_pin": replace(board, pin_bytes=0, park_bytes=0),
    }
    for name, changed in ways.items():
        seen = served(changed)
        figures += [
            Figure(f"{name}.cached_tokens", None, seen.after.cached, "tokens", "of the turn after"),
            Figure(f"{name}.reread_tokens", None, seen.after.reread, "tokens"),
            Figure(f"{name}.first_token_s", None, seen.after.ttft_s or 0.0, "s"),
        ]
        if name == "pin_heads":
            note = "anchors every 4,096 tokens; the seed: about what 4 GiB hold"
            figures += [
                Figure(f"{name}.rows", 33_000, seen.pin_rows, "tokens", note),
                Figure(f"{name}.anchors", 8, seen.pin_anchors, "copies", "the seed: up to 8"),
            ]
    return figures


def curves(board: Profile) -> list[Curve]:
    """Re-read of the turn after a compaction over the pin's budget."""
    points = []
    for halves in range(9):
        budget = replace(board, pin_bytes=halves * GIB // 2, park_bytes=0)
        points.append((halves / 2, served(budget).after.reread))
    lines = {"the turn after a compaction": points}
    return [Curve("The pinned head", "GiB for the pin", "tokens re-read", lines)]
