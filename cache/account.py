"""The account of one sequence's rows, wherever they lie: tokens, taint, copies of its sections."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

import numpy as np

from cache.anchors import AnchorConfig, Anchors, Tensors
from cache.types import (
    GOES_ON,
    Ask,
    Gate,
    Generation,
    Ids,
    Line,
    Region,
    Valued,
    common_prefix,
)

COMPACTION = "compaction"
"""Kind of the request that replaces a conversation by its summary."""


@dataclass(frozen=True, slots=True)
class End:
    """The end anchor: all sections at the last position a generation forwarded."""

    tokens: int
    tensors: Tensors


@dataclass(frozen=True, slots=True)
class Answer:
    """What a generation says of its tokens, counted from the prompt's end."""

    thinking: int = 0
    """Tokens up to and with the end of the thinking."""
    hidden: tuple[tuple[int, int], ...] = ()
    """(start, length) of spans the client never saw, ascending."""
    valued: tuple[Valued, ...] = ()
    """Spans that stand for values, ascending."""

    def over(self, start: int, stop: int) -> Generation:
        """The answer as rows [start, stop) hold it; its last token may not be among them."""
        hidden = tuple((start + at, size) for at, size in self.hidden)
        valued = tuple(Valued(start + v.start, start + v.stop, v.value) for v in self.valued)
        thinking = start + self.thinking
        ends = [at + size for at, size in hidden] + [span.stop for span in valued]
        whole = Generation(start, thinking, max(stop, thinking, *ends), hidden, valued)
        return replace(whole.up_to(stop), whole=True)


@dataclass(frozen=True, slots=True)
class Known:
    """A copy whose first `at` tokens were found to stand for the first `row` rows."""

    copy: Ids
    valued: tuple[Valued, ...]
    row: int
    at: int

    def begins(self, ask: Ask) -> bool:
        """Whether another copy starts with the same tokens, which say the same.

        The token after them counts: whether whitespace stands at an answer's end hangs on it.
        """
        same = common_prefix(self.copy[: self.at + 1], ask.ids) == self.at + 1
        return same and self.valued == tuple(v for v in ask.valued if v.stop <= self.at)


@dataclass(slots=True)
class Account:
    """What is known of a sequence's rows.

    Ranges over the rows [0, valid):
      [0, taint)      written by grid chunks from a cold state: a cold prefill's bits at grid lines
      [taint, valid)  written by a verify block, or computed on top of one
    An anchor at or below `taint` is held to the bit gate, one above it to the greedy gate. `ids`
    are the tokens of the rows, and whoever serves them compares them.
    """

    buffer: Ids
    anchors: Anchors
    valid: int = 0
    taint: int | None = None
    session: str | None = None
    kind: str = "turn"
    """What its last request was for."""
    tools: int = 0
    """Rows of the tool block, which comes first."""
    system: int = 0
    """Rows up to the end of the system text."""
    prompt: int = 0
    """Rows of the last prompt."""
    generations: list[Generation] = field(default_factory=list)
    """The answers among the rows, ascending."""
    coming: list[Generation] = field(default_factory=list)
    """Answers of which rows are read again, ascending; known again when all their rows are."""
    end: End | None = None
    left: bool = False
    """Its session has gone on with another conversation: few come back from that."""
    compacted: bool = False
    """Its last answer summed it up, and the summary takes its place: only its head comes back."""
    known: Known | None = None
    """How far the last copy went that was aligned: the next one mostly begins like it."""

    @classmethod
    def empty(cls, window: int, config: AnchorConfig) -> Account:
        """Of no rows, with room for `window` of them."""
        return cls(np.zeros(window, np.int32), Anchors(config))

    @property
    def ids(self) -> Ids:
        """Tokens of the rows."""
        return self.buffer[: self.valid]

    @property
    def goes_on(self) -> bool:
        """Whether a later request may extend all of it."""
        return self.kind in GOES_ON and not self.compacted

    def gate(self, line: int) -> Gate:
        """What a state at `line` is held to."""
        return Gate.BITS if self.taint is None or line <= self.taint else Gate.GREEDY

    def best_line(self, reach: int) -> Line | None:
        """The highest line at or below `reach`; at equal height the stricter gate."""
        anchor = self.anchors.best(reach)
        if self.end is not None and self.end.tokens <= reach:
            at = (self.end.tokens, -Gate.GREEDY)
            if anchor is None or at >= (anchor.tokens, -anchor.gate):
                return Line(self.end.tokens, "end", Gate.GREEDY)
        return Line(anchor.tokens, anchor.kind, anchor.gate) if anchor else None

    def copies_at(self, line: Line) -> Tensors:
        """The sections at a line that `best_line` gave."""
        if line.kind == "end" and self.end is not None and self.end.tokens == line.tokens:
            return self.end.tensors
        anchor = self.anchors.best(line.tokens)
        assert anchor is not None and anchor.tokens == line.tokens, "the line is stale"
        return anchor.tensors

    def extend(self, ids: Ids, stop: int) -> None:
        """Rows [valid, stop) now hold the tokens of `ids` at those places."""
        assert self.valid <= stop <= len(self.buffer)
        self.buffer[self.valid : stop] = ids[self.valid : stop]
        self.valid = stop
        while self.coming and self.coming[0].stop <= stop:
            whole = self.coming.pop(0)
            if self.generations and self.generations[-1].start == whole.start:
                self.generations.pop()
            self.generations.append(whole)

    def cut(self, length: int) -> None:
        """Only the first `length` rows stay, and what stood on later ones goes with them."""
        assert length <= self.valid
        self.valid = length
        self.coming.clear()
        if self.known is not None and self.known.row > length:
            self.known = None
        self.anchors.cut(length)
        self.prompt = min(self.prompt, length)
        if self.end is not None and self.end.tokens > length:
            self.end = None
        if self.taint is not None and self.taint >= length:
            self.taint = None
        while self.generations and self.generations[-1].start >= length:
            self.generations.pop()
        if self.generations and self.generations[-1].stop > length:
            self.generations[-1] = self.generations[-1].up_to(length)

    def region(self, position: int) -> Region:
        """What a row belongs to."""
        if position < self.tools:
            return Region.TOOLS
        if position < self.system:
            return Region.SYSTEM
        for generation in reversed(self.generations):
            if generation.start <= position < generation.stop:
                thinking = position < generation.think_end
                return Region.REASONING if thinking else Region.ANSWER
        return Region.HISTORY

    def aside(self, top: int, kept: Collection[int]) -> Account:
        """The account of a copy of rows [0, top): the anchors at `kept`, and the end if it fits.

        Copies of sections are shared between the two: nobody writes to them.
        """
        copied = replace(
            self,
            buffer=self.buffer[:top].copy(),
            anchors=self.anchors.only(kept),
            generations=list(self.generations),
            coming=[],
        )
        copied.cut(top)
        return copied

    def check(self, grid: int) -> None:
        """Integrity; raises AssertionError."""
        self.anchors.check(self.valid, grid, self.taint)
        assert self.taint is None or 0 <= self.taint <= self.valid
        assert self.end is None or self.end.tokens <= self.valid
        at = 0
        for generation in self.generations:
            assert at <= generation.start and generation.stop <= self.valid
            at = generation.stop
