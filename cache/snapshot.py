"""A snapshot: a sequence's rows and sections at its last token, and how it is brought back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cache.account import Account
from cache.ports import Model
from cache.rows import BLOCK_ROWS, RowBlock, write_blocks
from cache.types import Gate

Use = Literal["prefix", "session"]


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """How much is kept, and which snapshots are taken. Figures: the seed's."""

    budget_bytes: int = 2 * 2**30
    entry_bytes: int = 2**30
    """A larger snapshot is declined: one of them would be most of the store."""
    boundaries: int = 1
    """Grid lines of a prefill that are kept, the longest that fit; 0 keeps every one."""
    block_rows: int = BLOCK_ROWS
    session_trim: bool = False
    """Keep a conversation's end although its last block ran past it: the commit is cut back."""
    said_max: int = 10_000
    """Conversations of which a decline is remembered, to be reported once."""

    def __post_init__(self) -> None:
        assert self.budget_bytes >= 0 and self.entry_bytes >= 0 and self.boundaries >= 0
        assert self.block_rows > 0


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """A sequence's rows and sections at its last token. Never written to again."""

    use: Use
    account: Account
    """Its tokens, and one copy of the sections, at their end."""
    blocks: tuple[RowBlock, ...]
    hash: int
    nbytes: int

    @property
    def tokens(self) -> int:
        """How many it stands for."""
        return self.account.valid

    @property
    def gate(self) -> Gate:
        """What a resume from it is held to."""
        return self.account.gate(self.tokens)


@dataclass(frozen=True, slots=True, eq=False)
class Standing:
    """A snapshot beside the rows in place: those below `base` need not be written."""

    snapshot: Snapshot
    base: int

    @property
    def account(self) -> Account:
        """What is known of its rows."""
        return self.snapshot.account

    @property
    def blocks(self) -> list[RowBlock]:
        """Its rows from `base` on."""
        return [block for block in self.snapshot.blocks if block.stop > self.base]

    @property
    def stop(self) -> int:
        """Where those end."""
        return max((block.stop for block in self.blocks), default=0)

    def bring(self, model: Model, top: int) -> bool:
        """Write its rows up to `top` that are not in place."""
        write_blocks(model.cache_state(), (b for b in self.blocks if b.start < top))
        return True
