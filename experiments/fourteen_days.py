"""Fourteen days of three people under a day's write budget: levels, skips, re-read, drive life.

Everything runs: the engine's turns, the caches, the tier, the spill, the guard and the drive. Days
are made up from what the seed tells: conversations of 16,384 tokens up to 150,000, some 45,000 at
first; three people at one box, so that conversations lose their place to one another all day; a
planned stop every evening. A budget that is passed costs re-read, and one that is far away nothing.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import lru_cache
from typing import Any

from experiments.budget_sweep import years
from experiments.figure import Curve, Figure
from experiments.results import Rows
from experiments.traffic import Traffic, fresh, head, held, message, whole
from replay.driver import Options, Replay
from replay.ledger import LedgerRow
from replay.progress import progress
from replay.restarts import Restart
from replay.trace import Header, Request, Trace
from sim.profile import Profile

NAME = "fourteen-days"
ABOUT = "14 days at 100, 200 and 400 GB a day and without a budget: levels, skips, re-read, wear"
DISK = SPILL = True

DAYS, SEED = 14, 7
DAY_S = 86_400.0
BUDGETS_GB = {"budget_100": 100.0, "budget_200": 200.0, "budget_400": 400.0, "unlimited": 1e6}
PEOPLE, STARTED = 3, (4, 6, 9, 12)
"""Of each, conversations that begin on a day: one of these, drawn."""
FIRST_TOKENS, FIRST_SPREAD, LEAST, MOST = 45_000, 0.6, 16_384, 150_000
TURNS, MESSAGE, ANSWER = 5, 3_000, 400
"""Turns of a conversation; tokens of a message (what tools gave is in it) and of an answer."""
HEAD = 12_288
"""Tools and system text, every conversation's alike."""
BEGIN_S, HOURS_S = 8 * 3_600.0, 15 * 3_600.0
"""When people work."""
GB = 1e9
LEVELS = ("ok", "over", "hard")


@dataclass
class Days:
    """The requests of all days, and after which of them a day's planned stop comes."""

    traffic: Traffic = field(default_factory=Traffic)
    stops: list[Restart] = field(default_factory=list)


@lru_cache
def made(days: int, seed: int = SEED) -> Days:
    """The same for every budget: who says what when."""
    rng, all_days = random.Random(seed), Days()
    traffic = all_days.traffic
    before: Request | None = None
    for day in range(days):
        talks: dict[str, Request] = {}
        for time_s, talk in sorted(_turns(rng)):
            session = f"day{day}-{talk}"
            extends = talks.get(session)
            if extends is not None:
                prompt = (whole(extends), *message(MESSAGE))
            else:
                shared = head(before, HEAD) if before is not None else fresh(HEAD)
                prompt = (shared, fresh(_first(rng) - HEAD))
            request = traffic.ask(
                *prompt, answer=ANSWER, session=session, extends=extends, system=HEAD
            )
            traffic.requests[-1] = request = replace(request, t_s=day * DAY_S + time_s)
            talks[session] = before = request
        all_days.stops.append(Restart(len(traffic.requests)))
    all_days.stops.pop()  # Nothing comes after the last day's.
    return all_days


def _turns(rng: random.Random) -> list[tuple[float, str]]:
    """(time, conversation) of a day: each person has one conversation after the other."""
    turns, started = [], rng.choice(STARTED)
    for person in range(PEOPLE):
        for talk in range(started):
            begin_s = BEGIN_S + (talk + rng.random() / 4) * HOURS_S / started
            for _ in range(TURNS):
                turns.append((begin_s + rng.random() * HOURS_S / started, f"{person}-{talk}"))
    return turns


def _first(rng: random.Random) -> int:
    drawn = FIRST_TOKENS * rng.lognormvariate(0, FIRST_SPREAD)
    return round(min(max(drawn, LEAST), MOST))


@dataclass
class Lived:
    """What a budget made of the days."""

    rows: list[LedgerRow]
    writes: Mapping[str, Any]
    days: list[dict[str, float]]


_KNOWN: dict[tuple[Profile, int], Lived] = {}


def lived(board: Profile, days: int = DAYS) -> Lived:
    """The days under a board's budget; every request is verified. Raises GateFailed."""
    if (board, days) in _KNOWN:
        return _KNOWN[board, days]
    plan = made(days)
    requests = tuple(plan.traffic.requests)
    trace = Trace("days", Header(timing="synthetic"), requests)
    replay = Replay([trace], Options(board, restarts=tuple(plan.stops)))
    rows = []
    with progress("living", sum(r.prompt_tokens for r in requests), unit="tokens") as advance:
        for row in replay:
            held(row)
            rows.append(row)
            advance(row.prompt)
    writes = replay.drive["writes"]
    _KNOWN[board, days] = found = Lived(rows, writes, _by_day(rows, writes, days))
    return found


def _by_day(
    rows: Sequence[LedgerRow], writes: Mapping[str, Any], days: int
) -> list[dict[str, float]]:
    """A row a day: GB by tier and spill, the level it ended at, skips, tokens read again."""
    reread: Counter[int] = Counter()
    new: Counter[int] = Counter()
    for row in rows:
        day = int(row.arrival_s // DAY_S)
        reread[day] += row.reread
        new[day] += row.new
    # The replay's clock starts with the epoch.
    epoch = date(1970, 1, 1).toordinal()
    told = {date.fromisoformat(day["date"]).toordinal() - epoch: day for day in writes["days"]}
    none = {"tier_bytes": 0, "spill_bytes": 0, "level": "ok", "skips": 0}
    assert set(told) <= set(range(days + 1)), "a day ran into the next"
    return [
        {
            "day": day,
            "tier_gb": told.get(day, none)["tier_bytes"] / GB,
            "spill_gb": told.get(day, none)["spill_bytes"] / GB,
            "level": LEVELS.index(told.get(day, none)["level"]),
            "skips": told.get(day, none)["skips"],
            "reread_tokens": reread[day],
            "new_tokens": new[day],
        }
        for day in range(days)
    ]


def boards(board: Profile) -> dict[str, Profile]:
    """By budget."""
    return {
        name: replace(board, write_budget_bytes=round(gb * GB)) for name, gb in BUDGETS_GB.items()
    }


def ways_of(board: Profile) -> dict[str, Lived]:
    """Each budget's days. One that no day came near is none: they are not lived twice."""
    ways: dict[str, Lived] = {}
    for name, one in boards(board).items():
        last = next(reversed(ways.values()), None)
        free = last is not None and not _sums(last)["over"] and not _sums(last)["skips"]
        ways[name] = last if last is not None and free else lived(one)
    return ways


def run(board: Profile) -> list[Figure]:
    """Each budget's days, beside those without one."""
    ways = ways_of(board)
    free = _sums(ways["unlimited"])
    figures = [
        Figure("seed_days_gb", 203.0, free["gb"] / DAYS, "GB a day", "without a budget"),
        Figure("requests", None, len(ways["unlimited"].rows), "requests", "every one verified"),
    ]
    for name, way in ways.items():
        sums = _sums(way)
        spared = free["gb"] - sums["gb"]
        more = sums["reread"] - free["reread"]
        seeds = 8.0 if name == "budget_200" else None
        figures += [
            Figure(f"{name}.gb_a_day", None, sums["gb"] / DAYS, "GB", f"tier {sums['tier']:.0f}"),
            Figure(f"{name}.most_gb", None, sums["most"], "GB", "on one day"),
            Figure(f"{name}.days_over", None, sums["over"], "days", "ended over the budget"),
            Figure(f"{name}.days_hard", None, sums["hard"], "days", "ended past 1.5 times"),
            Figure(f"{name}.skips", None, sums["skips"], "writes"),
            Figure(f"{name}.reread_per_new", None, sums["reread"] / sums["new"], "tokens"),
            Figure(f"{name}.drive_years", seeds, years(sums["gb"] * GB / DAYS), "years"),
        ]
        if spared > 0 and name != "unlimited":
            note = f"{spared:.0f} GB not written"
            figures.append(
                Figure(f"{name}.reread_per_gb_spared", None, more / spared, "tokens", note)
            )
    return figures


def _sums(way: Lived) -> dict[str, float]:
    days = way.days
    totals = [day["tier_gb"] + day["spill_gb"] for day in days]
    return {
        "gb": sum(totals),
        "tier": sum(day["tier_gb"] for day in days),
        "most": max(totals),
        "over": sum(day["level"] >= 1 for day in days),
        "hard": sum(day["level"] == 2 for day in days),
        "skips": sum(day["skips"] for day in days),
        "reread": sum(day["reread_tokens"] for day in days),
        "new": sum(day["new_tokens"] for day in days),
    }


def curves(board: Profile) -> list[Curve]:
    """GB and re-read by day."""
    ways = {name: way.days for name, way in ways_of(board).items()}
    return [
        Curve(
            "Written by day",
            "day",
            "GB",
            {
                n: [(d["day"], d["tier_gb"] + d["spill_gb"]) for d in days]
                for n, days in ways.items()
            },
        ),
        Curve(
            "Read again by day",
            "day",
            "tokens",
            {
                name: [(day["day"], day["reread_tokens"]) for day in days]
                for name, days in ways.items()
            },
        ),
    ]


def tables(board: Profile) -> Mapping[str, Rows]:
    """A row a budget and day."""
    return {
        "days": [
            {"budget": name, **day}
            for name, one in boards(board).items()
            for day in lived(one).days
        ]
    }
