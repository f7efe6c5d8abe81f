"""A conversation read back from its rows: whose message lies where, between the format's marks"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cache.types import Ids
from engine.chat.dialect import CALL
from engine.chat.tokenizer import Tokenizer

START, END = "<|im_start|>", "<|im_end|>"
"""Marks around a message; a format without them is not read."""
_RESULT = "<tool_response>"
_SHOWN = ("<|vision_start|>", "<|vision_end|>")
_LINE_TOKENS = 512
"""Tokens of a message that are decoded: its first lines are enough to know it by."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """A message among the rows; no text of it is kept beyond the look at it."""

    role: str
    """user, assistant, system, or tool for results of tools."""
    start: int
    """Its first row behind the begin mark: the role's name."""
    stop: int
    """Rows up to its end mark, which may not be among them when it stands last."""
    text: str
    """How it begins; of a user alone."""
    results: int = 0
    """Results of tools in it."""
    calls: int = 0
    """Calls of tools in it."""


def spoken(ids: Ids, tokenizer: Tokenizer) -> tuple[Spoken, ...]:
    """The messages of a conversation's rows, in order; none where the marks are no tokens."""
    marks = [tokenizer.ids.get(mark, -1) for mark in (START, END)]
    if -1 in marks:
        return ()
    starts, ends = (np.flatnonzero(ids == mark).tolist() for mark in marks)
    found, at = [], 0
    for begin, limit in zip(starts, [*starts, len(ids)][1:], strict=True):
        while at < len(ends) and ends[at] < begin:
            at += 1
        stop = ends[at] if at < len(ends) and ends[at] < limit else limit
        found.append(_message(ids, begin + 1, stop, tokenizer))
    return tuple(found)


def _message(ids: Ids, start: int, stop: int, tokenizer: Tokenizer) -> Spoken:
    """The message whose role and text are the rows [start, stop)."""
    some = ids[start : min(stop, start + _LINE_TOKENS)]
    role, _, text = tokenizer.decode(some[some >= 0]).partition("\n")
    counts = [int((ids[start:stop] == tokenizer.ids.get(m, -1)).sum()) for m in (_RESULT, CALL)]
    role = role.strip()
    for mark in _SHOWN:
        text = text.replace(mark, "")
    if role == "user" and counts[0] and text.lstrip().startswith(_RESULT):
        role = "tool"
    shown = text if role == "user" else ""
    return Spoken(role, start, stop, shown, counts[0] if role == "tool" else 0, counts[1])


def body(ids: Ids, message: Spoken, tokenizer: Tokenizer) -> str:
    """All text of a message, its role's name first."""
    some = ids[message.start : message.stop]
    return tokenizer.decode(some[some >= 0])


def users(messages: Sequence[Spoken]) -> list[int]:
    """Which of the messages a user wrote."""
    return [at for at, message in enumerate(messages) if message.role == "user"]


def first_line(text: str) -> str:
    """The first line that says anything."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
