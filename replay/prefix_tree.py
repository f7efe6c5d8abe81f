"""Every sequence seen, by shared prefixes: the longest shared one in time linear in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cache.types import Ids, equal_ids


@dataclass(slots=True)
class _Edge:
    """Tokens [start, stop) of sequence `src`, then its children by their first token."""

    src: int
    start: int
    stop: int
    children: dict[int, _Edge] = field(default_factory=dict)


class PrefixTree:
    """A radix tree over the tokens of `sequences`, which it reads and does not own."""

    def __init__(self, sequences: Sequence[Ids]) -> None:
        self._sequences = sequences
        self._root = _Edge(-1, 0, 0)

    def longest(self, ids: Ids) -> tuple[int, int]:
        """(sequence, tokens) of the longest prefix shared with any sequence; (-1, 0) without.

        The sequence is the one that brought the prefix's last token into the tree.
        """
        src, at, edge = -1, 0, self._root
        while at < len(ids) and (child := edge.children.get(int(ids[at]))):
            same = self._same(child, ids, at)
            src, at, edge = child.src, at + same, child
            if same < child.stop - child.start:
                break
        return src, at

    def add(self, number: int) -> None:
        """Put sequence `number` in; what it shares with others is not stored again."""
        ids = self._sequences[number]
        edge, at = self._root, 0
        while at < len(ids):
            child = edge.children.get(int(ids[at]))
            if child is None:
                edge.children[int(ids[at])] = _Edge(number, at, len(ids))
                return
            same = self._same(child, ids, at)
            if same < child.stop - child.start:
                child = edge.children[int(ids[at])] = self._split(child, same)
            edge, at = child, at + same

    def _same(self, edge: _Edge, ids: Ids, at: int) -> int:
        """Tokens of an edge that stand in `ids` from `at` on."""
        return equal_ids(self._sequences[edge.src][edge.start : edge.stop], ids[at:])

    def _split(self, edge: _Edge, same: int) -> _Edge:
        """The first `same` tokens of an edge as one of their own, with the rest below it."""
        upper = _Edge(edge.src, edge.start, edge.start + same)
        edge.start += same
        upper.children[int(self._sequences[edge.src][edge.start])] = edge
        return upper
