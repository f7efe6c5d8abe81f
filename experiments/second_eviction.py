"""A chat that is evicted a second time: what is written of it, and by a stop when it did not move.

The seed's chat of 48,853 rows: 5.97 GB with its five copies of the sections, of which the second
eviction wrote 231 MB, one block and the end anchor. That is the end's 153.9 MB and 725 rows as they
are, all that there is above row 48,128: the chat had grown within its last block. The drain of a
conversation that did not move writes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from experiments.figure import Figure
from experiments.traffic import Traffic, fresh, message, whole
from replay.ledger import LedgerRow
from replay.restarts import Restart
from sim.profile import Profile

NAME = "second-eviction-writes-one-block"
ABOUT = "a chat that grew within its last block goes to the drive again: what of it is written"
SPILL = True

ROWS = 48_853
GROWS, ANSWER, STRANGER = 400, 100, 10_000
"""Rows of the last turn, its answer's among them, and what takes the chat's place each time: too
short to be written itself."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The requests that took its place, its turn between them, and its stops."""

    first: LedgerRow
    turn: LedgerRow
    second: LedgerRow
    last: LedgerRow
    """After the stops."""
    drains: list[dict[str, Any]]


def served(board: Profile, grows: int = GROWS) -> Seen:
    """The chat, a stranger, its turn, another stranger, its turn, two stops, and its turn."""
    board = replace(board, spill_idle_s=0.0, park_bytes=0, pin_bytes=0)
    traffic = Traffic()
    chat = traffic.ask(fresh(ROWS - grows - ANSWER), answer=ANSWER, session="a")
    traffic.ask(fresh(STRANGER), answer=ANSWER, session="b")
    more = message(grows - ANSWER)
    turn = traffic.ask(whole(chat), *more, answer=ANSWER, session="a", extends=chat)
    traffic.ask(fresh(STRANGER), answer=ANSWER, session="c")
    last = traffic.ask(whole(turn), *message(50), answer=50, session="a", extends=turn)
    traffic.ask(whole(last), *message(50), answer=50, session="a", extends=last)
    # One stop after another, with nothing served between them.
    stops = (Restart(5), Restart(5))
    rows, replay = traffic.played(board, restarts=stops)
    assert replay.spill is not None
    return Seen(rows[1], rows[2], rows[3], rows[5], replay.spill["drains"])


def run(board: Profile) -> list[Figure]:
    """As the seed wrote then, and with the codec."""
    figures = []
    for name, codec in (("raw", "raw"), ("planes", "planes")):
        seen, seeds = served(replace(board, spill_codec=codec)), codec == "raw"
        second, again = seen.second.spill_written, seen.drains[1]["written_bytes"]
        gb = 1e9
        note = "a turn resumed at its end" if seen.turn.source == "spill.end" else ""
        figures += [
            Figure(f"{name}.first_gb", None, seen.first.spill_written / gb, "GB"),
            Figure(f"{name}.held_gb", 5.97 if seeds else None, seen.second.spill_held / gb, "GB"),
            Figure(f"{name}.second_gb", 0.231 if seeds else None, second / gb, "GB"),
            Figure(f"{name}.turn_cached_tokens", None, seen.turn.cached, "tokens", note),
            Figure(f"{name}.first_waits_s", None, seen.first.save_s, "s"),
            Figure(f"{name}.second_waits_s", None, seen.second.save_s, "s"),
            Figure(f"{name}.drain_gb", None, seen.drains[0]["written_bytes"] / gb, "GB"),
            Figure(f"{name}.drain_again_gb", 0.0, again / gb, "GB", "a record of one page"),
            Figure(f"{name}.last_reread_tokens", None, seen.last.reread, "tokens"),
        ]
    return figures
