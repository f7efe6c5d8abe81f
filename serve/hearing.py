"""Hearing: one order, as the task of its request hears of it"""

from __future__ import annotations

import asyncio

from cache.ports import Clock
from serve.desk import Desk
from serve.heard import LAST, Heard
from serve.order import Order


class Hearing:
    """One order, as the request's task hears of it."""

    def __init__(self, desk: Desk, clock: Clock, order: Order, queue: asyncio.Queue[Heard]) -> None:
        self.order, self.clock = order, clock
        self._desk, self._queue = desk, queue
        self.over = False

    async def next(self, wait_s: float | None = None) -> Heard | None:
        """What is heard next; None when it is silent for `wait_s`."""
        try:
            # `wait_for` of Python 3.11 forgets that it was cancelled when something came just then.
            async with asyncio.timeout(wait_s):
                heard = await self._queue.get()
        except TimeoutError:
            return None
        self.over = isinstance(heard, LAST)
        return heard

    def leave(self) -> None:
        """Nobody waits for it any more; its turn ends at the next event."""
        if not self.over:
            self.order.gone = True
            self._desk.wake()
