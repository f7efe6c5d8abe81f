"""The spill's settings: which conversations are written, how, and how long they are kept."""

from __future__ import annotations

from dataclasses import dataclass, field

from cache.drive_config import DriveConfig
from cache.rows import BLOCK_ROWS
from cache.spill.codec import CodecConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class SpillConfig(DriveConfig):
    """Settings that may change while the spill runs; ValueError in one line that names the setting.

    Figures: the seed's, but for the read rate, unpacking with it, before one was measured, and for
    what a conversation has to grow by.
    """

    budget_bytes: int = 64_000_000_000
    ttl_s: float = 48 * 3_600.0
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

    def __post_init__(self) -> None:
        DriveConfig.__post_init__(self)  # With slots a class is made anew: super() finds the old.
        self.not_negative("anchors_kept", "idle_s")
        self.at_least_one("tokens_min", "park_tokens_min", "idle_tokens_min", "block_rows")
