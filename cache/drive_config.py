"""What the settings of every tier on a drive have in common: what is kept, and for how long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Mode = Literal["on", "read", "off"]
"""Everything; lookups alone; nothing."""
MODES: tuple[Mode, ...] = get_args(Mode)
FREE_FLOOR_BYTES = 50_000_000_000
"""Free space that is left to the file system whatever is set (the seed's figure)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriveConfig:
    """Settings that may change while a tier runs; ValueError in one line that names the setting."""

    mode: Mode = "on"
    budget_bytes: int
    ttl_s: float
    """An entry that nobody used for so long goes."""
    min_free_bytes: int = FREE_FLOOR_BYTES
    floor_bytes: int = FREE_FLOOR_BYTES
    """What `min_free_bytes` is never below, whatever it says."""
    read_bytes_s: float = 2e9
    """A prior for the read rate, whatever reading takes with it; restores measure it."""
    rate_memory_s: float = 600.0
    """A measured rate older than this is forgotten, or a slow hour would end all reading."""

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}")
        self.not_negative("budget_bytes", "min_free_bytes", "floor_bytes")
        for name in ("ttl_s", "read_bytes_s", "rate_memory_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive")

    def not_negative(self, *names: str) -> None:
        """Raise ValueError for the first of these settings that is."""
        for name in names:
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative")

    def at_least_one(self, *names: str) -> None:
        """Raise ValueError for the first of these settings that is below."""
        for name in names:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")

    @property
    def free_bytes(self) -> int:
        """What a write must leave free."""
        return max(self.min_free_bytes, self.floor_bytes)

    @property
    def reads(self) -> bool:
        """Whether lookups happen."""
        return self.mode != "off"

    @property
    def writes(self) -> bool:
        """Whether anything is counted and written."""
        return self.mode == "on"
