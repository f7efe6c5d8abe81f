"""Calls: questions that other threads ask of engine and caches, answered on the engine's thread"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from cache.ports import Clock

T = TypeVar("T")


class Busy(Exception):
    """The engine had requests to serve for all of the time that the caller would wait."""


class Closed(Exception):
    """The server stops."""


@dataclass(slots=True, eq=False)
class Call(Generic[T]):
    """A question that is answered on the engine's thread."""

    work: Callable[[], T]
    given: Future[T]
    until_s: float | None
    """Wait for the engine to be idle, but no longer; None is answered between two steps."""
    patient: bool = False
    """Wait so long although requests do; until then none begins, or on a busy server there would
    never be a moment for it."""

    def answer(self) -> None:
        """Do the work, if anybody still wants it."""
        if not self.given.set_running_or_notify_cancel():
            return
        try:
            self.given.set_result(self.work())
        except Exception as error:
            self.given.set_exception(error)

    def refuse(self, why: Exception) -> None:
        """Say that it won't be done, if anybody still waits: a stop ends the callers first."""
        if self.given.set_running_or_notify_cancel():
            self.given.set_exception(why)


class Calls:
    """Those that wait for their answer."""

    def __init__(self, clock: Clock, interrupt: Callable[[], None]) -> None:
        """`interrupt` leaves the engine idle for a call that wants it so."""
        self._clock, self._interrupt = clock, interrupt
        self._waiting: list[Call[Any]] = []

    def add(self, call: Call[Any]) -> None:
        """One more."""
        self._waiting.append(call)

    @property
    def holds(self) -> bool:
        """Whether no turn may begin."""
        return any(call.patient for call in self._waiting)

    def answer(self, *, active: bool, wanted: bool) -> None:
        """Answer what may be answered while turns are `active` or `wanted`, or never will be."""
        kept: list[Call[Any]] = []
        for call in self._waiting:
            if call.until_s is None:
                call.answer()
            elif not active:
                self._interrupt()
                call.answer()
            elif (wanted and not call.patient) or self._clock.mono_s() >= call.until_s:
                call.refuse(Busy())
            else:
                kept.append(call)
        self._waiting = kept

    def close(self) -> None:
        """Nobody answers any more."""
        for call in self._waiting:
            call.refuse(Closed())
        self._waiting.clear()
