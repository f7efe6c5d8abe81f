"""An entry of the spill: one conversation in files, and what is known without reading them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from cache.account import Account
from cache.spill.sums import Sums
from cache.types import Gate, Ids, common_prefix

Kind = Literal["grid", "checkpoint", "end"]


@dataclass(frozen=True, slots=True)
class Piece:
    """A file of an entry, whole and on the drive."""

    name: str
    nbytes: int
    """Of the file."""
    weight: int
    """What it counts for under the budget."""
    sums: tuple[Sums, ...]
    """Of every buffer in it, as they were in the engine."""


@dataclass(frozen=True, slots=True)
class Block:
    """Rows [start, stop) of every view."""

    start: int
    stop: int
    piece: Piece


@dataclass(frozen=True, slots=True)
class Copy:
    """All sections after `tokens` tokens."""

    tokens: int
    kind: Kind
    gate: Gate
    piece: Piece


@dataclass(frozen=True, slots=True)
class Loose:
    """A block that a save wrote before it was stopped: nothing names it but the next save."""

    block: Block
    ids: Ids


@dataclass(slots=True, eq=False)
class Entry:
    """One conversation. Until its first save ends it has no account, and nobody is offered it."""

    key: int
    """Begins the names of its files; no two entries of a directory have the same."""
    session: str | None
    account: Account | None = None
    """Its rows' account; the anchors and the end in it have no tensors: those are in files."""
    blocks: tuple[Block, ...] = ()
    """Ascending, without a gap from row 0."""
    copies: tuple[Copy, ...] = ()
    """Ascending; the end anchor last."""
    loose: dict[int, Loose] = field(default_factory=dict)
    """By the row that the block starts at."""
    manifest_bytes: int = 0
    used_s: float = 0.0
    """Wall clock, when it was last written or read."""
    hits: int = 0

    @property
    def pieces(self) -> Iterator[Piece]:
        """All its files but the manifest, those that a stopped save wrote among them."""
        yield from (block.piece for block in self.blocks)
        yield from (copy.piece for copy in self.copies)
        for loose in self.loose.values():
            yield loose.block.piece

    @property
    def held_bytes(self) -> int:
        """What it counts for under the budget."""
        held = {piece.name: piece.weight for piece in self.pieces}
        return sum(held.values()) + self.manifest_bytes

    @property
    def names(self) -> set[str]:
        """Its files but the manifest."""
        return {piece.name for piece in self.pieces}

    def goes_on(self, ids: Ids) -> int:
        """Tokens that it shares with a conversation which it is the past of; 0 when it is none's:
        with no more than half of it in common the two only begin alike."""
        if self.account is not None:
            shared, own = common_prefix(self.account.ids, ids), self.account.valid
        else:
            pieces = [(loose.ids, loose.block) for loose in self.loose.values()]
            shared = sum(common_prefix(ids[b.start : b.stop], its) for its, b in pieces)
            own = sum(len(its) for its, _ in pieces)
        return shared if 2 * shared > own else 0

    def up_to(self, line: int, base: int = 0) -> list[Block]:
        """The blocks with rows in [base, line)."""
        return [block for block in self.blocks if block.start < line and block.stop > base]

    def copies_to(self, line: int) -> list[Copy]:
        """The copies at or below a line."""
        return [copy for copy in self.copies if copy.tokens <= line]
