"""Metrics for Prometheus: turns as they end, and what the caches held when it was asked last"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from cache.journal import TurnRow
from serve.stats import tier_of

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
LEVELS = ("ok", "over", "hard")
BYTES = {"read_bytes": "read", "written_bytes": "written"}
"""Of the drive's tiers, counters that are bytes."""


class Metrics:
    """What /metrics says. A registry of its own; from any thread."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._holds = _Holdings()
        self.registry.register(self._holds)
        self._turns = self._counter("turns", "Turns by what served them", "source", "tier", "why")
        self._tokens = self._counter("tokens", "Tokens of turns by what became of them", "kind")
        self._lost = self._counter(
            "lost_tokens", "Tokens read again although their rows had been computed", "cause"
        )
        self._finished = self._counter("finished", "Turns by how they ended", "finish")
        self._errors = self._counter("http_errors", "Responses that are errors", "status")
        self._ttft = self._seconds("ttft", "From a request to its first token")
        self._prefill = self._seconds("prefill", "Reading a prompt, what had to be restored too")
        self._decode = self._seconds("decode", "Writing an answer")

    def _counter(self, name: str, about: str, *labels: str) -> Counter:
        return Counter(f"moorage_{name}", about, labels, registry=self.registry)

    def _seconds(self, name: str, about: str) -> Histogram:
        return Histogram(f"moorage_{name}_seconds", about, registry=self.registry, buckets=SECONDS)

    def saw(self, row: TurnRow, ttft_s: float | None) -> None:
        """A turn has ended; `ttft_s` is None when it had no first token."""
        self._turns.labels(row.source, tier_of(row.source), row.why).inc()
        counts = {
            "prompt": row.prompt,
            "cached": row.cached,
            "forwarded": row.forwarded,
            "output": row.output,
        }
        for kind, count in counts.items():
            self._tokens.labels(kind).inc(count)
        for cause, count in row.lost.items():
            self._lost.labels(cause).inc(count)
        self._finished.labels(row.finish).inc()
        if row.finish == "refused":
            return
        self._prefill.observe(max(0.0, row.prefill_s))
        self._decode.observe(max(0.0, row.decode_s))
        if ttft_s is not None:
            self._ttft.observe(max(0.0, ttft_s))

    def error(self, status: int) -> None:
        """A response with such a status was sent."""
        self._errors.labels(str(status)).inc()

    def read(self, stats: Mapping[str, Any]) -> None:
        """What `serve.stats.stats` gave is what the caches hold now."""
        self._holds.stats = stats

    def text(self) -> bytes:
        """All of it, in Prometheus' format."""
        return generate_latest(self.registry)


class _Holdings(Collector):
    """Gauges and counters made of the last stats; none before the first."""

    def __init__(self) -> None:
        self.stats: Mapping[str, Any] | None = None

    def describe(self) -> list[Metric]:
        """Asked at registration: nothing is known yet."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The families."""
        stats = self.stats
        if stats is None:
            return
        yield _gauge("uptime_seconds", "Since the start", {(): stats["uptime_s"]})
        queue = {(state,): stats["queue"][state] for state in ("waiting", "active")}
        yield _gauge("queue", "Requests by state", queue, "state")
        yield from self._memory(stats["memory"])
        yield from self._tiers(stats)
        if stats["writes"] is not None:
            yield from self._writes(stats["writes"])
        unwritten = stats["turns"]["journal_rows_unwritten"]
        about = "Rows that the journal's files lack"
        yield _counter("journal_rows_unwritten", about, {(): unwritten})

    @staticmethod
    def _memory(memory: Mapping[str, Any]) -> Iterator[Metric]:
        held = {(cache["name"],): cache["held_bytes"] for cache in memory["caches"]}
        budgets = {(cache["name"],): cache["budget_bytes"] for cache in memory["caches"]}
        yield _gauge("held_bytes", "Memory by what holds it", held, "cache")
        yield _gauge("budget_bytes", "Memory that a cache may hold", budgets, "cache")
        files = {(): memory["resident_files"]}
        yield _gauge("resident_files_bytes", "Page cache that the engine keeps", files)
        if memory["limits"] is None:
            return
        limits = {(name.removesuffix("_bytes"),): n for name, n in memory["limits"].items()}
        yield _gauge("limit_bytes", "Limits of engine and caches", limits, "limit")
        yield _gauge("allocated_bytes", "In use", {(): memory["allocated_bytes"]})
        yield _gauge("reserve_bytes", "Freed, kept by the allocator", {(): memory["reserve_bytes"]})
        for name, about in (
            ("shed", "Bytes that caches gave back"),
            ("declined", "Copies for which there was no room"),
        ):
            unit = "shed_bytes" if name == "shed" else name
            yield _counter(unit, about, {(k,): n for k, n in memory[name].items()}, "level")
        about = "Prompts for which there was no room"
        yield _counter("refused", about, {(): memory["refused"]})

    @staticmethod
    def _tiers(stats: Mapping[str, Any]) -> Iterator[Metric]:
        for key, about in (
            ("entries", "Entries of a tier"),
            ("held_bytes", "What a tier holds"),
            ("budget_bytes", "What a tier may hold"),
        ):
            values = {(tier["name"],): tier[key] for tier in stats["tiers"]}
            yield _gauge(f"tier_{key}", about, values, "tier")
        events: dict[tuple[str, ...], float] = {}
        moved: dict[tuple[str, ...], float] = {}
        spent: dict[tuple[str, ...], float] = {}
        known = {"entries", "chunks", "held_bytes", "budget_bytes", "counted_lines", "read_bytes_s"}
        for tier in ("disk", "spill"):
            for key, value in (stats[tier] or {}).items():
                if key in BYTES:
                    moved[(tier, BYTES[key])] = value
                elif key in ("write_s", "read_s"):
                    way = key.removesuffix("_s")
                    spent |= {(tier, way, step): s for step, s in value.items()}
                elif isinstance(value, int) and key not in known:
                    events[(tier, key)] = value
        yield _counter("tier_events", "What a tier on the drive did", events, "tier", "event")
        yield _counter("tier_bytes", "Bytes of a tier on the drive", moved, "tier", "direction")
        about = "Seconds of saves and restores by step"
        yield _counter("tier_seconds", about, spent, "tier", "direction", "step")

    @staticmethod
    def _writes(writes: Mapping[str, Any]) -> Iterator[Metric]:
        today = {(who,): writes[f"{who}_bytes"] for who in ("tier", "spill")}
        yield _gauge("writes_today_bytes", "Written to the drive today", today, "writer")
        yield _gauge("writes_budget_bytes", "A day's budget", {(): writes["budget_bytes"]})
        level = {(name,): float(name == writes["level"]) for name in LEVELS}
        yield _gauge("writes_level", "How the day stands to its budget", level, "level")
        yield _gauge("writes_skips_today", "What was not written today", {(): writes["skips"]})


Values = Mapping[Any, float | None]
"""By the labels' values, a tuple of strings."""


def _gauge(name: str, about: str, values: Values, *labels: str) -> Metric:
    """A family; what is not known is left out."""
    family = GaugeMetricFamily(f"moorage_{name}", about, labels=labels)
    for key, value in values.items():
        if value is not None:
            family.add_metric(key, value)
    return family


def _counter(name: str, about: str, values: Values, *labels: str) -> Metric:
    family = CounterMetricFamily(f"moorage_{name}", about, labels=labels)
    for key, value in values.items():
        if value is not None:
            family.add_metric(key, value)
    return family
