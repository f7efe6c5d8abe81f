"""A chain: an entry on the drive beside the rows in place, and how it is brought back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from cache.account import Account
from cache.anchors import Anchor, AnchorConfig, Anchors, Tensors
from cache.disk.index import Entry
from cache.ports import Model
from cache.types import Gate, Ids

Bring = Callable[["Chain", Model], Tensors | None]
_ONE = AnchorConfig(budget_bytes=0, newest_kept=1)


@dataclass(slots=True, eq=False)
class Chain:
    """The rows and sections of a prompt at an entry's line; those below `base` are in place."""

    entry: Entry
    ids: Ids
    """The prompt's, up to the line."""
    base: int
    session: str | None
    brought: Bring = field(repr=False)
    sections: Tensors | None = None
    """Once it was brought."""
    reached: int | None = None
    """Rows that are in place since; None before."""

    @property
    def account(self) -> Account:
        """What is known of its rows; of those in place, once it was brought or that failed."""
        line = self.entry.line
        rows = line if self.reached is None else self.reached
        held = () if self.sections is None else (Anchor(line, Gate.BITS, self.sections),)
        return Account(self.ids[:rows], Anchors.of(_ONE, held), rows)

    @property
    def stop(self) -> int:
        """Whole chunks are written, and none above the line."""
        return self.entry.line

    def bring(self, model: Model, top: int) -> bool:
        """Read its rows from `base` on into the model's views; False when a file was no good.

        Then rows from `base` on may have been overwritten, and those up to `reached` are right.
        """
        assert top == self.entry.line
        self.reached = self.base
        self.sections = self.brought(self, model)
        return self.sections is not None
