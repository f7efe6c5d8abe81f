"""What the drive is worth over days and over a night: the experiments, on short ones.

Method: two made days under a budget that they pass and one that they don't, and two minutes of the
bundled night for three users; every request is verified by the experiments themselves, and their
sums are held to the ledger's own rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from rich.console import Console

from cache.types import Gate
from experiments import fourteen_days, three_at_night
from experiments.fourteen_days import DAY_S, Lived, lived, made
from experiments.traffic import GateFailed
from replay.commands import traces_of
from replay.trace import Request, Trace
from replay.verify import Verdict
from sim.profile import Profile, load

GB = 1_000_000_000
NIGHT_S = 120.0


@pytest.fixture(scope="module")
def board() -> Profile:
    return load("spark-27b")


@pytest.fixture(scope="module")
def few() -> Iterator[None]:
    """Days of two conversations a person."""
    whole = fourteen_days.STARTED, fourteen_days.TURNS
    fourteen_days.STARTED, fourteen_days.TURNS = (2,), 3
    made.cache_clear()
    yield
    fourteen_days.STARTED, fourteen_days.TURNS = whole
    made.cache_clear()


@pytest.fixture(scope="module")
def free(board: Profile, few: None) -> Lived:
    return lived(replace(board, write_budget_bytes=1_000 * GB), 2)


@pytest.fixture(scope="module")
def tight(board: Profile, few: None) -> Lived:
    return lived(replace(board, write_budget_bytes=5 * GB), 2)


def test_days_are_in_order_and_conversations_go_on(few: None) -> None:
    plan = made(3)
    requests = plan.traffic.requests
    assert [r.t_s for r in requests] == sorted(r.t_s for r in requests)
    per_day = len(requests) // 3
    assert [stop.after for stop in plan.stops] == [per_day, 2 * per_day]
    later = [r for r in requests if r.extends is not None]
    assert len(later) == len(requests) * 2 // 3
    by_number: dict[int, Request] = {r.number: r for r in requests}
    assert all(by_number[r.extends or 0].session == r.session for r in later)
    assert all(int(r.t_s // DAY_S) == int((r.session or "day0")[3]) for r in requests)


def test_a_budget_bounds_the_days_and_costs_what_is_read_again(free: Lived, tight: Lived) -> None:
    assert not any(day["level"] for day in free.days) and free.writes["skipped"] == {}
    written = [sum(day["tier_gb"] + day["spill_gb"] for day in way.days) for way in (free, tight)]
    assert written[1] < written[0] / 2
    assert all(day["level"] == 2 and day["skips"] for day in tight.days)
    assert sum(d["reread_tokens"] for d in tight.days) > sum(d["reread_tokens"] for d in free.days)
    for way in (free, tight):
        assert sum(d["reread_tokens"] for d in way.days) == sum(row.reread for row in way.rows)
        assert all(row.checked is not None for row in way.rows)
    # What a planned stop writes is no day's to refuse.
    assert [row.process for row in tight.rows][-1] == 1


def test_a_wrong_row_ends_the_days(
    board: Profile, few: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Canary: a request that fails its gate gives no figures."""
    monkeypatch.setattr("replay.verify.WitnessVerifier.check", _fails)
    with pytest.raises(GateFailed):
        lived(replace(board, write_budget_bytes=3 * GB), 1)


def _fails(self: object, *rest: object) -> Verdict:
    return Verdict(Gate.GREEDY, "planted")


def test_a_night_ends_when_it_is_over(board: Profile) -> None:
    (read,), _ = traces_of(["night"], False, Console(stderr=True))
    trace = Trace(read.name, read.header, read.requests[:100])
    seen = three_at_night.night(board, [trace] * 3, night_s=NIGHT_S)
    bare = three_at_night.night(three_at_night.boards(board)["neither"], [trace] * 3, NIGHT_S)
    for one in (seen, bare):
        assert 0 < one["requests"] < len(trace.requests)
        assert one["verified"]["failed"] == 0
    assert bare["disk"] is None and bare["spill"] is None
    assert seen["writes"]["level"] == "ok"
