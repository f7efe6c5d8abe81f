"""What the spill did, request by request and in all: from the journal and the drive's counts"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cache.journal import CacheEvent, Journal
from cache.spill.names import NAME
from cache.spill.tier import Spill
from cache.writeguard import NAME as GUARD
from cache.writeguard import GuardConfig, WriteGuard
from replay.noted import Noted
from sim.driven_files import Moved

GONE = ("evict", "expire", "damage", "sweep")
"""Events by which entries and files go."""
_SAVED = re.compile(r"(\w+) written=(\d+) kept=(\d+) ")
_READ = re.compile(r"blocks_read=(\d+) blocks_in_place=(\d+)")
_WHY = re.compile(r" why=(\w+)")


@dataclass(frozen=True, slots=True)
class SpillUse:
    """What the spill did for one request, and since the one before. Bytes are the board's."""

    save_s: float = 0.0
    """What the request waited while conversations were written that memory was to lose."""
    read: int = 0
    written: int = 0
    held: int = 0
    """Files, after it."""
    saves: int = 0
    """Conversations that were written, as far as they had changed."""
    gone: int = 0


class SpillSeen:
    """Reads what was noted since it last looked, over all processes."""

    def __init__(self, journal: Journal, moved: Moved) -> None:
        self._noted, self._skipped = Noted(journal, NAME), Noted(journal, GUARD)
        self._moved = moved
        self._read = self._written = 0
        self._events: Counter[str] = Counter()
        self._files: Counter[str] = Counter()
        whys = ("saves", "saved_bytes", "skips", "refused", "failed_restores", "guard")
        self._whys: dict[str, Counter[str]] = {name: Counter() for name in whys}
        self.drains: list[dict[str, Any]] = []
        """Planned stops: seconds, conversations on the drive then, bytes written."""
        self.read_backs: list[dict[str, Any]] = []
        """Starts that brought a conversation back: seconds, and the line it resumes at."""

    def use(self, spill: Spill, save_s: float) -> SpillUse:
        """Since the last call."""
        moved, before = self._moved, Counter(self._events)
        self._take()
        new = self._events - before
        read, written = moved.read_bytes - self._read, moved.written_bytes - self._written
        self._read, self._written = moved.read_bytes, moved.written_bytes
        gone = sum(new[event] for event in GONE)
        return SpillUse(save_s, read, written, spill.shelf.held_bytes(), new["write"], gone)

    def figures(self, spill: Spill) -> dict[str, Any]:
        """All of it, in plain numbers."""
        self._take()
        events, whys = self._events, self._whys
        return {
            "hits": events["hit"],
            "written_bytes": self._moved.written_bytes,
            "read_bytes": self._moved.read_bytes,
            **{name: dict(sorted(whys[name].items())) for name in whys if name != "guard"},
            **{name: self._files[name] for name in ("files_written", "files_kept")},
            **{name: self._files[name] for name in ("blocks_read", "blocks_in_place")},
            "yields": events["yield"],
            **{event: events[event] for event in (*GONE, "stuck")},
            "entries": len(spill.shelf.whole()),
            "held_bytes": spill.shelf.held_bytes(),
            "budget_bytes": spill.config.budget_bytes,
            "staging_bytes": spill.held_bytes(),
            "drains": list(self.drains),
            "read_backs": list(self.read_backs),
        }

    def writes(self, guard: WriteGuard) -> dict[str, Any]:
        """The days' counts, and what the day's budget did not let be written."""
        self._take()
        seen = guard.stats()
        for day in seen["days"]:
            day["level"] = level_of(guard.config, day["tier_bytes"] + day["spill_bytes"])
        names = ("level", "budget_bytes", "days")
        skipped = dict(sorted(self._whys["guard"].items()))
        return {name: seen[name] for name in names} | {"skipped": skipped}

    def _take(self) -> None:
        for event in self._noted.take():
            self._events[event.event] += 1
            self._note(event)
        for event in self._skipped.take():
            self._whys["guard"][event.why] += 1

    def _note(self, event: CacheEvent) -> None:
        whys, files = self._whys, self._files
        if event.event == "write" and (saved := _SAVED.match(event.why)):
            whys["saves"][saved[1]] += 1
            whys["saved_bytes"][saved[1]] += event.nbytes
            files["files_written"] += int(saved[2])
            files["files_kept"] += int(saved[3])
        elif event.event == "hit" and (read := _READ.match(event.why)):
            files["blocks_read"] += int(read[1])
            files["blocks_in_place"] += int(read[2])
        elif event.event == "skip":
            whys["skips"][event.why] += 1
        elif event.event == "refused" and (why := _WHY.search(event.why)):
            whys["refused"][why[1]] += 1
        elif event.event == "fail":
            whys["failed_restores"][event.why] += 1


def level_of(config: GuardConfig, nbytes: int) -> str:
    """How a day's bytes stand to the budget: ok, over or hard."""
    if nbytes >= config.hard_factor * config.budget_bytes:
        return "hard"
    return "over" if nbytes >= config.budget_bytes else "ok"


def spill_lines(spill: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The figures for a person."""
    gb = 1e9
    saves = ", ".join(f"{who} {count:,}" for who, count in spill["saves"].items()) or "none"
    lines = [
        (
            "conversations",
            f"{spill['hits']:,} brought back, {spill['read_bytes'] / gb:.2f} GB read; "
            f"written: {saves}; {spill['written_bytes'] / gb:.2f} GB",
        ),
        (
            "kept there",
            f"{spill['entries']:,} conversations, {spill['held_bytes'] / gb:.2f} of "
            f"{spill['budget_bytes'] / gb:.2f} GB; "
            f"{spill['files_kept']:,} of {spill['files_kept'] + spill['files_written']:,} files"
            " had not changed",
        ),
    ]
    if spill["drains"]:
        seconds = sum(drain["seconds"] for drain in spill["drains"])
        count = sum(drain["conversations"] for drain in spill["drains"])
        text = f"{len(spill['drains']):,} in {seconds:.1f} s, {count:,} conversations"
        lines.append(("planned stops", text))
    for label, name in (("not saved", "skips"), ("served by none", "refused")):
        if spill[name]:
            told = ", ".join(f"{why} {count:,}" for why, count in spill[name].items())
            lines.append((label, told))
    went = ", ".join(f"{event} {spill[event]:,}" for event in (*GONE, "stuck") if spill[event])
    if went:
        lines.append(("conversations gone", went))
    restores = dict(spill["failed_restores"])
    if refused := restores.pop("memory", 0):
        lines.append(("no memory for them", f"{refused:,}"))
    if failed := ", ".join(f"{why} {count:,}" for why, count in restores.items()):
        lines.append(("could not be read", f"[red bold]{failed}[/red bold]"))
    return lines


def saved_line(seen: Mapping[str, Any]) -> str:
    """What a tier on the drive was worth."""
    per_gb = seen["saved_s_per_gb"]
    more = f", {per_gb:.1f} s for every GB written" if per_gb is not None else ""
    return f"{seen['saved_s']:,.0f} s of waiting saved{more}"


def writes_lines(writes: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The days for a person: only what was near the budget, or over it."""
    days, gb = writes["days"], 1e9
    most = max(days, key=lambda day: day["tier_bytes"] + day["spill_bytes"])
    nbytes = most["tier_bytes"] + most["spill_bytes"]
    text = f"at most {nbytes / gb:.1f} of {writes['budget_bytes'] / gb:g} GB ({most['level']})"
    if writes["skipped"]:
        text += "; skipped: "
        text += ", ".join(f"{why} {count:,}" for why, count in writes["skipped"].items())
    return [("written in a day", text)]
