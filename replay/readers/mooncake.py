"""Mooncake's traces: JSON lines with prefix-block hash ids, and AIPerf's keys for sessions

Keys: `timestamp` (ms), `input_length`, `output_length`, `hash_ids` (a block each, the last one
partial). AIPerf adds `session_id` and `delay` (ms after the session's previous answer): lines of a
session carry only what a turn adds, and its prompt is all that went before plus that. `text_input`,
`messages` and `payload` are text, which needs a tokenizer; they are read only beside a length.
A line without a time arrives `delay` after the line of its session before it, a first one at 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.bad import BadInput, OnBad, refuse
from replay.fields import SEQUENCE_MAX, Fields
from replay.open import Malformed, read_lines, stem
from replay.readers.blocks import (
    BlockIds,
    Blocks,
    block_ids,
    joined,
    left_numbers,
    small_ids,
)
from replay.trace import FRESH, TEXT, Header, Request, Run, Trace

BLOCK = 512
"""Tokens a block of the published traces."""
NOTES = (
    "Mooncake trace at block size {block}: equal hash ids are equal tokens, copied from the last "
    "request that had them; the rest is fresh text. A line of a session adds to the session's last "
    "prompt and answer. A line without output_length answers with one token."
)
_TEXT_KEYS = ("text_input", "messages", "payload")
_KEYS = ("timestamp", "input_length", "output_length", "hash_ids", "session_id", "delay", "type")


@dataclass(slots=True)
class _Row:
    place: int
    t_s: float
    tokens: int
    answer: int
    ids: BlockIds
    session: str | None
    think_s: float | None
    extra: dict[str, Any]


def read(path: Path, on_bad: OnBad = refuse, block: int = BLOCK) -> Trace:
    """Read a trace whose blocks hold `block` tokens. Raises what `on_bad` raises for a line."""
    rows: list[_Row] = []
    bad: list[int] = []
    clock: dict[str | None, float] = {}
    place = -1
    for place, (line, text) in enumerate(read_lines(path)):
        try:
            rows.append(_row(Fields.parse(text), place, block, clock))
        except Malformed as wrong:
            on_bad(BadInput(str(path), line, str(wrong)))
            bad.append(place)
    if not rows:
        raise BadInput(str(path), None, "the file holds no request")
    rows.sort(key=lambda row: (row.t_s, row.place))
    try:
        requests = tuple(_requests(rows, left_numbers(bad, place + 1), block))
    except Malformed as wrong:
        raise BadInput(str(path), None, str(wrong)) from None
    return Trace(stem(path), Header(notes=NOTES.format(block=block)), requests)


def _row(row: Fields, place: int, block: int, clock: dict[str | None, float]) -> _Row:
    text = next((key for key in _TEXT_KEYS if row.has(key)), None)
    if text and not row.has("input_length"):
        raise Malformed(f"{text!r} needs a tokenizer to be counted; give its 'input_length'")
    tokens = row.whole("input_length", 1, SEQUENCE_MAX)
    ids = block_ids(row.items("hash_ids"))
    if len(ids) not in (0, -(-tokens // block)):
        raise Malformed(f"{len(ids)} hash ids for {tokens} tokens in blocks of {block}")
    session = row.text("session_id") if row.has("session_id") else None
    delay_s = row.finite("delay") / 1000 if row.has("delay") else None
    if row.has("timestamp"):
        t_s = row.finite("timestamp") / 1000
    else:
        t_s = clock.get(session, 0.0) + (delay_s or 0.0)
    answer = row.whole_or("output_length", 1, 0, SEQUENCE_MAX - tokens)
    clock[session] = t_s
    return _Row(place, t_s, tokens, answer, ids, session, delay_s, row.without(_KEYS + _TEXT_KEYS))


def _requests(rows: list[_Row], numbers: list[int], block: int) -> Iterator[Request]:
    ids_of, count = small_ids([row.ids for row in rows])
    blocks = Blocks(block, count)
    last: dict[str, tuple[int, float, int]] = {}
    start_s = rows[0].t_s
    for row, ids, number in zip(rows, ids_of, numbers, strict=True):
        before = last.get(row.session) if row.session is not None else None
        base = before[2] if before else 0
        if base + row.tokens + row.answer > SEQUENCE_MAX:
            raise Malformed(f"session {row.session!r} grows past {SEQUENCE_MAX} tokens")
        runs = blocks.runs(ids, row.tokens)
        think_s = 0.0
        if before:
            runs = joined([Run(before[0], 0, base), *runs])
            think_s = row.t_s - before[1] if row.think_s is None else row.think_s
        yield Request(
            number=number,
            id=str(row.place),
            t_s=row.t_s - start_s,
            prompt=runs,
            output=(Run(FRESH, TEXT, row.answer),) if row.answer else (),
            session=row.session,
            after=before[0] if before else None,
            think_s=think_s,
            extends=before[0] if before else None,
            extra=row.extra,
        )
        blocks.add(number, ids, row.tokens, base)
        if row.session is not None:
            last[row.session] = (number, row.t_s, base + row.tokens + row.answer)
