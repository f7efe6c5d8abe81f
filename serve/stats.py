"""What the caches hold, what they served and why not more, as plain JSON without a word of text"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar

from cache.disk.tier import DiskTier
from cache.journal import CacheEvent, Journal, TurnRow
from cache.spill.tier import Spill
from cache.writeguard import WriteGuard
from engine.box import Box
from serve.plan import caches_plan, worst_plan
from serve.settings import Settings

T = TypeVar("T")
VERSION = 1
"""Of what `stats` gives."""
LINES = frozenset({"grid", "checkpoint", "end"})
"""Sources of rows in place are named by their line alone."""
UNREAD = frozenset({"refused", "response", "known", "prepared"})
"""No prompt was read for them."""
LAST, PREFIXES = 40, 12
CLIENT_CHARACTERS = 40


@dataclass(frozen=True, slots=True)
class Parts:
    """What is looked at. None where a server has no such thing."""

    boxes: Sequence[Box]
    """The main slot first; all share journal, budget and store."""
    settings: Settings
    salt: bytes = field(repr=False)
    """Of this process: what is said of a session is not its id."""
    started_s: float
    """Wall clock."""
    disk: DiskTier | None = None
    spill: Spill | None = None
    guard: WriteGuard | None = None
    model: str = ""
    waiting: int | None = None
    """Requests that no slot serves yet."""
    active: int | None = None
    counters: Mapping[str, int] = field(default_factory=dict)
    """The server's own."""

    @property
    def main(self) -> Box:
        """The main slot."""
        return self.boxes[0]


def stats(parts: Parts) -> dict[str, Any]:
    """All of it, in milliseconds. On the engine's thread, between two steps. Changes nothing."""
    main = parts.main
    journal, now_s = main.journal, main.clock.wall_s()
    turns = turns_of(journal)
    return {
        "version": VERSION,
        "at": now_s,
        "uptime_s": max(0.0, now_s - parts.started_s),
        "model": parts.model,
        "window": main.engine.window,
        "revision": parts.settings.revision,
        "queue": {"waiting": parts.waiting, "active": parts.active, "slots": len(parts.boxes)},
        "memory": {
            **(main.budget.stats() if main.budget is not None else {"limits": None}),
            "resident_files": main.engine.resident_files(),
            "caches": caches_plan(parts.boxes, parts.disk, parts.spill),
            "worst": worst_plan(parts.boxes, parts.disk, parts.spill),
        },
        "tiers": tiers_of(parts, turns),
        "turns": turns,
        "disk": dict(parts.disk.stats()) if parts.disk is not None else None,
        "spill": dict(parts.spill.stats()) if parts.spill is not None else None,
        "writes": parts.guard.stats() if parts.guard is not None else None,
        "prefixes": prefixes_of(parts.disk, parts.spill),
        "last_turns": [turn_of(row, parts.salt) for row in _newest(journal.rows)],
        "events": [event_of(event, parts.salt) for event in _newest(journal.events)],
        "server": dict(parts.counters),
    }


def tier_of(source: str) -> str:
    """What a journal's source names: `resident`, a tier, or itself."""
    head = source.partition(".")[0]
    return "resident" if head in LINES else head


def turns_of(journal: Journal) -> dict[str, Any]:
    """The journal's counters, by what they count."""
    kinds: dict[str, Counter[str]] = {k: Counter() for k in ("source", "cached", "why")}
    plain = {}
    # The copy is made at once: a job's thread counts what it could not write.
    for name, count in dict(journal.counters).items():
        kind, _, rest = name.partition(".")
        if kind in kinds and rest:
            kinds[kind][rest] = count
        elif not rest:
            plain[name] = count
    names = ("turns", "prompt_tokens", "cached_tokens", "forwarded_tokens", "output_tokens")
    return {
        **{name: plain.get(name, 0) for name in (*names, "guests", "journal_rows_unwritten")},
        "by_source": dict(kinds["source"].most_common()),
        "cached_by_source": dict(kinds["cached"].most_common()),
        "by_why": dict(kinds["why"].most_common()),
    }


def tiers_of(parts: Parts, turns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every tier: what it holds, and the share of prompts and of their tokens that it served."""
    served, cached = Counter[str](), Counter[str]()
    for source, count in turns["by_source"].items():
        served[tier_of(source)] += count
        cached[tier_of(source)] += turns["cached_by_source"].get(source, 0)
    read = sum(count for name, count in served.items() if name not in UNREAD)
    tokens = turns["prompt_tokens"]
    held = _holdings(parts)
    held |= {name: {} for name in served if name not in held and name not in ("cold", "refused")}
    return [
        {
            "name": name,
            "mode": None,
            "entries": None,
            "held_bytes": None,
            "budget_bytes": None,
            **what,
            "turns": served[name],
            "cached_tokens": cached[name],
            "hit_rate": served[name] / read if read else None,
            "token_rate": cached[name] / tokens if tokens else None,
        }
        for name, what in held.items()
    ]


def _holdings(parts: Parts) -> dict[str, dict[str, Any]]:
    """Entries, bytes and budget of every tier that there is."""
    stacks = [box.stack for box in parts.boxes]
    copy, row = _bytes_of(parts.main)
    park, store = stacks[0].park, stacks[0].store
    found: dict[str, dict[str, Any]] = {
        "resident": {
            "entries": sum(stack.resident.account.valid > 0 for stack in stacks),
            "rows": sum(stack.resident.account.valid for stack in stacks),
            "held_bytes": sum(
                stack.resident.account.valid * row + len(stack.resident.account.anchors) * copy
                for stack in stacks
            ),
        },
        "park": {
            "entries": len(park.entries),
            "pinned": sum(entry.kind == "pin" for entry in park.entries),
            "held_bytes": park.held_bytes(),
            "budget_bytes": stacks[0].config.park.budget_bytes,
        },
        "store": {
            "entries": len(store),
            "held_bytes": store.held_bytes(),
            "budget_bytes": store.config.budget_bytes,
            "declined": dict(store.declines),
            "evictions": store.evictions,
        },
    }
    for name, tier in (("disk", parts.disk), ("spill", parts.spill)):
        if tier is not None:
            had = tier.stats()
            kept = ("mode", "entries", "held_bytes", "budget_bytes")
            found[name] = {key: had[key] for key in kept}
    return found


def _bytes_of(box: Box) -> tuple[int, int]:
    cost = box.engine.cost()
    return cost.anchor_bytes, cost.row_bytes


def prefixes_of(disk: DiskTier | None, spill: Spill | None) -> list[dict[str, Any]]:
    """The prefixes on the drive that served most: how long, how often, and the packages that a
    server put into them. Nothing of what they say."""
    found: list[dict[str, Any]] = []
    if disk is not None:
        found += [{"tier": disk.name, **head} for head in disk.stats()["heads"]]
    for entry in spill.shelf.whole() if spill is not None else ():
        assert entry.account is not None
        tokens = entry.account.valid
        found.append({"tier": "spill", "tokens": tokens, "hits": entry.hits, "packages": []})
    found = [prefix for prefix in found if prefix["hits"]]
    return sorted(found, key=lambda p: (-p["hits"], -p["tokens"]))[:PREFIXES]


def turn_of(row: TurnRow, salt: bytes) -> dict[str, Any]:
    """A turn as others may see it."""
    return {
        "at": row.wall_s,
        "session": short(row.session, salt),
        "client": row.client[:CLIENT_CHARACTERS],
        "kind": row.kind,
        "slot": row.slot,
        "prompt": row.prompt,
        "asked": row.asked,
        "cached": row.cached,
        "forwarded": row.forwarded,
        "output": row.output,
        "tier": tier_of(row.source),
        "source": row.source,
        "gate": row.gate,
        "guest": row.guest,
        "why": row.why,
        "parted_at": row.parted_at,
        "parted_in": row.parted_in,
        "lost": dict(row.lost),
        "finish": row.finish,
        "end": row.end,
        "prefill_s": row.prefill_s,
        "decode_s": row.decode_s,
    }


def event_of(event: CacheEvent, salt: bytes) -> dict[str, Any]:
    """What a cache noted, as others may see it."""
    return {
        "at": event.wall_s,
        "tier": event.tier,
        "event": event.event,
        "session": short(event.session, salt),
        "tokens": event.tokens,
        "bytes": event.nbytes,
        "why": event.why,
    }


def short(session: str | None, salt: bytes) -> str | None:
    """A name for a session that is the same for the same one, and says nothing else of it."""
    if session is None:
        return None
    return hashlib.sha256(salt + session.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def _newest(rows: Sequence[T]) -> list[T]:
    return list(islice(reversed(rows), LAST))
