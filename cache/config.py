"""Every tier's settings, together."""

from __future__ import annotations

from dataclasses import dataclass, field

from cache.anchors import AnchorConfig
from cache.guest import GuestConfig
from cache.parked import ParkConfig
from cache.snapshot import StoreConfig


@dataclass(frozen=True, slots=True)
class StackConfig:
    """Every tier's settings."""

    anchors: AnchorConfig = field(default_factory=AnchorConfig)
    park: ParkConfig = field(default_factory=ParkConfig)
    guest: GuestConfig = field(default_factory=GuestConfig)
    store: StoreConfig = field(default_factory=StoreConfig)
    keeps_end: bool = True
    checkpoint_tokens: int = 512
    """Tokens of an answer from one checkpoint to the next; 0 takes none."""
    answer_room: int = 8_192
    """Rows that a prompt which alignment made longer leaves for its answer; less where the answer
    may have less, or where the client's own copy leaves less than it may have: then half of that.
    """
