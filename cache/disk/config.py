"""The disk tier's settings: what is written, how much is kept and for how long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Mode = Literal["on", "read", "off"]
"""Everything; lookups alone; nothing."""
MODES: tuple[Mode, ...] = get_args(Mode)
SESSIONS = "sessions"
"""The folder in a tier's directory that live conversations have to themselves."""
DAY_S = 86_400.0
FREE_FLOOR_BYTES = 50_000_000_000
"""Free space that is left to the file system whatever is set (the seed's figure)."""


@dataclass(frozen=True, slots=True)
class DiskConfig:
    """Settings that may change while the tier runs; ValueError in one line that names the setting.

    Figures: the seed's, but for the read rate that is assumed before one was measured.
    """

    mode: Mode = "on"
    budget_bytes: int = 16_000_000_000
    ttl_s: float = 7 * DAY_S
    """An entry that nobody used for so long goes."""
    min_free_bytes: int = FREE_FLOOR_BYTES
    floor_bytes: int = FREE_FLOOR_BYTES
    """What `min_free_bytes` is never below, whatever it says."""
    admit_after: int = 2
    """Cold reads of a line, this one among them, after which it gets an anchor."""
    head_anchors: int = 4
    """Lines below a session's first user message that get one at its first long request."""
    branches: int = 4
    """Lines where prompts went on differently that get one, the longest of them."""
    tokens_min: int = 4_096
    """Shorter prompts are neither counted nor written."""
    read_bytes_s: float = 2e9
    """A prior for the read rate; restores measure it."""
    rate_memory_s: float = 600.0
    """A measured rate older than this is forgotten, or a slow hour would end all lookups."""
    lines_max: int = 16_384
    """Lines whose cold reads are remembered; the least recently read are forgotten."""
    sessions_max: int = 10_000
    """Sessions remembered as having sent a long request."""

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}")
        for name in ("budget_bytes", "min_free_bytes", "floor_bytes", "head_anchors", "branches"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")
        for name in ("ttl_s", "read_bytes_s", "rate_memory_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive")
        for name in ("admit_after", "tokens_min", "lines_max", "sessions_max"):
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
