"""An order: one answer that is wanted, from the request's arrival to the end of its turn"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from cache.journal import TurnRow
from cache.types import COLD, GOES_ON, Line
from engine.box import Box
from engine.decode import Rule
from engine.events import Event
from engine.prompt import Prompt
from engine.scored import Scored
from serve.heard import Heard
from serve.voice import Speaking

Rewrite = Callable[["Order"], bool]
"""Asked on the engine's thread right before the order is placed, with the main slot idle: it may
put another prompt in the order, with what writes and reads its answer; whether it did."""


@dataclass(slots=True, eq=False)
class Order:
    """One answer that is wanted. Made by a request's task, served by the desk."""

    prompt: Prompt
    rule: Rule
    limit: int
    stop_ids: frozenset[int]
    voice: Speaking
    tell: Callable[[Heard], None]
    """Called on the engine's thread; must not wait."""
    arrived_s: float
    rewrite: Rewrite | None = None
    round_s: float = 0.0
    """Least seconds from one round of its answer to the next: a script may be slow on purpose."""
    gone: bool = False
    """Nobody waits for it any more: its turn ends at the next event."""

    scored: Scored | None = None
    """Keeps its tokens' log probabilities, where somebody wants them."""
    answer: list[int] = field(default_factory=list)
    source: str | None = None
    """What its usage says served it, where that is another than the line's kind."""
    known: tuple[int, ...] | None = None
    """The answer, where it was written before; nothing is read then."""
    box: Box | None = None
    turn: Generator[Event, None, None] | None = None
    first_s: float | None = None
    """When its first token came."""
    due_s: float = 0.0
    size: int = 0
    """Tokens of its prompt as it is served."""
    line: Line = COLD
    """Where its prefill began."""

    @property
    def ttft_s(self) -> float | None:
        """Seconds from its arrival to its first token."""
        return self.first_s - self.arrived_s if self.first_s is not None else None

    def follows(self, other: Order) -> bool:
        """Whether it may go on with what another turn of its conversation writes: then it waits."""
        mine, theirs = self.prompt, other.prompt
        turns = mine.kind in GOES_ON and theirs.kind in GOES_ON
        return turns and mine.session is not None and mine.session == theirs.session

    def known_row(self, wall_s: float) -> TurnRow:
        """The journal's row of an answer that was written ahead: nothing was forwarded."""
        assert self.known
        prompt, size = self.prompt, len(self.prompt.ids)
        return TurnRow(
            wall_s=wall_s,
            session=prompt.session,
            client=prompt.client,
            kind=prompt.kind,
            prompt=size,
            asked=prompt.sent or size,
            cached=size,
            source=self.source or "known",
            gate="greedy",
            why=self.source or "known",
            parted_at=size,
            output=len(self.known),
            finish="stop" if self.known[-1] in self.stop_ids else "length",
        )
