"""A parked conversation, and the ways to park one: how many rows, which anchors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cache.account import Account
from cache.rows import BLOCK_ROWS, RowBlock

Kind = Literal["park", "pin"]


@dataclass(frozen=True, slots=True)
class ParkConfig:
    """How much is kept of conversations that are not in place. Figures: the seed's."""

    park_bytes: int = 4 * 2**30
    pin_bytes: int = 4 * 2**30
    """Room for heads. What no head uses, whole conversations may, until a head needs it."""
    anchors_kept: int = 4
    """Newest anchors of a conversation that are kept with it, the end anchor among them."""
    anchors_spread: int = 4
    """Anchors below those, spread over it, for prompts that share less of it."""
    pin_anchors: int = 8
    block_rows: int = BLOCK_ROWS
    half_life_turns: int = 32
    """Turns after which a conversation that nobody used is worth half."""

    def __post_init__(self) -> None:
        assert self.park_bytes >= 0 and self.pin_bytes >= 0 and self.half_life_turns > 0
        assert (
            self.block_rows > 0
            and self.anchors_kept > 0
            and self.anchors_spread >= 0
            and self.pin_anchors > 0
        )

    @property
    def budget_bytes(self) -> int:
        """Bytes of both."""
        return self.park_bytes + self.pin_bytes


@dataclass(slots=True, eq=False)
class Parked:
    """A sequence of which rows [0, base) are in place and [base, top) lie in blocks.

    The rows in place begin with this sequence's first `base` tokens, always: before any of them is
    overwritten it is copied into a block.
    """

    kind: Kind
    account: Account
    base: int
    blocks: list[RowBlock]
    used_turn: int

    @property
    def top(self) -> int:
        """Rows it has, in place and in blocks."""
        return self.account.valid

    @property
    def copies(self) -> int:
        """Copies of all sections that it holds."""
        return len(self.account.anchors) + (self.account.end is not None)

    def cut(self, length: int) -> None:
        """Only the first `length` rows stay."""
        self.account.cut(length)
        self.blocks = [block for block in self.blocks if block.start < length]


@dataclass(frozen=True, slots=True)
class Top:
    """One way to keep a sequence: so many rows, with these copies of the sections."""

    rows: int
    anchors: list[int]
    with_end: bool = False

    @property
    def copies(self) -> int:
        """How many."""
        return len(self.anchors) + self.with_end


@dataclass(slots=True)
class Outgoing:
    """What is to be kept of the sequence in place, from row `start` on."""

    kind: Kind
    start: int
    tops: list[Top]
    """What may be kept, the most first."""

    @property
    def top(self) -> int:
        """Rows kept."""
        return self.tops[0].rows

    @property
    def copies(self) -> int:
        """Copies of all sections kept."""
        return self.tops[0].copies


def outgoing_of(account: Account, start: int, keep: Kind, config: ParkConfig) -> Outgoing:
    """The ways to keep rows from `start` on: all with the end anchor, or up to some anchor."""
    lines = account.anchors.lines
    tops = [
        Top(lines[at - 1], _kept(lines[:at], keep, config, ends=0))
        for at in range(len(lines), 0, -1)
        if lines[at - 1] > start
    ]
    end = account.end
    if keep == "park" and end is not None and end.tokens == account.valid > start:
        tops.insert(0, Top(account.valid, _kept(lines, keep, config, ends=1), with_end=True))
    return Outgoing(keep, start, tops)


def _kept(lines: list[int], keep: Kind, config: ParkConfig, ends: int) -> list[int]:
    """Anchors to keep: the newest, and some spread over the rest."""
    newest = 1 if keep == "pin" else config.anchors_kept - ends
    spread = config.pin_anchors - 1 if keep == "pin" else config.anchors_spread
    split = max(0, len(lines) - newest)
    return _spread(lines[:split], spread) + lines[split:]


def _spread(lines: list[int], count: int) -> list[int]:
    """At most `count` of the lines, evenly spaced, the lowest and the highest among them."""
    if len(lines) <= count:
        return lines
    if count == 1:
        return lines[-1:]
    step = (len(lines) - 1) / (count - 1) if count else 0.0
    return [lines[round(at * step)] for at in range(count)]
