"""The desk: the one thread that owns engine and caches; turns are served there, a step at a time"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from cache.journal import TurnRow
from cache.ports import Clock
from engine.box import Box
from engine.events import Chunk, Resumed, Tokens
from engine.slots import Slots
from engine.turn import Refused, turn
from serve.calls import Busy, Call, Calls, Closed
from serve.heard import Broke, Ended, NoRoom, Reading, Said
from serve.order import Order

T = TypeVar("T")
IDLE_LOOK_S = 0.25
"""Seconds between two looks for idle work while nobody asks for anything."""

_log = logging.getLogger(__name__)


Idle = Callable[[Callable[[], bool]], bool]
"""Work for when nobody asks for anything. Gets `wanted`, which says that somebody does; returns
whether it did something."""


class Desk:
    """Serves orders in the slots that choose them, one step of each after another.

    All calls from other threads go through a queue. What only looks is answered between two steps;
    what moves rows waits until no turn is under way.
    """

    def __init__(
        self,
        slots: Slots,
        clock: Clock,
        idle: Idle,
        ended: Callable[[TurnRow, Order], None],
        wanted: Callable[[], None] = lambda: None,
    ) -> None:
        """`idle` is called while nobody asks for anything, `ended` after every turn. `wanted` ends
        what `idle` has left unfinished, before anybody else has engine and caches."""
        self._slots, self._clock = slots, clock
        self._idle, self._ended, self._interrupt = idle, ended, wanted
        self._changed = threading.Condition()
        self._inbox: deque[Order | Call] = deque()
        self._waiting: list[Order] = []
        self._active: list[Order] = []
        self._calls = Calls(clock, wanted)
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.last_end_s = clock.mono_s()
        """When the last turn ended."""
        self.broken = ""
        """What ended the thread, when that was an error of ours; nothing is served then."""

    # from any thread

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def submit(self, order: Order) -> None:
        """Take an order on; it hears of everything else. Raises Closed."""
        self._post(order)

    def wake(self) -> None:
        """An order has gone."""
        with self._changed:
            self._changed.notify_all()

    def between(self, work: Callable[[], T]) -> Future[T]:
        """Let `work` look at engine and caches between two steps. Raises Closed."""
        call = Call(work, Future(), None)
        self._post(call)
        return call.given

    def alone(self, work: Callable[[], T], wait_s: float, *, patient: bool = False) -> Future[T]:
        """Run `work` when no turn is under way; it gets Busy when that is not so within `wait_s`,
        and unless it is `patient`, when a turn waits. Raises Closed."""
        call = Call(work, Future(), self._clock.mono_s() + wait_s, patient)
        if self.waiting and not patient:
            call.given.set_exception(Busy())
            return call.given
        self._post(call)
        return call.given

    @property
    def waiting(self) -> int:
        """Orders that no slot serves yet."""
        return len(self._waiting) + sum(isinstance(one, Order) for one in list(self._inbox))

    @property
    def active(self) -> int:
        """Orders whose turn is under way."""
        return len(self._active)

    def wanted(self) -> bool:
        """Whether somebody waits for the engine's thread; may be asked from it in the middle."""
        return bool(self._inbox) or bool(self._waiting) or self._closing

    def close(self) -> None:
        """End the turns under way as if their clients had left, then the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def _post(self, one: Order | Call) -> None:
        with self._changed:
            if self._closing:
                raise Closed
            self._inbox.append(one)
            self._changed.notify_all()

    # on the engine's thread

    def _run(self) -> None:
        try:
            while not self._closing:
                self._take()
                self._calls.answer(active=bool(self._active), wanted=bool(self._waiting))
                self._place()
                if not self._step():
                    self._rest()
        except Exception as error:
            # Nobody may wait for a thread that is gone.
            _log.exception("the engine's thread ended")
            self.broken = type(error).__name__
            with self._changed:
                self._closing = True
        self._take()
        self._interrupt()
        for order in list(self._active):
            if self.broken:
                order.tell(Broke(f"the engine's thread ended: {self.broken}"))
            else:
                self._leave(order)
        for order in self._waiting:
            order.tell(Broke("the server stops", stops=True))
        self._calls.close()

    def _take(self) -> None:
        """What has come since the last step."""
        while self._inbox:
            one = self._inbox.popleft()
            if isinstance(one, Order):
                self._waiting.append(one)
            else:
                self._calls.add(one)

    def _place(self) -> None:
        """Let every waiting order start that finds a slot, in the order they came."""
        still: list[Order] = []
        if self._calls.holds:
            return
        if self._waiting:
            self._interrupt()
        for order in self._waiting:
            if order.gone:
                order.tell(Broke("the client left before its turn"))
            elif not self._starts(order):
                still.append(order)
        self._waiting = still

    def _starts(self, order: Order) -> bool:
        """Whether an order waits no longer: its turn has begun, or can't."""
        try:
            return self._start(order)
        except Exception as error:
            _log.exception("a turn could not begin")
            order.tell(Broke(f"the engine failed: {type(error).__name__}"))
            return True

    def _start(self, order: Order) -> bool:
        """Begin an order's turn; False when it must wait."""
        busy = {one.box.slot for one in self._active if one.box is not None}
        if any(order.follows(one) for one in self._active):
            return False
        box = self._slots.main
        if order.rewrite is not None:
            if box.slot in busy:
                return False
            box.stack.leave()
        if order.rewrite is None or not order.rewrite(order):
            chosen = self._slots.choose(order.prompt, busy)
            if chosen is None:
                return False
            box = chosen
        if order.known is not None:
            self._tell_known(order, box)
            return True
        prompt = order.prompt
        order.box = box
        voice = order.voice
        over = voice.heard if voice.stops else None
        order.turn = turn(box, prompt, order.rule, order.limit, order.stop_ids, voice.read, over)
        self._active.append(order)
        return True

    def _tell_known(self, order: Order, box: Box) -> None:
        """Give an answer that was written ahead; the engine has no part in it."""
        assert order.known is not None
        answer = order.answer = list(order.known)
        order.first_s = self._clock.mono_s()
        order.voice.heard(answer)
        order.tell(Said(tuple(order.voice.take()), len(answer)))
        row = order.known_row(self._clock.wall_s())
        box.journal.add(row, box.jobs)
        self._ended(row, order)
        order.tell(Ended(row))

    def _step(self) -> bool:
        """One step of every turn that is due; False when there was nothing to do."""
        now_s, stepped = self._clock.mono_s(), False
        for order in list(self._active):
            if order.gone:
                self._leave(order)
            elif order.due_s <= now_s:
                self._advance(order)
            else:
                continue
            stepped = True
        return stepped

    def _advance(self, order: Order) -> None:
        """The next event of one turn."""
        assert order.turn is not None and order.box is not None
        before = order.box.journal.newest
        try:
            event = next(order.turn, None)
        except Exception as error:
            _log.exception("a turn failed")
            self._over(order, before)
            order.tell(Broke(f"the engine failed: {type(error).__name__}"))
            return
        match event:
            case None:
                self._finished(order, before)
            case Refused(why, retry_after_s):
                order.turn.close()
                self._over(order, before)
                order.tell(NoRoom(why, retry_after_s))
            case Resumed(line, plan):
                order.size, order.line = len(plan.served), line
                order.tell(Reading(line.tokens, order.size, line))
            case Chunk(done):
                order.tell(Reading(done, order.size, order.line))
            case Tokens(ids):
                now_s = self._clock.mono_s()
                order.first_s = order.first_s or now_s
                order.due_s = now_s + order.round_s
                order.answer += ids
                if not order.voice.stops:
                    order.voice.heard(order.answer)
                order.tell(Said(tuple(order.voice.take()), len(ids)))

    def _leave(self, order: Order) -> None:
        """Its client went away: what was computed is kept."""
        assert order.turn is not None and order.box is not None
        before = order.box.journal.newest
        order.turn.close()
        self._finished(order, before)

    def _finished(self, order: Order, before: TurnRow | None) -> None:
        row = self._over(order, before)
        order.tell(Ended(row) if row is not None else Broke("nothing was served"))

    def _over(self, order: Order, before: TurnRow | None) -> TurnRow | None:
        """Its slot is free again; the row that its turn left, where `before` was the newest. One
        whose client left before its first step leaves none."""
        self._active.remove(order)
        self.last_end_s = self._clock.mono_s()
        assert order.box is not None
        self._slots.used(order.box)
        row = order.box.journal.newest
        if row is None or row is before:
            return None
        self._ended(row, order)
        return row

    def _rest(self) -> None:
        """Nobody asks for anything, or everybody waits for a slow script."""
        if not self._active and not self.wanted() and self._idle(self.wanted):
            return
        until_s = min((order.due_s for order in self._active), default=float("inf"))
        wait_s = min(IDLE_LOOK_S, max(0.0, until_s - self._clock.mono_s()))
        with self._changed:
            if not self._inbox and not self._closing:
                self._changed.wait(wait_s)
