"""The summary written ahead: while nobody asks, in scratch rows, a chunk or a block at a time"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Generator, Hashable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from cache.account import Account
from cache.journal import TurnRow
from engine.box import Box
from engine.chat.dialect import Dialect
from engine.decode import Rule
from engine.events import Chunk, Tokens
from engine.scratch import Scratch
from serve.box_lock import BoxLock
from serve.compaction import Album, CompactionConfig, Continued, Miss, assembled
from serve.history import body, first_line, spoken, users
from serve.record_parts import CompactionParts, Covered

SOURCE = "prepared"
"""What serves a compaction that was written ahead."""
GPU_LOOK_S = 5.0
"""Between two looks for another program on the GPU."""
_KEPT = 4
"""Summaries that are kept, the newest."""
_SESSIONS = 1_024
"""Conversations of which is known whose they are."""

V = TypeVar("V")
RuleOf = Callable[[Hashable], Rule]
"""The decode rule for what a request asked of its answer."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a client's last compaction asked for."""

    parts: CompactionParts
    how: Hashable
    """What it wanted of the answer: all that decides the tokens beside the prompt."""
    answer_max: int
    whole: bool
    """Its record was of the whole conversation."""


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A summary that was written before anybody asked."""

    prompt: Continued
    tokens: tuple[int, ...]
    finish: str
    how: Hashable
    limit: int

    def answers(self, asked: Continued, how: Hashable, limit: int) -> bool:
        """Whether a request for this gets these very tokens."""
        same = np.array_equal(self.prompt.prompt.ids, asked.prompt.ids) and how == self.how
        ended = self.finish == "stop" and len(self.tokens) <= limit
        return same and (ended or limit == self.limit)

    def row(self, blank: TurnRow) -> TurnRow:
        """A turn that it answered: nothing was forwarded, and no cache was asked."""
        size = len(self.prompt.prompt.ids)
        return replace(
            blank,
            prompt=size,
            cached=size,
            source=SOURCE,
            gate="greedy",
            why=SOURCE,
            parted_at=size,
            output=len(self.tokens),
            finish=self.finish,
        )


@dataclass(slots=True)
class _Run:
    """A summary that is being written."""

    session: str
    made: Continued
    told: Told
    events: Generator[Chunk | Tokens, None, None]
    limit: int
    tokens: list[int] = field(default_factory=list)


class Preparer:
    """Writes the summary of the conversation in place. Everything is called on the engine's thread.

    Between two steps the engine is in the middle of it: whoever wants engine or caches for more
    than a look calls `stop` first, which leaves them as they were.
    """

    def __init__(
        self,
        box: Box,
        dialect: Dialect,
        config: CompactionConfig,
        rule_of: RuleOf,
        album: Album = lambda digest: None,
        lock: BoxLock | None = None,
        gpu_is_used: Callable[[], bool] = lambda: False,
    ) -> None:
        self.config = config
        self.counters: Counter[str] = Counter()
        """written, stopped, used, and why nothing was begun, in times."""
        self._box, self._dialect, self._rule_of = box, dialect, rule_of
        self._album, self._lock, self._gpu_is_used = album, lock, gpu_is_used
        self._scratch = Scratch(box)
        self._run: _Run | None = None
        self._told: dict[tuple[str, bool], Told] = {}
        """By client, and whether there was a summary before."""
        self._clients: OrderedDict[str, str] = OrderedDict()
        self._summaries: OrderedDict[str, str] = OrderedDict()
        self._ready: OrderedDict[str, Prepared] = OrderedDict()
        self._not_now: tuple[tuple[str, int], float] | None = None
        """What could not be begun, and until when it is not tried again."""
        self._gpu_looked_s: float | None = None

    # what was seen of requests

    def served(self, client: str, session: str | None) -> None:
        """A turn of a conversation is over."""
        if session is not None:
            _put(self._clients, session, client, _SESSIONS)

    def heard(self, client: str, told: Told) -> None:
        """A client asked for a summary, in words that it will use again."""
        self._told[client, told.parts.prior is not None] = told

    def summarised(self, session: str | None, text: str) -> None:
        """A session got this summary: its next one will build on it."""
        if session is not None:
            _put(self._summaries, session, text.strip(), _SESSIONS)

    def find(self, asked: Continued, how: Hashable, limit: int) -> Prepared | None:
        """The summary that was written ahead for this very continuation."""
        ready = self._ready.get(asked.prompt.session or "")
        return ready if ready is not None and ready.answers(asked, how, limit) else None

    def used(self, prepared: Prepared) -> None:
        """A client got it: the conversation gives way to its summary."""
        self.counters["used"] += 1
        session = prepared.prompt.prompt.session
        if session is not None:
            self._box.stack.exchange.summed_up(session)

    # the work

    @property
    def running(self) -> bool:
        """Whether one is being written."""
        return self._run is not None

    def step(self, rested_s: float) -> bool:
        """Nobody has asked for anything for so long: go one chunk or one block further; whether
        there was anything to do."""
        if self._run is None:
            return rested_s >= self.config.idle_s and self._begin()
        if (self._lock is not None and self._lock.wanted()) or self._gpu_taken():
            self.stop()
            return False
        try:
            event = next(self._run.events, None)
        except Exception as error:
            self._wait(self._run.session, self._run.made.rows, "failed")
            self._run = None
            self._give_back()
            raise error
        if isinstance(event, Tokens):
            self._run.tokens += event.ids
        elif event is None:
            self._finish(self._run)
        return True

    def stop(self) -> None:
        """Somebody wants the engine: it is as it was, and what was written is forgotten."""
        run, self._run = self._run, None
        if run is not None:
            run.events.close()
            self.counters["stopped"] += 1
        self._give_back()

    def _finish(self, run: _Run) -> None:
        self._run = None
        self._give_back()
        ended = bool(run.tokens) and run.tokens[-1] in self._dialect.stop_ids
        if not ended and len(run.tokens) < run.limit:
            self._wait(run.session, run.made.rows, "memory")
            return
        finish = "stop" if ended else "length"
        ready = Prepared(run.made, tuple(run.tokens), finish, run.told.how, run.limit)
        _put(self._ready, run.session, ready, _KEPT)
        self.counters["written"] += 1

    def _begin(self) -> bool:
        """Begin with the conversation in place, if it wants a summary and nothing is in the way."""
        account = self._box.stack.resident.account
        session = account.session
        told = self._wanted(account)
        if session is None or told is None:
            return False
        place, now_s = (session, account.valid), self._box.clock.mono_s()
        if self._not_now is not None and self._not_now[0] == place and now_s < self._not_now[1]:
            return False
        if self._lock is not None and not self._lock.try_take():
            return False
        self._gpu_looked_s = None
        why = "gpu" if self._gpu_taken() else self._start(account, session, told)
        if why:
            self._give_back()
            self._wait(session, account.valid, why)
        return not why

    def _wanted(self, account: Account) -> Told | None:
        """What a client will ask of the conversation in place; None when there is nothing to do."""
        config, session, end = self.config, account.session, account.end
        if config.mode != "continue" or not config.prepare or session is None:
            return None
        if not account.goes_on or end is None or end.tokens != account.valid:
            return None
        if account.valid < config.tokens_min or not account.generations:
            return None
        client = self._clients.get(session, "")
        told = self._told.get((client, session in self._summaries))
        if told is None or (config.tail == "cut" and not told.whole):
            return None
        return None if self._has(session, account, told) else told

    def _has(self, session: str, account: Account, told: Told) -> bool:
        """Whether the conversation's summary is written, as far as it goes now."""
        ready = self._ready.get(session)
        if ready is None or ready.prompt.rows != account.valid or ready.how != told.how:
            return False
        return np.array_equal(ready.prompt.prompt.ids[: account.valid], account.ids)

    def _start(self, account: Account, session: str, told: Told) -> str:
        """Start writing; or why not."""
        box, dialect = self._box, self._dialect
        # Whoever borrowed rows goes, as before any request.
        box.stack.leave()
        messages = spoken(account.ids, dialect.tokenizer)
        if not messages or messages[-1].role != "assistant" or messages[-1].calls:
            return "a tool runs"
        parts = told.parts
        if parts.prior is not None:
            parts = replace(parts, prior=self._summaries[session])
            first = users(messages)[:1]
            answers = [messages[at + 1] for at in first if at + 1 < len(messages)]
            said = "".join(body(account.ids, m, dialect.tokenizer) for m in answers)
            if first_line(parts.prior or "") not in said:
                return "another summary before"
        found = Covered(account.valid)
        client = self._clients[session]
        made = assembled(account, dialect, parts, found, self._album, client, told.answer_max)
        if isinstance(made, Miss):
            return made.why
        ids = made.prompt.ids
        limit = min(told.answer_max, box.engine.window - len(ids))
        why = "window" if limit < 1 else self._scratch.why_not(ids, limit)
        if why:
            return why
        rule = self._rule_of(told.how)
        events = self._scratch.run(ids, made.prompt.pictures, rule, limit, dialect.stop_ids)
        self._run = _Run(session, made, told, events, limit)
        return ""

    def _wait(self, session: str, rows: int, why: str) -> None:
        """Look at this conversation again when as much time has passed as before the first look."""
        self.counters[why] += 1
        until_s = self._box.clock.mono_s() + max(self.config.idle_s, GPU_LOOK_S)
        self._not_now = (session, rows), until_s

    def _gpu_taken(self) -> bool:
        """Whether another program computes on the GPU; asked every few seconds, else no."""
        now_s = self._box.clock.mono_s()
        if self._gpu_looked_s is not None and now_s - self._gpu_looked_s < GPU_LOOK_S:
            return False
        self._gpu_looked_s = now_s
        return self._gpu_is_used()

    def _give_back(self) -> None:
        if self._lock is not None:
            self._lock.release()


def _put(into: OrderedDict[str, V], key: str, value: V, most: int) -> None:
    """Keep a value as the newest; the oldest go."""
    into[key] = value
    into.move_to_end(key)
    while len(into) > most:
        into.popitem(last=False)
