"""Where the tokens of a replayed request come from: a scrubbed trace's hash, or a recording"""

from __future__ import annotations

from typing import Protocol

from cache.pieces import Pieces
from cache.types import Ids, Valued
from engine.pictures.picture import Picture


class Source(Protocol):
    """The tokens of a trace's requests, by number."""

    @property
    def pieces(self) -> Pieces:
        """What the tokens are made of."""

    def prompt(self, number: int) -> Ids:
        """Ids of a request's prompt, shape (prompt tokens,)."""

    def output(self, number: int) -> Ids:
        """Ids of a request's output, shape (output tokens,)."""

    def prompt_values(self, number: int) -> tuple[Valued, ...]:
        """Spans of the prompt that stand for values, ascending."""

    def output_values(self, number: int) -> tuple[Valued, ...]:
        """The same of the output, counted from its start."""

    def pictures(self, number: int) -> tuple[Picture, ...]:
        """Pictures of the prompt, in the order of their rows."""
