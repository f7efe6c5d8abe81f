"""What the disk tier did, request by request and in all: from the journal and the drive's counts"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cache.disk.notes import NAME
from cache.disk.tier import DiskTier
from cache.journal import Journal
from replay.noted import Noted
from sim.driven_files import Moved

GONE = ("evict", "expire", "damage", "sweep")
"""Events by which files go."""


@dataclass(frozen=True, slots=True)
class DiskUse:
    """What the tier did for one request, and since the one before. Bytes are the board's."""

    read: int = 0
    written: int = 0
    held: int = 0
    """Files, after it."""
    anchors: int = 0
    """Anchors that are on the drive now, with every chunk below."""
    drops: int = 0
    """Anchors that were to be written and were not."""
    gone: int = 0
    """Entries and files that went."""


class DiskSeen:
    """Reads what was noted since it last looked."""

    def __init__(self, journal: Journal, moved: Moved) -> None:
        self._noted = Noted(journal, NAME)
        self._moved = moved
        self._read = self._written = 0
        self._events: Counter[str] = Counter()
        self._whys: dict[str, Counter[str]] = {event: Counter() for event in ("drop", "fail")}

    def use(self, tier: DiskTier) -> DiskUse:
        """Since the last call."""
        drive, before = self._moved, Counter(self._events)
        self._take()
        new = self._events - before
        read, written = drive.read_bytes - self._read, drive.written_bytes - self._written
        self._read, self._written = drive.read_bytes, drive.written_bytes
        return DiskUse(
            read,
            written,
            tier.index.held_bytes(),
            new["write"],
            new["drop"],
            sum(new[event] for event in GONE),
        )

    def figures(self, tier: DiskTier) -> dict[str, Any]:
        """All of it, in plain numbers."""
        self._take()
        events = self._events
        return {
            "hits": events["hit"],
            "written_bytes": self._moved.written_bytes,
            "read_bytes": self._moved.read_bytes,
            "anchors_written": events["write"],
            "drops": dict(sorted(self._whys["drop"].items())),
            "failed_restores": dict(sorted(self._whys["fail"].items())),
            **{event: events[event] for event in (*GONE, "stuck")},
            "entries": len(tier.index.entries),
            "chunks": len(tier.index.chunks),
            "held_bytes": tier.index.held_bytes(),
            "budget_bytes": tier.config.budget_bytes,
            "counted_lines": len(tier.keeper.counts),
            "staging_bytes": tier.held_bytes(),
        }

    def _take(self) -> None:
        """Count what the journal was told since the last time."""
        for event in self._noted.take():
            self._events[event.event] += 1
            if event.event in self._whys:
                self._whys[event.event][event.why] += 1


def disk_lines(disk: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The figures for a person."""
    gb = 1e9
    held = f"{disk['entries']:,} heads in {disk['chunks']:,} chunks, {disk['held_bytes'] / gb:.2f}"
    lines = [
        (
            "drive",
            f"{disk['hits']:,} restored, {disk['read_bytes'] / gb:.2f} GB read; "
            f"{disk['anchors_written']:,} anchors written, {disk['written_bytes'] / gb:.2f} GB",
        ),
        ("on the drive", f"{held} of {disk['budget_bytes'] / gb:.2f} GB"),
    ]
    dropped = ", ".join(f"{why} {count:,}" for why, count in disk["drops"].items())
    if dropped:
        lines.append(("not written", dropped))
    went = ", ".join(f"{event} {disk[event]:,}" for event in (*GONE, "stuck") if disk[event])
    if went:
        lines.append(("gone from it", went))
    restores = dict(disk["failed_restores"])
    if refused := restores.pop("memory", 0):
        lines.append(("no memory to read", f"{refused:,}"))
    failed = ", ".join(f"{why} {count:,}" for why, count in restores.items())
    if failed:
        lines.append(("could not be read", f"[red bold]{failed}[/red bold]"))
    return lines
