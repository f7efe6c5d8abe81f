"""Anchors: copies of all sections at a line, kept under a budget."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from cache.budget import Grow, freely
from cache.types import CacheState, Gate
from cache.worth import RULES, Layout, Partings, Rule, costs, spans


@dataclass(frozen=True, slots=True)
class AnchorConfig:
    """How many anchors are kept and which of them never go. Figures: the seed's."""

    budget_bytes: int = 5 * 2**29
    newest_kept: int = 4
    """The next turn resumes near the end, so these stay even over the budget."""
    head_step: int = 4_096
    head_limit: int = 32_768
    """Lines at multiples of `head_step` up to `head_limit` outlive the others under `heads`."""
    rule: Rule = "worth"
    partings: Partings = field(default_factory=Partings)
    """Where prompts are expected to part, with rule `worth`."""

    def __post_init__(self) -> None:
        assert self.budget_bytes >= 0 and self.newest_kept >= 1 and self.rule in RULES
        assert self.head_step > 0 and self.head_limit >= 0

    def is_head(self, line: int) -> bool:
        """Whether eviction spares this line as long as another can go."""
        return line % self.head_step == 0 and line <= self.head_limit


Shared = Callable[[], set[int]]
"""Which copies of sections somebody else holds as well: letting go of one frees nothing."""


@dataclass(frozen=True, slots=True)
class Room:
    """What a new anchor takes, and who must agree."""

    anchor_bytes: int
    layout: Layout
    grow: Grow = freely
    shared: Shared = set


Tensors = tuple[torch.Tensor, ...]
"""Copies of all sections, in the state's order."""


def copy_sections(state: CacheState, into: Tensors | None = None) -> Tensors:
    """What every section holds now, in new tensors or in those of an older copy."""
    if into is None:
        return tuple(section.tensor.clone() for section in state.sections)
    for section, tensor in zip(state.sections, into, strict=True):
        tensor.copy_(section.tensor)
    return into


def write_sections(state: CacheState, tensors: Tensors) -> None:
    """Put copies back into the live sections."""
    assert len(tensors) == len(state.sections), "a copy of another model's state"
    for section, tensor in zip(state.sections, tensors, strict=True):
        live = section.tensor
        assert live.shape == tensor.shape and live.dtype == tensor.dtype, section.name
        live.copy_(tensor)


@dataclass(frozen=True, slots=True)
class Anchor:
    """All sections after `tokens` tokens, and what a resume there is held to."""

    tokens: int
    gate: Gate
    tensors: Tensors
    kind: Literal["grid", "checkpoint", "end"] = "grid"
    """On a grid line, wherever a generation was, or where one ended."""


Kept = Callable[[Anchor], bool]
"""Whether an anchor can't be given back, or nothing would be free if it were."""


def victim(lines: Sequence[int], layout: Layout, config: AnchorConfig) -> int | None:
    """Which of the lines (ascending) goes first; None when all are protected.

    The newest go never. Of the others: `worth` the one whose loss costs least (see cache/worth.py),
    `heads` the lowest that is no head line, then the highest head line, `even` the one that leaves
    the shortest gap, `newest` the lowest, `every` none.
    """
    old = lines[: max(0, len(lines) - config.newest_kept)]
    if not old or config.rule == "every":
        return None
    if config.rule == "newest":
        return old[0]
    if config.rule == "heads":
        body = [line for line in old if not config.is_head(line)]
        return body[0] if body else old[-1]
    prices = spans(lines) if config.rule == "even" else costs(lines, layout, config.partings)
    return min(zip(prices[: len(old)], old, strict=True))[1]


class Anchors:
    """The anchors of one sequence, ascending by position."""

    def __init__(self, config: AnchorConfig) -> None:
        self.config = config
        self._anchors: list[Anchor] = []

    @classmethod
    def of(cls, config: AnchorConfig, anchors: Sequence[Anchor]) -> Anchors:
        """These anchors, ascending by position, whatever the budget says."""
        some = cls(config)
        some._anchors = list(anchors)
        return some

    def __len__(self) -> int:
        return len(self._anchors)

    def __iter__(self) -> Iterator[Anchor]:
        return iter(self._anchors)

    @property
    def lines(self) -> list[int]:
        """Positions of the anchors, ascending."""
        return [anchor.tokens for anchor in self._anchors]

    def best(self, limit: int) -> Anchor | None:
        """The highest anchor at or below `limit`."""
        for anchor in reversed(self._anchors):
            if anchor.tokens <= limit:
                return anchor
        return None

    def take(self, line: int, gate: Gate, state: CacheState, room: Room) -> None:
        """Copy the sections at a grid line; room is made before the copy."""
        if self._make_room(line, room):
            self._insert(Anchor(line, gate, copy_sections(state)))

    def checkpoint(self, line: int, state: CacheState, room: Room) -> None:
        """Copy the sections wherever a generation is; the greedy gate."""
        if self._make_room(line, room):
            self._insert(Anchor(line, Gate.GREEDY, copy_sections(state), "checkpoint"))

    def adopt(self, anchor: Anchor, room: Room) -> bool:
        """Take in copies that were made elsewhere, if they are worth the room."""
        if not self._make_room(anchor.tokens, room):
            return False
        self._insert(anchor)
        return True

    def cut(self, length: int) -> None:
        """Drop the anchors above `length`: their rows are about to go."""
        while self._anchors and self._anchors[-1].tokens > length:
            self._anchors.pop()

    def under(self, config: AnchorConfig) -> Anchors:
        """The same anchors under another budget."""
        return Anchors.of(config, self._anchors)

    def only(self, lines: Collection[int]) -> Anchors:
        """The anchors at these lines; the copies are shared, nobody writes to them."""
        return Anchors.of(self.config, [a for a in self._anchors if a.tokens in lines])

    def _insert(self, anchor: Anchor) -> None:
        at = bisect_left(self.lines, anchor.tokens)
        self._anchors.insert(at, anchor)

    def spare(self, kept: Kept) -> int:
        """How many copies `give` could free, the newest included."""
        return sum(not kept(anchor) for anchor in self._anchors)

    def body(self, kept: Kept) -> int:
        """How many of those are not the newest."""
        if self.config.rule == "every":
            return 0
        return max(0, self.spare(kept) - self.config.newest_kept)

    def give(self, count: int, layout: Layout, kept: Kept, *, newest: bool = False) -> int:
        """Drop up to `count` anchors, the least worth first, with `newest` those too; how many."""
        given = 0
        while given < count:
            lines = [anchor.tokens for anchor in self._anchors if not kept(anchor)]
            gone = victim(lines, layout, self.config)
            if gone is None and newest and lines:
                gone = lines[0]
            if gone is None:
                break
            self._anchors = [anchor for anchor in self._anchors if anchor.tokens != gone]
            given += 1
        return given

    def _make_room(self, line: int, room: Room) -> bool:
        """Evict until one at `line` fits; False when there is one already, or it goes itself."""
        lines = self.lines
        at = bisect_left(lines, line)
        if lines[at : at + 1] == [line]:
            return False
        lines.insert(at, line)
        layout = room.layout
        while len(lines) * room.anchor_bytes > self.config.budget_bytes:
            gone = victim(lines, layout, self.config)
            if gone is None:
                break
            lines.remove(gone)
        gone_now = {id(a.tensors) for a in self._anchors if a.tokens not in lines}
        grown = not gone_now or gone_now <= room.shared()
        if grown and not room.grow("anchors", room.anchor_bytes):
            gone = victim(lines, layout, self.config)
            lines.remove(lines[0] if gone is None else gone)
        else:
            grown = False
        kept = set(lines)
        self._anchors = [anchor for anchor in self._anchors if anchor.tokens in kept]
        # One went for it, and yet there may be no room: somebody else may hold that copy as well.
        return line in kept and not (grown and not room.grow("anchors", room.anchor_bytes))

    def check(self, valid: int, grid: int, taint: int | None) -> None:
        """Integrity: ascending, over valid rows, bit-gated only on clean grid lines."""
        lines = self.lines
        assert lines == sorted(set(lines)), lines
        assert all(0 < line <= valid for line in lines), (lines, valid)
        for anchor in self._anchors:
            clean = taint is None or anchor.tokens <= taint
            assert anchor.gate is Gate.GREEDY or (anchor.tokens % grid == 0 and clean), (
                anchor.tokens
            )
