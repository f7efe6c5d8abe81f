"""Heads of recorded sessions: how much two share that part at the folder, or in the tools"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from cache.types import GOES_ON, Ids, common_prefix
from engine.bad import BadInput
from replay.source import Source
from replay.suffixes import sources_of, speak_alike
from replay.trace import Request, Trace
from sim.profile import Profile


@dataclass(frozen=True, slots=True)
class Heads:
    """Two sessions of one client in two folders. Tokens; a head ends where the user begins."""

    common: int
    """Equal in both."""
    other: int
    """Equal in a session with other tools."""
    tools: int
    heads: tuple[int, int]
    prompts: tuple[int, int]


@dataclass(frozen=True, slots=True)
class _First:
    """The first long request of a session."""

    ids: Ids
    tools: int
    head: int
    space: int
    """Tokens of equal spaces are comparable."""


def heads_of(traces: Sequence[Trace], board: Profile, where: str) -> Heads:
    """The two sessions that have most in common and part in the system text; raises BadInput."""
    firsts = list(_firsts(traces, board))
    pairs = [
        (common_prefix(a.ids, b.ids), a, b)
        for a, b in combinations(firsts, 2)
        if a.space == b.space
    ]
    folders = [pair for pair in pairs if _in_system(*pair)]
    if not folders:
        raise BadInput(where, None, "no two sessions in it part in their system text")
    common, first, second = max(folders, key=lambda pair: pair[0])
    least = min(first.tools, board.grid)
    other = max((shared for shared, a, b in pairs if shared < min(a.tools, b.tools)), default=least)
    sizes = (len(first.ids), len(second.ids))
    return Heads(common, min(other, common), first.tools, (first.head, second.head), sizes)


def _in_system(common: int, a: _First, b: _First) -> bool:
    return max(a.tools, b.tools) <= common < min(a.head, b.head)


def _firsts(traces: Sequence[Trace], board: Profile) -> Iterator[_First]:
    alike = speak_alike(traces)
    known: set[tuple[int, str | None]] = set()
    for at, (trace, source) in enumerate(zip(traces, sources_of(traces, board, 0), strict=True)):
        space = 0 if alike else at
        for request in trace.requests:
            key = (space, request.session)
            if key not in known and _long(request, board):
                known.add(key)
                yield _first(request, source, space)


def _long(request: Request, board: Profile) -> bool:
    return request.kind in GOES_ON and request.prompt_tokens >= board.disk_tokens_min


def _first(request: Request, source: Source, space: int) -> _First:
    parts = request.parts
    head = source.marks(request.number).last_user or parts.tools + parts.system
    return _First(source.prompt(request.number), parts.tools, head, space)
