"""A picture as a prompt carries it: the digest that names its rows, its grid, its patches"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from cache.keys import KEY_ROWS, key_ids
from cache.types import Ids


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """An image that was preprocessed: what the tower reads, and what the caches compare."""

    digest: bytes
    """SHA-256 of the patches, their dtype and the grid: 32 bytes."""
    grid: tuple[int, int, int]
    """Patches in time, height and width."""
    patches: torch.Tensor | None = field(default=None, repr=False)
    """[t * h * w, channels of a patch]; None where only the digest is known (a scrubbed trace)."""
    merge: int = 2
    """So many patches each way become one row of the prompt."""

    def __post_init__(self) -> None:
        t, h, w = self.grid
        assert len(self.digest) == 32
        assert t > 0 and h > 0 and w > 0 and h % self.merge == 0 and w % self.merge == 0, self.grid
        assert self.rows >= KEY_ROWS, f"{self.rows} rows do not hold a digest"
        assert self.patches is None or len(self.patches) == t * h * w

    @property
    def rows(self) -> int:
        """Rows it takes in a prompt."""
        t, h, w = self.grid
        return t * h * w // self.merge**2

    @property
    def ids(self) -> Ids:
        """The key ids of its rows."""
        return key_ids(self.digest, self.rows)
