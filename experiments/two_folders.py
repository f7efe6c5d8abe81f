"""Sessions in two folders: which lines of their common head the drive holds, and when.

Measured by the seed on 2026-10-03: the heads of two sessions in two folders were equal for 13,954
of 27,659 and 25,616 tokens, up to the folder's path; one with two tools more parted at 9,468. The
second, with nothing in memory, was read cold in 35.3 s: the first had kept lines of 20,480 to
23,552, past where it parted. On 2026-10-02 a restore of 15,360 tokens read 1.79 GB in 334 ms, and
the first token came after 2.68 s where a cold one had taken 23.1 s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.console import Console

from cache.disk.notes import NAME as DISK_TIER
from cache.journal import Journal
from experiments.figure import Figure
from experiments.heads import Heads, heads_of
from experiments.traffic import Traffic, fresh, head
from replay.commands import traces_of
from replay.ledger import LedgerRow
from replay.restarts import Restart
from replay.trace import Request, Run
from sim.profile import Profile

NAME = "two-folders"
ABOUT = "sessions in two folders: what the drive holds of their common head (--traces has others)"
READS_TRACES = True
DISK = True

HEADS = Heads(
    common=13_954, other=9_468, tools=12_000, heads=(24_000, 21_957), prompts=(27_659, 25_616)
)
"""The seed's. Where the user's message starts follows from the first one's four lines, up to
23,552; that of the second is taken to be as long. The size of the tool block decides nothing."""
ANSWER = 300
PLAY = ("first", "second", "third", "fourth", "again", "tools", "tools_again")
"""Sessions in the order they come, with nothing in memory each: in a folder, in another, in the
first one after a deploy, in a new folder, in the first one again, twice with other tools."""
RESTARTS = tuple(Restart(n, deploys=n == 2, kills=True) for n in range(1, len(PLAY)))
RESTORED = ((15_360, 1_700), (30_720, 1_700))
"""Tokens of a head, and of what follows it: the first so that it reads cold in the seed's time."""


def play(heads: Heads) -> Traffic:
    """A first request a session."""
    traffic = Traffic()
    first = _session(traffic, heads, 0, "first")
    _session(traffic, heads, 1, "second", head(first, heads.common))
    _session(traffic, heads, 0, "third", head(first, heads.heads[0]))
    _session(traffic, heads, 1, "fourth", head(first, heads.common))
    _session(traffic, heads, 0, "again", head(first, heads.heads[0]))
    _session(traffic, heads, 0, "tools", head(first, heads.other))
    _session(traffic, heads, 1, "tools_again", head(first, heads.other))
    return traffic


def _session(traffic: Traffic, heads: Heads, folder: int, name: str, *shared: Run) -> Request:
    known, size = sum(run.length for run in shared), heads.prompts[folder]
    parts = {"tools": heads.tools, "system": heads.heads[folder] - heads.tools}
    return traffic.ask(*shared, fresh(size - known), answer=ANSWER, session=name, **parts)


@dataclass(frozen=True, slots=True)
class Session:
    """A session's first request, and the lines it wrote."""

    row: LedgerRow
    lines: tuple[int, ...]


def played(board: Profile, heads: Heads) -> dict[str, Session]:
    """The sessions in their order."""
    journal = Journal()
    rows = play(heads).replayed(board, restarts=RESTARTS, journal=journal)
    told = [event for event in journal.events if (event.tier, event.event) == (DISK_TIER, "write")]
    lines = {name: sorted(e.tokens for e in told if e.session == name) for name in PLAY}
    return {name: Session(row, tuple(lines[name])) for name, row in zip(PLAY, rows, strict=True)}


def restored(board: Profile, tokens: int, more: int) -> tuple[LedgerRow, LedgerRow]:
    """A prompt with a head of so many tokens read cold, and another with that head after a restart.

    The user's message starts at the head's end, so that its last line is kept.
    """
    traffic = Traffic()
    parts = {"tools": tokens // 2, "system": tokens - tokens // 2}
    first = traffic.ask(fresh(tokens), fresh(more), answer=ANSWER, session="a", **parts)
    traffic.ask(head(first, tokens), fresh(more), answer=ANSWER, session="b", **parts)
    cold, warm = traffic.replayed(board, restarts=(Restart(1, kills=True),))
    return cold, warm


def run(board: Profile, names: Sequence[str], skip_bad: bool = False) -> list[Figure]:
    """The play with the branch rule and without, and two restores beside the measured ones.

    With traces the play alone, of heads that part as far as theirs do.
    """
    heads = HEADS
    if names:
        traces, _ = traces_of(names, skip_bad, Console(stderr=True), board=board)
        heads = heads_of(traces, board, ", ".join(names))
    figures = _heads(heads)
    for way, changed in (("branch", board), ("no_branch", replace(board, disk_branches=0))):
        sessions = played(changed, heads)
        figures += _play(way, sessions, seeds=heads == HEADS and way == "branch")
    if names:
        return figures
    return figures + [figure for size in RESTORED for figure in _restore(board, *size)]


def _heads(heads: Heads) -> list[Figure]:
    seeds = heads == HEADS
    note = "equal, up to the folder's path"
    return [
        Figure("common_tokens", 13_954 if seeds else None, heads.common, "tokens", note),
        Figure("other_tools_tokens", 9_468 if seeds else None, heads.other, "tokens", "equal"),
    ]


def _play(way: str, sessions: dict[str, Session], *, seeds: bool) -> list[Figure]:
    """What each session resumed at, and what it wrote for those after it."""
    known = {
        "second.first_token_s": 35.3,
        "third.lowest_line": 13_312,
        "fourth.cached_tokens": 13_312,
    }
    figures = []
    for name, session in sessions.items():
        row, lines = session.row, session.lines
        said = f"wrote {', '.join(f'{line:,}' for line in lines) or 'nothing'}"
        figures += [
            Figure(f"{way}.{name}.{key}", None, value, unit, note)
            for key, value, unit, note in (
                ("cached_tokens", row.cached, "tokens", f"source {row.source}"),
                ("first_token_s", row.ttft_s or 0.0, "s", ""),
                ("anchors", len(lines), "anchors", said),
                ("lowest_line", min(lines, default=0), "tokens", ""),
            )
        ]
    return [
        replace(figure, seed=known.get(figure.key.removeprefix(f"{way}.")) if seeds else None)
        for figure in figures
    ]


def _restore(board: Profile, tokens: int, more: int) -> list[Figure]:
    cold, warm = restored(board, tokens, more)
    nbytes = tokens * board.row_bytes + board.anchor_bytes
    measured = {15_360: (1.79, 0.334, 23.106, 2.681), 30_720: (3.43, 0.47, None, None)}
    gb, read_s, cold_s, warm_s = measured[tokens]
    key = f"restore_{tokens}"
    rate = "the seed's at the drive's rate alone" if cold_s is None else "checksum and copies too"
    return [
        Figure(f"{key}.cached_tokens", tokens, warm.cached, "tokens", f"source {warm.source}"),
        Figure(f"{key}.gb", gb, nbytes / 1e9, "GB"),
        Figure(f"{key}.read_gb", gb, warm.disk_read / 1e9, "GB", "headers at the start among it"),
        Figure(f"{key}.restore_s", read_s, warm.restore_s, "s", f"seed: {rate}"),
        Figure(f"{key}.cold_first_token_s", cold_s, cold.ttft_s or 0.0, "s"),
        Figure(f"{key}.first_token_s", warm_s, warm.ttft_s or 0.0, "s"),
    ]
