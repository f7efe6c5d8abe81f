"""Compaction as a continuation: the conversation's own rows, then one turn that asks"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from cache.account import COMPACTION, Account
from cache.keys import digest_of
from cache.plan import Plan
from cache.stack import Stack
from cache.types import GOES_ON, Ids
from engine.box import Box
from engine.chat.dialect import Dialect, close_thought, inside_thought
from engine.chat.messages import Message, Say
from engine.pictures.picture import Picture
from engine.prompt import Prompt
from serve.history import END, START, spoken
from serve.record_parts import CompactionParts, Covered, covered

SOURCE = "continuation"
"""What serves it, for the client's usage."""
ROOM_TOKENS = 4_096
"""Rows that must be left for a summary, where the client allows so much."""

Album = Callable[[bytes], Picture | None]
"""A picture by its digest, with its patches."""


@dataclass(frozen=True, slots=True)
class CompactionConfig:
    """How a client's request to summarise its conversation is served."""

    mode: Literal["continue", "client"] = "continue"
    """As the next turn of the conversation in the caches; as the client wrote it."""
    prepare: bool = True
    """Whether summaries are written ahead."""
    idle_s: float = 30.0
    """Without a request for so long one may be."""
    tokens_min: int = 32_768
    """Of a conversation whose summary is written ahead."""
    tail: Literal["cut", "whole"] = "cut"
    """What is summed up where a record leaves the newest messages out (opencode keeps those of a
    long conversation as they are): what it holds, or all of the conversation. Only the second can
    be written ahead for such a client; but a record is as short when messages were taken back."""

    def __post_init__(self) -> None:
        assert self.mode in ("continue", "client") and self.tail in ("cut", "whole")
        assert self.idle_s >= 0 and self.tokens_min >= 0


@dataclass(frozen=True, slots=True)
class Miss:
    """Why a compaction is served as it was sent; the text is for the journal."""

    why: str


@dataclass(frozen=True, slots=True)
class Continued:
    """What is served in place of a compaction: the conversation, then one turn that asks for it."""

    prompt: Prompt
    rows: int
    """Tokens of the conversation in it."""
    whole: bool
    """The record was of the whole conversation: nothing newer is among the rows."""
    forwarded: int
    """Tokens that reading it takes as the caches are now."""
    source: str = SOURCE


def conversations(stack: Stack, session: str) -> Iterator[Account]:
    """What the caches hold of a session, what is nearest first: in place, pooled, on the drive."""
    found = [stack.resident.account]
    parked = [entry for entry in stack.park.entries if entry.kind == "park"]
    found += [entry.account for entry in sorted(parked, key=lambda entry: -entry.used_turn)]
    if stack.spill is not None:
        entries = sorted(stack.spill.shelf.whole(), key=lambda entry: -entry.used_s)
        found += [entry.account for entry in entries if entry.account is not None]
    for account in found:
        if account.session == session and account.kind in GOES_ON and account.generations:
            yield account


def continuation(
    box: Box,
    dialect: Dialect,
    sent: Prompt,
    parts: CompactionParts,
    album: Album = lambda digest: None,
    *,
    tail: Literal["cut", "whole"] = "cut",
) -> Continued | Miss:
    """What to serve instead of a compaction request, whose own prompt is `sent`. Changes nothing.

    Ask when no turn is under way and no guest is in the house.
    """
    if sent.session is None:
        return Miss("no session")
    stack, miss = box.stack, Miss("no conversation")
    plan: Plan | None = None
    for account in conversations(stack, sent.session):
        made = continued(account, dialect, sent, parts, album, tail=tail)
        if isinstance(made, Miss):
            miss = made
            continue
        room = min(sent.answer_max or ROOM_TOKENS, ROOM_TOKENS)
        if len(made.prompt.ids) + room > box.engine.window:
            miss = Miss("window")
            continue
        plan = plan or stack.plan(sent.ask)
        ours = stack.plan(made.prompt.ask)
        if _seconds(box, ours) >= _seconds(box, plan):
            miss = Miss("no cheaper")
            continue
        return replace(made, forwarded=ours.forwarded)
    return miss


def continued(
    account: Account,
    dialect: Dialect,
    sent: Prompt,
    parts: CompactionParts,
    album: Album = lambda digest: None,
    *,
    tail: Literal["cut", "whole"] = "cut",
) -> Continued | Miss:
    """The prompt that goes on from a conversation's rows; `forwarded` as if nothing were cached."""
    rows = _whole_rows(account, dialect)
    found = covered(parts, rows, dialect.tokenizer)
    if isinstance(found, str):
        return Miss(found)
    if tail == "whole" and not account.compacted:
        found = replace(found, rows=len(rows))
    return assembled(account, dialect, parts, found, album, sent.client, sent.answer_max)


def assembled(
    account: Account,
    dialect: Dialect,
    parts: CompactionParts,
    found: Covered,
    album: Album,
    client: str,
    answer_max: int,
) -> Continued | Miss:
    """The prompt of so much of a conversation and the turn that asks for its summary."""
    before = account.ids[: found.rows]
    pictures = _pictures(before, album)
    if pictures is None:
        return Miss("pictures")
    ids = np.concatenate([before, closing(before, dialect), asking(parts, found, dialect)])
    prompt = Prompt(
        ids,
        account.session,
        client,
        COMPACTION,
        tools=account.tools,
        system=account.system - account.tools,
        answer_max=answer_max,
        pictures=pictures,
        last_user=found.rows,
        first_answer=account.generations[0].start,
    )
    return Continued(prompt, found.rows, found.whole, len(ids))


def _whole_rows(account: Account, dialect: Dialect) -> Ids:
    """The rows that end with an answer, or with the last message that is there to its end: a client
    may have left while a newer one was read."""
    rows = account.ids
    if account.generations and account.generations[-1].stop == account.valid:
        return rows
    ends = np.flatnonzero(rows == dialect.tokenizer.ids.get(END, -1))
    return rows[: int(ends[-1])] if len(ends) else rows[:0]


def closing(before: Ids, dialect: Dialect) -> Ids:
    """What ends the message that the rows end in: an answer's end is usually not among them."""
    tokenizer = dialect.tokenizer
    last = spoken(before, tokenizer)[-1]
    thought = np.empty(0, np.int32)
    if last.role == "assistant" and inside_thought(dialect, before[last.start :]):
        thought = close_thought(dialect)
    end = tokenizer.encode(END + "\n", specials=True)
    # An engine that was ahead has the end mark among its rows.
    end = end[len(before) - last.stop :]
    return np.concatenate([thought, end])


def asking(parts: CompactionParts, found: Covered, dialect: Dialect) -> Ids:
    """The turn that asks for the summary, and the beginning of its answer behind an empty thought.

    What the record has and the rows have not (the results of the last calls) goes before the
    instructions.
    """
    since = f"What your last calls gave:\n\n{found.pending}" if found.pending else ""
    text = "\n\n".join(part for part in (parts.system, since, parts.tail) if part)
    ids = dialect.render([Message("user", (Say("content", text),))], thinking=False).ids
    starts = np.flatnonzero(ids == dialect.tokenizer.ids[START])
    return ids[starts[-2] :]


def _pictures(ids: Ids, album: Album) -> tuple[Picture, ...] | None:
    """The pictures among the rows; None when one of them is not at hand.

    None of them is read where the rows are as the plan has them; but should they not come, all are.
    """
    negative = np.concatenate([[False], ids < 0])
    begins = np.flatnonzero(negative[1:] & ~negative[:-1]).tolist()
    found = [album(digest_of(ids[at:])) for at in begins]
    pictures = tuple(picture for picture in found if picture is not None)
    return pictures if len(pictures) == len(found) else None


def _seconds(box: Box, plan: Plan) -> float:
    """What reading a prompt takes, with what comes from a drive for it."""
    cost = box.engine.cost()
    return plan.best.cost_s(cost) if plan.best else len(plan.ask.ids) / cost.prefill_tokens_s
