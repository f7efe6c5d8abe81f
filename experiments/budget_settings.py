"""Settings of the write budget: drawn, swept in one call, some again in a plain loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from time import perf_counter
from typing import Any

import numpy as np

from cache.writeguard import GuardConfig
from experiments.traffic import GateFailed
from sim.budget_days import Days, Event, Setting, Sizes, lived
from sim.drive import Rates
from sim.profile import Profile
from sim.write_days import GB, events

TOKENS_MIN = 16_384
CODEC = 0.6
"""What the seed's codec leaves."""
SETTINGS, CHECKED = 10_000, 40
"""Of one call, and those that a plain loop does as well."""
EQUAL = 1e-9

RANGES = {
    "budget_bytes": (50 * GB, 400 * GB),
    "hard_factor": (1.0, 2.0),
    "evict_tokens": (16_384, 131_072),
    "tokens_min": (4_096, 65_536),
    "ratio": (0.5, 1.0),
    "drive.cache_bytes": (0.0, 48 * GB),
    "drive.sustained_bytes_s": (0.3 * GB, 1.3 * GB),
    "drive.recover_bytes_s": (0.02 * GB, 0.2 * GB),
}
"""What is swept, evenly within these; the rest of a setting is the board's and the seed's."""
RESULTS = ("written", "worst_day_bytes", "reread_tokens", "waited_s", "longest_s")


def sizes_of(board: Profile) -> Sizes:
    """The board's bytes, as the events count them."""
    return Sizes(float(board.row_bytes), float(board.anchor_bytes), float(board.grid))


def setting_of(board: Profile, budget_bytes: float, ratio: float) -> Setting:
    """The seed's limits on the board's drive, with this budget and codec."""
    guard = GuardConfig()
    tokens = float(guard.evict_tokens), float(TOKENS_MIN)
    return Setting(Rates.of(board).params, budget_bytes, guard.hard_factor, *tokens, ratio)


def drawn(board: Profile, seed: int = 0) -> Setting:
    """Ten thousand settings, an array each."""
    rng = np.random.default_rng(seed)
    base = setting_of(board, float(GuardConfig().budget_bytes), CODEC)
    flat = base._asdict() | {f"drive.{k}": v for k, v in base.drive._asdict().items()}
    values = {name: np.full(SETTINGS, value) for name, value in flat.items() if name != "drive"}
    for name, (low, high) in RANGES.items():
        values[name] = rng.uniform(low, high, SETTINGS)
    drive = {name.removeprefix("drive."): v for name, v in values.items() if "." in name}
    rest = {name: v for name, v in values.items() if "." not in name}
    return Setting(drive=base.drive._replace(**drive), **rest)


def at(setting: Setting, number: int) -> Setting:
    """One of many."""
    drive = setting.drive._replace(**{k: float(v[number]) for k, v in _fields(setting.drive)})
    return Setting(drive, *(float(values[number]) for values in setting[1:]))


def _fields(drive: Any) -> list[tuple[str, Any]]:
    return list(drive._asdict().items())


def results(days: Days) -> dict[str, Any]:
    """What is told of a setting."""
    found = {name: getattr(days, name) for name in RESULTS if name != "written"}
    more = ("tier_skips", "spill_skips", "days_over", "days_hard")
    found |= {name: getattr(days, name) for name in more}
    return {"written": days.tier_bytes + days.spill_bytes} | found


@dataclass(frozen=True, slots=True)
class Sweep:
    """Both ways through the same function."""

    settings: Setting
    ends: Days
    steps: int
    first_s: float
    """With what it takes to compile."""
    scan_s: float
    plain_s: float
    """For CHECKED settings."""
    apart: float
    """The largest relative difference between both."""

    @property
    def scan_rate(self) -> float:
        """Set-steps a second: settings times events."""
        return SETTINGS * self.steps / self.scan_s

    @property
    def plain_rate(self) -> float:
        """The same of the plain loop."""
        return CHECKED * self.steps / self.plain_s


@cache
def sweep(board: Profile) -> Sweep:
    """All settings in one call, some again in a plain loop; raises GateFailed when they differ."""
    # Only this needs JAX, which takes a second to import.
    from sim.budget_scan import stacked, swept

    sizes, settings = sizes_of(board), drawn(board)
    happened = events(sizes)
    together = stacked(happened)
    took = []
    for _ in range(3):
        begun_s = perf_counter()
        ends = swept(settings, sizes, together)
        took.append(perf_counter() - begun_s)
    begun_s = perf_counter()
    plain = looped(settings, sizes, happened)
    plain_s = perf_counter() - begun_s
    apart = held(plain, ends)
    return Sweep(settings, ends, len(happened), took[0], min(took[1:]), plain_s, apart)


def looped(settings: Setting, sizes: Sizes, happened: Sequence[Event]) -> list[Days]:
    """The first CHECKED of them, one after another."""
    return [lived(at(settings, number), sizes, happened) for number in range(CHECKED)]


def held(plain: list[Days], ends: Days) -> float:
    """How far the scan's first days are from these; raises GateFailed for more than EQUAL."""
    apart = difference(plain, ends)
    if not apart < EQUAL:
        raise GateFailed(f"a plain loop gives other days than the scan, by {apart:.1e}")
    return apart


def difference(plain: list[Days], ends: Days) -> float:
    """The largest between any two results of the same setting, relative to the plain one's."""
    most = 0.0
    for number, days in enumerate(plain):
        for one, many in zip(_values(days), _values(ends), strict=True):
            most = max(most, abs(one - many[number]) / max(1.0, abs(one)))
    return float(most)


def _values(days: Days) -> list[Any]:
    return [*days.drive, *days.saved, *days[2:]]


def swept_values(settings: Setting) -> dict[str, Any]:
    """What was swept, an array a name."""
    return {
        name: getattr(settings.drive if "." in name else settings, name.removeprefix("drive."))
        for name in RANGES
    }
