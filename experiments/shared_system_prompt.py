"""One system prompt, many people: short chats that share it, others' work between them.

Each chat is one turn of another person, so that nothing but the shared prompt can be used again.
Before each of them come none, one or two long requests of strangers, which replace the rows in
place; two are more than the pool holds. `rows` has no pool and no guests: what is left is the state
store. Its settings are compared on two grids, under budgets in bytes. The longest boundary of a
chat's prefill lies in the shared prompt or in the message after it, as the lengths fall: `past` is
a prompt where it lies in the message, and nobody else's starts with that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cache.stack import Stack
from experiments.figure import Curve, Figure
from experiments.traffic import GIB, Traffic, fresh, head, sweep, without_tiers
from replay.ledger import LedgerRow
from sim.profile import Profile

NAME = "shared-system-prompt"
ABOUT = "short chats under one system prompt: tokens read again with and without the store"

SYSTEM, PAST = 4_400, 4_000
"""Tokens of the shared prompt; after the shorter one the message has a line of either grid."""
ASKED, ANSWER = 200, 150
"""Of a chat."""
CHATS = 5
STRANGER, SHORT = 40_000, 3_000
"""Tokens of a request between two chats; two long ones are more than the pool's 75,000 rows."""
GRIDS = (1_024, 256)


@dataclass(slots=True)
class Seen:
    """What the chats after the first cost, and what the store did meanwhile."""

    chats: list[LedgerRow]
    held_bytes: int = 0
    """The most that all snapshots held after a request."""
    evicted: int = 0

    @property
    def reread(self) -> int:
        """Tokens read again, a chat."""
        return round(sum(row.reread for row in self.chats) / len(self.chats))

    @property
    def first_token_s(self) -> float:
        """Seconds to the first token, a chat."""
        return sum(row.ttft_s or 0.0 for row in self.chats) / len(self.chats)


def served(
    board: Profile, strangers: int, system: int = SYSTEM, chats: int = CHATS, size: int = STRANGER
) -> Seen:
    """Chats of as many people, with so many long requests of others before each."""
    traffic, numbers = Traffic(), []
    for _ in range(chats):
        for _ in range(strangers):
            name = f"stranger{len(traffic.requests)}"
            traffic.ask(fresh(size), answer=ANSWER, session=name)
        shared = head(traffic.requests[numbers[0]], system) if numbers else fresh(system)
        runs = [shared, fresh(ASKED)]
        chat = traffic.ask(*runs, answer=ANSWER, session=f"chat{len(numbers)}", system=system)
        numbers.append(chat.number)
    seen = Seen([])

    def watch(row: LedgerRow, stack: Stack) -> None:
        seen.held_bytes = max(seen.held_bytes, row.held_store)
        seen.evicted = stack.store.evictions

    rows = traffic.replayed(board, watch=watch)
    seen.chats = [rows[number] for number in numbers[1:]]
    return seen


def stores(board: Profile) -> dict[str, Profile]:
    """No store; the longest boundary of a prefill that fits, and all of them; and the longest with
    twice the room, and with half the cap of a snapshot."""
    longest = replace(board, store_boundaries=1)
    return {
        "off": replace(board, store_bytes=0),
        "longest": longest,
        "all": replace(board, store_boundaries=0),
        "twice_the_room": replace(longest, store_bytes=2 * board.store_bytes),
        "half_the_cap": replace(longest, store_entry_bytes=board.store_entry_bytes // 2),
    }


def rows_alone(board: Profile) -> Profile:
    """The board with its store, and nothing else beside the rows in place."""
    return replace(without_tiers(board), store_bytes=board.store_bytes)


@dataclass(frozen=True, slots=True)
class Situation:
    """What comes between the chats, and what there is beside the store."""

    board: Profile
    strangers: int = 1
    system: int = SYSTEM
    size: int = STRANGER


def situations(board: Profile) -> dict[str, Situation]:
    """Nobody between the chats, one stranger, two; one under limits that leave room for all caches
    at once; and one with the rows in place alone."""
    bare, more = rows_alone(board), 6 * GIB
    limits = {"ceiling_bytes": board.ceiling_bytes + more, "peak_bytes": board.peak_bytes + more}
    return {
        "alone": Situation(board, 0),
        "one": Situation(board),
        "two": Situation(board, 2),
        "one_roomy": Situation(replace(board, **limits)),
        "rows": Situation(bare),
        "rows_past": Situation(bare, system=PAST),
        "rows_short": Situation(bare, size=SHORT),
    }


def run(board: Profile) -> list[Figure]:
    """Re-read and first token of a chat, the bytes held, and the snapshots given up."""
    figures = []
    for grid in GRIDS:
        for name, at in situations(replace(board, grid=grid)).items():
            for store, changed in stores(at.board).items():
                seen = served(changed, at.strangers, at.system, size=at.size)
                figures += figures_of(f"{name}.grid_{grid}.{store}", seen)
    return figures


def figures_of(key: str, seen: Seen) -> Sequence[Figure]:
    """One way's figures."""
    sources = sorted({row.source for row in seen.chats})
    return [
        Figure(f"{key}.reread_tokens", None, seen.reread, "tokens", ", ".join(sources)),
        Figure(f"{key}.first_token_s", None, seen.first_token_s, "s", "the mean of a chat"),
        Figure(f"{key}.store_bytes", None, seen.held_bytes, "bytes", "the most at once"),
        Figure(f"{key}.evicted", None, seen.evicted, "snapshots"),
    ]


def curves(board: Profile) -> list[Curve]:
    """Re-read of a chat over the shared prompt's length, a stranger before each, no pool."""

    def mean(changed: Profile, system: int) -> float:
        return served(changed, 1, system, chats=3).reread

    lines = sweep(stores(rows_alone(board)), range(600, 9_001, 400), mean)
    return [Curve("Chats under one system prompt", "tokens of it", "re-read a chat", lines)]
