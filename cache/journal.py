"""Every turn as a row: what was reused, what was forwarded, and why not more."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from cache.journal_files import NEWEST, JournalFiles
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
    wall_s: float = field(default=0.0, compare=False)
    """When the journal was told."""


class Journal:
    """The last rows in memory, counters over all of them, and files when there is a directory.

    Rows reach the files in batches through a job, so that no turn waits for a drive. A failed write
    loses those rows from the files and is counted; the turn goes on.
    """

    FILE = NEWEST

    def __init__(
        self,
        files: Files | None = None,
        rows_kept: int = 10_000,
        file_bytes: int = 32 * 2**20,
        files_kept: int = 8,
    ) -> None:
        """A file of `file_bytes` makes way for another, and so many older ones stay. Raises
        OSError."""
        self.rows: deque[TurnRow] = deque(maxlen=rows_kept)
        self.events: deque[CacheEvent] = deque(maxlen=rows_kept)
        self.counters: Counter[str] = Counter()
        self._waiting: deque[dict[str, Any]] = deque()
        self._files = JournalFiles(files, file_bytes, files_kept) if files is not None else None

    @property
    def newest(self) -> TurnRow | None:
        """The last turn's row."""
        return self.rows[-1] if self.rows else None

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
        self.counters[f"cached.{row.source}"] += row.cached
        self.counters[f"why.{row.why}"] += 1
        self._queue(_plain(row), jobs)

    def note(self, event: CacheEvent, wall_s: float, jobs: Jobs | None = None) -> None:
        """Take an event in, as `add` does a row."""
        event = replace(event, wall_s=wall_s)
        self.events.append(event)
        self.counters[f"{event.tier}.{event.event}"] += 1
        self._queue(_plain(event), jobs)

    def _queue(self, line: dict[str, Any], jobs: Jobs | None) -> None:
        if self._files is not None and jobs is not None:
            self._waiting.append(line)
            jobs.start("journal", self._write())

    def _write(self) -> Iterator[None]:
        yield
        batch: list[bytes] = []
        while self._waiting:  # The turn's thread may add to it meanwhile.
            batch.append(json.dumps(self._waiting.popleft()).encode() + b"\n")
        if batch and self._files is not None and not self._files.append(batch):
            self.counters["journal_rows_unwritten"] += len(batch)


def _plain(row: TurnRow | CacheEvent) -> dict[str, Any]:
    return {key: value for key, value in asdict(row).items() if value is not None}
