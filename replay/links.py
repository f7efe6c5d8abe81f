"""Which earlier request of its conversation a request waited for, and which it continues."""

from __future__ import annotations

from dataclasses import dataclass

from replay.readers.answers import follows
from replay.readers.exchange import Exchange

TURNS = frozenset({"turn", "subagent"})
"""Kinds that are steps of a conversation."""
_STEPS = frozenset({"turn", "subagent", "compaction", "queries"})
_WAITS_FOR = {"tags": _STEPS | {"followups"}}
"""Kinds that a request can have waited for, by its own kind; for the others `_STEPS`: nobody waits
for a title, tags, follow-ups or an autocompletion."""


@dataclass(slots=True)
class _Known:
    number: int
    exchange: Exchange


class Links:
    """The exchanges so far, in order of arrival, by conversation."""

    def __init__(self) -> None:
        self._by_session: dict[str, list[_Known]] = {}
        self._children: dict[str, set[str]] = {}

    def add(self, number: int, exchange: Exchange) -> None:
        """Remember an exchange; `number` is its request's."""
        if exchange.session is None:
            return
        self._by_session.setdefault(exchange.session, []).append(_Known(number, exchange))
        if exchange.parent is not None:
            self._children.setdefault(exchange.parent, set()).add(exchange.session)

    def after(self, exchange: Exchange) -> tuple[int, float] | None:
        """(number, seconds between) of the request whose end this one waited for.

        It is the last to end before this one came: of its own conversation, of sub-agents that the
        conversation had started, or, for a sub-agent's first, of its parent.
        """
        if exchange.session is None:
            return None
        sessions = (exchange.session, *sorted(self._children.get(exchange.session, ())))
        last = self._last_ended(sessions, exchange)
        if last is None and exchange.parent is not None:
            last = self._last_ended((exchange.parent,), exchange)
        return (last.number, exchange.t_s - last.exchange.t_end_s) if last else None

    def extends(self, exchange: Exchange) -> int | None:
        """The previous turn of its conversation, when this turn continues it.

        A turn that goes back behind the previous one (an edit, another answer to the same question)
        continues none, though its messages begin like an older turn's.
        """
        if exchange.session is None or exchange.kind not in TURNS:
            return None
        known = reversed(self._by_session.get(exchange.session, ()))
        last = next((k for k in known if k.exchange.kind in TURNS), None)
        if last is None:
            return None
        before = last.exchange
        how = follows(before.messages, before.reply, exchange.messages)
        return last.number if how is not None else None

    def _last_ended(self, sessions: tuple[str, ...], exchange: Exchange) -> _Known | None:
        kinds = _WAITS_FOR.get(exchange.kind, _STEPS)
        ended = (
            known
            for session in sessions
            for known in self._by_session.get(session, ())
            if known.exchange.kind in kinds and known.exchange.t_end_s <= exchange.t_s
        )
        return max(ended, key=lambda known: (known.exchange.t_end_s, known.number), default=None)
