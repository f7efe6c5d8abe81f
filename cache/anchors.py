"""Anchors: copies of all sections at a line, kept under a budget."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from cache.types import CacheState, Gate


@dataclass(frozen=True, slots=True)
class AnchorConfig:
    """How many anchors are kept and which of them never go. Figures: the seed's."""

    budget_bytes: int = 5 * 2**29
    newest_kept: int = 4
    """The next turn resumes near the end, so these stay even over the budget."""
    head_step: int = 4_096
    head_limit: int = 32_768
    """Lines at multiples of `head_step` up to `head_limit` outlive the others below the newest."""

    def __post_init__(self) -> None:
        assert self.budget_bytes >= 0 and self.newest_kept >= 1
        assert self.head_step > 0 and self.head_limit >= 0

    def is_head(self, line: int) -> bool:
        """Whether eviction spares this line as long as another can go."""
        return line % self.head_step == 0 and line <= self.head_limit


def copy_sections(state: CacheState) -> tuple[torch.Tensor, ...]:
    """New tensors that hold what every section holds now, in the state's order."""
    return tuple(section.tensor.clone() for section in state.sections)


def write_sections(state: CacheState, tensors: Sequence[torch.Tensor]) -> None:
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
    tensors: tuple[torch.Tensor, ...]


def victim(lines: Sequence[int], config: AnchorConfig) -> int | None:
    """Which of the lines (ascending) goes first: the lowest that nothing protects.

    The newest go never; the head lines go, lowest last, only when nothing else is left.
    """
    old = lines[: max(0, len(lines) - config.newest_kept)]
    if not old:
        return None
    body = [line for line in old if not config.is_head(line)]
    return body[0] if body else old[-1]


class Anchors:
    """The anchors of one sequence, ascending: a later one is a newer one."""

    def __init__(self, config: AnchorConfig) -> None:
        self._config = config
        self._anchors: list[Anchor] = []

    def __len__(self) -> int:
        return len(self._anchors)

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

    def take(self, line: int, gate: Gate, state: CacheState, anchor_bytes: int) -> None:
        """Copy the sections at a line above all others; room is made before the copy."""
        assert not self._anchors or line > self._anchors[-1].tokens, (
            f"line {line} is not the newest"
        )
        self._make_room(line, anchor_bytes)
        self._anchors.append(Anchor(line, gate, copy_sections(state)))

    def cut(self, length: int) -> None:
        """Drop the anchors above `length`: their rows are about to go."""
        while self._anchors and self._anchors[-1].tokens > length:
            self._anchors.pop()

    def drop(self, lines: Collection[int]) -> None:
        """Drop the anchors at these lines."""
        self._anchors = [anchor for anchor in self._anchors if anchor.tokens not in lines]

    def _make_room(self, line: int, anchor_bytes: int) -> None:
        lines = [*self.lines, line]
        gone: set[int] = set()
        while (len(lines) - len(gone)) * anchor_bytes > self._config.budget_bytes:
            lowest = victim([at for at in lines if at not in gone], self._config)
            if lowest is None:
                break
            gone.add(lowest)
        if gone:
            self.drop(gone)

    def check(self, valid: int, grid: int) -> None:
        """Integrity: ascending lines on the grid, all over rows that are valid."""
        lines = self.lines
        assert lines == sorted(set(lines)), lines
        assert all(0 < line <= valid and line % grid == 0 for line in lines), (lines, valid)
