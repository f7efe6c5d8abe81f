"""Goal: what hurt a served house once hurts it no more: callers who are gone before they are
answered, clients who are gone before their first step, names that no UTF-8 has.

Method: the real application over a small engine (tests/served.py), or its desk and calls
(serve.desk, serve.calls) driven by hand, each with the very thing that was found.
"""

from __future__ import annotations

import json
from concurrent.futures import Future
from typing import Any

import numpy as np
from served import DIALECT, house, serving

from cache.host import SystemClock
from engine.prompt import Prompt
from engine.sampling import Greedy
from serve.calls import Call, Calls
from serve.chat.writer import Writer
from serve.desk import Desk
from serve.heard import Broke, Ended, Heard
from serve.order import Order
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
