"""A client's compaction as it sends it, as its conversation's continuation, and written ahead

The seed's two compactions of 2026-10-03, whose conversations sat in place. How long their summaries
were it does not say; one is about 2,000 tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from cache.account import COMPACTION
from engine.events import Chunk
from engine.forced import Forced
from engine.scratch import Scratch
from experiments.compaction_head import (
    COMPACTED,
    CONVERSATION,
    LONG_COMPACTED,
    LONG_CONVERSATION,
    NEW,
    SUMMARY,
    SYSTEM,
    TOOLS,
)
from experiments.figure import Figure
from experiments.traffic import Traffic, fresh, head, held, mark, whole
from replay.driver import Options, Replay
from replay.ledger import LedgerRow
from replay.trace import Header, Trace
from sim.profile import Profile

NAME = "compaction-continued"
ABOUT = "a compaction as it is sent, as a continuation, and written ahead"

TURN = 480
"""The turn that asks: the client's system text and instructions, 1,880 characters, and marks."""
ANSWER = 400

Way = Literal["sent", "continued", "prepared"]


@dataclass(frozen=True, slots=True)
class Seen:
    """A compaction and the turn after it; seconds on the board's clock."""

    forwarded: int
    prefill_s: float
    all_s: float
    """Its prefill and its summary's tokens."""
    step_s: float
    """The longest from one of them to the next where a request may stop it."""
    after: LedgerRow


def asked(way: Way, conversation: int, compacted: int) -> Trace:
    """The requests that reach the engine: what is written ahead is none."""
    traffic = Traffic()
    fixed = {"session": "a", "tools": TOOLS, "system": SYSTEM}
    first = traffic.ask(fresh(conversation - ANSWER), answer=ANSWER, **fixed)
    if way == "sent":
        traffic.ask(fresh(compacted), answer=SUMMARY, session="a", kind=COMPACTION)
    if way == "continued":
        turn = (mark(), fresh(TURN - 1))
        more = {"kind": COMPACTION, "extends": first}
        traffic.ask(whole(first), *turn, answer=SUMMARY, **more, **fixed)
    traffic.ask(head(first, TOOLS + SYSTEM), fresh(SUMMARY + NEW), answer=200, **fixed)
    return Trace("made", Header(timing="synthetic"), tuple(traffic.requests))


def served(
    board: Profile, way: Way, conversation: int = CONVERSATION, compacted: int = COMPACTED
) -> Seen:
    """One way of serving it; raises GateFailed."""
    replay = Replay([asked(way, conversation, compacted)], Options(board))
    rows, ahead = [], None
    for row in replay:
        held(row)
        rows.append(row)
        if way == "prepared" and len(rows) == 1:
            ahead = _ahead(replay, board)
            replay.box.stack.exchange.summed_up("a")
    after = rows[-1]
    if ahead is not None:
        prefill_s, all_s, step_s = ahead
        return Seen(TURN, prefill_s, all_s, step_s, after)
    row = rows[1]
    return Seen(row.forwarded, row.prefill_s, row.prefill_s + row.decode_s, 0.0, after)


def _ahead(replay: Replay, board: Profile) -> tuple[float, float, float]:
    """Write the summary in scratch rows; seconds of its prefill, of all, of the longest step."""
    box, clock = replay.box, replay.box.clock
    draw = np.random.default_rng(0)
    turn, summary = (draw.integers(0, board.vocab, n, np.int32) for n in (TURN, SUMMARY))
    ids = np.concatenate([box.stack.rows, turn])
    drafts = {"drafts": board.drafts, "accepted": board.accepted}
    rule = Forced(summary, seed="0", vocab=board.vocab, **drafts)
    at_s, read_s = [clock.mono_s()], 0.0
    for event in Scratch(box).run(ids, (), rule, SUMMARY):
        at_s.append(clock.mono_s())
        if isinstance(event, Chunk):
            read_s = at_s[-1] - at_s[0]
    steps = [after - before for before, after in pairwise(at_s)]
    return read_s, at_s[-1] - at_s[0], max(steps)


def run(board: Profile) -> list[Figure]:
    """Both compactions in all three ways; of what is prepared the client waits for nothing."""
    figures = []
    sizes = {
        "manual": (CONVERSATION, COMPACTED, 189.8),
        "automatic": (LONG_CONVERSATION, LONG_COMPACTED, 270.0),
    }
    ways: tuple[Way, ...] = ("sent", "continued", "prepared")
    for name, (conversation, compacted, seconds) in sizes.items():
        for way in ways:
            seen, sent = served(board, way, conversation, compacted), way == "sent"
            key, note = f"{name}.{way}", "while nobody asks" if way == "prepared" else ""
            tokens, all_s = (compacted, seconds) if sent else (None, None)
            figures += [
                Figure(f"{key}.forwarded_tokens", tokens, seen.forwarded, "tokens"),
                Figure(f"{key}.prefill_s", None, seen.prefill_s, "s", note),
                Figure(f"{key}.all_s", all_s, seen.all_s, "s", note),
                Figure(f"{key}.after_cached_tokens", None, seen.after.cached, "tokens"),
            ]
            if way == "prepared":
                about = "the longest that a request waits for it"
                figures.append(Figure(f"{key}.step_s", None, seen.step_s, "s", about))
    return figures
