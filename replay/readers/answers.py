"""Whether one request continues another: its messages, its answer as it comes back, new ones"""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import Enum

from engine.chat.messages import Call, Message, Reply, Show


class Follow(Enum):
    """How a request's messages go on from an earlier request's."""

    EXACT = "exact"
    """They begin with the same messages."""
    REWRITTEN = "rewritten"
    """The client changed some by itself: the system text, a wrapped question, a pruned result."""


def follows(before: Sequence[Message], reply: Reply, after: Sequence[Message]) -> Follow | None:
    """How `after` is `before`, the reply the way clients send it back, and new messages of the
    user or of tools; None when it isn't: an edit, a regeneration, another conversation.
    """
    how = Follow.EXACT
    if _heads(before) != _heads(after):
        how = Follow.REWRITTEN
    before, after = before[len(_heads(before)) :], after[len(_heads(after)) :]
    opened = before[-1] if before and before[-1].role == "assistant" else None
    if opened:
        before = before[:-1]
    if len(after) < len(before):
        return None
    for old, new in zip(before, after, strict=False):
        if old is not new and _told(old) != _told(new):
            if not _rewritten(old, new):
                return None
            how = Follow.REWRITTEN
    rest = after[len(before) :]
    if rest and rest[0].role == "assistant":
        if not came_back(reply, rest[0], opened):
            return None
        rest = rest[1:]
    elif not rest or not _vanished(reply):
        return None
    return how if all(message.role != "assistant" for message in rest) else None


def came_back(reply: Reply, message: Message, opened: Message | None = None) -> bool:
    """Whether an assistant message is the reply as a client sends it back.

    Clients drop reasoning or strip its ends, strip the content's, re-serialise tool arguments or
    replace a call that failed, keep a little less of an aborted answer than they were sent, and
    join a continuation (of `opened`) to the piece before it.
    """
    sent = reply.message
    content = message.content
    if opened:
        head = opened.content.rstrip()
        if not content.startswith(head):
            return False
        content = content[len(head) :]
    if not _same_text(sent.content, content, reply.aborted):
        return False
    thought = message.reasoning
    if opened and thought.startswith(opened.reasoning):
        thought = thought[len(opened.reasoning) :]
    if thought.strip() and not _same_text(sent.reasoning, thought, reply.aborted):
        return False
    calls = message.calls[len(opened.calls) :] if opened else message.calls
    if len(calls) != len(sent.calls):
        return False
    return all(_same_call(a, b) for a, b in zip(sent.calls, calls, strict=True))


def _same_text(sent: str, back: str, aborted: bool) -> bool:
    sent, back = sent.strip(), back.strip()
    return sent == back or (aborted and sent.startswith(back))


def _same_call(sent: Call, back: Call) -> bool:
    """Whether a call is the one that was sent: by its id, else by name and value."""
    if sent.id and sent.id == back.id:
        return True
    return sent.name == back.name and _value(sent.arguments) == _value(back.arguments)


def _value(arguments: str) -> object:
    try:
        return json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments


def _vanished(reply: Reply) -> bool:
    """Whether a client leaves an answer out: it was aborted before there was any content."""
    sent = reply.message
    return reply.aborted and not sent.content.strip() and not sent.calls


def _heads(messages: Sequence[Message]) -> Sequence[Message]:
    """The system messages at the start."""
    stop = next((i for i, m in enumerate(messages) if m.role != "system"), len(messages))
    return messages[:stop]


def _told(message: Message) -> tuple[str, str, str, tuple[Call, ...], tuple[Show, ...]]:
    """What a message says and shows, however its text is cut into parts."""
    return message.role, message.content, message.reasoning, message.calls, message.images


def _rewritten(old: Message, new: Message) -> bool:
    """Whether a client may have made one of these messages of the other, with nobody's edit:
    a wrapped or reminded question, a result that it pruned, a system text between, images that it
    sends no more."""
    if old.role != new.role or old.role == "assistant":
        return False
    if new.images and new.images != old.images:
        return False
    if old.role != "user":
        return True
    a, b = old.content.strip(), new.content.strip()
    return bool(a) and bool(b) and (a in b or b in a)
