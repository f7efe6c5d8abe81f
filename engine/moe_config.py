"""Shape of a mixture of experts: how many, how many a token, how wide, in which layers"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from engine.bad import BadCheckpoint

EXPERTS_MAX = 4_096
"""More are no model's: tensors are named expert by expert before one of them is looked for."""


@dataclass(frozen=True, slots=True)
class MoeConfig:
    """Every number that shapes the experts. Raises BadCheckpoint when they don't fit."""

    experts: int
    per_token: int
    """Experts that a token goes through, those of its highest probabilities."""
    intermediate: int
    """Inner channels of one expert."""
    shared_intermediate: int
    """Inner channels of the expert that every token goes through."""
    renormalise: bool = True
    """Whether a token's chosen probabilities are divided by their sum."""
    every: int = 1
    """Every so many layers the last one has experts."""
    dense: tuple[int, ...] = ()
    """Layers that have an MLP all the same."""
    draft: bool = True
    """Whether the draft layers have experts too."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, tuple):
                if not all(isinstance(at, int) and at >= 0 for at in value):
                    raise BadCheckpoint(f"config: moe {field.name} is {list(value)}, not layers")
            elif not isinstance(value, bool) and (not isinstance(value, int) or value < 1):
                raise BadCheckpoint(f"config: moe {field.name} must be positive, not {value}")
        if self.experts > EXPERTS_MAX:
            raise BadCheckpoint(f"config: {self.experts:,} experts are more than {EXPERTS_MAX:,}")
        if self.per_token > self.experts:
            raise BadCheckpoint(f"config: {self.per_token} of {self.experts} experts a token")

    def has(self, layer: int) -> bool:
        """Whether layer number `layer` has experts."""
        return (layer + 1) % self.every == 0 and layer not in self.dense

    def floats(self, hidden: int) -> int:
        """Floats a row while a chunk goes through the experts, the chunk's own among them."""
        at_experts = 3 * self.per_token * hidden + 3 * self.intermediate
        return at_experts + 4 * hidden + 3 * self.shared_intermediate + 2 * self.experts

    @classmethod
    def small(cls, **changes: Any) -> MoeConfig:
        """A few narrow experts for the small models."""
        shape: dict[str, Any] = {
            "experts": 7,
            "per_token": 3,
            "intermediate": 24,
            "shared_intermediate": 40,
        }
        return cls(**{**shape, **changes})
