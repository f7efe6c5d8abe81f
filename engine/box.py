"""A box: what a turn runs on, one engine with its caches and the ports."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from cache.budget import Budget
from cache.journal import Journal
from cache.ports import Clock, Jobs
from cache.responses import Responses
from cache.stack import Stack
from cache.suffix_store import SuffixStore
from engine.adapter import Engine


class Meter(Protocol):
    """What a turn's work costs; a simulated board charges its clock here."""

    def prefilled(self, start: int, stop: int) -> None:
        """Rows [start, stop) of a prompt were forwarded."""

    def decoded(self, tokens: int) -> None:
        """A verify round gave this many tokens."""


class NoMeter:
    """Work takes the time it takes."""

    def prefilled(self, start: int, stop: int) -> None:
        """Charge nothing."""

    def decoded(self, tokens: int) -> None:
        """Charge nothing."""


@dataclass(slots=True)
class Box:
    """What a turn runs on: one engine with its caches, and the ports."""

    engine: Engine
    stack: Stack
    clock: Clock
    jobs: Jobs
    journal: Journal
    meter: Meter = field(default_factory=NoMeter)
    slot: int = 0
    """0 is the main slot."""
    budget: Budget | None = None
    """What memory may be used; slots share it. None where nobody counts."""
    responses: Responses | None = None
    """Answers to identical greedy requests, which slots share; off unless somebody makes one."""
    suffixes: SuffixStore | None = None
    """What was read and written goes there, for lookups; slots share it."""
