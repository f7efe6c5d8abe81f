"""A conversation on the drive beside the rows in place, and how it is brought back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from cache.account import Account, End
from cache.anchors import Anchor, AnchorConfig, Anchors, Tensors
from cache.ports import Model
from cache.spill.entry import Copy, Entry

Bring = Callable[["Spilled", Model, int], bool]
_NONE = AnchorConfig(budget_bytes=0, newest_kept=1)


@dataclass(slots=True, eq=False)
class Spilled:
    """An entry's rows from `base` on come from files; those below are in place, bit for bit."""

    entry: Entry
    base: int
    shared: int
    """Rows in place that have the entry's tokens; perhaps not the same bits."""
    stop: int
    """Rows up to here are written when it is brought."""
    brought: Bring = field(repr=False)
    copies: dict[Copy, Tensors] = field(default_factory=dict)
    """Once it was brought."""
    seen: Account | None = field(init=False)
    """What the entry was when this was made."""

    def __post_init__(self) -> None:
        self.seen = self.entry.account

    @property
    def account(self) -> Account:
        """What is known of its rows; with its copies, once it was brought."""
        account = self.entry.account
        assert account is not None
        if not self.copies:
            return account
        anchors = [
            Anchor(copy.tokens, copy.gate, tensors, copy.kind)
            for copy, tensors in self.copies.items()
            if copy.kind != "end"
        ]
        ends = [End(c.tokens, tensors) for c, tensors in self.copies.items() if c.kind == "end"]
        return replace(
            account,
            anchors=Anchors.of(_NONE, sorted(anchors, key=lambda anchor: anchor.tokens)),
            end=ends[0] if ends else None,
        )

    def bring(self, model: Model, top: int) -> bool:
        """Read its rows up to `top` and its copies; False when that failed.

        Then rows from `base` on may have been overwritten.
        """
        return self.brought(self, model, top)
