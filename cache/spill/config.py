"""The spill's settings: which conversations are written, how, and how long they are kept."""

from __future__ import annotations

from dataclasses import dataclass, field

from cache.disk.config import FREE_FLOOR_BYTES, MODES, Mode
from cache.rows import BLOCK_ROWS
from cache.spill.codec import CodecConfig


@dataclass(frozen=True, slots=True)
class SpillConfig:
    """Settings that may change while the spill runs; ValueError in one line that names the setting.

    Figures: the seed's, but for the read rate that is assumed before one was measured.
    """

    mode: Mode = "on"
    budget_bytes: int = 64_000_000_000
    ttl_s: float = 48 * 3_600.0
    """An entry that nobody used for so long goes."""
    min_free_bytes: int = FREE_FLOOR_BYTES
    floor_bytes: int = FREE_FLOOR_BYTES
    """What `min_free_bytes` is never below, whatever it says."""
    tokens_min: int = 16_384
    """A conversation in place is written from so many rows on, when another one replaces it."""
    park_tokens_min: int = 4_096
    """A parked one that is about to be given up: its rows were moved once already."""
    anchors_kept: int = 4
    """Newest grid anchors that are written with it, beside the end anchor."""
    block_rows: int = BLOCK_ROWS
    """Rows of a block's file; another number makes every older entry useless."""
    codec: CodecConfig = field(default_factory=CodecConfig)
    idle_s: float = 30.0
    """After such a pause conversations in memory are written ahead; 0 never does."""
    idle_tokens_min: int = 4_096
    """... those that have grown by so many rows since: each time costs copies of the sections."""
    read_bytes_s: float = 2e9
    """A prior for the read rate, unpacking with it; restores measure it."""
    rate_memory_s: float = 600.0
    """A measured rate older than this is forgotten, or a slow hour would end all reading."""

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}")
        for name in ("budget_bytes", "min_free_bytes", "floor_bytes", "anchors_kept", "idle_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative")
        for name in ("ttl_s", "read_bytes_s", "rate_memory_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive")
        for name in ("tokens_min", "park_tokens_min", "idle_tokens_min", "block_rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")

    @property
    def free_bytes(self) -> int:
        """What a write must leave free."""
        return max(self.min_free_bytes, self.floor_bytes)

    @property
    def reads(self) -> bool:
        """Whether entries are offered."""
        return self.mode != "off"

    @property
    def writes(self) -> bool:
        """Whether anything is written."""
        return self.mode == "on"
