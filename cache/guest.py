"""A guest: a short request that borrows the rows in place, which are put back before the next."""

from __future__ import annotations

from dataclasses import dataclass

from cache.budget import Grow, freely
from cache.ports import Model
from cache.rows import BLOCK_ROWS, RowBlock, block_spans, try_copy, write_rows


@dataclass(frozen=True, slots=True)
class GuestConfig:
    """Who is a guest, and how much is put aside for one. Figures: the seed's."""

    tokens_max: int = 8_192
    part_max: float = 0.25
    """Of the rows in place: a guest's prompt is shorter than this share of them."""
    stash_bytes: int = 2**30
    margin_rows: int = 512
    """Copied beyond what is known to be written: refused drafts, tokens put in, the last block."""
    block_rows: int = BLOCK_ROWS

    def __post_init__(self) -> None:
        assert self.tokens_max >= 0 and 0.0 <= self.part_max <= 1.0 and self.stash_bytes >= 0
        assert self.margin_rows > 0 and self.block_rows > 0


class Stash:
    """Copies of the rows in place that a guest overwrites; at most one guest is in the house.

    A guest's prompt and two margins are copied before it starts. Its answer may be far shorter than
    it asked for, so more is copied only as the answer grows, always a margin ahead.
    """

    def __init__(self, config: GuestConfig, model: Model, grow: Grow = freely) -> None:
        self._config = config
        self._grow = grow
        self._model = model
        self._blocks: list[RowBlock] = []
        self.line = 0
        """Where the guest started."""
        self.covered = 0
        """Rows [line, covered) are copied, or were not valid."""

    def configure(self, config: GuestConfig) -> None:
        """Other settings; block and margin stay. Nothing is put aside now."""
        assert not self._blocks
        assert config.block_rows == self._config.block_rows
        assert config.margin_rows == self._config.margin_rows
        self._config = config

    def is_guest(self, size: int, line: int, valid: int) -> bool:
        """Whether a prompt that writes from `line` of `valid` rows on is short enough to borrow."""
        config = self._config
        return line < valid and size <= config.tokens_max and size < config.part_max * valid

    def open(self, line: int, stop: int, valid: int) -> bool:
        """Copy what a guest overwrites first, [line, stop); False, with nothing held, if no room
        is left."""
        assert not self._blocks
        self.line = self.covered = line
        if self.cover(stop + self._config.margin_rows, valid):
            return True
        self._blocks = []
        return False

    def cover(self, stop: int, valid: int) -> bool:
        """Rows up to `stop` will be written: they and a margin are copied; False without room."""
        stop = min(stop + self._config.margin_rows, valid)
        if stop <= self.covered:
            return True
        state, row_bytes = self._model.cache_state(), self._model.cost().row_bytes
        for start, edge in block_spans(self.covered, stop, self._config.block_rows):
            if (edge - self.line) * row_bytes > self._config.stash_bytes:
                return False
            if not self._grow("stash", (edge - start) * row_bytes):
                return False
            block = try_copy(state, start, edge)
            if block is None:
                return False
            self._blocks.append(block)
            self.covered = edge
        return True

    def put_back(self) -> None:
        """The rows in place are what they were."""
        state = self._model.cache_state()
        for block in self._blocks:
            write_rows(state, block)
        self._blocks = []

    def held_bytes(self) -> int:
        """Bytes of the copies."""
        return sum(block.rows for block in self._blocks) * self._model.cost().row_bytes
