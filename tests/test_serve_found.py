"""Goal: what hurt a served house once hurts it no more: callers who are gone before they are
answered, clients who are gone before their first step, names that no UTF-8 has, stops in the
middle of answers, templates that write nothing.

Method: the real application over a small engine (tests/served.py), or its desk and calls
(serve.desk, serve.calls) driven by hand, or its server (serve.stopping), each with the very thing
that was found.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import uvicorn
from served import DIALECT, GRID, MODEL, WINDOW, house, serving

from cache.host import SystemClock
from engine.chat import tokenizer
from engine.chat.checkpoint import load_dialect
from engine.prompt import Prompt
from engine.sampling import Greedy
from serve.about import About
from serve.app import app_of
from serve.calls import Call, Calls
from serve.chat.writer import Writer
from serve.desk import Desk
from serve.doors import Rules
from serve.embedded import embedded
from serve.heard import Broke, Ended, Heard
from serve.house import House, Setup
from serve.order import Order
from serve.script import Script
from serve.service import Service
from serve.stopping import Server
from serve.voice import Speaking


def test_a_conversation_named_with_half_a_character_is_peeked() -> None:
    body = {"messages": [{"role": "user", "content": "hello"}], "session_id": "a\ud800"}
    with serving() as served, served.client() as client:
        for path in ("peek", "prewarm"):
            answer = client.post(f"/v1/cache/{path}", content=json.dumps(body))
            assert answer.status_code == 200, answer.text


def test_a_caller_that_was_cancelled_hurts_no_other() -> None:
    """A stop cancels the tasks that still wait once its grace is over."""
    for end_s in (0.0, float("inf")):
        calls = Calls(SystemClock(), lambda: None)
        gone, kept = (Call(lambda: 1, Future[Any](), end_s, patient=True) for _ in range(2))
        calls.add(gone)
        calls.add(kept)
        gone.given.cancel()
        calls.answer(active=True, wanted=False)
        calls.close()
        assert gone.given.cancelled() and kept.given.exception() is not None


def test_a_client_that_is_gone_before_its_first_step_has_no_row_of_anothers() -> None:
    home = house(parallel=0)
    rows: list[Any] = []
    desk = Desk(home.slots, home.clock, lambda _: False, lambda row, _: rows.append(row))

    def order(text: str, heard: list[Heard]) -> Order:
        ids = np.asarray(DIALECT.tokenizer.encode(text, specials=False), np.int32)
        voice = Speaking(Writer(DIALECT, new_id=lambda: ""), None, stops=False)
        return Order(Prompt(ids), Greedy(1), 2, frozenset(), voice, heard.append, 0.0)

    def leaves(one: Order) -> bool:
        one.gone = True
        return False

    served: list[Heard] = []
    left: list[Heard] = []
    second = order("and another", left)
    second.rewrite = leaves
    desk.submit(order("one", served))
    desk.submit(second)
    desk.start()
    desk.alone(lambda: None, 20.0, patient=True).result(20.0)
    while not left:
        desk.alone(lambda: None, 20.0, patient=True).result(20.0)
    desk.close()
    home.close()
    assert isinstance(served[-1], Ended) and rows == [served[-1].row]
    assert [type(one) for one in left] == [Broke]


def test_messages_of_which_a_template_makes_nothing_are_refused(tmp_path: Path) -> None:
    own = Path(tokenizer.__file__).with_name("tokenizer.json")
    (tmp_path / "tokenizer.json").write_bytes(own.read_bytes())
    template = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"
    (tmp_path / "chat_template.jinja").write_text(template)
    dialect = load_dialect(tmp_path)
    home = House(embedded(dialect, 0, grid=GRID, window=WINDOW), dialect, Setup())
    with serving(home) as served, served.client() as client:
        for content, status in (("", 400), ("hello", 200)):
            message = {"role": "user", "content": content}
            body = {"messages": [message], "max_tokens": 2}
            for path in ("chat/completions", "cache/peek", "cache/prewarm"):
                answer = client.post(f"/v1/{path}", json=body)
                assert answer.status_code == status, answer.text


def test_a_stop_tells_everybody_whose_answer_takes_too_long(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A stream ends with an error frame; what waits is refused; no task fails in the middle."""
    slow = tmp_path / "slow.json"
    slow.write_text(json.dumps([{"say": [["content", "word " * 900]], "tokens_s": 10}]))
    service = Service(house(parallel=0), About(MODEL), Script.load(slow))
    app = app_of(service, Rules("127.0.0.1"))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()  # Whoever asks before the server is up waits for it.
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        config = uvicorn.Config(app, log_level="warning", lifespan="on")
        server = Server(config, service.desk, 1)
        ran = threading.Thread(target=lambda: server.run(sockets=[listener]), daemon=True)
        ran.start()
        said: dict[str, httpx.Response] = {}

        def ask(name: str, method: str, path: str, body: Any) -> threading.Thread:
            def work() -> None:
                with httpx.Client(base_url=url, timeout=20.0, trust_env=False) as client:
                    said[name] = client.request(method, path, json=body)

            asking = threading.Thread(target=work, daemon=True)
            asking.start()
            return asking

        hello = {"messages": [{"role": "user", "content": "hello"}]}
        chat = "/v1/chat/completions"
        threads = [ask("stream", "POST", chat, hello | {"stream": True})]
        until(lambda: service.desk.active == 1)
        threads.append(ask("whole", "POST", chat, hello))
        until(lambda: service.desk.waiting == 1)
        threads.append(ask("settings", "PUT", "/v1/settings", {"memory": {"guest_tokens": 1}}))
        time.sleep(0.2)
        server.should_exit = True
        for thread in (*threads, ran):
            thread.join(20.0)
            assert not thread.is_alive()
    assert "[DONE]" not in said["stream"].text
    assert "error" in json.loads(said["stream"].text.strip().split("data: ")[-1])
    assert (said["whole"].status_code, said["settings"].status_code) == (503, 503)
    assert said["settings"].json()["error"]["message"]
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR]


def until(true: Any) -> None:
    """Wait for something that happens soon."""
    end_s = time.monotonic() + 10.0
    while not true():
        assert time.monotonic() < end_s
        time.sleep(0.01)
