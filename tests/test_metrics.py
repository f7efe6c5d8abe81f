"""Metrics: what Prometheus is told, parsed as it would, beside the turns and stats they stand for.

Method: journal rows by hand and the stats of a driven box; the text is read back by the client
library's own parser. Covers serve.metrics.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from prometheus_client.parser import text_string_to_metric_families
from test_stats import parts, talked

from cache.journal import TurnRow
from serve.metrics import Metrics
from serve.stats import stats

ROW = TurnRow(
    wall_s=0.0,
    session="s",
    client="c",
    kind="turn",
    prompt=100,
    asked=100,
    cached=60,
    source="park.end",
    why="tools",
    lost={"tools": 30},
    forwarded=40,
    output=7,
    finish="stop",
    prefill_s=0.2,
    decode_s=3.0,
)


def samples(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """Every sample by its name and its labels' values, sorted by the labels' names."""
    found = {}
    for family in text_string_to_metric_families(metrics.text().decode()):
        for sample in family.samples:
            key = (sample.name, *(value for _, value in sorted(sample.labels.items())))
            assert key not in found, key
            found[key] = sample.value
    return found


def test_turns_are_counted_by_what_served_them() -> None:
    metrics = Metrics()
    metrics.saw(ROW, 0.3)
    metrics.saw(ROW, None)
    seen = samples(metrics)
    assert seen["moorage_turns_total", "park.end", "park", "tools"] == 2
    assert seen["moorage_tokens_total", "cached"] == 120
    assert seen["moorage_tokens_total", "forwarded"] == 80
    assert seen["moorage_lost_tokens_total", "tools"] == 60
    assert seen["moorage_finished_total", "stop"] == 2
    assert seen["moorage_ttft_seconds_count",] == 1
    assert seen["moorage_ttft_seconds_bucket", "0.25"] == 0
    assert seen["moorage_ttft_seconds_bucket", "0.5"] == 1
    assert seen["moorage_decode_seconds_sum",] == 6.0


def test_a_refused_prompt_took_no_time() -> None:
    metrics = Metrics()
    metrics.saw(TurnRow(0.0, None, "c", "turn", 10, 10), None)
    seen = samples(metrics)
    assert seen["moorage_finished_total", "refused"] == 1
    assert seen["moorage_prefill_seconds_count",] == 0


def test_errors_are_counted_by_status() -> None:
    metrics = Metrics()
    for status in (404, 404, 503):
        metrics.error(status)
    seen = samples(metrics)
    assert seen["moorage_http_errors_total", "404"] == 2
    assert seen["moorage_http_errors_total", "503"] == 1


def test_what_the_caches_hold_is_what_stats_said_last() -> None:
    metrics = Metrics()
    assert not any(name[0] == "moorage_held_bytes" for name in samples(metrics))
    told = stats(talked(parts()))
    metrics.read(told)
    seen = samples(metrics)
    for cache in told["memory"]["caches"]:
        assert seen["moorage_held_bytes", cache["name"]] == cache["held_bytes"]
        assert seen["moorage_budget_bytes", cache["name"]] == cache["budget_bytes"]
    assert seen["moorage_limit_bytes", "peak"] == 2**41
    assert seen["moorage_queue", "waiting"] == 2 and seen["moorage_queue", "active"] == 1
    for tier in told["tiers"]:
        assert seen["moorage_tier_entries", tier["name"]] == tier["entries"]
    for tier in ("disk", "spill"):
        for key in ("hit", "write", "save"):
            if key in told[tier]:
                assert seen["moorage_tier_events_total", key, tier] == told[tier][key]
    assert seen["moorage_writes_today_bytes", "spill"] == told["writes"]["spill_bytes"]
    assert seen["moorage_writes_level", "ok"] == 1 and seen["moorage_writes_level", "hard"] == 0
    assert seen["moorage_journal_rows_unwritten_total",] == 0


def test_without_a_drive_there_is_no_word_of_one() -> None:
    on = parts(drive=False)
    on.main.budget = None
    metrics = Metrics()
    metrics.read(stats(on))
    names = {name[0] for name in samples(metrics)}
    assert "moorage_held_bytes" in names
    assert not names & {"moorage_limit_bytes", "moorage_writes_level"}


def test_two_servers_of_a_process_count_apart() -> None:
    one, two = Metrics(), Metrics()
    one.saw(ROW, 1.0)
    assert ("moorage_finished_total", "stop") not in samples(two)


def test_no_turn_is_lost_between_threads() -> None:
    metrics = Metrics()
    metrics.read(stats(parts()))
    with ThreadPoolExecutor(4) as pool:
        for _ in range(200):
            pool.submit(metrics.saw, ROW, 0.1)
            pool.submit(metrics.text)
    assert samples(metrics)["moorage_finished_total", "stop"] == 200
