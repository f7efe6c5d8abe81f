"""A client's record of its conversation: a compaction request's parts, and the rows it is of"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from cache.types import Ids
from engine.chat.messages import Message
from engine.chat.tokenizer import Tokenizer
from serve.history import Spoken, body, first_line, spoken, users

_OPENING = "Here is the conversation so far:"
_BEGIN, _END = "<conversation>\n", "</conversation>"
_PRIOR, _PRIOR_END = "<prior-summary>\n", "</prior-summary>"
_HERE = "\0"
"""In instructions, where the summary before stood."""
_ENTRY = re.compile(
    r"^\[(User|Assistant reasoning|Assistant tool call|Assistant|Tool result)\]:[ ]?", re.M
)
_USER, _CALL, _RESULT = "User", "Assistant tool call", "Tool result"


@dataclass(frozen=True, slots=True)
class CompactionParts:
    """A request that wants a conversation summed up."""

    system: str
    record: str
    """The conversation as text, results of tools cut short."""
    instructions: str
    """What is asked of it, without the summary before."""
    prior: str | None = None
    """The summary of what came before the record, which goes into the new one."""

    @property
    def tail(self) -> str:
        """All that stands behind the record."""
        return self.instructions.replace(_HERE, self.prior or "")

    @property
    def asked(self) -> tuple[str, str]:
        """What of it is the same for all conversations."""
        return self.system, self.instructions


@dataclass(frozen=True, slots=True)
class Covered:
    """The rows that a record is the text of."""

    rows: int
    """The first so many, up to the end of a message."""
    pending: str = ""
    """The record's end, where no request has brought it yet: the results of the last calls."""
    whole: bool = True
    """No message is newer than the record."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A piece of a record; it begins at `at`."""

    kind: str
    text: str
    at: int


def parts_of(messages: Sequence[Message]) -> CompactionParts | None:
    """The parts of a compaction request; None for any other."""
    if not messages or len(messages) > 2 or messages[-1].role != "user":
        return None
    if len(messages) == 2 and messages[0].role != "system":
        return None
    if any(message.images for message in messages):
        return None
    text = messages[-1].content
    begin, end = text.find(_BEGIN), text.rfind(_END)
    if not text.startswith(_OPENING) or begin < 0 or end < begin:
        return None
    if text[len(_OPENING) : begin].strip():
        return None
    record, tail = text[begin + len(_BEGIN) : end], text[end + len(_END) :].strip()
    instructions, prior = _without_prior(tail.replace(_HERE, ""))
    if not record.strip() or not instructions.replace(_HERE, "").strip():
        return None
    system = messages[0].content if len(messages) == 2 else ""
    return CompactionParts(system.strip(), record, instructions, prior)


def _without_prior(tail: str) -> tuple[str, str | None]:
    """The instructions with a place for the summary before, and that."""
    begin, end = tail.find(_PRIOR), tail.rfind(_PRIOR_END)
    if begin < 0 or end < begin:
        return tail, None
    begin += len(_PRIOR)
    return f"{tail[:begin]}{_HERE}\n{tail[end:]}", tail[begin:end].strip()


def entries_of(record: str) -> list[Entry]:
    """A record's pieces, in order. Text that looks like a piece's beginning is taken for one."""
    found = list(_ENTRY.finditer(record))
    stops = [*(match.start() for match in found[1:]), len(record)]
    return [
        Entry(match.group(1), record[match.end() : stop], match.start())
        for match, stop in zip(found, stops, strict=True)
    ]


def guard(parts: CompactionParts, rows: Ids, tokenizer: Tokenizer) -> str | None:
    """Why a record is not the conversation's whose rows these are; None when it is."""
    found = covered(parts, rows, tokenizer)
    return found if isinstance(found, str) else None


def covered(parts: CompactionParts, rows: Ids, tokenizer: Tokenizer) -> Covered | str:
    """The rows that a record is of, or why they are of something else.

    Every user line of the record must be the conversation's, in order and from its first on; behind
    a summary the conversation's first is the client's own, before that summary. Rows may go further
    than the record: a client keeps its newest messages, or took some back.
    """
    messages, entries = spoken(rows, tokenizer), entries_of(parts.record)
    mine, theirs = users(messages), [at for at, e in enumerate(entries) if e.kind == _USER]
    if not mine:
        return "no user line among the rows"
    if not theirs:
        return "no user line in the record"
    if parts.prior is not None:
        if not _follows(parts.prior, messages, mine[0], rows, tokenizer):
            return "another summary before"
        mine = mine[1:]
    if len(theirs) > len(mine):
        return "the record has user lines that the rows have not"
    for ours, entry in zip(mine, theirs, strict=False):
        if not _same(messages[ours].text, entries[entry].text):
            return "another user line"
    after = messages[mine[len(theirs) - 1] :]
    rest = next((n for n, m in enumerate(after[1:], 1) if m.role == "user"), len(after))
    return _place(parts.record, entries[theirs[-1] :], after[:rest], len(rows), last=messages[-1])


def _follows(
    prior: str, messages: Sequence[Spoken], opener: int, rows: Ids, tokenizer: Tokenizer
) -> bool:
    """Whether the summary before is the answer to the conversation's first message."""
    answer = messages[opener + 1 : opener + 2]
    line = first_line(prior)
    return bool(answer) and bool(line) and line in body(rows, answer[0], tokenizer)


def _same(ours: str, theirs: str) -> bool:
    """Whether a user's message and a record's piece are of one text, either with something added:
    a client's reminders are no part of a record, names of files are no part of a prompt."""
    mine, sent = first_line(ours), first_line(theirs)
    return bool(mine) and bool(sent) and (mine in theirs or sent in ours)


def _place(
    record: str, entries: Sequence[Entry], messages: Sequence[Spoken], size: int, last: Spoken
) -> Covered | str:
    """Where in a user's turn the record ends; both begin with the user's message."""
    wanted = sum(entry.kind == _RESULT for entry in entries)
    ends_in, seen = entries[-1].kind, 0
    for message in messages:
        seen += message.results
        if seen > wanted:
            return "other results"
        here = {"user": ends_in == _USER, "tool": ends_in == _RESULT}.get(
            message.role, ends_in not in (_USER, _RESULT)
        )
        if seen == wanted and here:
            whole = message is last
            return Covered(size if whole else message.stop, whole=whole)
    calls = messages[-1].calls
    if messages[-1] is last and ends_in == _RESULT and calls and seen + calls == wanted:
        begun = [entry for entry in entries if entry.kind == _CALL][-calls:]
        return Covered(size, record[begun[0].at :].strip())
    return "other results"
