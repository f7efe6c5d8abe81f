"""The trace format: requests whose prompts are runs of earlier ones; no token ids, no text."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cache.types import Valued
from replay.source import Source

FORMAT = "moorage.trace"
VERSION = 1

FRESH = -1
"""`src` of a run that copies nothing; its `offset` is then the class of its tokens."""
TEXT, WHITESPACE, SPECIAL = 0, 1, 2
"""Classes of fresh tokens: text, whitespace only, special."""
NAMED = 3
"""A fresh run of class NAMED + n repeats the token n, which is the same one all over the trace:
[0, 64) are special tokens, [64, 256) whitespace only. Text is never named."""
NAMES = 256


class Run(NamedTuple):
    """`length` tokens from `offset` of request `src`'s sequence (prompt + output), or fresh."""

    src: int
    offset: int
    length: int


class Image(NamedTuple):
    """`rows` tokens of a prompt, from `offset` on, that are an image's."""

    offset: int
    rows: int
    digest: str
    """64 hex digits. Equal ones are equal pixels; a scrubbed trace has them hashed with its salt,
    so that nobody can tell by a picture he has whether it was sent."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Tokens of a prompt by what they are; they add up to the prompt."""

    system: int = 0
    tools: int = 0
    history: int = 0
    images: int = 0
    """Rows of the images, without the marks around them."""


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
    values: tuple[tuple[int, int, int], ...] = ()
    """(start, length, value) of spans of prompt + output, ascending, that stand for values: tool
    calls. Equal numbers are equal values. Spans that a run copies whole come along unnamed."""
    images: tuple[Image, ...] = ()
    """All images of the prompt, ascending, with text between them. What their rows are is told by
    their digests; the runs over them only say how many they are."""
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
    live: Source | None = field(default=None, compare=False, repr=False)
    """The tokens as they were, where a raw recording has them."""


def values(request: Request, earlier: Mapping[int, Sequence[Valued]]) -> list[Valued]:
    """All spans of a request's sequence that stand for values, from those of earlier requests."""
    found: dict[int, Valued] = {}
    at = 0
    for run in (*request.prompt, *request.output):
        copied = earlier[run.src] if run.src != FRESH else ()
        first = bisect_left(copied, run.offset, key=lambda span: span.start)
        for span in copied[first:]:
            if span.stop > run.offset + run.length:
                break
            start = at + span.start - run.offset
            found[start] = Valued(start, start + span.stop - span.start, span.value)
        at += run.length
    for start, length, value in request.values:
        found[start] = Valued(start, start + length, value)
    return [found[start] for start in sorted(found)]
