"""A deploy in mid-afternoon: a long conversation's next turn, with what the drive holds of it.

The seed's at 15:35 on 2026-10-03: a restart took the engine's memory, and the next turn of a long
conversation read 120,102 tokens again, 25,600 of them from the disk tier, which keeps heads alone:
158 s to the first token. That is what a turn of about 2,600 tokens more takes there. Since then a
planned stop writes conversations, and the next start reads back the one that was in place.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from experiments.figure import Figure
from experiments.traffic import Traffic, fresh, message, whole
from replay.ledger import LedgerRow
from replay.restarts import Restart
from sim.profile import Profile

NAME = "deploy-mid-afternoon"
ABOUT = "a restart under a long conversation: its next turn, with the spill and without"
DISK = SPILL = True

HEAD, ANSWER = 26_000, 300
"""Tools and system text, whose last line below is the 25,600 that came from the tier."""
ROWS, MESSAGE = 120_102, 2_600
"""What the conversation had, and what its next turn brings."""


def served(board: Profile) -> tuple[LedgerRow, dict[str, Any] | None]:
    """The turn after the restart, and what the spill did."""
    traffic = Traffic()
    parts = {"tools": HEAD // 2, "system": HEAD - HEAD // 2}
    first = traffic.ask(fresh(HEAD), fresh(1_000), answer=ANSWER, session="a", **parts)
    read = ROWS - first.prompt_tokens - 2 * ANSWER
    work = traffic.ask(whole(first), *message(read), answer=ANSWER, session="a", extends=first)
    traffic.ask(whole(work), *message(MESSAGE), answer=ANSWER, session="a", extends=work)
    restart = Restart(2, kills=not board.spill)
    rows, replay = traffic.played(board, restarts=(restart,))
    return rows[-1], replay.spill


def run(board: Profile) -> list[Figure]:
    """Heads alone, and whole conversations."""
    row, _ = served(replace(board, spill=False))
    seconds = row.ttft_s or 0.0
    again = row.cached + row.reread
    figures = [
        Figure("heads.read_again_tokens", 120_102, again, "tokens", "from the drive or forwarded"),
        Figure("heads.from_drive_tokens", 25_600, row.cached, "tokens"),
        Figure("heads.reread_tokens", None, row.reread, "tokens"),
        Figure("heads.first_token_s", 158.0, seconds, "s"),
    ]
    for name, idle_s in (("spill", 0.0), ("spill_ahead", board.spill_idle_s)):
        row, seen = served(replace(board, spill_idle_s=idle_s))
        assert seen is not None
        drain, back = seen["drains"][0], seen["read_backs"][0]
        note = "written while nobody asked, before" if name == "spill_ahead" else ""
        figures += [
            Figure(f"{name}.cached_tokens", None, row.cached, "tokens", f"source {row.source}"),
            Figure(f"{name}.reread_tokens", None, row.reread, "tokens"),
            Figure(f"{name}.new_tokens", None, row.new, "tokens"),
            Figure(f"{name}.first_token_s", None, row.ttft_s or 0.0, "s"),
            Figure(f"{name}.drain_s", None, drain["seconds"], "s", note),
            Figure(f"{name}.drain_gb", None, drain["written_bytes"] / 1e9, "GB"),
            Figure(f"{name}.read_back_s", None, back["seconds"], "s", "before the first request"),
        ]
    return figures
