"""The day's write budget: what is still written to a drive whose cells wear."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from math import isfinite
from typing import Any, Literal

from cache.format import Bad, read_record, write_record
from cache.journal import CacheEvent
from cache.ports import Clock, Files

NAME = "guard"
"""In the journal."""
WRITES = "writes"
"""Name and kind of the record of the days' counts."""
Who = Literal["tier", "drain", "evict", "park", "idle"]
"""Heads of prompts; a planned stop; a conversation that is replaced, one that a park gives up; what
is written early while nobody asks."""
Writer = Literal["tier", "spill"]
Level = Literal["ok", "over", "hard"]
_EPOCH = date(1970, 1, 1).toordinal()
_MOST = 1 << 53
"""Larger numbers do not come back out of JSON everywhere; no drive takes so much in a day."""


@dataclass(frozen=True, slots=True)
class GuardConfig:
    """Settings that may change at run time; ValueError in one line that names the setting.

    The budget, the factor, the tokens and the days are the seed's.
    """

    budget_bytes: int = 200_000_000_000
    """A local day's; 0 leaves the drive to planned stops alone."""
    hard_factor: float = 1.5
    """Times the budget, from where nothing but a planned stop is written."""
    evict_tokens: int = 32_768
    """Conversations of at least so many tokens are still written when they lose their place."""
    days_kept: int = 14
    idle_share: float = 0.5
    """Of the budget, under which there is room for what nobody needs yet."""

    def __post_init__(self) -> None:
        if self.budget_bytes < 0:
            raise ValueError("budget_bytes must not be negative")
        if not (self.hard_factor >= 1 and isfinite(self.hard_factor)):
            raise ValueError("hard_factor must be at least 1")
        if self.evict_tokens < 0:
            raise ValueError("evict_tokens must not be negative")
        if self.days_kept < 1:
            raise ValueError("days_kept must be at least 1")
        if not 0 <= self.idle_share <= 1:
            raise ValueError("idle_share must be between 0 and 1")

    def level_of(self, nbytes: int) -> Level:
        """How a day's bytes stand to the budget."""
        if nbytes >= self.hard_factor * self.budget_bytes:
            return "hard"
        return "over" if nbytes >= self.budget_bytes else "ok"


@dataclass(slots=True)
class _Day:
    """Counts of one day."""

    tier: int = 0
    spill: int = 0
    skips: int = 0

    @property
    def nbytes(self) -> int:
        return self.tier + self.spill

    def add(self, other: _Day) -> None:
        self.tier += other.tier
        self.spill += other.spill
        self.skips += other.skips


class WriteGuard:
    """Counts what is written by local day, and says who may write more. It changes no answer.

    On the engine's thread, but for `wrote`. Clocks jump. A day that comes begins a new count. One
    that comes again goes on with the count that is running: nothing is lost, and no clock that goes
    back makes room. When it had gone back more than a day and then returns, it never was that day.
    """

    def __init__(self, clock: Clock, config: GuardConfig) -> None:
        self._clock = clock
        self.config = config
        """Other settings may be put here at any time."""
        self.keeps_record = True
        """The record in the directory is ours to write."""
        self.skips: Counter[str] = Counter()
        """Of this process, by level and who."""
        self._days: OrderedDict[int, _Day] = OrderedDict({clock.day(): _Day()})
        """By date, in the order in which they came; the last one is running."""
        self._left = self._day
        """The date that the clock went back from, or the running one."""
        self._waiting: deque[tuple[int, Writer, int]] = deque()
        self._events: list[CacheEvent] = []
        self._took = False

    # what may be written

    def level(self) -> Level:
        """How the running day's bytes stand to the budget."""
        return self.config.level_of(self._running().nbytes)

    def allows(self, who: Who, tokens: int) -> bool:
        """Whether that may be written: `tokens` are the prompt's or conversation's. Counts nothing.

        Over the budget, a planned stop and the long conversations that lose their place; past the
        hard limit, a planned stop alone.
        """
        level, config = self.level(), self.config
        if who == "drain":
            return True
        if who == "idle":
            free = self._running().nbytes < config.idle_share * config.budget_bytes
            return level == "ok" and free
        if level == "over":
            return who in ("evict", "park") and tokens >= config.evict_tokens
        return level == "ok"

    def skipped(self, who: Who, session: str | None, tokens: int) -> None:
        """That was not written: it is counted and noted."""
        why = f"{self.level()} {who}"
        self._running().skips += 1
        self.skips[why] += 1
        self._events.append(CacheEvent(NAME, "skip", session, tokens, 0, why))

    def wrote(self, who: Writer, nbytes: int) -> None:
        """So many bytes were handed to the drive. From any thread."""
        assert nbytes >= 0
        # A deque's append is whole by itself; the engine's thread takes it in when it asks.
        self._waiting.append((self._clock.day(), who, nbytes))

    # the days

    @property
    def _day(self) -> int:
        return next(reversed(self._days))

    def _running(self) -> _Day:
        """The running day's counts, with all that was written so far."""
        today = self._clock.day()
        while self._waiting:
            # What was written before midnight and is told afterwards is yesterday's.
            day, who, nbytes = self._waiting.popleft()
            if self._day < day <= today:
                self._move(day)
            counts = self._days.get(day) or self._days[self._day]
            setattr(counts, who, getattr(counts, who) + nbytes)
        self._move(today)
        while len(self._days) > self.config.days_kept:
            self._days.popitem(last=False)
        return self._days[self._day]

    def _move(self, today: int) -> None:
        """The clock says it is this day."""
        day, left = self._day, self._left
        if today == day:
            return
        if today < day:
            self._run(today, self._days.pop(day))
            self._left = max(left, day)
        elif left - day > 1 and today >= left:
            # It never was that day: only a date line or a summer hour takes a clock back by one.
            self._run(left, self._days.pop(day))
            self._move(today)
        else:
            self._run(today, _Day())
            self._left = today

    def _run(self, day: int, counts: _Day) -> None:
        """These counts run on as that day's, with what is known of it already."""
        counts.add(self._days.pop(day, _Day()))
        self._days[day] = counts

    def days(self) -> list[tuple[int, int, int, int]]:
        """(day, tier's bytes, spill's bytes, skips) of the last days, the running one last."""
        self._running()
        return [(day, had.tier, had.spill, had.skips) for day, had in self._days.items()]

    # what there is to report

    def stats(self) -> dict[str, Any]:
        """The day, its level, and the days before, in plain values."""
        level, days = self.level(), self.days()
        *_, (_, tier, spill, skips) = days
        return {
            "level": level,
            "budget_bytes": self.config.budget_bytes,
            "tier_bytes": tier,
            "spill_bytes": spill,
            "skips": skips,
            "skipped": dict(self.skips),
            "days": [
                {
                    "date": date.fromordinal(day + _EPOCH).isoformat(),
                    "tier_bytes": tier,
                    "spill_bytes": spill,
                    "skips": skips,
                }
                for day, tier, spill, skips in days
            ],
        }

    def events(self) -> list[CacheEvent]:
        """Skips since the last call."""
        told, self._events = self._events, []
        return told

    # as it lies on the drive

    def plain(self) -> dict[str, Any]:
        """All that the next process has to know, in plain values."""
        days = [[day, *(min(n, _MOST - 1) for n in had)] for day, *had in self.days()]
        return {"days": days, "left": self._left}

    def take(self, record: Mapping[str, Any]) -> None:
        """Go on from what `plain` gave an earlier process; what makes no sense is passed over.

        Once: afterwards what is in memory is newer than any record.
        """
        if self._took:
            return
        self._took = True
        own, self._days = self._running(), OrderedDict[int, _Day]()
        found = record.get("days")
        for item in found[-self.config.days_kept :] if isinstance(found, list) else ():
            match item:
                case [int(day), *had] if _is_date(day) and len(had) == 3 and all(map(_fits, had)):
                    self._days.setdefault(day, _Day()).add(_Day(*had))
        today = self._clock.day()
        if not self._days:
            self._days[today] = _Day()
        self._left = self._day
        match record.get("left"):
            case int(left) if _is_date(left):
                self._left = max(left, self._day)
        self._move(today)
        self._days[today].add(own)

    def load(self, files: Files) -> str:
        """Take in the record of a directory; why that failed, or empty. Never raises.

        One of a later version or of somebody else is not ours to write over, nor one that the
        drive may read another time.
        """
        record = read_record(files, WRITES, WRITES)
        if not isinstance(record, Bad):
            self.take(record)
            return ""
        try:
            there = files.exists(WRITES)
        except OSError:
            there = True
        unread = there and bool(record.error)
        self.keeps_record = not (record.future or record.foreign or unread)
        return record.why if there else ""

    def save(self, files: Files) -> str:
        """Write the record to a directory; why that failed, or empty. Never raises."""
        self._took = True
        return write_record(files, WRITES, WRITES, self.plain()) if self.keeps_record else ""


def _fits(count: object) -> bool:
    return type(count) is int and 0 <= count < _MOST


def _is_date(day: object) -> bool:
    """Whether a number is one of a day that a calendar has."""
    return type(day) is int and 1 <= day + _EPOCH <= date.max.toordinal()
