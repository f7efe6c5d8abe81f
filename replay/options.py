"""Options: what a replay runs on, and where its process ends"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cache.suffix_store import SuffixStore
from engine.knobs import PLAIN, Knobs
from replay.restarts import Restart
from replay.schedule import Arrivals
from sim.profile import Profile


@dataclass(frozen=True, slots=True)
class Options:
    """What a replay runs on."""

    profile: Profile
    model: str = "witness"
    """One of replay.models.MODELS, or a checkpoint directory."""
    arrivals: Arrivals = Arrivals.RECORDED
    users: int = 1
    verify: float = 1.0
    """Share of the requests that are checked, each chosen by the seed."""
    seed: int = 0
    suffixes: SuffixStore | None = None
    """Where prompts and answers are added; its jobs are the replay's."""
    cache_dir: Path | None = None
    """Where the disk tier's files lie; None simulates them."""
    adopt_from: tuple[str, ...] = ()
    """Folders that this tree lay in when those were written, if it has moved since."""
    restarts: tuple[Restart, ...] = ()
    """Ascending."""
    knobs: Knobs = PLAIN
