"""The server under test: `moorage serve --script`, and what its journal says of every turn."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
from processes import Processes, free_port, wait_for

NAME = "moorage"
ROOT = Path(__file__).resolve().parents[2]
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}

Row = Mapping[str, Any]
Rule = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Turn:
    """What the journal has of one request, as far as the tests ask."""

    session: str | None
    client: str
    kind: str
    prompt: int
    cached: int
    output: int
    source: str
    why: str
    finish: str
    guest: bool
    slot: int

    @property
    def end(self) -> int:
        """Tokens of its prompt and its answer."""
        return self.prompt + self.output

    def begins_where_ended(self, before: Turn) -> bool:
        """Whether it reads nothing of the other's prompt and generation again.

        The last token of a generation is usually not read any more, so one row is missing.
        """
        return self.cached in (before.end - 1, before.end)

    def resumes_at_the_end_of(self, before: Turn) -> bool:
        """The same, from the copy that is taken at the end of every generation."""
        return self.source.rpartition(".")[2] == "end" and self.begins_where_ended(before)


class Moorage:
    """One server on one directory; it can be stopped and started again."""

    def __init__(
        self,
        folder: Path,
        rules: Sequence[Rule],
        processes: Processes,
        options: Sequence[str] = (),
    ) -> None:
        self._processes = processes
        self.cache_dir = folder / "caches"
        self._port = free_port()
        self.address = f"http://127.0.0.1:{self._port}"
        script = folder / "script.jsonl"
        folder.mkdir(parents=True, exist_ok=True)
        script.write_text("".join(json.dumps(rule) + "\n" for rule in rules))
        self._command = [sys.executable, "-m", "moorage", "serve", "--script", str(script)]
        self._command += ["--cache-dir", str(self.cache_dir), "--port", str(self._port), *options]
        self._folder = folder
        self.start()
        self.model = str(httpx.get(f"{self.address}/v1/models").json()["data"][0]["id"])

    def start(self) -> None:
        """Starts the server and waits until it serves."""
        environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": str(ROOT)}
        self._processes.start(NAME, self._command, self._folder, environment)
        try:
            wait_for("the server's start", self._up)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self._processes.said(NAME)}") from None

    def stop(self) -> None:
        """A planned stop, with SIGTERM; it ends with 0 when all was written."""
        status = self._processes.stop(NAME)
        assert status == 0, (status, self._processes.said(NAME))

    def set(self, **settings: Any) -> None:
        """Changes the settings, from the next request on."""
        reply = httpx.put(f"{self.address}/v1/settings", json=settings, timeout=30.0)
        assert reply.status_code == 200, reply.text

    def turns(self, session: str | None = None, *kinds: str) -> list[Turn]:
        """The journal's turns in the order they ended, of one conversation and kind or all."""
        return [
            turn
            for turn in map(_turn, (row for row in self._lines() if "prompt" in row))
            if session in (None, turn.session) and (not kinds or turn.kind in kinds)
        ]

    def events(self, session: str, tier: str) -> list[str]:
        """What the journal has of a conversation beside its turns, from one part of the caches."""
        rows = self._lines()
        found = (row for row in rows if row.get("tier") == tier and row.get("session") == session)
        return [row["event"] for row in found]

    def wait(self, what: str, look: Callable[[], bool]) -> None:
        """Waits for the journal; in a failure, says what it has."""
        try:
            wait_for(what, look)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.table()}") from None

    def wait_turns(self, count: int, session: str | None, *kinds: str) -> list[Turn]:
        """So many turns of a conversation, as soon as the journal has them; and not one more."""
        what = f"{count} turns of {session} {kinds}"
        self.wait(what, lambda: len(self.turns(session, *kinds)) >= count)
        found = self.turns(session, *kinds)
        assert len(found) == count, f"{what}\n{self.table()}"
        return found

    def table(self) -> str:
        """All turns, a line each."""
        lines = [
            f"{str(turn.session)[-8:]:>8} {turn.kind:<10} prompt {turn.prompt:>6} cached"
            f" {turn.cached:>6} output {turn.output:>5} slot {turn.slot} {turn.source:<14}"
            f" {turn.why:<18} {turn.finish}{' guest' if turn.guest else ''}"
            for turn in self.turns()
        ]
        return "\n".join(["the journal:", *lines])

    def _lines(self) -> list[Row]:
        # They are written by another process: the newest may be half there.
        text = (self.cache_dir / "journal/journal.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines(keepends=True) if line[-1] == "\n"]

    def _up(self) -> bool:
        try:
            return httpx.get(f"{self.address}/health", timeout=4.0).status_code == 200
        except httpx.RequestError:
            return False


def _turn(row: Row) -> Turn:
    names = ("client", "kind", "prompt", "cached", "output", "source", "why", "finish", "slot")
    known = {name: row[name] for name in names}
    return Turn(session=row.get("session"), guest=row["guest"], **known)


def follow(turns: Sequence[Turn], parted: Mapping[int, str] | None = None) -> None:
    """Every turn resumes at the end of the one before; those in `parted` (by number, from 0) where
    the client changed what was said, and the journal's why is the one given."""
    parted = parted or {}
    for number, (before, turn) in enumerate(pairwise(turns), 1):
        if number in parted:
            assert turn.why == parted[number], (number, before, turn)
            assert 0 < turn.cached < before.end - 1, (number, before, turn)
        else:
            assert turn.resumes_at_the_end_of(before), (number, before, turn)
