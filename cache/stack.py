"""The tiers in order: ask all, take the best line, restore; the only place that compares offers."""

from __future__ import annotations

from collections.abc import Sequence

from cache.account import Answer
from cache.anchors import Anchors
from cache.budget import Grow, freely
from cache.config import StackConfig
from cache.journal import CacheEvent
from cache.meet import Meeting, exactly
from cache.park import Park
from cache.parked import Kind
from cache.plan import Plan
from cache.ports import Model
from cache.resident import Resident
from cache.rows import write_rows
from cache.snapshot import Standing
from cache.store import Store
from cache.types import COLD, GOES_ON, Ask, Gate, Generation, Ids, Line, Met, Offer, Outcome, joined
from cache.visit import Visits
from cache.why import Ghosts, Reason, explain

COMPACTION = "compaction"
"""Kind of the request that replaces a conversation by its summary."""


class Stack:
    """All caches of one engine, behind one question and one choice."""

    def __init__(
        self,
        model: Model,
        config: StackConfig | None = None,
        meeting: Meeting = exactly,
        store: Store | None = None,
        grow: Grow = freely,
    ) -> None:
        """Slots of one model may share a store; without one the stack has its own. `grow` is asked
        before anything is copied.
        """
        self.config = config = config or StackConfig()
        self._model = model
        self._meeting = meeting
        self.resident = Resident(
            model.window,
            config.anchors,
            keeps_end=config.keeps_end,
            grow=grow,
            shared=lambda: self.store.copies() | self.park.copies(),
        )
        self.park = Park(config.park, model, meeting, grow)
        self.visits = Visits(config.guest, model, self.resident, self.park, grow)
        own = Store(config.store, model.grid, meeting, grow)
        self.store = own if store is None else store
        self.serving = False
        """A request is being served: what its guest borrowed can't be given back yet."""
        self.using: Offer | None = None
        """It is being restored: its copies can't be given back."""
        self._ghosts = Ghosts()
        self._boundaries: frozenset[int] = frozenset()

    def plan(self, ask: Ask) -> Plan:
        """Ask every tier and pick what leaves the least to forward. Changes nothing: a peek."""
        account = self.resident.account
        met = self._meeting(account, ask)
        asked = (self.resident.offer(met), self.park.offer(ask), self.store.offer(ask, account))
        offers = tuple(offer for offer in asked if offer is not None)
        fitting = [o for o in offers if self._fits(len(o.met.served), ask)]
        # At equal cost what is in place already comes first.
        best = min(fitting, key=lambda o: (o.forwarded, o.tier != Resident.name), default=None)
        served = best.met.served if best else ask.ids
        guest = self.visits.may_enter(served, best)
        return Plan(ask, met, offers, best, guest, self._reason(met, best))

    def _fits(self, size: int, ask: Ask) -> bool:
        """Whether a prompt served as `size` tokens leaves room for its answer."""
        window = self._model.window
        left = window - len(ask.ids)
        room = min(self.config.answer_room, ask.answer_max if left >= ask.answer_max else left // 2)
        return size < window and size + max(room, min(ask.answer_min, left)) <= window

    def _reason(self, met: Met, best: Offer | None) -> Reason:
        """Why the best line is no higher, in the sequence that it belongs to."""
        account, anchored = self.resident.account, self.resident.anchored_below(met.limit)
        if best is not None and best.entry is not None:
            account, met, anchored = best.entry.account, best.met, best.line.tokens
        return explain(
            best.line if best else COLD,
            met,
            self._ghosts.shared(met.served),
            account,
            self._model.grid,
            anchored,
        )

    def restore(self, plan: Plan, tools: int, system: int) -> Line:
        """Act on a plan just made: put aside what goes, restore the line, let the model resume.

        The line may be lower than the plan's when there was no room to bring the rows back.
        """
        assert self.visits.guest is None, "it must leave before the next is asked about"
        self.park.next_turn()
        self.serving, self.using = True, plan.best
        if plan.best is not None and plan.best.tier == Store.name:
            self.store.use(plan.best.entry.snapshot)
        line = self._enter(plan, tools, system)
        self.using = self.store.in_use = None
        size, cost = len(plan.served), self._model.cost()
        self._boundaries = self.store.boundaries(line.tokens, size, cost, tools + system)
        return line

    def _enter(self, plan: Plan, tools: int, system: int) -> Line:
        resident, ask, line = self.resident, plan.ask, plan.line
        served, coming = plan.served, self._answers(plan)
        if plan.guest and self.visits.enter(ask, tools, system, served, plan.best, coming):
            return line
        keep = self._keep(plan)
        if plan.in_place.rows < resident.account.valid:
            self._ghosts.add(resident.account.ids)
        if plan.best is not None and plan.best.tier == Park.name:
            outcome = self.park.restore(plan.best, resident, keep, len(plan.served))
            if not outcome.ok:
                line = resident.account.best_line(resident.account.valid) or COLD
        elif plan.best is not None and plan.best.tier == Store.name:
            self._bring(plan.best.entry, line, keep, len(plan.served))
        else:
            self.park.save(resident, line.tokens, keep, len(plan.served))
        if line.tokens:
            resident.restore(line, self._model)
        else:
            resident.start_cold(self._model)
        resident.begin(ask, tools, system, len(plan.served), coming)
        return line

    # a turn's progress

    def leave(self) -> None:
        """Whoever was served last goes, if it was a guest; before anybody else is asked about."""
        self.visits.leave()

    def rest(self) -> None:
        """The request is over; a guest stays until its rows are wanted."""
        self.serving = False

    def passed(self, ids: Ids, stop: int) -> None:
        """The prefill of `ids` has come to `stop`."""
        self._current.passed(ids, stop, self._model)
        if stop in self._boundaries:
            account = self._current.account
            if account.gate(stop) is Gate.BITS:
                self.store.put("prefix", account, self._model)
            else:
                self.store.decline("tainted", account)

    def generates(self, ids: Ids, answer: Sequence[int]) -> None:
        """A generation goes on: `ids` and `answer` are committed, the last token not forwarded."""
        committed = len(ids) + len(answer)
        self.park.cover(committed)
        if self.visits.guest is not None:
            self.visits.grows(committed)
        if self._wants_checkpoint(committed, begins=not answer):
            self._current.checkpoint(joined(ids, answer), self._model)

    def keep(self, ids: Ids, tokens: Sequence[int], answer: Answer) -> Outcome:
        """The generation has ended: `ids` and `tokens` are committed, prompt and answer."""
        ids = joined(ids, tokens)
        ahead = self._model.length > len(ids)
        kept = self._current.keep_end(ids, answer, self._model)
        if self._current.account.kind in GOES_ON and self.store.config.budget_bytes:
            self._put_session(ahead)
        return kept

    def _put_session(self, ahead: bool) -> None:
        """Give the store the conversation as it ends, before anything is copied if it may not."""
        account, store = self._current.account, self.store
        if ahead and not store.config.session_trim:
            store.decline("ahead", account)
        elif not self._model.trim_pending(account.valid):
            store.decline("absorbed", account)
        else:
            self._model.settle()
            store.put("session", account, self._model)

    def forget(self) -> None:
        """The engine failed in the middle of a forward: nothing it holds is known to be whole."""
        if self.visits.guest is not None:
            self.visits.leave(whole=False)
            return
        self.resident.start_cold(self._model)
        self.park.lose_rows()

    # putting aside

    def _bring(self, entry: Standing, line: Line, keep: Kind | None, size: int) -> None:
        """A snapshot's rows come in place, but for those that are there already."""
        resident = self.resident
        self.park.save(resident, entry.base, keep, size)
        for block in entry.blocks:
            write_rows(self._model.cache_state(), block)
        arriving = entry.account.aside(line.tokens, [line.tokens])
        below = [
            a for a in resident.account.anchors if a.tokens <= min(entry.base, line.tokens - 1)
        ]
        own = list(arriving.anchors)
        arriving.anchors = Anchors.of(self.config.anchors, [*below, *own])
        resident.exchange(arriving)

    def _keep(self, plan: Plan) -> Kind | None:
        """What to keep of the rows in place that this request replaces.

        A compaction replaces its own conversation, of which only the head comes back. A prompt that
        goes on with more than half of the rows is an edit of the same conversation, and what it
        left is dead; anything else is another conversation.
        """
        account, ask, rows = self.resident.account, plan.ask, plan.in_place.rows
        if ask.kind == COMPACTION:
            self.park.forget_session(ask.session)
            return "pin"
        if account.kind not in GOES_ON:
            return None
        left = account.best_line(rows)
        if account.valid == (left.tokens if left else 0):
            return None  # nothing would be read again for want of it
        other = ask.session is not None and account.session not in (None, ask.session)
        return "park" if other or 2 * rows < account.valid else None

    def _answers(self, plan: Plan) -> list[Generation]:
        """The answers that the served prompt has as the rows have them, in place or not."""
        if plan.best is None:
            return []
        entry = plan.best.entry
        account = self.resident.account if entry is None else entry.account
        rows = plan.best.met.rows
        return [answer.up_to(rows) for answer in account.generations if answer.start < rows]

    def _wants_checkpoint(self, committed: int, *, begins: bool) -> bool:
        """At a generation's start and every so many tokens; not when its last block ran ahead."""
        step, length = self.config.checkpoint_tokens, self._model.length
        gone_on = length - self._current.account.valid
        return step > 0 and length <= committed and (begins or gone_on >= step)

    # accounts

    @property
    def _current(self) -> Resident:
        """The sequence that the model is in: a guest's, or the rows in place."""
        return self.visits.guest or self.resident

    @property
    def has_guest(self) -> bool:
        """Whether the current sequence borrows the rows in place."""
        return self.visits.guest is not None

    @property
    def taint(self) -> int | None:
        """Lowest row of the current sequence that is not a cold prefill's."""
        return self._current.account.taint

    @property
    def rows(self) -> Ids:
        """Tokens of the current sequence's rows."""
        return self._current.account.ids

    @property
    def end(self) -> int | None:
        """Where the current sequence's end anchor stands."""
        end = self._current.account.end
        return end.tokens if end is not None else None

    @property
    def hidden(self) -> list[tuple[int, int]]:
        """(start, length) of the current sequence's rows that no client ever saw."""
        return [span for made in self._current.account.generations for span in made.hidden]

    def held_bytes(self) -> dict[str, int]:
        """Bytes by what holds them, as the budgets count them: a copy that two hold, once."""
        cost = self._model.cost()
        rows = {"rows": self.resident.account.valid * cost.row_bytes}
        here = [self.resident, self.visits.guest] if self.visits.guest else [self.resident]
        anchors = set[int]().union(*(one.copies() for one in here)) - self.resident.shared()
        ends = sum(one.account.end is not None for one in here)
        copies = {"anchors": len(anchors) * cost.anchor_bytes, "end": ends * cost.anchor_bytes}
        more = {"park": self.park.held_bytes(), "stash": self.visits.held_bytes()}
        return rows | copies | more | {"store": self.store.held_bytes()}

    def events(self) -> list[CacheEvent]:
        """What the caches have to report since the last call."""
        return self.store.events()

    def check(self) -> None:
        """Integrity of every account; for tests and idle time."""
        self.resident.check(self._model.grid)
        self.park.check(self.resident)
        self.store.check(self._model.grid)
