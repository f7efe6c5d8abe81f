"""A drive a hundred times slower: what the next request waits for, and what is not written.

The seed's writer holds no request: an anchor is copied as the prefill passes its line, rows are
copied out while the answer is written, and the next prefill drops what was not copied by then.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from cache.disk.notes import NAME as DISK_TIER
from cache.journal import Journal
from experiments.figure import Figure
from experiments.traffic import Traffic, fresh, message, whole
from replay.ledger import LedgerRow
from sim.profile import Profile

NAME = "slow-drive"
ABOUT = "a drive 100 times slower: what the next request waits for, and what is not written"
DISK = True

SLOWER = 100.0
HEAD, MESSAGE, ANSWER = 30_720, 1_000, 300
"""Tokens of a first prompt, whose last four lines are to be kept, and of its answer."""


@dataclass(frozen=True, slots=True)
class Next:
    """The request that comes when the first one's answer is written."""

    row: LedgerRow
    written: int
    """Anchors of the first one that are on the drive in the end."""
    dropped: Counter[str]
    """The others, by reason."""


def slower(board: Profile, factor: float) -> Profile:
    """The board with a drive so many times slower."""
    return replace(
        board,
        drive_write_bytes_s=board.drive_write_bytes_s / factor,
        drive_read_bytes_s=board.drive_read_bytes_s / factor,
        drive_sustained_bytes_s=board.drive_sustained_bytes_s / factor,
        drive_fsync_s=board.drive_fsync_s * factor,
    )


def served(board: Profile, *, same: bool) -> Next:
    """A long first prompt, and at once the next: the same session's next turn, or a stranger's."""
    traffic, journal = Traffic(), Journal()
    parts = {"tools": HEAD // 2, "system": HEAD - HEAD // 2}
    first = traffic.ask(fresh(HEAD), fresh(MESSAGE), answer=ANSWER, session="a", **parts)
    if same:
        traffic.ask(whole(first), *message(MESSAGE), answer=ANSWER, session="a", extends=first)
    else:
        traffic.ask(fresh(HEAD), fresh(MESSAGE), answer=ANSWER, session="b", **parts)
    # It waits at the door while the first is served.
    traffic.requests[1] = replace(traffic.requests[1], t_s=0.0)
    _, row = traffic.replayed(board, journal=journal)
    told = [e for e in journal.events if e.tier == DISK_TIER and e.session == "a"]
    written = sum(event.event == "write" for event in told)
    return Next(row, written, Counter(e.why for e in told if e.event == "drop"))


def boards(board: Profile) -> dict[str, Profile]:
    """Without the tier, with the drive as it is, with one much slower."""
    return {
        "off": replace(board, disk=False),
        "as_it_is": board,
        "slow": slower(board, SLOWER),
    }


def run(board: Profile) -> list[Figure]:
    """What the next request waits for, each way."""
    copy_s = board.grid * board.row_bytes / board.device_copy_bytes_s
    figures = [Figure("chunk_copy_s", None, copy_s, "s", "assumed: copies at the board's rate")]
    for same in (False, True):
        ways = {name: served(one, same=same) for name, one in boards(board).items()}
        without_s = ways["off"].row.ttft_s or 0.0
        for name, seen in ways.items():
            key = f"{'same_session' if same else 'stranger'}.{name}"
            first_s = seen.row.ttft_s or 0.0
            note = f"source {seen.row.source}"
            figures.append(Figure(f"{key}.first_token_s", None, first_s, "s", note))
            if name == "off":
                continue
            more = {why: count for why, count in seen.dropped.items() if why != "window"}
            note = ", ".join(f"{why} {count}" for why, count in sorted(more.items()))
            figures += [
                Figure(f"{key}.moved_s", None, first_s - without_s, "s"),
                Figure(f"{key}.written", None, seen.written, "anchors"),
                Figure(f"{key}.dropped_window", None, seen.dropped["window"], "anchors"),
                Figure(f"{key}.dropped_otherwise", None, sum(more.values()), "anchors", note),
            ]
    return figures
