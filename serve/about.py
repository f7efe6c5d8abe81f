"""What a server says of itself: its model, and what that one does not do by itself"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class About:
    """The model's name, and what holds for its answers."""

    model: str
    ends_after: int | None = None
    """Tokens after which an answer is ended for a model that does not find the end: a random one.
    """
    thinking_tokens: int | None = None
    """The same of its thoughts, where neither a request nor the settings say anything of them."""
