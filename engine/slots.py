"""Side slots: other sequences over the same weights, where short requests go first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from cache.stack import Stack
from engine.adapter import Engine
from engine.turn import Box, Prompt

MakeStack = Callable[[Engine], Stack]


class Slots:
    """The main slot and its side slots; each has rows, a state and caches of its own.

    A side slot may have a shorter window. A request that would borrow the main slot's rows as a
    guest takes an idle side slot instead, and nothing has to be copied. A request goes to whichever
    slot holds most of it, be it idle longest or not.
    """

    def __init__(self, main: Box, sides: Sequence[Box]) -> None:
        self.main = main
        self._sides = list(sides)

    @classmethod
    def beside(cls, main: Box, count: int, window: int, make: MakeStack) -> Slots:
        """`count` side slots of `window` rows over the main engine's weights."""
        sides = []
        for number in range(1, count + 1):
            engine = main.engine.twin(window)
            sides.append(replace(main, engine=engine, stack=make(engine), slot=number))
        return cls(main, sides)

    def __iter__(self) -> Iterator[Box]:
        yield self.main
        yield from self._sides

    def choose(self, prompt: Prompt) -> Box:
        """The slot that serves this prompt; guests that were served have left before."""
        if not self._sides:
            return self.main
        ask = prompt.ask
        for box in self:
            box.stack.leave()
        main = self.main.stack.plan(ask)
        sides = [(box.stack.plan(ask), -order, box) for order, box in enumerate(self._sides)]
        fitting = [
            side for side in sides if len(side[0].served) + ask.answer_max < side[2].engine.window
        ]
        if not fitting:
            return self.main
        plan, _, box = min(fitting, key=lambda side: (side[0].forwarded, side[1]))
        grid = self.main.engine.grid
        # A chunk's worth at least, or a conversation would wander from slot to slot.
        if main.guest or plan.forwarded + grid < main.forwarded:
            return box
        return self.main

    def used(self, box: Box) -> None:
        """The slot has served: the one used longest ago is next for a prompt that none holds."""
        if box in self._sides:
            self._sides.remove(box)
            self._sides.insert(0, box)
