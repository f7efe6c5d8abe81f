"""Conversations of requests that name none: by where their prompts part, and what they quote

Clients that send no id (Open WebUI without its headers, scripts) still send a conversation's whole
history with every turn. A turn belongs to the conversation whose last turn it begins with. What
parts from all that are known is a conversation of its own, with one exception: a turn that differs
from a last turn in nothing but the newest message, over two questions or more, is that one, edited.
One question in common says nothing: everybody begins with "hi", and where chance has no part in it
everybody gets the same answer to that.

What is kept of a conversation are three digests, of its last turn with and without the newest
message and of the question in it: no text. System messages are everybody's and don't count; nor do
reasoning, which clients leave out of what they send back, and the results of tools, which they
shorten later on.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from engine.chat.clients import SIDE
from engine.chat.messages import Message

CONVERSATIONS_MAX = 1_024
"""Kept, the least recently used out first."""
DIGEST_BYTES = 8
"""Of a beginning: two of a server's conversations are not taken for one by chance."""
COMPACTION = "compaction"
"""It replaces a conversation, and begins with none of its messages."""

_QUOTED = re.compile(r"^USER: (.*?)(?=\n(?:ASSISTANT|USER): |\n</chat_history>|\Z)", re.S | re.M)
"""A question in the chat history that Open WebUI's side requests carry."""
_WRAPPED = re.compile(r"\A### Task:\n.*</context>\n*", re.S)
"""What Open WebUI puts before a question with a file, for as long as it is the newest."""
_ATTACHED = re.compile(r"\A<attached_files>\n.*?</attached_files>\n*", re.S)
"""What it puts before a question with a file for good, and does not quote."""


@dataclass(frozen=True, slots=True)
class _Turn:
    """What a request shows of its conversation."""

    beginnings: tuple[bytes, ...]
    """Digest of its first message, of its first two, and so on; an answer that is to go on, which
    stands last, is not among them: it will come back longer."""
    questions: int
    """Of the user, in all but its newest message."""
    question: bytes
    """The user's last one."""


@dataclass(frozen=True, slots=True)
class _Known:
    """The last turn of a conversation."""

    end: bytes
    """Digest of all its messages."""
    before: bytes
    """Digest of all but its newest."""
    question: bytes


class Conversations:
    """Gives requests the session that they don't name. For one thread at a time."""

    def __init__(self, key: bytes = b"", limit: int = CONVERSATIONS_MAX) -> None:
        """Sessions are named by digests under `key`: with the same one a conversation that is met
        again after a restart has the name that it had. Without one it is drawn.
        """
        self._key = key or secrets.token_bytes(16)
        self._limit = limit
        self._known: OrderedDict[str, _Known] = OrderedDict()
        """By session, the most recently used last."""
        self._ends: dict[bytes, str] = {}
        """The session whose last turn has this digest; never two, since the second would have
        been taken for the first."""

    def session_of(
        self, kind: str, messages: Sequence[Message], *, peeks: bool = False
    ) -> str | None:
        """The session of a request of this kind; None when it can't be told. One that only `peeks`
        changes nothing: a conversation it would begin is not begun.
        """
        if kind in SIDE:
            return self._quoted(messages)
        if kind == COMPACTION:
            return None
        turn = self._turn(messages)
        if turn is None:
            return None
        session = self._continued(turn) or self._edited(turn) or self._new(turn)
        if not peeks:
            self._remember(session, turn)
        return session

    def _continued(self, turn: _Turn) -> str | None:
        """The conversation whose last turn this one begins with, the longest one."""
        found = (self._ends.get(beginning) for beginning in reversed(turn.beginnings))
        return next((session for session in found if session is not None), None)

    def _edited(self, turn: _Turn) -> str | None:
        """The conversation whose last turn is this one but for the newest message."""
        if turn.questions < 2:
            return None
        before = turn.beginnings[-2]
        same = (name for name in reversed(self._known) if self._known[name].before == before)
        return next(same, None)

    def _new(self, turn: _Turn) -> str:
        """A name that no known conversation has; the first to begin like this has always the
        same one.
        """
        name = f"auto-{turn.beginnings[0].hex()}"
        if name not in self._known:
            return name
        number = 2
        while f"{name}-{number}" in self._known:
            number += 1
        return f"{name}-{number}"

    def _quoted(self, messages: Sequence[Message]) -> str | None:
        """The conversation whose last question a side request quotes, if it is only one's."""
        quoted = _QUOTED.findall(messages[-1].content) if messages else []
        if not quoted or not quoted[-1].strip():
            return None
        question = self._digest(_asked(quoted[-1]))
        found = [name for name, known in self._known.items() if known.question == question]
        return found[0] if len(found) == 1 else None

    def _remember(self, session: str, turn: _Turn) -> None:
        """This is the conversation's last turn now."""
        self._forget(session)
        end, before = turn.beginnings[-1], (b"", *turn.beginnings)[-2]
        self._known[session] = _Known(end, before, turn.question)
        self._ends[end] = session
        while len(self._known) > self._limit:
            self._forget(next(iter(self._known)))

    def _forget(self, session: str) -> None:
        old = self._known.pop(session, None)
        if old is not None:
            del self._ends[old.end]

    def _turn(self, messages: Sequence[Message]) -> _Turn | None:
        """What a request shows; None for one in which no user asks anything."""
        told = [message for message in messages if message.role != "system"]
        if told and told[-1].role == "assistant":
            told.pop()
        asked = [message.content for message in told if message.role == "user"]
        if not asked:
            return None
        beginnings: list[bytes] = []
        before = b""
        for message in told:
            before = self._digest(before, *_said(message))
            beginnings.append(before)
        questions = sum(message.role == "user" for message in told[:-1])
        return _Turn(tuple(beginnings), questions, self._digest(_asked(asked[-1])))

    def _digest(self, *parts: bytes) -> bytes:
        digest = hashlib.blake2b(key=self._key, digest_size=DIGEST_BYTES)
        for part in parts:
            digest.update(len(part).to_bytes(8, "little") + part)
        return digest.digest()


def _said(message: Message) -> list[bytes]:
    """What a message says, however its text is cut into parts and whatever its client does to it
    when it comes back.
    """
    if message.role == "tool":
        return [b"tool"]
    text = message.content
    if message.role == "user":
        text = _WRAPPED.sub("", text)
    parts = [message.role, text.strip()]
    for call in message.calls:
        parts += call.value or (call.name, call.arguments)
    return [*map(_bytes, parts), *(image.digest for image in message.images)]


def _asked(question: str) -> bytes:
    """A question as side requests quote it."""
    return _bytes(_ATTACHED.sub("", _WRAPPED.sub("", question.strip())).strip())


def _bytes(text: str) -> bytes:
    # JSON can carry half of a surrogate pair, which UTF-8 can't.
    return text.encode("utf-8", "surrogatepass")
