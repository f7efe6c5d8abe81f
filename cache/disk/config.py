"""The disk tier's settings: what is written, how much is kept and for how long."""

from __future__ import annotations

from dataclasses import dataclass

from cache.drive_config import DriveConfig

SESSIONS = "sessions"
"""The folder in a tier's directory that live conversations have to themselves."""
DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskConfig(DriveConfig):
    """Settings that may change while the tier runs; ValueError in one line that names the setting.

    Figures: the seed's, but for the read rate that is assumed before one was measured.
    """

    budget_bytes: int = 16_000_000_000
    ttl_s: float = 7 * DAY_S
    admit_after: int = 2
    """Cold reads of a line, this one among them, after which it gets an anchor."""
    head_anchors: int = 4
    """Lines below a session's first user message that get one at its first long request."""
    branches: int = 4
    """Lines where prompts went on differently that get one, the longest of them."""
    tokens_min: int = 4_096
    """Shorter prompts are neither counted nor written."""
    lines_max: int = 16_384
    """Lines whose cold reads are remembered; the least recently read are forgotten."""
    sessions_max: int = 10_000
    """Sessions remembered as having sent a long request."""

    def __post_init__(self) -> None:
        DriveConfig.__post_init__(self)  # With slots a class is made anew: super() finds the old.
        self.not_negative("head_anchors", "branches")
        self.at_least_one("admit_after", "tokens_min", "lines_max", "sessions_max")
