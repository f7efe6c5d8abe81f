"""The tiers in order: ask all, take the best line, restore; the only place that compares offers."""

from __future__ import annotations

from collections.abc import Sequence

from cache.account import Answer
from cache.budget import Grow, freely
from cache.config import StackConfig
from cache.disk.tier import DiskTier
from cache.disk.writer import DiskWriter
from cache.exchange import Exchange
from cache.journal import CacheEvent
from cache.meet import Meeting, exactly
from cache.park import Park
from cache.plan import Plan
from cache.ports import Model
from cache.resident import Resident
from cache.spill.names import NAME as SPILL
from cache.spill.tier import Spill
from cache.store import Store
from cache.types import COLD, Ask, Gate, Ids, Line, Met, Offer, Outcome, joined
from cache.visit import Visits, base_of
from cache.why import Reason, explain


class Stack:
    """All caches of one engine, behind one question and one choice."""

    def __init__(
        self,
        model: Model,
        config: StackConfig | None = None,
        meeting: Meeting = exactly,
        store: Store | None = None,
        grow: Grow = freely,
        disk: DiskTier | None = None,
        spill: Spill | None = None,
        *,
        writes: bool = True,
    ) -> None:
        """Slots of one model may share a store, without one the stack has its own, and a disk tier,
        to which only one `writes`; a spill is one slot's own. `grow` is asked before anything is
        copied.
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
        self.disk, self.spill = disk, spill
        if spill is not None:
            spill.meets(meeting)
            self.park.leaves = spill.writer.leaves
        self._writer = DiskWriter(disk, model) if disk is not None and writes else None
        self.exchange = Exchange(model, config, self.resident, self.park, self.visits, disk)
        self._boundaries: frozenset[int] = frozenset()

    def plan(self, ask: Ask) -> Plan:
        """Ask every tier and pick what leaves the least to forward. Changes nothing: a peek."""
        account, cost = self.resident.account, self._model.cost()
        met = self._meeting(account, ask)
        asked = (
            self.resident.offer(met),
            self.park.offer(ask),
            self.store.offer(ask, account),
            self.disk.offer(ask, account, cost) if self.disk is not None else None,
            self.spill.offer(ask, account, cost) if self.spill is not None else None,
        )
        offers = tuple(offer for offer in asked if offer is not None)
        fitting = [o for o in offers if self._fits(len(o.met.served), ask) and self._pays(o, ask)]
        # A conversation is not moved for less than a chunk.
        least = min((o.forwarded for o in fitting if not o.read_bytes), default=len(ask.ids))
        grid = self._model.grid
        fitting = [o for o in fitting if o.tier != SPILL or o.forwarded + grid < least]
        # At equal cost what is in place already comes first, and what must be read comes last.
        best = min(
            fitting,
            key=lambda o: (o.cost_s(cost), o.tier != Resident.name, o.read_bytes),
            default=None,
        )
        served = best.met.served if best else ask.ids
        guest = self.visits.may_enter(served, best)
        return Plan(ask, met, offers, best, guest, self._reason(met, best, offers))

    def _pays(self, offer: Offer, ask: Ask) -> bool:
        """Whether what must be read costs less than forwarding the prompt."""
        cost = self._model.cost()
        cold_s = len(ask.ids) / cost.prefill_tokens_s
        return not offer.read_bytes or offer.cost_s(cost) < cold_s

    def _fits(self, size: int, ask: Ask) -> bool:
        """Whether a prompt served as `size` tokens leaves room for its answer."""
        window = self._model.window
        left = window - len(ask.ids)
        room = min(self.config.answer_room, ask.answer_max if left >= ask.answer_max else left // 2)
        return size < window and size + max(room, min(ask.answer_min, left)) <= window

    def _reason(self, met: Met, best: Offer | None, offers: Sequence[Offer]) -> Reason:
        """Why the best line is no higher, in the sequence that it belongs to."""
        unread = [o.line.tokens for o in offers if o.read_bytes and o is not best]
        account, anchored = self.resident.account, self.resident.anchored_below(met.limit)
        if best is not None and best.entry is not None:
            account, met, anchored = best.entry.account, best.met, best.line.tokens
        return explain(
            best.line if best else COLD,
            met,
            self.exchange.ghosts.shared(met.served),
            account,
            self._model.grid,
            anchored,
            max(unread, default=0),
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
        self.fence(base_of(plan.best))
        if self.spill is not None:
            self.spill.serves(plan, self.resident.account)
        line = self.exchange.enter(plan, tools, system)
        self.using = self.store.in_use = None
        if self.spill is not None:
            self.spill.served()
        size, cost = len(plan.served), self._model.cost()
        self._boundaries = self.store.boundaries(line.tokens, size, cost, tools + system)
        if self._writer is not None:
            clean = self.taint is None and line.gate is Gate.BITS
            self._writer.begin(plan.ask, plan.served, line.tokens, clean=clean)
        return line

    def fence(self, row: int) -> None:
        """Rows from `row` on are about to be overwritten."""
        if self._writer is not None:
            self._writer.fence(row)

    # a turn's progress

    def leave(self) -> None:
        """Whoever was served last goes, if it was a guest; before anybody else is asked about."""
        if self.has_guest:
            self.fence(self.visits.base)
        self.visits.leave()
        if self.disk is not None:
            self.disk.keeper.absorb()
        if self.spill is not None:
            self.spill.absorb()

    def rest(self) -> None:
        """The request is over; a guest stays until its rows are wanted."""
        self.serving = False
        if self._writer is not None:
            self._writer.prefilled()

    def passed(self, ids: Ids, stop: int) -> None:
        """The prefill of `ids` has come to `stop`."""
        self._current.passed(ids, stop, self._model)
        if stop in self._boundaries:
            account = self._current.account
            if account.gate(stop) is Gate.BITS:
                self.store.put("prefix", account, self._model)
            else:
                self.store.decline("tainted", account)
        if self._writer is not None:
            self._writer.passed(stop)

    def generates(self, ids: Ids, answer: Sequence[int]) -> None:
        """A generation goes on: `ids` and `answer` are committed, the last token not forwarded."""
        committed = len(ids) + len(answer)
        if self._writer is not None and not answer:
            self._writer.prefilled()
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
        if self._current.account.goes_on and self.store.config.budget_bytes:
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
        self.fence(0)
        if self.visits.guest is not None:
            self.visits.leave(whole=False)
            return
        self.resident.start_cold(self._model)
        self.park.lose_rows()

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
    def source(self) -> str:
        """What the last prompt's rows came from, as a prefix of the line's kind."""
        tier = self.exchange.tier
        return "" if tier == Resident.name else f"{tier}."

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
        more["store"] = self.store.held_bytes()
        tiers = {"disk": self.disk, "spill": self.spill}
        more |= {name: tier.held_bytes() for name, tier in tiers.items() if tier is not None}
        return rows | copies | more

    def events(self) -> list[CacheEvent]:
        """What the caches have to report since the last call."""
        tiers = [tier for tier in (self.disk, self.spill) if tier is not None]
        return self.store.events() + [event for tier in tiers for event in tier.events()]

    def check(self) -> None:
        """Integrity of every account; for tests and idle time."""
        self.resident.check(self._model.grid)
        self.park.check(self.resident)
        self.store.check(self._model.grid)
        for tier in (self.disk, self.spill):
            if tier is not None:
                tier.check()
