"""Shape of the vision tower: its widths, its patches, its grid of positions"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from engine.bad import BadCheckpoint

DEPTH_MAX = 1_024
"""More blocks are no tower's: tensors are named block by block before one is looked for."""
_MAX = 2.0**127


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """Every number that shapes the vision tower. Raises BadCheckpoint when they don't fit."""

    hidden: int
    depth: int
    """Blocks of attention and MLP."""
    heads: int
    intermediate: int
    patch: int = 16
    temporal: int = 2
    """Frames of a patch; a still's frame counts twice."""
    merge: int = 2
    """Patches a side that become one row of the prompt."""
    positions: int = 2_304
    """Learned positions: a square grid, stretched over every picture."""
    rope_theta: float = 10_000.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            kinds = (int, float) if field.name == "rope_theta" else (int,)
            fits = isinstance(value, kinds) and not isinstance(value, bool)
            if not fits or not 0 < value <= _MAX:
                raise BadCheckpoint(f"config: vision {field.name} must be positive, not {value}")
        if self.depth > DEPTH_MAX:
            raise BadCheckpoint(f"config: vision depth {self.depth:,} is more than {DEPTH_MAX:,}")
        if self.hidden % self.heads or self.head_dim % 4:
            raise BadCheckpoint(f"config: a vision head of {self.hidden}/{self.heads} channels")
        if self.side < 2 or self.side**2 != self.positions:
            raise BadCheckpoint(f"config: {self.positions} vision positions are no square")

    @property
    def head_dim(self) -> int:
        """Channels of a head: half of them turn with the height, half with the width."""
        return self.hidden // self.heads

    @property
    def side(self) -> int:
        """Learned positions along a side."""
        return math.isqrt(self.positions)

    @classmethod
    def small(cls, **changes: Any) -> VisionConfig:
        """A narrow tower for the small models."""
        shape: dict[str, Any] = {
            "hidden": 24,
            "depth": 2,
            "heads": 2,
            "intermediate": 40,
            "positions": 36,
        }
        return cls(**{**shape, **changes})
