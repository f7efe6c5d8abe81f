"""A parked conversation, and the ways to park one: how many rows, which anchors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cache.account import Account
from cache.ports import Model
from cache.rows import BLOCK_ROWS, RowBlock, write_blocks
from cache.types import Cost

Kind = Literal["park", "pin"]


@dataclass(frozen=True, slots=True)
class ParkConfig:
    """How much is kept of conversations that are not in place. Figures: the seed's."""

    park_bytes: int = 4 * 2**30
    pin_bytes: int = 4 * 2**30
    """Room for heads. What no head uses, whole conversations may, until a head needs it."""
    anchors_kept: int = 4
    """Newest anchors of a conversation that are kept with it, the end anchor among them."""
    anchors_spread: int = 6
    """Anchors below those, spread over it, for prompts that share less of it."""
    pin_anchors: int = 8
    block_rows: int = BLOCK_ROWS
    half_life_turns: int = 2
    """Turns after which a conversation that nobody used is worth half; few, since the pool holds
    less than the conversations that alternate: those used last come back. From 1 to 6 the Weka
    traces re-read about the same, at 32 more by a tenth."""
    margin_rows: int = 512
    """Rows that may be written past what is known: refused drafts, tokens put in, a last block."""

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
    """A sequence whose rows [base, high) lie in blocks, and all others in place.

    The rows in place begin with this sequence's first `base` tokens, always, and whatever came
    after it has not grown past `high`, where its own rows are still untouched: before any of these
    is overwritten it is copied into a block.
    """

    kind: Kind
    account: Account
    base: int
    blocks: list[RowBlock]
    used_turn: int
    high: int

    @property
    def top(self) -> int:
        """Rows it has, in place and in blocks."""
        return self.account.valid

    @property
    def stop(self) -> int:
        """Where its blocks end."""
        return max((block.stop for block in self.blocks), default=0)

    @property
    def copies(self) -> int:
        """Copies of all sections that it holds."""
        return len(self.account.anchors) + (self.account.end is not None)

    def leave_above(self, top: int, base: int) -> None:
        """Only what lies above `top` stays: the rows up to there come in place, all below `base`.

        `base` is the start of the block that row `top` lies in.
        """
        anchors = self.account.anchors
        self.account.anchors = anchors.only([line for line in anchors.lines if line > top])
        if self.account.end is not None and self.account.end.tokens <= top:
            self.account.end = None
        self.base, self.high = base, max(self.high, base)
        self.blocks = [block for block in self.blocks if block.start >= base]

    def put_back(self, was: Parked, done: int) -> None:
        """The move failed at row `done`: it has what it had; its rows up to there are in place."""
        top = self.top
        self.account, self.high, self.base = was.account, was.high, done
        self.blocks = [block for block in was.blocks if block.stop > done]
        self.cut(top)

    def bring(self, model: Model, top: int) -> bool:
        """Write its rows up to `top` that are not in place; it keeps them."""
        write_blocks(model.cache_state(), (b for b in self.blocks if b.start < top))
        return True

    def worth(self, cost: Cost) -> float:
        """Tokens it saves for each byte it holds."""
        rows = sum(block.rows for block in self.blocks)
        held = rows * cost.row_bytes + self.copies * cost.anchor_bytes
        return float((self.top - self.base) / max(held, 1))

    def uncovered(self, stop: int) -> int:
        """Rows of it in place above the blocks that would go if rows up to `stop` were written."""
        return max(0, min(self.top, stop) - self.high)

    def cut(self, length: int) -> None:
        """Only the first `length` rows stay."""
        self.account.cut(length)
        self.high = min(self.high, length)
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
    account: Account
    start: int
    reach: int
    """Rows from here on stay where they are: nobody is about to write there."""
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

    @property
    def stop(self) -> int:
        """Rows up to here are copied."""
        return min(self.top, self.reach)

    def bytes_of(self, top: Top, cost: Cost) -> int:
        """Bytes that one of the ways holds."""
        rows = min(top.rows, self.reach) - self.start
        return rows * cost.row_bytes + top.copies * cost.anchor_bytes

    def worth(self, cost: Cost) -> float:
        """Tokens it saves for each byte that it will hold."""
        return (self.top - self.start) / max(self.bytes_of(self.tops[0], cost), 1)


def outgoing_of(
    account: Account, start: int, reach: int, keep: Kind, config: ParkConfig
) -> Outgoing:
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
    return Outgoing(keep, account, start, reach, tops)


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
