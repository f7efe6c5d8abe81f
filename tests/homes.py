"""A machine with a spill for tests: files that stay, and one process after another over them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from support import GRID, box, engine, joined, serve, spill, tokens, verifier

from cache.account import Answer
from cache.journal import CacheEvent, TurnRow
from cache.planned import drain, pause, read_back
from cache.ports import Files
from cache.types import Ids
from engine.adapter import Engine
from engine.turn import Box
from replay.verify import Verdict
from sim.files import SimFiles

OPEN, CLOSE, END = (np.array([id], np.int32) for id in (3, 4, 2))
"""Structure in a trace's tokens: a thought begins, a thought ends, a message ends."""


class Home:
    """Conversations by session name; `rooms` are the memory caches', `settings` the spill's."""

    def __init__(
        self,
        model: str,
        files: Files | None = None,
        rooms: dict[str, Any] | None = None,
        ports: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self.model, self.settings = model, settings
        self.rooms, self.ports = rooms or {}, ports or {}
        self.files: Files = files if files is not None else SimFiles()
        self.said: dict[str, Ids] = {}
        """Of each session, all that was said: its prompts and answers."""
        self.count = 0
        self.events: list[CacheEvent] = []
        self.starts()

    def starts(self, **other: Any) -> None:
        """A process begins, with empty caches in memory."""
        self.of: Engine = engine(self.model)
        self.spill = spill(self.files, self.of, **self.ports, **{**self.settings, **other})
        self.on: Box = box(self.of, spill=self.spill, **self.rooms)
        self.check = verifier(self.of)
        self.last: Verdict | None = None

    def stops(self) -> int:
        """A planned stop."""
        saved = drain(self.on.stack, self.of)
        self.looks()
        self.spill.close()
        return saved

    def crashes(self) -> None:
        """The process is gone; only its lock is given back, as the system does."""
        self.spill.close()

    def restarts(self, **other: Any) -> int | None:
        """A planned stop and the next start; where the conversation in place resumes."""
        self.stops()
        self.starts(**other)
        return self.comes_back()

    def comes_back(self) -> int | None:
        line = read_back(self.on.stack, self.of)
        self.looks()
        return line.tokens if line is not None else None

    def rests(self) -> int:
        """A pause long enough."""
        return pause(self.on.stack, self.of, lambda: False)

    def looks(self) -> None:
        self.on.stack.check()
        self.events += self.on.stack.events()

    def sends(self, ids: Ids, answer: int = 9, **how: Any) -> TurnRow:
        """A prompt; whatever served it, its gate must hold."""
        self.count += 1
        written = tokens(answer, 1_000 + self.count)
        row, verdict = serve(self.on, ids, written, check=self.check, **how)
        assert verdict is not None
        self.last = verdict
        assert verdict.ok, verdict
        self.answered = joined(ids, written)
        self._noted()
        return row

    def turn(self, session: str, more: int = 70, answer: int = 9, **how: Any) -> TurnRow:
        """A session's next turn: everything said so far, and a message."""
        before = self.said.get(session)
        seed = 3_000 + self.count + sum(session.encode())
        ids = tokens(more, seed) if before is None else joined(before, tokens(more, seed))
        row = self.sends(ids, answer, session=session, **how)
        self.said[session] = self.answered
        return row

    def of_kind(self, event: str) -> list[CacheEvent]:
        """What the spill noted of this kind."""
        return [e for e in self.events if e.tier == "spill" and e.event == event]

    def says(
        self,
        session: str,
        *,
        thought: int = 30,
        hidden: int = 0,
        drops: bool = True,
        more: int = 90,
    ) -> TurnRow:
        """The next turn of a client that leaves thoughts out, or never saw a span."""
        self.count += 1
        seed = 10 * self.count
        before = self.said.get(session, text(2 * GRID + 10, 50))
        ids = joined(before, text(more, seed), OPEN)
        thinking, put_in = text(thought, seed + 1), text(hidden, seed + 2)
        answer = text(40, seed + 3)
        spans = ((thought, hidden),) if hidden else ()
        told = Answer(thought + hidden + 1, spans)
        written = joined(thinking, put_in, CLOSE, answer, END)
        row, self.last = serve(
            self.on, ids, written, check=self.check, session=session, read=lambda ids: told
        )
        assert self.last is not None
        assert self.last.ok, self.last
        self._noted()
        shown = joined(CLOSE, answer, END) if drops else joined(thinking, CLOSE, answer, END)
        self.said[session] = joined(ids, shown)
        return row

    def _noted(self) -> None:
        self.events += self.on.journal.events
        self.on.journal.events.clear()

    def state(self) -> dict[str, torch.Tensor]:
        """Copies of everything in place: rows up to the account's end, and its copies."""
        account = self.on.stack.resident.account
        found = {
            f"row.{view.name}": view.rows(0, account.valid).clone()
            for view in self.of.cache_state().views
        }
        for anchor in account.anchors:
            for n, tensor in enumerate(anchor.tensors):
                found[f"anchor.{anchor.tokens}.{n}"] = tensor.clone()
        for n, tensor in enumerate(account.end.tensors if account.end is not None else ()):
            found[f"end.{n}"] = tensor.clone()
        return found


def text(count: int, seed: int) -> Ids:
    """Tokens of text, as alignment sees it in a trace's tokens."""
    return (300 + tokens(count, seed) % 190).astype(np.int32)
