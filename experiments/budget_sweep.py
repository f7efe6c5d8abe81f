"""The day's write budget over 14 days of the seed's writes, for ten thousand settings at once.

The seed wrote 203 GB a day, on single days 137 to 282; a drive rated at 600 TB lasts about 8 years
at 200. Its budget of 200 GB a day and its codec are set on those days here, with the drive that
fills and rests; then ten thousand settings of budget, codec, limits and drive go through the same
function in one call, and some of them through a plain loop of it, which has to give the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cache.writeguard import GuardConfig
from experiments.budget_settings import (
    CHECKED,
    CODEC,
    SETTINGS,
    Sweep,
    results,
    setting_of,
    sizes_of,
    sweep,
    swept_values,
)
from experiments.figure import Curve, Figure
from experiments.results import Rows
from sim.budget_days import DRAIN, EVICT, TIER, Days, Event, Setting, Sizes, lived
from sim.profile import Profile
from sim.write_days import DAYS, GB, LAST_DRAINS_GB, LAST_GB, MEAN_GB, by_day, events

NAME = "budget-sweep"
ABOUT = "the day's write budget over 14 days: bytes, years of the drive, re-read; 10,000 settings"
DISK = True

RATED_BYTES = 600e12
"""What a TLC drive of 1 TB is usually rated at; the seed's does not tell its own."""
YEAR_DAYS = 365.25
SMART_BYTES, SMART_HOURS = 11.6e12, 1_534
DATES = ("10-04", "10-05", "10-06", "10-07")
NEVER = 1e18
KINDS = {"tier": TIER, "evict": EVICT, "drain": DRAIN}


def years(bytes_a_day: float) -> float:
    """How long the drive lasts at so much a day."""
    return RATED_BYTES / (bytes_a_day * YEAR_DAYS) if bytes_a_day else float("inf")


def run(board: Profile) -> list[Figure]:
    """The days as they were, with a budget and a codec; the drive's years; the sweep's rates."""
    sizes = sizes_of(board)
    happened = events(sizes)
    figures = [*_pattern(happened, sizes), *_wear()]
    ways = {
        "none": setting_of(board, NEVER, 1.0),
        "budget": setting_of(board, float(GuardConfig().budget_bytes), 1.0),
        "codec": setting_of(board, NEVER, CODEC),
        "budget_codec": setting_of(board, float(GuardConfig().budget_bytes), CODEC),
    }
    for name, setting in ways.items():
        figures += _way(name, lived(setting, sizes, happened))
    return [*figures, *_swept(sweep(board))]


def _pattern(happened: list[Event], sizes: Sizes) -> list[Figure]:
    kinds = {name: by_day(happened, sizes, kind) for name, kind in KINDS.items()}
    days = [sum(parts) / GB for parts in zip(*kinds.values(), strict=True)]
    mean = sum(days) / DAYS
    figures = [
        Figure("events", None, len(happened), "events", f"of {DAYS} days"),
        Figure("mean", MEAN_GB, mean, "GB a day", "made to come to that"),
    ]
    for date, seed, ours in zip(DATES, LAST_GB, days[-len(LAST_GB) :], strict=True):
        figures.append(Figure(f"day.{date}", seed, ours, "GB", "made to come to that"))
    drains = kinds["drain"][-1] / GB
    figures.append(Figure("day.10-07.drains", LAST_DRAINS_GB, drains, "GB", "planned stops"))
    for name, each in kinds.items():
        figures.append(Figure(f"share.{name}", None, 100 * sum(each) / sum(days) / GB, "%"))
    return figures


def _wear() -> list[Figure]:
    hours_gb = SMART_BYTES / SMART_HOURS * 24 / GB
    used = 100 * SMART_BYTES / RATED_BYTES
    return [
        Figure("years_at_200", 8.0, years(200 * GB), "years", "200 GB a day, rated at 600 TB"),
        Figure("smart.day", None, hours_gb, "GB a day", "11.6 TB in 1,534 hours"),
        Figure("smart.years", None, years(hours_gb * GB), "years", "at that"),
        Figure("smart.used", 1.0, used, "%", "of 600 TB; the drive's own count has another rating"),
    ]


def _way(name: str, days: Days) -> list[Figure]:
    found = results(days)
    mean = found["written"] / DAYS
    skips = f"not written: {found['tier_skips']:.0f} heads, {found['spill_skips']:.0f} saves"
    return [
        Figure(f"{name}.mean", None, mean / GB, "GB a day", skips),
        Figure(f"{name}.worst_day", None, found["worst_day_bytes"] / GB, "GB"),
        Figure(f"{name}.years", None, years(mean), "years"),
        Figure(f"{name}.reread", None, found["reread_tokens"], "tokens", "came back, not there"),
        Figure(f"{name}.days_over", None, found["days_over"], "days"),
        Figure(f"{name}.waited", None, found["waited_s"], "s", "requests, for saves"),
        Figure(f"{name}.longest", None, found["longest_s"], "s", "the longest of them"),
    ]


def _swept(done: Sweep) -> list[Figure]:
    found = results(done.ends)
    means = found["written"] / DAYS
    ten = 100 * float(np.mean(means <= RATED_BYTES / YEAR_DAYS / 10))
    figures = [Figure("sweep.ten_years", None, ten, "%", "of the settings last so long")]
    for result in ("written", "reread_tokens", "longest_s"):
        for name, rank in _ranks(done.settings, found[result]).items():
            figures.append(Figure(f"sweep.{result}.{name}", None, rank, "", "rank correlation"))
    return [
        *figures,
        Figure("settings", None, SETTINGS, "settings", "in one call"),
        Figure("apart", None, done.apart, "", f"largest, {CHECKED} settings in a plain loop"),
        Figure("here.scan", None, done.scan_rate / 1e6, "M set-steps/s", "settings times events"),
        Figure("here.plain", None, done.plain_rate / 1e6, "M set-steps/s", "a plain loop"),
        Figure("here.ratio", None, done.scan_rate / done.plain_rate, "", "of the two rates"),
        Figure("here.first_s", None, done.first_s, "s", "the first call, which compiles"),
    ]


def _ranks(settings: Setting, result: Any) -> dict[str, float]:
    """How each parameter goes with a result, over the settings; those that tell something."""
    ranked = np.argsort(np.argsort(result, kind="stable"))
    found = {}
    for name, values in swept_values(settings).items():
        order = np.argsort(np.argsort(values))
        found[name] = float(np.corrcoef(order, ranked)[0, 1])
    return {name: rank for name, rank in found.items() if abs(rank) >= 0.1}


def tables(board: Profile) -> dict[str, Rows]:
    """Every setting with what its days came to, and the days' bytes by what they are."""
    done, sizes = sweep(board), sizes_of(board)
    columns = swept_values(done.settings) | results(done.ends)
    names = [name.replace("drive.", "drive_") for name in columns]
    rows = zip(*(values.tolist() for values in columns.values()), strict=True)
    happened = events(sizes)
    kinds = {f"{name}_bytes": by_day(happened, sizes, kind) for name, kind in KINDS.items()}
    days = [
        {"day": day, **{name: each[day] for name, each in kinds.items()}} for day in range(DAYS)
    ]
    return {"settings": [dict(zip(names, row, strict=True)) for row in rows], "days": days}


BUDGETS_GB = (50, 75, 100, 125, 150, 175, 200, 225, 250, 275, 300, 350, 400)


def curves(board: Profile) -> list[Curve]:
    """What is written a day and what is read again, over the budget, with the codec and without."""
    sizes = sizes_of(board)
    happened = events(sizes)
    found = {
        name: [
            results(lived(setting_of(board, gb * GB, ratio), sizes, happened)) for gb in BUDGETS_GB
        ]
        for name, ratio in (("as they are", 1.0), ("codec", CODEC))
    }

    def line(key: str, size: float) -> dict[str, list[tuple[float, float]]]:
        return {
            name: [(gb, each[key] / size) for gb, each in zip(BUDGETS_GB, row, strict=True)]
            for name, row in found.items()
        }

    return [
        Curve("Written a day", "budget, GB a day", "GB", line("written", GB * DAYS)),
        Curve("Read again in 14 days", "budget, GB a day", "tokens", line("reread_tokens", 1.0)),
    ]
