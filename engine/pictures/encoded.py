"""The tower's output by the digest of what it read, so that a picture is encoded once

One for all slots of a box. Under a budget of bytes; the one used longest ago goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import torch

from cache.budget import Grow, freely
from engine.pictures.picture import Picture

Grid = tuple[int, int, int]


class Encoded:
    """Rows [rows, hidden] by digest. Nobody writes to a tensor that is in here."""

    name = "encoded"

    def __init__(self, budget_bytes: int = 512 * 10**6, row_bytes: int | None = None) -> None:
        """A budget of 0 keeps nothing. `row_bytes` replaces the real bytes of a row (a replay
        counts a board's).
        """
        assert budget_bytes >= 0
        self._budget_bytes = budget_bytes
        self._row_bytes = row_bytes
        self.grow: Grow = freely
        """Asked before a picture's rows are kept."""
        self._entries: OrderedDict[bytes, tuple[Grid, torch.Tensor]] = OrderedDict()
        self._held_bytes = 0
        self.hits = 0
        self.misses = 0
        """Pictures that the tower read."""

    def rows(self, picture: Picture, encode: Callable[[Picture], torch.Tensor]) -> torch.Tensor:
        """What the tower makes of a picture, from here or made now by `encode` and kept."""
        held = self._entries.get(picture.digest)
        # The digest covers the grid; comparing it costs nothing and needs no faith in that.
        if held is not None and held[0] == picture.grid:
            self.hits += 1
            self._entries.move_to_end(picture.digest)
            return held[1]
        self.misses += 1
        made = encode(picture)
        assert len(made) == picture.rows
        self._keep(picture, made)
        return made

    def _keep(self, picture: Picture, made: torch.Tensor) -> None:
        self._drop(picture.digest)
        size = self._bytes(made)
        if size > self._budget_bytes:
            return
        self.release(self._held_bytes + size - self._budget_bytes)
        if not self.grow(self.name, size):
            return
        self._entries[picture.digest] = picture.grid, made
        self._held_bytes += size

    def _bytes(self, made: torch.Tensor) -> int:
        return made.nbytes if self._row_bytes is None else len(made) * self._row_bytes

    def _drop(self, digest: bytes) -> int:
        held = self._entries.pop(digest, None)
        size = self._bytes(held[1]) if held else 0
        self._held_bytes -= size
        return size

    def held_bytes(self) -> int:
        """Bytes of all rows in here."""
        return self._held_bytes

    def release(self, nbytes: int) -> int:
        """Give back at least `nbytes`, or all; returns how many. Least recently used first."""
        given = 0
        while given < nbytes and self._entries:
            given += self._drop(next(iter(self._entries)))
        return given

    def __len__(self) -> int:
        return len(self._entries)
