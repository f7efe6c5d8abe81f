"""Goal: what a peek says before a request is what the request then reports, whoever was served in
between, wherever its rows are; and a peek changes and counts nothing.

Method: random sessions over HTTP against the real application, on a drive and with a side slot:
turns, side requests, copies without reasoning, edits, requests sent again or given up, clears and
restarts; before every request two peeks, with the statistics before and after the second. Covers
serve.peek and serve.cache_routes. Canaries are at the end.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from peeked import NONE, POOL, ROOMY, RULES, check, until, words
from sdk_client import script_of
from served import Served, house, serving, usual

from serve.script import Script

NAMES = ("a", "b", "c")
SIZES = st.sampled_from([3, 40, 120, 200, 330])
"""Words of a message; a chunk is some 60 of them."""


def stats_of(client: httpx.Client) -> dict[str, Any]:
    """The statistics, without the clock and the process's own memory."""
    found = client.get("/v1/cache/stats").json()
    for name in ("at", "uptime_s"):
        del found[name]
    for name in ("allocated_bytes", "reserve_bytes", "worst"):
        found["memory"].pop(name, None)
    return found


def foretold(served: Served, client: httpx.Client, body: Any, headers: Any) -> dict[str, Any]:
    """What a peek says, which changes and counts nothing."""
    settle(served)
    first = client.post("/v1/cache/peek", json=body, headers=headers)
    assert first.status_code == 200, first.text
    # Before any request a guest leaves, and what was written meanwhile is taken note of.
    settle(served)
    before, counters = stats_of(client), dict(served.house.journal.counters)
    second = client.post("/v1/cache/peek", json=body, headers=headers)
    volatile = {"reread_eta_ms", "restore_ms"}
    assert {k: v for k, v in second.json().items() if k not in volatile} == {
        k: v for k, v in first.json().items() if k not in volatile
    }
    assert stats_of(client) == before and dict(served.house.journal.counters) == counters
    return dict(second.json())


def settle(served: Served) -> None:
    """Nothing is served, and what is being written to the drive is there."""
    served.service.desk.alone(served.house.jobs.drain, 20.0).result()


class Peeking(RuleBasedStateMachine):
    """Clients of one server, one after another."""

    script: Script
    memory: dict[str, Any]
    parallel: int
    sources: set[str]
    """What served, over all examples: a test of the test."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.talks: dict[str, list[dict[str, Any]]] = {}
        self.count = 0
        self.up: AbstractContextManager[Served] | None = None

    @initialize()
    def start(self) -> None:
        some = usual().changed({"memory": self.memory})
        of = house(self.folder / "kept", parallel=self.parallel, settings=some)
        self.up = serving(of, self.script)
        self.served = self.up.__enter__()
        self.client = self.served.client()

    def teardown(self) -> None:
        self.stop()
        shutil.rmtree(self.folder)

    def stop(self) -> None:
        if self.up is not None:
            self.client.close()
            self.up.__exit__(None, None, None)
            self.up = None

    def ask(self, messages: list[dict[str, Any]], name: str | None, **more: Any) -> dict[str, Any]:
        """One request, which its peek foretells."""
        headers = {"x-session-id": name} if name is not None else {}
        body = {"messages": messages, **more}
        said = foretold(self.served, self.client, body, headers)
        answer = self.client.post("/v1/chat/completions", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        check(said, answer.json()["usage"], self.served)
        self.sources.add(said["source"])
        message: dict[str, Any] = answer.json()["choices"][0]["message"]
        return message

    def turn(self, name: str, size: int, named: bool, keeps: bool, most: int | None) -> None:
        talk = self.talks.setdefault(name, [])
        self.count += 1
        talk.append({"role": "user", "content": words(size, f"{name}{self.count}")})
        limit = {"max_tokens": most} if most else {}
        message = self.ask(talk, name if named else None, **limit)
        if not keeps:
            message.pop("reasoning_content", None)
        talk.append(message)
        if sum(len(m["content"] or "") for m in talk) > 2_800:
            del self.talks[name]

    @rule(
        name=st.sampled_from(NAMES),
        size=SIZES,
        named=st.booleans(),
        keeps=st.booleans(),
        most=st.sampled_from([None, 3, 500]),
    )
    def says(self, name: str, size: int, named: bool, keeps: bool, most: int | None) -> None:
        self.turn(name, size, named, keeps, most)

    @rule(name=st.sampled_from(NAMES), keeps=st.booleans())
    def goes_on_twice(self, name: str, keeps: bool) -> None:
        for _ in range(2):
            self.turn(name, 20, True, keeps, None)

    @rule(size=st.sampled_from([10, 60]))
    def side_request(self, size: int) -> None:
        asked = f"### Task:\nGenerate a concise, 3-5 word title with an emoji {words(size, 't')}"
        self.ask([{"role": "user", "content": asked}], None, max_tokens=20)

    @precondition(lambda self: self.talks)
    @rule(at=st.integers(0, 5), size=SIZES)
    def edits(self, at: int, size: int) -> None:
        name, talk = sorted(self.talks.items())[at % len(self.talks)]
        users = [place for place, message in enumerate(talk) if message["role"] == "user"]
        del talk[users[at % len(users)] :]
        self.turn(name, size, True, True, None)

    @precondition(lambda self: self.talks)
    @rule(at=st.integers(0, 2))
    def sends_again(self, at: int) -> None:
        name, talk = sorted(self.talks.items())[at % len(self.talks)]
        self.ask(talk[:-1], name)

    @precondition(lambda self: self.talks)
    @rule(at=st.integers(0, 2), keeps=st.booleans())
    def comes_back_to_nothing_in_memory(self, at: int, keeps: bool) -> None:
        settle(self.served)
        self.clears("ram")
        self.turn(sorted(self.talks)[at % len(self.talks)], 40, True, keeps, None)

    @rule(name=st.sampled_from(NAMES), size=st.sampled_from([60, 200]))
    def gives_up(self, name: str, size: int) -> None:
        body = {"messages": [{"role": "user", "content": words(size, f"gone {name}")}]}
        sent = {**body, "stream": True, "max_tokens": 900}
        headers = {"x-session-id": name}
        with self.client.stream("POST", "/v1/chat/completions", json=sent, headers=headers) as it:
            next(it.iter_lines())
        end_s = time.monotonic() + 20
        while self.served.service.desk.active:
            assert time.monotonic() < end_s

    @rule(tier=st.sampled_from(["ram", "disk", "spill", "all"]))
    def clears(self, tier: str) -> None:
        self.client.post(f"/v1/cache/clear?tier={tier}").raise_for_status()

    @rule()
    def restarts(self) -> None:
        self.stop()
        self.start()


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Script:
    return script_of(tmp_path_factory.mktemp("said"), RULES)


BOARDS = [(ROOMY, 1), (POOL, 0), (POOL, 1), (NONE, 0)]
"""Memory, and side slots."""


def machine(script: Script, board: tuple[dict[str, Any], int], sources: set[str]) -> type[Peeking]:
    told = {"script": script, "memory": board[0], "parallel": board[1], "sources": sources}
    return type("Walks", (Peeking,), told)


def walks(script: Script, examples: int, steps: int, boards: slice = slice(None)) -> set[str]:
    """So many random walks on every board; what served in them."""
    sources: set[str] = set()
    # They are servers and sockets: none is made smaller.
    how = settings(max_examples=examples, stateful_step_count=steps, phases=(Phase.generate,))
    for board in BOARDS[boards]:
        run_state_machine_as_test(machine(script, board, sources), settings=how)
    return sources


def tour(script: Script) -> set[str]:
    """A walk past every tier; what served in it."""
    sources: set[str] = set()
    for board in BOARDS[1], BOARDS[3], BOARDS[0]:
        one = machine(script, board, sources)()
        one.start()
        try:
            for name, size in (("a", 330), ("a", 40), ("b", 330), ("a", 40), ("c", 330)):
                one.turn(name, size, True, name != "a", None)
            one.side_request(10)
            one.goes_on_twice("b", False)
            one.comes_back_to_nothing_in_memory(0, True)
            one.restarts()
            one.edits(1, 40)
        finally:
            one.teardown()
    return sources


def test_every_tier_is_foretold(script: Script) -> None:
    wanted = {"cold", "end", "park.end", "spill.end", "disk.grid"}
    assert wanted <= tour(script)


def test_a_peek_says_what_the_request_reports(script: Script) -> None:
    assert len(walks(script, 3, 12, slice(2, 4))) > 3


@pytest.mark.slow
def test_a_peek_says_what_the_request_reports_in_long_walks(script: Script) -> None:
    sources = walks(script, 10, 25)
    assert {"store.end", "checkpoint", "grid"} <= sources, sources


def test_nobody_peeks_or_prewarms_while_requests_are_served(script: Script) -> None:
    slow = [{"say": [["content", "word " * 24]], "tokens_s": 50}]
    folder = Path(tempfile.mkdtemp())
    with serving(house(parallel=0), script_of(folder, slow)) as one, one.client() as client:
        body, desk = {"messages": [{"role": "user", "content": "slowly"}]}, one.service.desk
        with ThreadPoolExecutor(2) as pool:
            turns = [pool.submit(client.post, "/v1/chat/completions", json=body) for _ in range(2)]
            until(lambda: desk.active and desk.waiting)
            for path in ("peek", "prewarm"):
                answer = client.post(f"/v1/cache/{path}", json=body)
                assert answer.status_code == 409 and answer.json()["error"]["code"] == "busy"
                assert answer.headers["retry-after"] == "1"
            assert [turn.result().status_code for turn in turns] == [200, 200]
        assert client.post("/v1/cache/peek", json=body).status_code == 200
    shutil.rmtree(folder)


def counting(patch: pytest.MonkeyPatch) -> None:
    """A peek counts."""
    from serve import peek

    def counted(house: Any) -> float:
        house.journal.counters["turns"] += 1
        return real(house)

    real = peek.prefill_rate
    patch.setattr(peek, "prefill_rate", counted)


def by_tokens(patch: pytest.MonkeyPatch) -> None:
    """A peek compares token by token."""
    from serve import cache_routes

    def strictly(house: Any, *args: Any) -> Any:
        house.meets.on = False
        try:
            return real(house, *args)
        finally:
            house.meets.on = True

    real = cache_routes.peek
    patch.setattr(cache_routes, "peek", strictly)


def in_memory_only(patch: pytest.MonkeyPatch) -> None:
    """A peek does not ask the drive."""
    from serve import cache_routes

    def blind(house: Any, *args: Any) -> Any:
        stack = house.box.stack
        disk, spill, stack.disk, stack.spill = stack.disk, stack.spill, None, None
        try:
            return real(house, *args)
        finally:
            stack.disk, stack.spill = disk, spill

    real = cache_routes.peek
    patch.setattr(cache_routes, "peek", blind)


@pytest.mark.parametrize("plant", [counting, by_tokens, in_memory_only])
def test_canary_a_peek_that_is_wrong(
    plant: Callable[[pytest.MonkeyPatch], None], script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        tour(script)
