"""Goal: over HTTP, a compaction is served as its conversation's next turn, and from a summary that
was written while nobody asked; a record of something else is served as it was sent.

Method: conversations of the random model through the application (tests/served.py), the requests in
opencode's form (tests/compacted.py); sources and counts from the usage, tokens compared between a
summary that was prepared and one that was not. Covers serve.summaries, serve.calls, serve.hearing.
The canary gives a prepared summary of another conversation.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
from compacted import request
from served import Served, house, serving, usual

from serve.prepare import Prepared

HEADERS = {"user-agent": "opencode/1.18.33 test", "x-session-id": "ses_one"}


def post(
    served: Served, messages: list[dict[str, Any]], session: str = "ses_one", **more: Any
) -> dict[str, Any]:
    body = {"messages": messages, "max_tokens": 24, "reasoning_effort": "none", **more}
    headers = {**HEADERS, "x-session-id": session}
    with served.client() as client:
        answer = client.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


def peek(served: Served, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """What the peek says that the usage says as well, under the usage's names."""
    body = {"messages": messages, "max_tokens": 24, "reasoning_effort": "none"}
    with served.client() as client:
        found = client.post("/v1/cache/peek", json=body, headers=HEADERS).json()
    renamed = {"cached": found["cached_tokens"], "reread": found["reread_tokens"]}
    names = ("tier", "source", "why", "parted_at", "parted_in", "lost")
    return renamed | {name: found[name] for name in names}


def content(answer: dict[str, Any]) -> str:
    text = answer["choices"][0]["message"]["content"]
    assert text
    return str(text)


def cache(answer: dict[str, Any]) -> dict[str, Any]:
    return dict(answer["usage"]["tandem"]["cache"])


def talked(served: Served, session: str, turns: int = 3) -> list[dict[str, Any]]:
    """A conversation; its history as a client keeps it."""
    history: list[dict[str, Any]] = []
    for n in range(turns):
        history.append({"role": "user", "content": f"{session}: question {n} about " + "it " * 50})
        answer = post(served, [{"role": "system", "content": "Help."}, *history], session)
        history.append({"role": "assistant", "content": content(answer)})
    return history


def test_it_goes_on_from_the_conversations_end() -> None:
    with serving() as served:
        history = talked(served, "ses_one")
        rows = served.house.journal.rows
        end = rows[-1].prompt + rows[-1].output - 1
        peeked = peek(served, request(history))
        answer = post(served, request(history))
        used = cache(answer)
        assert peeked == {name: used[name] for name in peeked}
        assert used["source"] == used["tier"] == "continuation"
        assert used["cached"] == end and used["reread"] < 120
        usage = answer["usage"]
        parts = usage["tandem"]["parts"]
        assert sum(parts.values()) == usage["prompt_tokens"] + parts["injected"]
        assert used["cached"] + used["reread"] == sum(parts.values())
        assert rows[-1].kind == "compaction"
        with served.client() as client:
            events = client.get("/v1/cache/stats").json()["events"]
        assert any(event["tier"] == "compaction" for event in events)


def test_a_record_of_another_conversation_is_served_as_it_was_sent() -> None:
    with serving() as served:
        history = talked(served, "ses_one")
        other = [{**message, "content": f"something else {n}"} for n, message in enumerate(history)]
        assert cache(post(served, request(other)))["source"] != "continuation"
        off = {"compaction": {"mode": "client"}}
        with served.client() as client:
            assert client.put("/v1/settings", json=off).status_code == 200
        assert cache(post(served, request(history)))["source"] != "continuation"


def quick(served: Served) -> None:
    """Summaries are written at once."""
    patch = {"compaction": {"idle_s": 0.05, "tokens_min": 64}}
    with served.client() as client:
        assert client.put("/v1/settings", json=patch).status_code == 200


def written(served: Served, count: int) -> None:
    counters = served.service.summaries._preparer.counters
    end_s = time.monotonic() + 30
    while counters["written"] < count:
        assert time.monotonic() < end_s, dict(counters)
        time.sleep(0.02)


def prepared(served: Served) -> tuple[dict[str, Any], dict[str, Any]]:
    """The answer to a compaction that was written ahead, and what a peek said of it: the client
    said once how it asks."""
    first = talked(served, "ses_zero")
    post(served, request(first), "ses_zero")
    history = talked(served, "ses_one")
    written(served, 1)
    peeked = peek(served, request(history))
    forwarded = served.house.journal.counters["forwarded_tokens"]
    answer = post(served, request(history))
    assert served.house.journal.counters["forwarded_tokens"] == forwarded, "the engine had a part"
    return answer, peeked


def test_a_summary_written_ahead_is_the_one_that_would_have_been_written() -> None:
    with serving(house(settings=usual())) as served:
        quick(served)
        answer, peeked = prepared(served)
        used = cache(answer)
        assert used["source"] == "prepared"
        assert served.service.summaries._preparer.counters["used"] == 1
        assert served.house.box.stack.resident.account.compacted
        assert peeked == {name: used[name] for name in peeked}
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] == 24
    with serving() as plain:
        history = talked(plain, "ses_one")
        assert content(post(plain, request(history))) == content(answer)


def went_on(served: Served, wait_s: float) -> list[tuple[str, dict[str, Any]]]:
    """Turns with pauses between them: what each said, and what served it."""
    first = talked(served, "ses_zero")
    # A summary that takes longer to write than the pauses last.
    post(served, request(first), "ses_zero", max_tokens=300)
    history, found = talked(served, "ses_one"), []
    for n in range(5):
        history.append({"role": "user", "content": f"and {n}?"})
        answer = post(served, [{"role": "system", "content": "Help."}, *history])
        found.append((content(answer), cache(answer)))
        history.append({"role": "assistant", "content": content(answer)})
        time.sleep(wait_s * (1 + n / 5))
    return found


def test_a_request_in_the_middle_of_it_is_served_and_nothing_moved() -> None:
    with serving() as plain:
        wanted = went_on(plain, 0.0)
    with serving() as served:
        quick(served)
        assert went_on(served, 0.3) == wanted
        assert served.service.summaries._preparer.counters["stopped"]


def test_canary_a_summary_of_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as plain:
        right = content(post(plain, request(talked(plain, "ses_one"))))
    monkeypatch.setattr(Prepared, "answers", lambda self, asked, how, limit: True)
    monkeypatch.setattr(
        "serve.prepare.Preparer.find", lambda self, *_: next(iter(self._ready.values()))
    )
    with serving() as served:
        quick(served)
        first = talked(served, "ses_zero")
        post(served, request(first), "ses_zero", stop=["never"])
        with pytest.raises((AssertionError, StopIteration)):
            answer, _ = prepared(served)
            talked(served, "ses_two")
            assert content(answer) == right and cache(answer)["source"] == "prepared"
            assert content(post(served, request(talked(served, "ses_two")), "ses_two")) != right
