"""Goal: turns side by side in their slots give the tokens that each gives alone, and whoever
leaves, or asks something in between, changes nobody else's answer.

Method: the real application over a small engine (tests/served.py), requests from threads.
Covers serve.desk, serve.order, serve.heard, serve.house, serve.service, serve.app,
serve.answering, serve.chat_route, serve.speech, serve.stream, serve.voice, serve.asked,
serve.choice, serve.usage, serve.openapi, serve.host_memory. Canaries are at the end.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from served import DIALECT, GRID, WINDOW, Served, house, serving

from engine.chat.messages import Call, Reply, Say
from serve.script import Rule, Script, When


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(house(parallel=3)) as one:
        yield one


def body(text: str, tokens: int = 12, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": tokens, **more}


def ask(served: Served, text: str, tokens: int = 12, **more: Any) -> dict[str, Any]:
    with served.client() as client:
        answer = client.post("/v1/chat/completions", json=body(text, tokens, **more))
    assert answer.status_code == 200, answer.text
    return answer.json()


def said(answer: dict[str, Any]) -> tuple[str, str]:
    message = answer["choices"][0]["message"]
    return message.get("reasoning_content", ""), message["content"]


def test_four_at_once_say_what_each_says_alone(served: Served) -> None:
    texts = [f"{n} " + "word " * (40 + 30 * n) for n in range(4)]
    alone = []
    for text in texts:
        with serving(house(parallel=0)) as one:
            alone.append(said(ask(one, text, 40)))
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda text: said(ask(served, text, 40)), texts))
    assert together == alone


def test_one_over_the_window_fails_alone(served: Served) -> None:
    texts = ["fine " * 30, "much too long " * WINDOW, "fine as well " * 30, "and this " * 30]

    def post(text: str) -> Any:
        with served.client() as client:
            return client.post("/v1/chat/completions", json=body(text))

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(post, texts))
    assert [answer.status_code for answer in answers] == [200, 400, 200, 200]
    assert answers[1].json()["error"]["code"] == "context_length_exceeded"


def test_side_requests_during_a_long_answer_change_none_of_its_tokens(served: Served) -> None:
    long = "tell me " * 60
    with serving(house(parallel=0)) as one:
        alone = said(ask(one, long, 300))
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(lambda: said(ask(served, long, 300)))
        for n in range(6):
            ask(served, f"a title, please {n}", 5)
        assert answer.result() == alone


def test_a_client_that_hangs_up_ends_its_answer_at_the_next_block(served: Served) -> None:
    rows = served.house.journal.rows
    before = len(rows)
    with served.client() as client:
        sent = body("go on for ever " * 9, 2_000, stream=True)
        with client.stream("POST", "/v1/chat/completions", json=sent) as answer:
            for line, _ in zip(answer.iter_lines(), range(12), strict=False):
                assert line == "" or line.startswith(("data: ", ": "))
    until(lambda: len(rows) > before)
    assert rows[-1].finish == "cancelled" and 0 < rows[-1].output < 1_000
    # What was written is kept: the conversation goes on from it.
    assert rows[-1].end in ("kept", "absorbed")


def test_a_client_that_hangs_up_before_a_whole_answer(served: Served) -> None:
    rows = served.house.journal.rows
    before = len(rows)
    with served.client() as client, pytest.raises(Exception, match=r"(?i)timed out|timeout"):
        client.post("/v1/chat/completions", json=body("and on " * 9, 3_000), timeout=0.4)
    until(lambda: len(rows) > before)
    assert rows[-1].finish == "cancelled"


def test_peeks_and_stats_are_answered_beside_an_answer(served: Served) -> None:
    done = threading.Event()

    def long() -> Any:
        try:
            return said(ask(served, "something long " * 20, 400))
        finally:
            done.set()

    with ThreadPoolExecutor(1) as pool, served.client() as client:
        answer = pool.submit(long)
        until(lambda: served.service.desk.active > 0)
        stats = client.get("/v1/cache/stats")
        assert stats.status_code == 200 and stats.json()["queue"]["active"] == 1
        assert client.get("/metrics").status_code == 200
        assert not done.is_set(), "the answer was over too soon for this test"
        answer.result()


WORDS = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"


def stopped_at(served: Served, stop: str) -> tuple[int, int]:
    """(tokens that the caches count of an answer that a stop string ended, tokens up to it)."""
    assert ask(served, "count", 99, stop=stop)["choices"][0]["finish_reason"] == "stop"
    row = served.house.journal.rows[-1]
    said = Reply((Say("content", WORDS),))
    ids = DIALECT.template.answer_ids(said).ids
    texts = [DIALECT.tokenizer.decode(ids[:size]) for size in range(len(ids))]
    return row.output, next(size for size, text in enumerate(texts) if stop in text)


def script() -> Script:
    """Says the words to everything."""
    return Script([Rule(When({}, {}, {}), Reply((Say("content", WORDS),)))])


def test_what_comes_after_a_stop_string_is_not_kept() -> None:
    with serving(script=script()) as one:
        for stop in WORDS.split()[2:]:
            kept, counted = stopped_at(one, stop)
            assert kept == counted, stop


def two_calls() -> Script:
    """Calls two tools at once."""
    calls = (Call("look", '{"at":"a"}'), Call("look", '{"at":"b"}'))
    return Script([Rule(When({}, {}, {}), Reply(calls, "tool_calls"))])


def called(served: Served, **more: Any) -> list[str]:
    """The arguments of the calls that an answer makes."""
    tool = {"type": "function", "function": {"name": "look", "parameters": {}}}
    answer = ask(served, "look", 99, tools=[tool], **more)
    assert answer["choices"][0]["finish_reason"] == "tool_calls"
    calls = answer["choices"][0]["message"]["tool_calls"]
    return [call["function"]["arguments"] for call in calls]


def test_one_call_where_no_more_are_wanted() -> None:
    with serving(script=two_calls()) as one:
        assert called(one) == ['{"at":"a"}', '{"at":"b"}']
        assert called(one, parallel_tool_calls=False) == ['{"at":"a"}']
        rows = DIALECT.tokenizer.decode(one.house.box.stack.resident.account.ids)
        assert rows.count("<tool_call>") == 2, "the system text's, and one"


def test_a_remembered_answer_says_that_it_is_one() -> None:
    with serving(house(parallel=0, response_mb=8)) as one:
        first, again = (ask(one, "the same thing", 9) for _ in range(2))
        assert said(first) == said(again)
        tiers = [a["usage"]["tandem"]["cache"]["tier"] for a in (first, again)]
        assert tiers == ["none", "response_cache"]


def test_a_long_prefill_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as one:
        one.house.settings = one.house.settings.changed({"serving": {"keepalive_s": 0.05}})
        chunk = one.house.engine.prefill
        monkeypatch.setattr(
            one.house.engine, "prefill", lambda ids: (time.sleep(0.03), chunk(ids))[1]
        )
        with one.client() as client:
            sent = body("a word " * 700, 3, stream=True)
            with client.stream("POST", "/v1/chat/completions", json=sent) as answer:
                lines = [line for line in answer.iter_lines() if line]
    comments = [line for line in lines if line.startswith(": ")]
    assert len(comments) >= 3 and "of 1," in comments[0]
    assert lines[-1] == "data: [DONE]"
    assert json.loads(lines[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"


def test_a_retry_goes_on_where_a_cancelled_prefill_stopped() -> None:
    with serving() as one, one.client() as client:
        chunk, engine = one.house.engine.prefill, one.house.engine
        engine.prefill = lambda ids: (time.sleep(0.02), chunk(ids))[1]  # type: ignore[method-assign]
        sent = body("a long story " * 400, 3)
        with pytest.raises(Exception, match=r"(?i)timed out|timeout"):
            client.post("/v1/chat/completions", json=sent, timeout=0.2)
        rows = one.house.journal.rows
        until(lambda: len(rows) == 1)
        assert rows[0].finish == "cancelled" and 0 < rows[0].forwarded < rows[0].prompt
        cache = client.post("/v1/chat/completions", json=sent).json()["usage"]["tandem"]["cache"]
        assert cache["source"] == "grid" and cache["cached"] >= rows[0].forwarded - GRID


def test_a_settings_change_waits_for_its_turn_and_a_peek_does_not(served: Served) -> None:
    with ThreadPoolExecutor(5) as pool, served.client() as client:
        answers = [pool.submit(lambda: ask(served, "one of many " * 20, 90)) for _ in range(5)]
        until(lambda: served.service.desk.waiting > 0)
        assert client.post("/v1/cache/peek", json=body("hello")).status_code == 409
        changed = client.put("/v1/settings", json={"serving": {"keepalive_s": 9}})
        assert changed.status_code == 200, changed.text
        assert all(answer.result() for answer in answers)


def held_up(served: Served) -> int:
    """Turns under way when a request has come after a change that waits for a long answer."""
    desk = served.service.desk
    with ThreadPoolExecutor(3) as pool, served.client() as client:
        long = pool.submit(ask, served, "a long answer " * 20, 250)
        until(lambda: desk.active == 1)
        path, patch = "/v1/settings", {"serving": {"keepalive_s": 7}}
        change = pool.submit(client.put, path, json=patch)
        until(lambda: bool(desk._calls._waiting))
        short = pool.submit(ask, served, "a short one", 3)
        until(lambda: desk.waiting == 1 or desk.active == 2 or short.done())
        time.sleep(0.2)
        active = desk.active + short.done()
        assert change.result().status_code == 200 and long.result() and short.result()
    return active


def test_no_turn_begins_while_a_change_waits(served: Served) -> None:
    assert held_up(served) == 1


def test_canary_turns_that_begin_while_a_change_waits(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve.calls.Calls.holds", False)
    assert held_up(served) > 1


def test_a_failing_engine_costs_one_answer(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = served.house.engine
    with monkeypatch.context() as patch:
        patch.setattr(type(engine), "prefill", broken)
        with served.client() as client:
            answer = client.post("/v1/chat/completions", json=body("x " * 50))
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal_error"
    assert said(ask(served, "still here?"))


def broken(*_: Any) -> Any:
    raise RuntimeError("no device")


def until(done: Any, wait_s: float = 20.0) -> None:
    end_s = time.monotonic() + wait_s
    while not done():
        assert time.monotonic() < end_s, "it did not come"
        time.sleep(0.01)


def test_canary_two_turns_in_one_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.slots import Slots

    texts = [f"{n} " + "word " * 60 for n in range(3)]
    with serving(house(parallel=0)) as one:
        alone = [said(ask(one, text, 30)) for text in texts]
    monkeypatch.setattr(Slots, "choose", lambda self, prompt, busy=(): self.main)
    with serving(house(parallel=2)) as one, ThreadPoolExecutor(3) as pool:
        try:
            together = list(pool.map(lambda text: said(ask(one, text, 30)), texts))
        except AssertionError:
            return
    assert together != alone


def test_canary_a_hang_up_nobody_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    from serve.hearing import Hearing

    monkeypatch.setattr(Hearing, "leave", lambda self: None)
    with serving() as one, one.client() as client:
        sent = body("go on " * 9, 200, stream=True)
        with client.stream("POST", "/v1/chat/completions", json=sent) as answer:
            next(answer.iter_lines())
        until(lambda: len(one.house.journal.rows) > 0)
        assert one.house.journal.rows[-1].finish == "length"


def test_an_engine_thread_that_ends_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    from serve.desk import Desk

    with serving() as one, one.client() as client:
        with monkeypatch.context() as patch:
            patch.setattr(Desk, "_over", broken)
            assert client.post("/v1/chat/completions", json=body("hello")).status_code == 500
        assert client.get("/health").status_code == 500
        assert client.post("/v1/chat/completions", json=body("hello")).status_code == 503


def test_canary_what_comes_after_a_stop_string_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    from serve.voice import Speaking

    heard = Speaking.heard

    def late(self: Speaking, answer: list[int]) -> int | None:
        counts = heard(self, answer)
        return None if counts is None else len(answer)

    monkeypatch.setattr(Speaking, "heard", late)
    with serving(script=script()) as one:
        found = [stopped_at(one, stop) for stop in WORDS.split()[2:]]
    assert any(kept != counted for kept, counted in found)
