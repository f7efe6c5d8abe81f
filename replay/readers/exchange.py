"""One recorded request and its reply, whatever tool wrote them down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.chat.messages import Message, Reply


@dataclass(frozen=True, slots=True)
class Exchange:
    """A chat completion request as it was sent, and as much of the answer as was delivered."""

    source: str
    """The file."""
    line: int
    """The request's line in it, from 1."""
    t_s: float
    """Arrival, seconds since the epoch."""
    t_end_s: float
    """The reply's end, or when the client hung up."""
    client: str
    """`opencode`, `openwebui`, or the product its User-Agent names."""
    version: str
    kind: str
    """turn, title, tags, followups, queries, autocomplete, side, compaction, subagent."""
    session: str | None
    """The conversation, by the client's own id; None when the request names none."""
    parent: str | None
    """A sub-agent's parent session."""
    headers: tuple[tuple[str, str], ...]
    body: Mapping[str, Any]
    """The request's fields, without messages and tools."""
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...]
    reply: Reply
    """What was delivered, in the order it was sent; empty after an error."""
    usage: Mapping[str, Any] | None
    delivered: int | None
    """Characters the client had when it hung up; None when it stayed."""
    status: int | None
    """HTTP status; None when the client hung up before there was one."""
    mark: Mapping[str, Any]
    """Facts of the plan behind a recording (`think_s`, `label`), when there was one."""

    @property
    def failed(self) -> bool:
        """Whether the request was refused, so that nothing was computed for it."""
        return self.status is not None and self.status >= 400
