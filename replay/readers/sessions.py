"""Conversations of requests that name none: by where their prompts part, and what they quote"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.chat.clients import SIDE
from engine.chat.messages import Message
from replay.readers.answers import follows
from replay.readers.exchange import Exchange

_QUOTED = re.compile(r"^USER: (.*?)(?=\n(?:ASSISTANT|USER): |\n</chat_history>|\Z)", re.S | re.M)
"""A question in the chat history that Open WebUI's side requests carry."""
_REACH_S = 600.0
"""How far from its turn a side request can be: a title comes before it, the others after."""


@dataclass(slots=True)
class _Conversation:
    """The requests of one conversation so far."""

    session: str
    turns: list[Exchange]


def assign(exchanges: Sequence[Exchange], name: str) -> list[Exchange]:
    """Give every exchange (in order of arrival) a session where one can be told.

    A turn without an id belongs to the conversation that it continues, else to the one with which
    it shares most of its first messages, else to a new one named after `name`. A side request
    without an id belongs to the conversation that it quotes.
    """
    conversations: list[_Conversation] = []
    out = list(exchanges)
    for place, exchange in enumerate(exchanges):
        if exchange.session is not None or exchange.kind in SIDE:
            continue
        home = _home(exchange, conversations)
        if home is None:
            home = _Conversation(f"{name}#{len(conversations)}", [])
            conversations.append(home)
        out[place] = replace(exchange, session=home.session)
        home.turns.append(out[place])
    turns = [e for e in out if e.session is not None and e.kind not in SIDE]
    for place, exchange in enumerate(out):
        if exchange.session is None and exchange.kind in SIDE:
            out[place] = replace(exchange, session=_quoted(exchange, turns))
    return out


def _home(exchange: Exchange, conversations: Sequence[_Conversation]) -> _Conversation | None:
    """The conversation a turn belongs to, the most recent first."""
    recent = sorted(conversations, key=lambda c: c.turns[-1].t_s, reverse=True)
    for home in recent:
        for turn in reversed(home.turns):
            if follows(turn.messages, turn.reply, exchange.messages):
                return home
    shared = [_shared(exchange.messages, home.turns[-1].messages) for home in recent]
    most = max(shared, default=0)
    return recent[shared.index(most)] if most else None


def _shared(a: Sequence[Message], b: Sequence[Message]) -> int:
    """Messages two requests begin with alike, system ones aside: those are everybody's."""
    a, b = ([m for m in messages if m.role != "system"] for messages in (a, b))
    pairs = zip(a, b, strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))


def _quoted(side: Exchange, turns: Sequence[Exchange]) -> str | None:
    """The session of the turn nearest in time whose last question a side request quotes."""
    text = side.messages[-1].content
    questions = [question.strip() for question in _QUOTED.findall(text)]
    if not questions or not questions[-1]:
        return None
    near = sorted(
        turns, key=lambda turn: min(abs(turn.t_s - side.t_s), abs(turn.t_end_s - side.t_s))
    )
    for turn in near:
        if abs(turn.t_s - side.t_s) > _REACH_S and abs(turn.t_end_s - side.t_s) > _REACH_S:
            break
        asked = [m.content.strip() for m in turn.messages if m.role == "user"]
        if asked and questions[-1] in asked[-1]:
            return turn.session
    return None
