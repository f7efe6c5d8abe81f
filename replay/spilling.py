"""The spill in a replay: a board's settings of it, and a codec at the board's pace"""

from __future__ import annotations

from typing import cast

from cache.disk.config import DAY_S
from cache.ports import Model
from cache.spill.codec import CodecConfig, Mode
from cache.spill.config import SpillConfig
from cache.writeguard import GuardConfig
from sim.clock import VirtualClock
from sim.profile import Profile
from sim.timed_workers import TimedWorkers

HOUR_S = DAY_S / 24


def spill_config(profile: Profile) -> SpillConfig:
    """The spill's settings of a board."""
    return SpillConfig(
        budget_bytes=profile.spill_bytes,
        ttl_s=profile.spill_ttl_hours * HOUR_S,
        min_free_bytes=profile.disk_min_free_bytes,
        tokens_min=profile.spill_tokens_min,
        park_tokens_min=profile.spill_park_tokens_min,
        idle_s=profile.spill_idle_s,
        codec=CodecConfig(mode=cast(Mode, profile.spill_codec)),
    )


def guard_config(profile: Profile) -> GuardConfig:
    """The day's budget of a board."""
    return GuardConfig(budget_bytes=profile.write_budget_bytes)


def workers_of(profile: Profile, clock: VirtualClock, model: Model) -> TimedWorkers:
    """A processor that takes for the model's rows as long as the board's would take.

    The codec runs on the rows that there are, which pack as they may; what the board's leave is the
    profile's ratio. Planes that were not packed are copied at the pace of those that were: the
    profile's is one over all of a row.
    """
    views = model.cache_state().views
    real = sum(view.rows(0, 1).nbytes for view in views) / profile.row_bytes
    unpack = profile.unpack_bytes_s * real
    rates = {"pack": profile.pack_bytes_s * real, "unpack": unpack, "copy": unpack}
    return TimedWorkers(clock, rates)
