"""A summary is written ahead while nobody asks, and answers the request that it was written for.

Goal: it is begun only where a client that was heard before may ask, goes on a chunk or a block a
step, stops for whoever wants engine, box or GPU with everything as it was, and answers exactly the
request that would have got its tokens. Method: the client of the compaction tests over the real
turn, a virtual clock, a lock whose waiters a test sets; every way in which a request differs.
"""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import pytest
from compacted import ASK, ASK_AGAIN, DIALECT, Client, parts_for, request, result, said
from test_scratch import same, state

from cache.account import COMPACTION
from engine.box import Box
from engine.chat.messages import messages_of
from engine.decode import Rule
from engine.events import Tokens
from engine.sampling import Greedy, Sampled, Sampling
from engine.turn import turn
from serve import prepare
from serve.box_lock import BoxLock
from serve.compaction import CompactionConfig, Continued, continuation
from serve.prepare import Prepared, Preparer, Told
from serve.record_parts import parts_of
from sim.clock import VirtualClock

IDLE_S = 30.0
LIMIT = 14
CONFIG = CompactionConfig(idle_s=IDLE_S, tokens_min=100)


def rule_of(how: Hashable) -> Rule:
    return Greedy() if how == "greedy" else Sampled(Sampling(temperature=1.0, seed=3))


class Idle:
    """A client whose compaction was heard, and a preparer beside its box."""

    def __init__(self, config: CompactionConfig = CONFIG, how: str = "greedy", **more: Any) -> None:
        self.client = Client.alone()
        self.client.works()
        self.box: Box = self.client.on
        self.how = how
        self.of = Preparer(self.box, DIALECT, config, rule_of, self.client.album.get, **more)
        self.of.served("agent", "a")
        self.hears()

    def hears(
        self, *, whole: bool = True, prior: str | None = None, how: str | None = None
    ) -> None:
        parts = parts_for(self.client.history, prior, ASK_AGAIN if prior else ASK)
        self.of.heard("agent", Told(parts, self.how, LIMIT, whole))

    def works(self, rested_s: float = IDLE_S) -> int:
        """Steps until there is nothing to do."""
        steps = 0
        while self.of.step(rested_s):
            steps += 1
            assert steps < 100
        return steps

    def asked(self, **how: Any) -> Continued:
        made = self.client.asks(**how)
        assert isinstance(made, Continued), made
        return made

    def ready(self, how: str | None = None, limit: int = LIMIT, **asked: Any) -> Prepared | None:
        return self.of.find(self.asked(**asked), how or self.how, limit)


@pytest.mark.parametrize("how", ["greedy", "sampled"])
def test_it_writes_what_the_request_would_have_got(how: str) -> None:
    idle = Idle(how=how)
    before = state(idle.box)
    assert not idle.of.step(IDLE_S - 0.1), "too early"
    assert idle.works() > LIMIT // 4
    assert same(before, state(idle.box))
    ready = idle.ready()
    assert ready is not None and idle.of.counters["written"] == 1
    assert idle.works() == 0, "once is enough"
    written: list[int] = []
    events = turn(idle.box, idle.asked().prompt, rule_of(how), LIMIT, DIALECT.stop_ids)
    for event in events:
        written += event.ids if isinstance(event, Tokens) else []
    assert tuple(written) == ready.tokens


def test_only_that_very_request_is_answered() -> None:
    idle = Idle()
    idle.works()
    assert idle.ready() is not None
    assert idle.ready(how="sampled") is None
    assert idle.ready(limit=LIMIT - 1) is None and idle.ready(limit=LIMIT + 1) is None
    assert idle.ready(keep=4) is None, "the client keeps its newest messages"
    other = request(idle.client.history, ask="Sum up in one line")
    parts = parts_of(messages_of(other))
    assert parts is not None
    sent = idle.client.prompt(messages_of(other), COMPACTION)
    made = continuation(idle.box, DIALECT, sent, parts)
    assert isinstance(made, Continued)
    assert idle.of.find(made, "greedy", LIMIT) is None
    idle.client.says("One more", said("Yes."))
    assert idle.ready() is None, "the conversation has gone on"


def test_an_answer_that_ended_serves_a_longer_limit() -> None:
    idle = Idle()
    idle.works()
    ready = idle.ready()
    assert ready is not None and ready.finish == "length"
    ended = Prepared(ready.prompt, ready.tokens, "stop", "greedy", LIMIT)
    assert ended.answers(idle.asked(), "greedy", LIMIT + 50)
    assert ended.answers(idle.asked(), "greedy", len(ended.tokens))
    assert not ended.answers(idle.asked(), "greedy", len(ended.tokens) - 1)


def test_the_row_of_a_turn_that_it_answered() -> None:
    idle = Idle()
    idle.works()
    ready = idle.ready()
    assert ready is not None
    row = ready.row(idle.box.journal.rows[-1])
    size = len(idle.asked().prompt.ids)
    assert (row.source, row.prompt, row.cached, row.output) == ("prepared", size, size, LIMIT)


def test_its_use_leaves_the_conversation_as_a_compaction_does() -> None:
    idle = Idle()
    idle.works()
    ready = idle.ready()
    assert ready is not None
    idle.of.used(ready)
    account = idle.box.stack.resident.account
    assert account.compacted and not account.goes_on
    assert idle.works() == 0
    assert idle.ready() is ready, "a client that lost the answer asks again"
    idle.client.says("Rather not", said("Fine."))
    assert idle.box.journal.rows[-1].source == "end"
    assert idle.box.stack.resident.account.goes_on


def test_a_summary_that_builds_on_another() -> None:
    idle = Idle()
    prior = "## Goal\n- count"
    idle.client.session = "b"
    idle.client.history = []
    idle.client.says("What did we do?", said(f"{prior}\n", "I sum up."))
    idle.client.works(2)
    idle.of.served("agent", "b")
    idle.of.summarised("b", f"{prior}\n")
    assert idle.works() == 0, "how it asks for that was not heard yet"
    idle.hears(prior="## Of another conversation")
    assert idle.works() > 0
    assert idle.ready(prior=prior, skip=1) is not None


# when nothing is begun


def quiet(idle: Idle) -> None:
    before = state(idle.box)
    assert idle.works() == 0 and same(before, state(idle.box)) and not idle.of.running


@pytest.mark.parametrize(
    "config",
    [
        CompactionConfig("client", tokens_min=100),
        CompactionConfig(prepare=False, tokens_min=100),
        CompactionConfig(tokens_min=100_000),
    ],
)
def test_settings_that_want_none(config: CompactionConfig) -> None:
    quiet(Idle(config))


def test_a_client_that_was_not_heard() -> None:
    idle = Idle()
    idle.of.served("another", "a")
    quiet(idle)


def test_a_client_that_keeps_its_newest_messages() -> None:
    """What would be written is not what it will ask for, unless all of it is wanted."""
    idle = Idle()
    idle.hears(whole=False)
    quiet(idle)
    whole = Idle(CompactionConfig(idle_s=IDLE_S, tokens_min=100, tail="whole"))
    whole.hears(whole=False)
    assert whole.works() > 0 and whole.ready(keep=4, tail="whole") is not None


def test_a_tool_that_still_runs() -> None:
    idle = Idle()
    idle.client.says("One more", said("I look.", "", ("bash", {"command": "ls"})))
    quiet(idle)
    assert idle.of.counters["a tool runs"] == 1, "looked at once"
    idle.client.history.append(result("x"))
    idle.client.goes_on(said("Done."))
    assert idle.works() > 0


def test_no_end_anchor() -> None:
    idle = Idle()
    idle.box.stack.resident.account.end = None
    quiet(idle)


def test_what_could_not_begin_is_tried_again_later() -> None:
    used = [True]
    idle = Idle(gpu_is_used=lambda: used[0])
    quiet(idle)
    used[0] = False
    quiet(idle)
    clock: Any = idle.box.clock
    clock.charge(IDLE_S)
    assert idle.works() > 0


# who stops it


def test_a_request_stops_it_at_the_next_step() -> None:
    idle = Idle()
    before = state(idle.box)
    for steps in range(1, 6):
        for _ in range(steps):
            assert idle.of.step(IDLE_S)
        assert idle.of.running
        idle.of.stop()
        assert not idle.of.running and same(before, state(idle.box))
    assert idle.of.counters["stopped"] == 5 and idle.ready() is None
    idle.client.says("Go on", said("Yes."))
    assert idle.box.journal.rows[-1].source == "end"
    idle.of.stop()
    assert idle.of.counters["stopped"] == 5, "there was nothing to stop"


def test_another_program_on_the_gpu_stops_it() -> None:
    used = [False]
    idle = Idle(gpu_is_used=lambda: used[0])
    before, clock = state(idle.box), idle.box.clock
    assert isinstance(clock, VirtualClock)
    assert idle.of.step(IDLE_S) and idle.of.step(IDLE_S)
    used[0] = True
    assert idle.of.step(IDLE_S), "it was looked at just now"
    clock.charge(5.0)
    assert not idle.of.step(IDLE_S) and not idle.of.running
    assert same(before, state(idle.box))


class Waiters(BoxLock):
    """A lock for which somebody waits when a test says so."""

    somebody = False

    def wanted(self) -> bool:
        return self.held and self.somebody


def test_the_lock_is_held_as_long_as_it_writes(tmp_path: Path) -> None:
    path, clock = tmp_path / "lock", VirtualClock()
    lock, other = Waiters(path, clock), BoxLock(path, clock)
    idle = Idle(lock=lock)
    before = state(idle.box)
    assert other.try_take()
    quiet(idle)
    other.release()
    assert idle.of.step(IDLE_S) and lock.held and not other.try_take()
    lock.somebody = True
    assert not idle.of.step(IDLE_S) and not lock.held and same(before, state(idle.box))
    lock.somebody = False
    assert idle.works() > 0 and not lock.held and other.try_take()
    lock.close()
    other.close()


def test_an_engine_that_fails_is_said_and_not_tried_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    idle = Idle()
    before = state(idle.box)

    def breaks(ids: Any) -> Any:
        raise RuntimeError("broken")

    with monkeypatch.context() as broken:
        broken.setattr(idle.box.engine, "prefill", breaks)
        assert idle.of.step(IDLE_S)
        with pytest.raises(RuntimeError, match="broken"):
            idle.of.step(IDLE_S)
    assert not idle.of.running and same(before, state(idle.box))
    quiet(idle)


# canaries


def test_canary_an_answer_to_another_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the tokens compared, a conversation that went on would get its old summary."""
    idle = Idle()
    idle.works()
    idle.client.says("One more", said("Yes."))
    monkeypatch.setattr(prepare.np, "array_equal", lambda one, other: True)
    assert idle.ready() is not None
