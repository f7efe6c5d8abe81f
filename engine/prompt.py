"""A prompt: a request as the engine reads it."""

from __future__ import annotations

from dataclasses import dataclass

from cache.types import Ask, Ids, Valued
from engine.pictures.picture import Picture


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request as the engine reads it."""

    ids: Ids
    session: str | None = None
    client: str = ""
    kind: str = "turn"
    tools: int = 0
    system: int = 0
    """Tokens of the tool block, which comes first, and of the system text after it."""
    answer_max: int = 0
    """Tokens its answer may have."""
    valued: tuple[Valued, ...] = ()
    """Where its tool calls stand, with what they say."""
    answer_min: int = 0
    """Tokens its answer will have at least, where that is known."""
    pictures: tuple[Picture, ...] = ()
    """Its images, in the order of their rows: each run of negative ids is the next one's."""

    last_user: int = 0
    """Row where its last user message starts; 0 when that is not known."""
    first_answer: int = 0
    """Row where the conversation's first answer starts; 0 when there is none, or not known."""
    packages: tuple[tuple[int, str], ...] = ()
    """(stop row, name) of what a server put into it, ascending."""

    sent: int = 0
    """Tokens of what the client sent, where this is served in its place; 0 where it is not."""
    via: str = ""
    """Why it is, as a source: what its journal row says served it."""

    @property
    def ask(self) -> Ask:
        """What the caches are asked."""
        return Ask(
            self.ids,
            self.session,
            self.kind,
            self.answer_max,
            self.answer_min,
            self.valued,
            self.last_user,
            self.first_answer,
            self.packages,
        )
