"""Alibaba Bailian's Qwen traces: JSON lines of whole prompts in 16-token hash-id blocks

Keys: `chat_id`, `parent_chat_id` (-1 for a first turn), `timestamp` (s), `input_length`,
`output_length`, `type` (text, search, image, file), `turn`, `hash_ids`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.bad import BadInput, OnBad, refuse
from replay.fields import COUNT_MAX, SEQUENCE_MAX, Fields
from replay.open import Malformed, read_lines, stem
from replay.readers.blocks import BlockIds, Blocks, block_ids, left_numbers, small_ids
from replay.trace import FRESH, TEXT, Header, Request, Run, Trace

BLOCK = 16
"""Tokens a block of the published traces."""
NOTES = (
    "Bailian trace at block size {block}: equal hash ids are equal tokens, copied from the last "
    "request that had them; the rest is fresh text. When an answer ended is not recorded: think_s "
    "counts from the parent's arrival."
)
_KEYS = (
    "chat_id",
    "parent_chat_id",
    "timestamp",
    "input_length",
    "output_length",
    "type",
    "hash_ids",
)


@dataclass(slots=True)
class _Row:
    place: int
    t_s: float
    chat: int
    parent: int
    tokens: int
    answer: int
    ids: BlockIds
    kind: str
    extra: dict[str, object]


@dataclass(slots=True)
class _Chat:
    number: int
    t_s: float
    session: str


def read(path: Path, on_bad: OnBad = refuse, block: int = BLOCK) -> Trace:
    """Read a trace whose blocks hold `block` tokens. Raises what `on_bad` raises for a line.

    A parent that is not in the file, or comes later, makes a first turn: the published traces are
    two hours cut out of longer chats.
    """
    rows: list[_Row] = []
    bad: list[int] = []
    seen: set[int] = set()
    place = -1
    for place, (line, text) in enumerate(read_lines(path)):
        try:
            row = _row(Fields.parse(text), place, block)
            if row.chat in seen:
                raise Malformed(f"chat_id {row.chat} is taken by an earlier line")
            seen.add(row.chat)
            rows.append(row)
        except Malformed as wrong:
            on_bad(BadInput(str(path), line, str(wrong)))
            bad.append(place)
    if not rows:
        raise BadInput(str(path), None, "the file holds no request")
    rows.sort(key=lambda row: (row.t_s, row.place))
    requests = tuple(_requests(rows, left_numbers(bad, place + 1), block))
    return Trace(stem(path), Header(notes=NOTES.format(block=block)), requests)


def _row(row: Fields, place: int, block: int) -> _Row:
    tokens = row.whole("input_length", 1, SEQUENCE_MAX)
    ids = block_ids(row.items("hash_ids"))
    # Whether a partial last block gets an id is the writer's choice.
    if len(ids) not in (0, tokens // block, -(-tokens // block)):
        raise Malformed(f"{len(ids)} hash ids for {tokens} tokens in blocks of {block}")
    return _Row(
        place=place,
        t_s=row.finite("timestamp"),
        chat=row.whole("chat_id", -COUNT_MAX),
        parent=row.whole_or("parent_chat_id", -1, -COUNT_MAX),
        tokens=tokens,
        answer=row.whole("output_length", 0, SEQUENCE_MAX - tokens),
        ids=ids,
        kind=row.text("type", "text"),
        extra=row.without(_KEYS),
    )


def _requests(rows: list[_Row], numbers: list[int], block: int) -> Iterator[Request]:
    ids_of, count = small_ids([row.ids for row in rows])
    blocks = Blocks(block, count)
    chats: dict[int, _Chat] = {}
    for row, ids, number in zip(rows, ids_of, numbers, strict=True):
        parent = chats.get(row.parent)
        chat = _Chat(number, row.t_s, parent.session if parent else str(row.chat))
        chats[row.chat] = chat
        yield Request(
            number=number,
            id=str(row.chat),
            t_s=row.t_s - rows[0].t_s,
            prompt=blocks.runs(ids, row.tokens),
            output=(Run(FRESH, TEXT, row.answer),) if row.answer else (),
            session=chat.session,
            kind="turn" if row.kind == "text" else row.kind,
            after=parent.number if parent else None,
            think_s=row.t_s - parent.t_s if parent else 0.0,
            extra=row.extra,
        )
        blocks.add(number, ids, row.tokens)
