"""Why a turn reused no more: a code, where the prompts part, and tokens lost to each cause."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from cache.account import Account
from cache.types import Ids, Line, Met, Region, common_prefix


class Why(StrEnum):
    """Why a turn did not start later; all but the first three are also causes of lost tokens."""

    NEW = "new"
    """Nothing in place starts like this prompt for as long as one chunk."""
    END = "end"
    """Every row of the last turn was reused, up to its end."""
    PARTED = "parted"
    """The prompt parts from the rows in place; the region says where."""
    GRID = "grid"
    """The nearest grid line below the shared rows' end; no finer one is exact."""
    EVICTED = "evicted"
    """A later line of the shared rows had an anchor, and eviction took it."""
    UNANCHORED = "unanchored"
    """The shared rows go on through an answer, where a generation leaves no grid anchors."""
    REPLACED = "replaced"
    """Rows that matched further were overwritten by another prompt."""
    SLOW = "slow"
    """A later line lies on the drive, and reading it takes longer than forwarding up to it."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a turn started at its line, with the positions that show it."""

    code: Why
    shared: int
    """Leading tokens the prompt has in common with the rows in place: where the two part."""
    held: int
    """The same with the rows in place or any that were remembered as replaced."""
    region: Region | None
    """Where the parting lies in the rows in place; None when the prompt has all of them."""
    lost: Mapping[Why, int]
    """Tokens forwarded although rows for them had been computed, by cause."""


class Ghosts:
    """Token ids of prompts whose rows were overwritten: they explain a re-read, nothing more."""

    def __init__(self, tokens_max: int = 4_000_000) -> None:
        self._tokens_max = tokens_max
        self._ids: deque[Ids] = deque()
        self._tokens = 0

    def add(self, ids: Ids) -> None:
        """Remember a sequence that is about to be overwritten; the oldest are forgotten."""
        if len(ids) > self._tokens_max:
            return
        # A ghost that the new one extends says nothing more.
        for old in [old for old in self._ids if common_prefix(old, ids) == len(old)]:
            self._forget(old)
        self._ids.append(ids.copy())
        self._tokens += len(ids)
        while self._tokens > self._tokens_max:
            self._forget(self._ids[0])

    def shared(self, ids: Ids) -> int:
        """Longest prefix that `ids` has in common with a remembered sequence."""
        return max((common_prefix(ghost, ids) for ghost in self._ids), default=0)

    def _forget(self, ids: Ids) -> None:
        index = next(i for i, ghost in enumerate(self._ids) if ghost is ids)
        del self._ids[index]
        self._tokens -= len(ids)


def explain(
    line: Line,
    met: Met,
    ghost: int,
    account: Account,
    grid: int,
    anchored: int,
    slow: int = 0,
) -> Reason:
    """Why the best line of a sequence is no higher than it is.

    `met` is how far the prompt goes on with the sequence, `ghost` the same for rows that are gone,
    `anchored` the highest line at or below the shared rows that ever had an anchor, and `slow` the
    line on a drive that was not worth its reading.
    """
    shared, reach = met.rows, met.limit
    best = max(line.tokens, min(anchored, reach))
    rest = reach - best
    causes = {
        Why.EVICTED: best - line.tokens,
        Why.GRID if rest < grid else Why.UNANCHORED: rest,
        Why.REPLACED: min(ghost, len(met.served) - 1) - max(reach, slow),
        Why.SLOW: slow - reach,
    }
    lost = {cause: tokens for cause, tokens in causes.items() if tokens > 0}
    region = account.region(shared) if shared < account.valid else None
    code = _code(line, shared, account.valid, grid, lost)
    return Reason(code, shared, max(shared, ghost), region, lost)


def _code(line: Line, shared: int, rows: int, grid: int, lost: Mapping[Why, int]) -> Why:
    """The reason to give: a loss of a chunk or more outweighs where the prompts part."""
    large = [cause for cause, tokens in lost.items() if tokens >= grid]
    if large:
        return max(large, key=lambda cause: lost[cause])
    if shared < grid:
        return Why.NEW
    if shared < rows:
        return Why.PARTED
    return Why.END if line.kind == "end" else Why.GRID
