"""Goal: hours of requests, many of them given up, leave nothing behind: no memory, no object, no
open file, nobody waiting; and every answer that came to its end has the right tokens.

Method: clients on loopback against the real application with side slots and a drive, a seeded mix
of prompts that share heads, whole and streamed, some hung up on while they wait, read or write.
What is counted is compared with what was counted after a warm-up; tokens with those of an engine of
its own that read each prompt cold. 150 requests here, 2,000 in the slow one. Canaries at the end.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
from served import DIALECT, GRID, WINDOW, Served, house, serving, usual

from cache.journal import TurnRow
from engine.chat.messages import messages_of
from engine.decode import decode
from engine.sampling import Greedy
from serve.embedded import embedded
from serve.hearing import Hearing
from serve.host_memory import HostMemory
from serve.order import Order

CLIENTS = 4
LONG = 600
"""Tokens of an answer that is hung up on."""
RSS_BYTES = 24 * 2**20
"""What a process may grow by between two counts without being called leaky: pools of allocators."""
SETTINGS = {
    "memory": {"park_gib": 0.002, "pin_gib": 0.001, "store_gib": 0.002},
    "spill": {"idle_s": 0.0, "budget_gb": 0.02},
    "disk": {"budget_gb": 0.02},
}


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request as it is sent, but for what its sender does with it."""

    messages: tuple[tuple[str, str], ...]
    tokens: int

    @property
    def body(self) -> dict[str, Any]:
        return {
            "messages": [{"role": role, "content": text} for role, text in self.messages],
            "max_tokens": self.tokens,
            "temperature": 0,
            "reasoning_effort": "none",
        }


def prompts() -> list[Prompt]:
    """Prompts that share heads with one another, and some that don't."""
    draw, found = random.Random(7), list[Prompt]()
    heads = [
        "".join(f"{name} is told {n} of it. " for n in range(size))
        for name, size in (("Ann", 3), ("Ben", 20), ("Cleo", 45))
    ]
    for number in range(18):
        head = draw.choice(heads)
        turns = [("system", head), ("user", f"Question {number}?")]
        if number % 3 == 0:
            turns += [("assistant", "A short answer."), ("user", "And more?")]
        found.append(Prompt(tuple(turns), draw.choice((1, 4, 12, 20))))
    return found


PROMPTS = prompts()


@cache
def right(seed: int = 0) -> dict[tuple[int, ...], list[int]]:
    """By a prompt's ids, the first tokens of its answer, from an engine that has nothing else."""
    first, found = embedded(DIALECT, seed, grid=GRID, window=WINDOW), {}
    for prompt in PROMPTS:
        messages = messages_of(prompt.body["messages"], lambda part: None)
        ids = DIALECT.render(messages, thinking=False).ids
        engine = first.twin(WINDOW)
        for start in range(0, len(ids), GRID):
            logits = engine.prefill(ids[start : start + GRID])
        rounds = decode(engine, logits, Greedy(0, None), 40, DIALECT.stop_ids)
        found[tuple(ids.tolist())] = [token for new in rounds for token in new]
    return found


@dataclass(frozen=True, slots=True)
class Census:
    """What there is of a process while nothing is served."""

    rss_bytes: int
    files: int
    threads: int
    objects: Counter[str]


KINDS = (Order, Hearing, asyncio.Task, asyncio.Queue)


def census() -> Census:
    gc.collect()
    objects = Counter(type(one).__name__ for one in gc.get_objects() if type(one) in KINDS)
    files = len(os.listdir("/proc/self/fd"))
    return Census(HostMemory().allocated_bytes(), files, threading.active_count(), objects)


@dataclass(slots=True)
class Soak:
    """A server under many clients, and what became of every request."""

    served: Served
    draw: random.Random
    seed: int = 0
    """Of the engine that the tokens are compared with."""
    rows: dict[str, TurnRow] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    asked: int = 0
    aborted: list[tuple[str, bool]] = field(default_factory=list)
    """Sessions that were given up, and whether something of their answer had come."""
    whole: int = 0

    def noted(self, row: TurnRow, order: Order) -> None:
        """A turn is over; on the engine's thread."""
        self.rows[row.session or ""] = row
        reference = right(self.seed)[tuple(order.prompt.ids.tolist())]
        wanted = reference[: order.limit]
        if row.finish == "cancelled" or order.limit > len(wanted):
            wanted = wanted[: len(order.answer)]
        if order.answer[: len(wanted)] != wanted or len(order.answer) != row.output:
            self.wrong.append(f"{row.session}: {order.answer} is not {wanted}")

    def go(self, count: int) -> Census:
        """So many requests; what there is once the clients have gone."""
        plan = [self._drawn() for _ in range(count)]
        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(self._clients, [plan[at::CLIENTS] for at in range(CLIENTS)]))
        desk = self.served.service.desk
        end_s = time.monotonic() + 30
        while desk.active or desk.waiting:
            assert time.monotonic() < end_s, "somebody is still served"
            time.sleep(0.01)
        desk.alone(self.served.house.jobs.drain, 20.0).result()
        return self._settled()

    def _settled(self) -> Census:
        """A census when the sockets of clients that left are closed."""
        found, end_s = census(), time.monotonic() + 5
        while time.monotonic() < end_s:
            time.sleep(0.1)
            before, found = found, census()
            if (before.files, before.objects) == (found.files, found.objects):
                break
        return found

    def _drawn(self) -> tuple[str, Prompt, str]:
        self.asked += 1
        how = self.draw.choices(("whole", "stream", "early", "late"), (35, 35, 10, 20))[0]
        return f"soak-{self.asked}", self.draw.choice(PROMPTS), how

    def _clients(self, plan: list[tuple[str, Prompt, str]]) -> None:
        with self.served.client() as client:
            for session, prompt, how in plan:
                headers = {"x-session-id": session}
                getattr(self, f"_{how}")(client, session, prompt, headers)

    def _whole(self, client: httpx.Client, session: str, prompt: Prompt, headers: Any) -> None:
        answer = client.post("/v1/chat/completions", json=prompt.body, headers=headers)
        assert answer.status_code == 200, answer.text
        assert 0 < answer.json()["usage"]["completion_tokens"] <= prompt.tokens
        self.whole += 1

    def _stream(self, client: httpx.Client, session: str, prompt: Prompt, headers: Any) -> None:
        sent = {**prompt.body, "stream": True}
        with client.stream("POST", "/v1/chat/completions", json=sent, headers=headers) as answer:
            assert list(answer.iter_lines())[-2] == "data: [DONE]"
        self.whole += 1

    def _early(self, client: httpx.Client, session: str, prompt: Prompt, headers: Any) -> None:
        """Hang up on a whole answer, which may not have begun."""
        sent = {**prompt.body, "max_tokens": LONG}
        try:
            client.post("/v1/chat/completions", json=sent, headers=headers, timeout=0.05)
        except httpx.TimeoutException:
            self.aborted.append((session, False))

    def _late(self, client: httpx.Client, session: str, prompt: Prompt, headers: Any) -> None:
        """Hang up on a stream that has begun."""
        sent = {**prompt.body, "max_tokens": LONG, "stream": True}
        with client.stream("POST", "/v1/chat/completions", json=sent, headers=headers) as answer:
            for line in answer.iter_lines():
                if '"content":"' in line and '"content":""' not in line:
                    break
        self.aborted.append((session, True))


@contextmanager
def soaking(folder: Path, seed: int = 0) -> Iterator[Soak]:
    of = house(folder / "kept", parallel=2, settings=usual().changed(SETTINGS))
    right(seed)
    with serving(of) as one:
        soak, ended = Soak(one, random.Random(1), seed), one.service.desk._ended

        def noted(row: TurnRow, order: Order) -> None:
            soak.noted(row, order)
            ended(row, order)

        one.service.desk._ended = noted
        yield soak


def check(soak: Soak, count: int) -> None:
    """Soak it; raises AssertionError for whatever is left behind, or wrong."""
    before = soak.go(count * 3 // 10)
    after = soak.go(count - count * 3 // 10)
    assert soak.wrong == []
    for session, begun in soak.aborted:
        row = soak.rows.get(session)
        assert row is not None or not begun, session
        # The model may have come to its end first.
        assert row is None or row.finish in ("cancelled", "stop"), row
    finishes = Counter(row.finish for row in soak.rows.values())
    assert set(finishes) <= {"cancelled", "stop", "length"}
    assert soak.whole > count // 3 and finishes["cancelled"] > count // 10, finishes
    assert finishes["stop"] + finishes["length"] <= soak.whole + count // 20, finishes
    # A pool of threads that read the drive is made when it is first read.
    assert after.files <= before.files + 1 and after.threads <= before.threads + 10
    assert after.objects <= before.objects + Counter(dict.fromkeys(before.objects, 2))
    assert after.rss_bytes - before.rss_bytes < RSS_BYTES
    with soak.served.client() as client:
        health = client.get("/health").json()
        assert health["requests"] == {"active": 0, "waiting": 0}
    assert len({row.slot for row in soak.rows.values()}) == 3, "no side slot served"


def test_a_hundred_and_fifty_requests_leave_nothing_behind(tmp_path: Path) -> None:
    with soaking(tmp_path) as soak:
        check(soak, 150)


@pytest.mark.slow
def test_two_thousand_requests_leave_nothing_behind(tmp_path: Path) -> None:
    with soaking(tmp_path) as soak:
        check(soak, 2_000)


def check_cancelled() -> None:
    """Whoever is told to stop in the moment that something is heard stops."""

    async def cancelled(turns: int) -> bool:
        queue: asyncio.Queue[Any] = asyncio.Queue()
        hearing = Hearing(None, None, None, queue)  # type: ignore[arg-type]
        task = asyncio.ensure_future(hearing.next(9.0))
        for _ in range(3):
            await asyncio.sleep(0)
        queue.put_nowait("something")
        for _ in range(turns):
            await asyncio.sleep(0)
        if task.done():
            return True
        task.cancel()
        done = await asyncio.gather(task, return_exceptions=True)
        return isinstance(done[0], asyncio.CancelledError)

    for turns in range(6):
        assert asyncio.run(cancelled(turns)), turns


def test_a_hang_up_in_the_moment_something_is_heard() -> None:
    check_cancelled()


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="mended in Python 3.12")
def test_canary_a_hang_up_that_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    async def next(self: Hearing, wait_s: float) -> Any:
        return await asyncio.wait_for(self._queue.get(), wait_s)

    monkeypatch.setattr(Hearing, "next", next)
    with pytest.raises(AssertionError):
        check_cancelled()


def kept_orders(patch: pytest.MonkeyPatch) -> None:
    from serve.desk import Desk

    over, kept = Desk._over, list[Order]()

    def keeps(self: Any, order: Order, *rest: Any) -> Any:
        kept.append(order)
        return over(self, order, *rest)

    patch.setattr(Desk, "_over", keeps)


def open_files(patch: pytest.MonkeyPatch) -> None:
    from serve.desk import Desk

    over, files = Desk._over, list[Any]()

    def opens(self: Any, *rest: Any) -> Any:
        files.append(os.open("/dev/null", os.O_RDONLY))
        return over(self, *rest)

    patch.setattr(Desk, "_over", opens)


def nobody_leaves(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Hearing, "leave", lambda self: None)


@pytest.mark.parametrize(
    "plant",
    [
        pytest.param(open_files, marks=pytest.mark.slow),
        pytest.param(kept_orders, marks=pytest.mark.slow),
        pytest.param(nobody_leaves, marks=pytest.mark.slow),
    ],
)
def test_canary_something_is_left_behind(
    plant: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with soaking(tmp_path) as soak:
        plant(monkeypatch)
        if plant is nobody_leaves:
            # Every answer is written to its end.
            monkeypatch.setitem(globals(), "LONG", 100)
        with pytest.raises(AssertionError):
            check(soak, 30)


def test_canary_another_model_has_other_tokens(tmp_path: Path) -> None:
    with soaking(tmp_path, seed=1) as soak:
        soak.go(6)
        assert soak.wrong
