"""The trace format: requests whose prompts are runs of earlier ones; no token ids, no text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

FORMAT = "moorage.trace"
VERSION = 1

FRESH = -1
"""`src` of a run that copies nothing; its `offset` is then the class of its tokens."""
TEXT, WHITESPACE, SPECIAL = 0, 1, 2
"""Classes of fresh tokens: text, whitespace only, special."""


class Run(NamedTuple):
    """`length` tokens from `offset` of request `src`'s sequence (prompt + output), or fresh."""

    src: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Parts:
    """Tokens of a prompt by what they are; they add up to the prompt."""

    system: int = 0
    tools: int = 0
    history: int = 0
    images: int = 0


@dataclass(frozen=True, slots=True)
class Header:
    """Line 1 of a trace."""

    clients: Mapping[str, str] = field(default_factory=dict)
    """Client name to version."""
    timing: str = "recorded"
    """`recorded` or `synthetic`."""
    tokenizer: str = ""
    licence: str = ""
    notes: str = ""
    """How it was made and what was assumed."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Keys this version does not know; kept when written again."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request; `number` is its place in the file, which is what a run's `src` names."""

    number: int
    id: str
    t_s: float
    """Arrival, from the start of the trace."""
    prompt: tuple[Run, ...]
    output: tuple[Run, ...]
    """Tokens as the engine wrote them, hidden ones and the end token included."""
    session: str | None = None
    client: str = ""
    kind: str = "turn"
    """turn, title, tags, followups, compaction, subagent, queries, autocomplete, ..."""
    after: int | None = None
    """Number of the request whose end this one waits for (closed loop)."""
    think_s: float = 0.0
    """Seconds from that end to this arrival."""
    extends: int | None = None
    """Number of the request whose prompt and answer this one continues with no edit by the user."""
    parts: Parts = Parts()
    think_end: int | None = None
    """Output tokens up to and with the end of the thinking; None without any."""
    hidden: tuple[tuple[int, int], ...] = ()
    """(start, length) spans of the output that the client never sees."""
    finish: str = "stop"
    max_tokens: int | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    aborted_after: int | None = None
    """Output tokens the client had when it hung up; 0 during the prefill; None when it stayed."""
    accepts: tuple[int, ...] = ()
    """Drafts accepted in each verify round, when that was recorded."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Keys this version does not know; kept when written again."""

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return sum(run.length for run in self.prompt)

    @property
    def output_tokens(self) -> int:
        """Tokens the engine wrote."""
        return sum(run.length for run in self.output)


@dataclass(frozen=True, slots=True)
class Trace:
    """A file's requests in arrival order; a line that was passed over leaves its number unused."""

    name: str
    header: Header
    requests: tuple[Request, ...]
