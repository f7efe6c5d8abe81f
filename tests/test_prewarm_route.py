"""Goal: a prewarmed conversation is in place for its next request, which resumes at the end; and
what is not prewarmed says why, and is where it was.

Method: the real application over a small engine, one conversation on the drive and somebody else's
in its place; every reason over HTTP. Covers cache.prewarm and serve.cache_routes. The canary is at
the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest
from peeked import NONE, RULES, check, until, words
from sdk_client import script_of
from served import Served, house, serving, usual


class Warm:
    """A conversation on the drive, and somebody else's in its place."""

    def __init__(self, served: Served, client: httpx.Client) -> None:
        self.served, self.client = served, client
        self.body: dict[str, Any] = {"messages": [{"role": "user", "content": words(300, "w")}]}
        self.headers = {"x-session-id": "mine"}
        message = self.post("/v1/chat/completions").json()["choices"][0]["message"]
        other = {"messages": [{"role": "user", "content": words(330, "another")}]}
        headers = {"x-session-id": "other"}
        client.post("/v1/chat/completions", json=other, headers=headers).raise_for_status()
        self.body["messages"] += [message, {"role": "user", "content": "go on"}]

    def post(self, path: str) -> httpx.Response:
        answer = self.client.post(path, json=self.body, headers=self.headers)
        answer.raise_for_status()
        return answer

    def prewarm(self) -> dict[str, Any]:
        found: dict[str, Any] = self.post("/v1/cache/prewarm").json()
        return found

    def source(self) -> str:
        """What serves the next turn, as its peek says and its usage reports."""
        said = self.post("/v1/cache/peek").json()
        check(said, self.post("/v1/chat/completions").json()["usage"], self.served)
        return str(said["source"])

    def rested(self) -> None:
        """Nobody has asked for anything for a while."""
        self.served.service.desk.last_end_s -= 10_000


@pytest.fixture
def warm(tmp_path: Path) -> Iterator[Warm]:
    some = usual().changed({"memory": NONE, "spill": {"idle_s": 0.0}})
    of = house(tmp_path / "kept", parallel=0, settings=some)
    with serving(of, script_of(tmp_path, RULES)) as one, one.client() as client:
        yield Warm(one, client)


def check_prewarmed(warm: Warm) -> None:
    warm.rested()
    done = warm.prewarm()
    assert done["prewarmed"] is True, done
    assert done["restore"]["kind"] == "end" and done["restore"]["tokens"] > 600
    assert warm.source() == "end"
    row = warm.served.house.journal.rows[-1]
    assert row.cached == done["restore"]["tokens"]


def test_what_was_prewarmed_resumes_at_the_end(warm: Warm) -> None:
    check_prewarmed(warm)


def test_without_prewarming_the_request_reads_it(warm: Warm) -> None:
    assert warm.source() == "spill.end"


def test_what_is_not_on_the_drive_is_not_prewarmed(warm: Warm) -> None:
    warm.rested()
    assert warm.prewarm()["prewarmed"] is True
    # It is in place now.
    assert warm.prewarm() == {"prewarmed": False, "why": "not_on_nvme"}
    warm.client.post("/v1/cache/clear?tier=all").raise_for_status()
    assert warm.prewarm() == {"prewarmed": False, "why": "not_on_nvme"}
    assert warm.source() == "cold"


def test_who_was_just_served_is_not_pushed_out(warm: Warm) -> None:
    assert warm.prewarm() == {"prewarmed": False, "why": "resident_in_use"}
    assert warm.source() == "spill.end"


def test_a_long_reading_is_left_to_the_request(warm: Warm, monkeypatch: pytest.MonkeyPatch) -> None:
    warm.rested()
    monkeypatch.setattr("cache.prewarm.READ_S_MAX", 0.0)
    assert warm.prewarm() == {"prewarmed": False, "why": "too_long"}
    assert warm.source() == "spill.end"


def test_a_prewarming_gives_way_to_a_request(warm: Warm) -> None:
    warm.rested()
    desk, held = warm.served.service.desk, Event()
    turns = warm.served.house.journal.counters["turns"]
    holding = desk.between(held.wait)
    until(holding.running)
    with ThreadPoolExecutor(2) as pool:
        prewarmed = pool.submit(warm.prewarm)
        until(lambda: len(desk._inbox) == 1)
        turn = pool.submit(warm.post, "/v1/chat/completions")
        until(lambda: desk.waiting)
        held.set()
        assert prewarmed.result() == {"prewarmed": False, "why": "yielded"}
        usage = turn.result().json()["usage"]
    assert usage["tandem"]["cache"]["source"] == "spill.end"
    assert warm.served.house.journal.counters["turns"] == turns + 1


def test_canary_a_prewarming_that_does_nothing(warm: Warm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cache.prewarm._warm", lambda stack, plan: True)
    with pytest.raises(AssertionError):
        check_prewarmed(warm)
