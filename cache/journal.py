"""Every turn as a row: what was reused, what was forwarded, and why not more."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from cache.ports import Files, Jobs


@dataclass(frozen=True, slots=True)
class TurnRow:
    """One turn. Tokens are counts, seconds are durations on the turn's clock."""

    wall_s: float
    session: str | None
    client: str
    kind: str
    prompt: int
    """Tokens of the prompt as it was served."""
    asked: int
    """Tokens of the prompt as the client sent it."""
    cached: int = 0
    source: str = "refused"
    """`cold`, or the kind of line, after the tier when it was not in place: `park.end`."""
    guest: bool = False
    """It borrowed the rows in place."""
    slot: int = 0
    gate: str = ""
    why: str = "refused"
    parted_at: int = 0
    """Leading tokens shared with the rows in place."""
    parted_in: str | None = None
    """Region of the rows in place where the prompts part; None when the prompt has all of them."""
    lost: Mapping[str, int] = field(default_factory=dict)
    """Tokens forwarded although their rows had been computed, by cause."""
    forwarded: int = 0
    """Tokens the prefill forwarded; fewer than prompt - cached when it was cancelled."""
    output: int = 0
    rounds: int = 0
    """Verify blocks."""
    finish: str = "refused"
    """stop, length, cancelled when the caller went away, or refused for want of memory."""
    end: str = "none"
    """`kept`, or why no end anchor was."""
    taint: int | None = None
    prefill_s: float = 0.0
    decode_s: float = 0.0
    held_bytes: Mapping[str, int] = field(default_factory=dict)
    retry_after_s: int | None = None
    """When a refused prompt may be sent again."""


@dataclass(frozen=True, slots=True)
class CacheEvent:
    """Something a cache did or would not do, beside a turn."""

    tier: str
    event: str
    session: str | None
    tokens: int
    nbytes: int = 0
    why: str = ""


class Journal:
    """The last rows in memory, counters over all of them, and a file when there is one.

    Rows reach the file in batches through a job, so that no turn waits for a drive. A failed write
    loses those rows from the file and is counted; the turn goes on.
    """

    FILE = "journal.jsonl"

    def __init__(self, files: Files | None = None, rows_kept: int = 10_000) -> None:
        self.rows: deque[TurnRow] = deque(maxlen=rows_kept)
        self.events: deque[CacheEvent] = deque(maxlen=rows_kept)
        self.counters: Counter[str] = Counter()
        self._files = files
        self._waiting: list[dict[str, Any]] = []
        self._offset = 0
        if files is not None:
            if files.exists(self.FILE):
                self._offset = files.size(self.FILE)
            else:
                files.close(files.create(self.FILE))

    def add(self, row: TurnRow, jobs: Jobs | None = None) -> None:
        """Take a row in; with a file, ask `jobs` to write it."""
        self.rows.append(row)
        self.counters["turns"] += 1
        self.counters["prompt_tokens"] += row.prompt
        self.counters["guests"] += row.guest
        self.counters["cached_tokens"] += row.cached
        self.counters["forwarded_tokens"] += row.forwarded
        self.counters["output_tokens"] += row.output
        self.counters[f"source.{row.source}"] += 1
        self.counters[f"why.{row.why}"] += 1
        self._queue(_plain(row), jobs)

    def note(self, event: CacheEvent, wall_s: float, jobs: Jobs | None = None) -> None:
        """Take an event in, as `add` does a row."""
        self.events.append(event)
        self.counters[f"{event.tier}.{event.event}"] += 1
        self._queue({"wall_s": wall_s} | _plain(event), jobs)

    def _queue(self, line: dict[str, Any], jobs: Jobs | None) -> None:
        if self._files is not None and jobs is not None:
            self._waiting.append(line)
            jobs.start("journal", self._write())

    def _write(self) -> Iterator[None]:
        yield
        batch, self._waiting = self._waiting, []
        if not batch or self._files is None:
            return
        data = "".join(json.dumps(line) + "\n" for line in batch).encode()
        try:
            handle = self._files.open(self.FILE)
            try:
                self._files.write(handle, self._offset, data)
            finally:
                self._files.close(handle)
        except OSError:
            self.counters["journal_rows_unwritten"] += len(batch)
            return
        self._offset += len(data)


def _plain(row: TurnRow | CacheEvent) -> dict[str, Any]:
    return {key: value for key, value in asdict(row).items() if value is not None}
