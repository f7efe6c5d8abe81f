"""Every crash in a log, judged: what the suites of the disk tier and of the spill share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from sim.crash import Counts, CrashState, Order, crash_states
from sim.micro import Op
from sim.pending import Start

Files = Mapping[str, bytes]
State = frozenset[tuple[str, bytes]]


@dataclass(slots=True)
class Tally:
    """What a run of checks came to."""

    name: str
    states: int = 0
    checks: int = 0
    sampled: int = 0
    violations: list[str] = field(default_factory=list)

    def line(self) -> str:
        """One line for the summary."""
        sampled = f", {self.sampled} points sampled" if self.sampled else ""
        found = f"{len(self.violations)} violations{sampled}"
        return f"{self.name:44} {self.states:6} states {self.checks:6} checks  {found}"


class Judge(Protocol):
    """Opens directories, and says what is wrong with them."""

    def noted(self, state: Files, notes: Sequence[str]) -> list[str]:
        """All that is wrong, with what was noted until the crash."""

    def opening(self, state: Files) -> Sequence[Any]:
        """The log of opening it."""


def crashed(
    judge: Judge,
    name: str,
    start: Files,
    log: Sequence[Op],
    order: Order = Order.WEAK,
    *,
    since: int = 0,
    again: bool = False,
    until: str = "",
) -> Tally:
    """Every crash in a log; with `again` also every crash while the directory is opened after.

    Stops at the first violation that says `until`, where that is given.
    """
    tally, counts = Tally(f"{name}, {order}"), Counts()
    for state in crash_states(Start.of(start), log, order, since=since, counts=counts):
        tally.checks += 1
        for why in judge.noted(state.files, state.notes):
            tally.violations.append(f"crash at {state.point}: {why}")
        if again:
            _again(judge, tally, state, order)
        if until and any(until in why for why in tally.violations):
            break
    tally.states, tally.sampled = counts.states, counts.sampled
    return tally


def _again(judge: Judge, tally: Tally, state: CrashState, order: Order) -> None:
    """Crashes while what the first one left is opened."""
    for second in crash_states(Start.of(state.files), judge.opening(state.files), order):
        tally.checks += 1
        for why in judge.noted(second.files, state.notes):
            tally.violations.append(f"crash at {state.point}, then at {second.point}: {why}")
