"""Where the tokens of a replayed request come from: a scrubbed trace's hash, or a recording"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from cache.pieces import Pieces
from cache.types import Ids, Valued
from engine.pictures.picture import Picture


class Marks(NamedTuple):
    """Rows of a prompt."""

    last_user: int = 0
    """Where its last user message starts; 0 when that is not known."""
    first_answer: int = 0
    """Where the conversation's first answer starts; 0 when there is none, or not known."""


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

    def marks(self, number: int) -> Marks:
        """Where in the prompt its last user message and the first answer start."""
