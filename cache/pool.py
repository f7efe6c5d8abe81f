"""The pool's entries: what they hold, which of them is worth least, and what they give back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from cache.anchors import AnchorConfig
from cache.budget import Grow, freely
from cache.parked import Kind, ParkConfig, Parked
from cache.ports import Model
from cache.source import Source, parked

Leaves = Callable[[Source, Literal["evict", "park"]], bool]
"""Asked to keep a conversation that loses its place, or its room in the pool; whether it did."""


def stays(source: Source, who: str) -> bool:
    """There is no drive."""
    return False


class Pool:
    """Conversations that are not in place, under one budget."""

    def __init__(self, config: ParkConfig, model: Model, grow: Grow = freely) -> None:
        self._config = config
        self._model = model
        self._grow = grow
        self.entries: list[Parked] = []
        self._turn = 0
        self.leaves: Leaves = stays
        """Told of a conversation that is about to be lost."""
        self.borrowed: int | None = None
        """Rows in place from here on are a guest's just now, or nobody borrows any."""
        self._arriving_bytes = 0
        """Copies on their way out of the pool, which no account has while room is made."""

    def held_bytes(self) -> int:
        """Bytes of all entries; a block or a copy that several share counts once."""
        return self._held(self.entries)

    def copies(self) -> set[int]:
        """Which copies of the sections the entries' anchors hold."""
        return {id(anchor.tensors) for entry in self.entries for anchor in entry.account.anchors}

    def spare_bytes(self, kind: Kind) -> int:
        """Bytes that giving up all entries of a kind would free, heads after the others."""
        heads = self._held([entry for entry in self.entries if entry.kind == "pin"])
        return heads if kind == "pin" else self.held_bytes() - heads

    def release(self, kind: Kind, nbytes: int) -> int:
        """Give up entries of a kind, the least worth first, until `nbytes` are free or none is
        left; returns how many were freed."""
        before = self.held_bytes()
        while before - self.held_bytes() < nbytes:
            some = [entry for entry in self.entries if entry.kind == kind]
            if not some:
                break
            self._give_up(min(some, key=self._worth))
        return before - self.held_bytes()

    def configure(self, config: ParkConfig, anchors: AnchorConfig) -> None:
        """Other settings; over the budget the least worth is given up. `anchors` are those of the
        rows in place, where an entry's come back to. Blocks and margins stay as they are."""
        assert config.block_rows == self._config.block_rows
        assert config.margin_rows == self._config.margin_rows
        self._config = config
        for entry in self.entries:
            entry.account.anchors = entry.account.anchors.under(anchors)
        while self.entries and self.held_bytes() > config.budget_bytes:
            self._give_up(min(self.entries, key=self._worth))

    def _fits(self, need: int) -> bool:
        """Whether so many bytes more may be held."""
        if need <= 0:
            return True
        within = self.held_bytes() + need <= self._config.budget_bytes
        return within and self._grow("park", need + self._arriving_bytes)

    def _give_up(self, entry: Parked) -> None:
        """Keep less of an entry: up to its next lower anchor, or nothing.

        A conversation is offered to a drive first: what lies there whole need not be kept here.
        """
        if self._left(entry):
            # Room for the writing may have been made by giving up others, this one among them.
            self.entries = [other for other in self.entries if other is not entry]
            return
        lower = [line for line in entry.account.anchors.lines if line < entry.top]
        if lower and lower[-1] > entry.base + self._config.block_rows:
            entry.cut(lower[-1])
        else:
            self.entries.remove(entry)

    def _left(self, entry: Parked) -> bool:
        """Whether all of an entry lies on a drive now."""
        if entry.kind != "park" or (self.borrowed is not None and self.borrowed < entry.base):
            return False
        return self.leaves(parked(entry, self._model), "park")

    def _worth(self, entry: Parked) -> float:
        idle = (self._turn - entry.used_turn) / self._config.half_life_turns
        return entry.worth(self._model.cost()) * float(0.5**idle)

    def _drop_useless(self) -> None:
        """Entries that no line of theirs can be resumed at."""
        self.entries = [entry for entry in self.entries if entry.copies and entry.top > entry.base]

    def _bytes(self, rows: int, copies: int) -> int:
        cost = self._model.cost()
        return rows * cost.row_bytes + copies * cost.anchor_bytes

    def _held(self, entries: list[Parked]) -> int:
        blocks = {id(b): b.stop - b.start for entry in entries for b in entry.blocks}
        copies = {id(anchor.tensors) for entry in entries for anchor in entry.account.anchors}
        ends = sum(entry.account.end is not None for entry in entries)
        return self._bytes(sum(blocks.values()), len(copies) + ends)
