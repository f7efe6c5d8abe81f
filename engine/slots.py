"""Side slots: other sequences over the same weights, where short requests go first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

from cache.anchors import AnchorConfig
from cache.budget import Grow
from cache.config import StackConfig
from cache.disk.tier import DiskTier
from cache.guest import GuestConfig
from cache.meet import Meeting
from cache.parked import ParkConfig
from cache.plan import Plan
from cache.stack import Stack
from cache.store import Store
from cache.types import GOES_ON
from engine.adapter import Engine
from engine.turn import Box, Prompt

SIDE_ANCHORS = 4
"""A side slot's."""
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

    def choose(self, prompt: Prompt, busy: Collection[int] = ()) -> Box | None:
        """The slot that serves this prompt; None when it must wait for one of the `busy` ones.

        Guests that were served have left the others before.
        """
        idle = [box for box in self if box.slot not in busy]
        for box in idle if self._sides else ():
            box.stack.leave()
        side = self._best_side(prompt, idle)
        if self.main not in idle:
            return side[1] if side and not self._waits(prompt, side[0]) else None
        if side is None:
            return self.main
        plan, box = side
        main = self.main.stack.plan(prompt.ask)
        # A chunk's worth at least, or a conversation would wander from slot to slot.
        if main.guest or plan.forwarded + self.main.engine.grid < main.forwarded:
            return box
        return self.main

    def _waits(self, prompt: Prompt, plan: Plan) -> bool:
        """Whether a turn waits for the main slot rather than be read again in a side slot, and be
        kept there no longer than until the next prompt comes."""
        stack = self.main.stack
        if prompt.kind not in GOES_ON or stack.has_guest:
            return False
        return stack.plan(prompt.ask).forwarded + self.main.engine.grid < plan.forwarded

    def _best_side(self, prompt: Prompt, idle: Sequence[Box]) -> tuple[Plan, Box] | None:
        """The idle side slot that holds most of a prompt, of those where it fits; of equal ones one
        without a conversation, for nobody keeps it, then the one used longest ago."""
        ask = prompt.ask
        sides = [box for box in self._sides if box in idle]
        plans = [(box.stack.plan(ask), -order, box) for order, box in enumerate(sides)]
        fitting = [
            (plan.forwarded, _talks(box), order, plan, box)
            for plan, order, box in plans
            if len(plan.served) + ask.answer_max < box.engine.window
        ]
        if not fitting:
            return None
        *_, plan, box = min(fitting, key=lambda side: side[:3])
        return plan, box

    def used(self, box: Box) -> None:
        """The slot has served: the one used longest ago is next for a prompt that none holds."""
        if box in self._sides:
            self._sides.remove(box)
            self._sides.insert(0, box)


def _talks(box: Box) -> bool:
    """Whether a conversation is in place that may go on."""
    account = box.stack.resident.account
    return account.valid > 0 and account.goes_on


def side_stack(
    engine: Engine, meeting: Meeting, store: Store, grow: Grow, disk: DiskTier | None = None
) -> Stack:
    """The caches of a side slot: its own rows, a few anchors over them, and the box's store.

    It reads the disk tier, and writes and counts nothing.
    """
    budget_bytes = SIDE_ANCHORS * engine.cost().anchor_bytes
    anchors = AnchorConfig(budget_bytes=budget_bytes, newest_kept=2)
    nothing = ParkConfig(park_bytes=0, pin_bytes=0)
    config = StackConfig(anchors, nothing, GuestConfig(tokens_max=0))
    return Stack(engine, config, meeting, store, grow, disk, writes=False)
