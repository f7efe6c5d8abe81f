"""The values every tier speaks: state, lines, asks, offers, outcomes."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from cache.keys import whole_keys

Ids = npt.NDArray[np.int32]
"""Token ids of a sequence, shape (n,); negative ones are key ids (cache/keys.py)."""


class Gate(IntEnum):
    """What a resume is held to; the smaller value is the stricter promise."""

    BITS = 0
    """Equal to a cold prefill on the same grid, bit for bit."""
    GREEDY = 1
    """The state that wrote the previous answer: the same greedy tokens."""


@dataclass(frozen=True, slots=True)
class Section:
    """A recurrent tensor: it absorbed every token and can't be rewound, so it is copied whole."""

    name: str
    tensor: torch.Tensor


@dataclass(frozen=True, slots=True)
class View:
    """A position-indexed buffer: one row a token along `axis`; a row depends on no later token."""

    name: str
    tensor: torch.Tensor
    axis: int

    def rows(self, start: int, stop: int) -> torch.Tensor:
        """Rows [start, stop) as a view of the buffer itself, not a copy."""
        return self.tensor.narrow(self.axis, start, stop - start)


@dataclass(frozen=True, slots=True)
class CacheState:
    """What a model must get back to continue: its live tensors, by name, in a fixed order."""

    sections: tuple[Section, ...]
    views: tuple[View, ...]


@dataclass(frozen=True, slots=True)
class Cost:
    """What the budgets count. A replay puts the board's figures here, whatever really moves."""

    row_bytes: int
    """Of one token over all views."""
    anchor_bytes: int
    """Bytes of one copy of all sections."""
    workspace_floor_bytes: int = 0
    workspace_row_bytes: int = 0
    workspace_cap_bytes: int = 0
    """A prefill to n tokens takes floor + n * row, at most the cap, beside weights and buffers."""
    prefill_tokens_s: float = 740.0
    """A prior for the cold prefill rate until one was measured (the seed's fastest)."""
    spilled_row_bytes: int = 0
    """A row's in a spilled block, where the board's rows are others than those moved; else 0."""

    def workspace_bytes(self, tokens: int) -> int:
        """Bytes a prefill up to `tokens` is expected to take beside weights and buffers."""
        want = self.workspace_floor_bytes + tokens * self.workspace_row_bytes
        return min(want, self.workspace_cap_bytes) if self.workspace_cap_bytes else want


@dataclass(frozen=True, slots=True)
class Limits:
    """Memory limits of an engine with its caches; ValueError in one line that names the setting."""

    ceiling_bytes: int
    """The engine between requests: allocated and the allocator's reserve."""
    peak_bytes: int
    """The engine during a prefill, the prefill's workspace among it."""
    slack_bytes: int
    """Freed blocks that the allocator may keep between requests."""

    def __post_init__(self) -> None:
        for name in ("ceiling_bytes", "peak_bytes", "slack_bytes"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")
        if self.peak_bytes < self.ceiling_bytes:
            raise ValueError("peak_bytes must not be below ceiling_bytes")
        if self.slack_bytes >= self.ceiling_bytes:
            raise ValueError("slack_bytes must be below ceiling_bytes")


@dataclass(frozen=True, slots=True)
class Manifest:
    """All that decides a stored row's bits, and nothing that only decides which rows exist."""

    files: tuple[str, ...]
    """Source files that compute rows, as paths inside the project."""
    knobs: Mapping[str, str]
    weights: str
    """Recipe of the weights, or a digest of their content."""
    grid: int
    libraries: Mapping[str, str]
    """Versions of the libraries that compute rows."""
    machine: Mapping[str, str] = field(default_factory=dict)
    """Thread count, instruction set and such: on a CPU they change bits too."""
    tables: Mapping[str, str] = field(default_factory=dict)
    """Files that kernels read (tile sizes and such), by name; their content counts."""
    weight_files: Mapping[str, str] = field(default_factory=dict)
    """Paths of the weights, inside the project or from the root, to a digest of what they hold."""
    legacy_names: Mapping[str, str] = field(default_factory=dict)
    """Names of sections in files of format 1, to the sections they are."""
    legacy_absent: tuple[str, ...] = ()
    """Sections that files of format 1 lack, all zeros for whatever such a file holds."""


@dataclass(frozen=True, slots=True)
class Line:
    """A position where a sequence may resume: `tokens` tokens are absorbed."""

    tokens: int
    kind: Literal["cold", "grid", "checkpoint", "end"]
    gate: Gate


COLD = Line(0, "cold", Gate.BITS)


@dataclass(frozen=True, slots=True)
class Valued:
    """Tokens [start, stop) that stand for a value: any other tokens of an equal value say the same.

    A tool call is one: a client writes its arguments anew. Whoever names values answers for it that
    equal ones mean the same; here they are only compared.
    """

    start: int
    stop: int
    value: Hashable


GOES_ON = frozenset({"turn", "subagent"})
"""Kinds of requests that a later one extends; nobody comes back to a title's rows."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One prompt as the tiers see it."""

    ids: Ids
    session: str | None = None
    kind: str = "turn"
    answer_max: int = 0
    """Rows its answer may take."""
    answer_min: int = 0
    """Rows its answer will take at least, where that is known."""
    valued: tuple[Valued, ...] = field(default=(), repr=False)
    """Spans of the prompt that stand for values, ascending."""
    last_user: int = 0
    """Row where its last user message starts; 0 when that is not known."""
    first_answer: int = 0
    """Row where the conversation's first answer starts; 0 when there is none, or not known."""
    packages: tuple[tuple[int, str], ...] = ()
    """(stop row, name) of what a server put into the prompt, ascending."""


@dataclass(frozen=True, slots=True)
class Met:
    """How far a prompt goes on with a sequence: its first `copy` tokens stand for `rows` rows."""

    rows: int
    copy: int
    served: Ids
    """The prompt as it would be served from those rows: the rows' own tokens, then the rest."""

    @property
    def limit(self) -> int:
        """The highest line that can serve it: one token must be forwarded to get logits."""
        return min(self.rows, len(self.served) - 1)


@dataclass(frozen=True, slots=True)
class Offer:
    """A tier's answer to an ask: where it can resume, and what is left to do."""

    tier: str
    line: Line
    met: Met
    entry: Any = field(default=None, compare=False, repr=False)
    read_bytes: int = 0
    read_s: float = 0.0
    """To be read from a drive, and the seconds which that is expected to take."""

    @property
    def forwarded(self) -> int:
        """Tokens a prefill from there would forward."""
        return len(self.met.served) - self.line.tokens

    def cost_s(self, cost: Cost) -> float:
        """Seconds until the prompt would be read: from the drive, then at the prefill's rate."""
        return self.read_s + self.forwarded / cost.prefill_tokens_s


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a directory is not opened: the file, or nothing, and one line."""

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an operation on the world ended; a failure here is a colder start, never an exception."""

    ok: bool
    why: str = ""
    nbytes: int = 0


def common_prefix(a: Ids, b: Ids) -> int:
    """Leading tokens that two sequences have in common, compared element by element.

    Content named by key ids is shared from KEY_ROWS of its rows on, or not at all.
    """
    return whole_keys(a, equal_ids(a, b))


def equal_ids(a: Ids, b: Ids) -> int:
    """Number of leading ids that are equal, whatever they stand for."""
    n = min(len(a), len(b))
    # Look at growing windows, so that an early parting costs little.
    start, step = 0, 512
    while start < n:
        stop = min(n, start + step)
        differ = np.flatnonzero(a[start:stop] != b[start:stop])
        if len(differ):
            return start + int(differ[0])
        start, step = stop, step * 4
    return n


def joined(ids: Ids, tokens: Sequence[int]) -> Ids:
    """A prompt and an answer, one sequence."""
    return np.concatenate([ids, np.array(tokens, np.int32)])


class Region(StrEnum):
    """Where in a sequence a position lies, as far as the turn that wrote it said."""

    TOOLS = "tools"
    SYSTEM = "system"
    HISTORY = "history"
    REASONING = "reasoning"
    ANSWER = "answer"


@dataclass(frozen=True, slots=True)
class Generation:
    """An answer among the rows: [start, stop) were written by the engine, thinking first."""

    start: int
    """Tokens of the prompt it answered; what the template opened for it lies before."""
    think_end: int
    """First row after its thinking; equals `start` when it did not think."""
    stop: int
    hidden: tuple[tuple[int, int], ...] = ()
    """(start, length) of spans the client never saw, in rows, ascending, inside [start, stop)."""
    valued: tuple[Valued, ...] = field(default=(), repr=False)
    """Spans that stand for values, in rows, ascending, inside [start, stop)."""
    whole: bool = True
    """Nothing of it was cut off again."""

    def __post_init__(self) -> None:
        assert 0 < self.start <= self.think_end <= self.stop
        assert all(self.start <= at and at + size <= self.stop for at, size in self.hidden)
        assert all(self.start <= span.start <= span.stop <= self.stop for span in self.valued)

    def up_to(self, stop: int) -> Generation:
        """Its rows below `stop`, with what lies wholly below it."""
        assert stop > self.start
        if stop >= self.stop:
            return self
        return Generation(
            self.start,
            min(self.think_end, stop),
            stop,
            tuple((at, min(size, stop - at)) for at, size in self.hidden if at < stop),
            tuple(span for span in self.valued if span.stop <= stop),
            whole=False,
        )
