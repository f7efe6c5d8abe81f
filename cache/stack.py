"""The tiers in order: ask all, take the best line, restore; the only place that compares offers."""

from __future__ import annotations

from dataclasses import dataclass

from cache.ports import Model
from cache.resident import Resident
from cache.types import COLD, Ask, Ids, Line, Marks, Offer, Outcome
from cache.why import Ghosts, Reason, explain


@dataclass(frozen=True, slots=True)
class Plan:
    """What would serve an ask, and why nothing serves it further. Making one changes nothing."""

    ask: Ask
    offers: tuple[Offer, ...]
    best: Offer | None
    reason: Reason

    @property
    def line(self) -> Line:
        """Where the prefill would start."""
        return self.best.line if self.best else COLD

    @property
    def source(self) -> str:
        """What serves it: `cold`, or the kind of line of the tier that does."""
        return self.line.kind


class Stack:
    """All caches of one engine, behind one question and one choice."""

    def __init__(self, model: Model, resident: Resident) -> None:
        self._model = model
        self.resident = resident
        self._ghosts = Ghosts()

    def plan(self, ask: Ask) -> Plan:
        """Ask every tier and pick: a later line wins. Changes nothing, so a peek is this call."""
        resident = self.resident
        offer = resident.offer(ask)
        line = offer.line if offer else COLD
        shared = resident.shared(ask.ids)
        reason = explain(
            line,
            shared,
            self._ghosts.shared(ask.ids),
            resident.valid,
            ask.limit,
            self._model.grid,
            resident.anchored_below(min(shared, ask.limit)),
            resident.marks,
        )
        return Plan(ask, (offer,) if offer else (), offer, reason)

    def restore(self, plan: Plan, marks: Marks) -> Line:
        """Act on a plan just made: remember what goes, restore the line, let the model resume."""
        resident = self.resident
        if plan.reason.shared < resident.valid:
            self._ghosts.add(resident.ids)
        if plan.best is None:
            resident.start_cold(self._model)
        else:
            resident.restore(plan.best, self._model)
        resident.marks = marks
        return plan.line

    def passed(self, ids: Ids, stop: int) -> None:
        """The prefill of `ids` has come to `stop`."""
        self.resident.passed(ids, stop, self._model)

    def keep(self, ids: Ids, marks: Marks) -> Outcome:
        """The generation has ended: `ids` are the committed tokens, prompt and answer."""
        return self.resident.keep_end(ids, marks, self._model)

    def forget(self) -> None:
        """The engine failed in the middle of a forward: nothing it holds is known to be whole."""
        self.resident.start_cold(self._model)

    def held_bytes(self) -> dict[str, int]:
        """Bytes by what holds them, as the budgets count them."""
        cost = self._model.cost()
        rows = {"rows": self.resident.valid * cost.row_bytes}
        return rows | self.resident.held_bytes(cost.anchor_bytes)

    def check(self) -> None:
        """Integrity of every account; for tests and idle time."""
        self.resident.check(self._model.grid)
