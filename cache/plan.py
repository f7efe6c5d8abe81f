"""A plan: what would serve a prompt, and why nothing serves it further."""

from __future__ import annotations

from dataclasses import dataclass

from cache.resident import Resident
from cache.types import COLD, Ask, Ids, Line, Met, Offer
from cache.why import Reason


@dataclass(frozen=True, slots=True)
class Plan:
    """What would serve an ask, and why nothing serves it further. Making one changes nothing."""

    ask: Ask
    in_place: Met
    """How far the ask goes on with the rows in place."""
    offers: tuple[Offer, ...]
    best: Offer | None
    guest: bool
    """The request would borrow the rows in place, if there is room to put them aside."""
    reason: Reason

    @property
    def line(self) -> Line:
        """Where the prefill would start."""
        return self.best.line if self.best else COLD

    @property
    def served(self) -> Ids:
        """The prompt that would be read: the ask's own tokens, or the rows' where they stand."""
        return self.best.met.served if self.best else self.ask.ids

    @property
    def forwarded(self) -> int:
        """Tokens the prefill would forward."""
        return len(self.served) - self.line.tokens

    @property
    def source(self) -> str:
        """What serves it: `cold`, or the kind of line, after the tier that brings it back."""
        if self.best is None:
            return "cold"
        tier = "" if self.best.tier == Resident.name else f"{self.best.tier}."
        return tier + self.line.kind
