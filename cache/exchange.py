"""The exchange: rows in place go aside, those that a plan wants come, from wherever they lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cache.account import COMPACTION, Account
from cache.anchors import Anchors
from cache.config import StackConfig
from cache.disk.chain import Chain
from cache.disk.notes import NAME as DISK
from cache.disk.tier import DiskTier
from cache.park import Park
from cache.parked import Kind
from cache.plan import Plan
from cache.ports import Model
from cache.resident import Resident
from cache.rows import write_blocks
from cache.snapshot import Standing
from cache.spill.names import NAME as SPILL
from cache.spill.spilled import Spilled
from cache.store import Store
from cache.types import COLD, GOES_ON, Ask, Cost, Generation, Line, Offer, common_prefix
from cache.visit import Visits
from cache.why import Ghosts


class Exchange:
    """Acts on plans: the only place where rows of one sequence make way for another's."""

    def __init__(
        self,
        model: Model,
        config: StackConfig,
        resident: Resident,
        park: Park,
        visits: Visits,
        disk: DiskTier | None,
    ) -> None:
        self._model = model
        self._config = config
        self._resident = resident
        self._park = park
        self._visits = visits
        self._disk = disk
        self.ghosts = Ghosts()
        self.tier = Resident.name
        """What the rows of the last plan that was acted on came from."""

    def configure(self, config: StackConfig) -> None:
        """Other settings: whose rows come next, their anchors are kept under these."""
        self._config = config

    def enter(self, plan: Plan, tools: int, system: int) -> Line:
        """Let the plan's sequence in and the model resume for it; where it does, which is lower
        than planned when there was no room to bring rows back, or a file was no good."""
        resident, ask, line = self._resident, plan.ask, plan.line
        self.tier = plan.best.tier if plan.best is not None else Resident.name
        served, coming = plan.served, self._answers(plan)
        if plan.guest and self._visits.enter(ask, tools, system, served, plan.best, coming):
            return line
        keep = self._keep(plan)
        resident.account.left = ask.session is not None and resident.account.session == ask.session
        if plan.in_place.rows < resident.account.valid:
            self.ghosts.add(resident.account.ids)
        line = self._brought(plan, line, keep, coming)
        if line.tokens:
            resident.restore(line, self._model)
        else:
            resident.start_cold(self._model)
        resident.begin(ask, tools, system, len(plan.served), coming)
        return line

    def summed_up(self, session: str) -> None:
        """A conversation was summed up without a row of it being touched: as after a compaction,
        only its head comes back."""
        self._park.forget_session(session)
        account = self._resident.account
        if account.session == session and account.generations:
            account.compacted = True

    def _brought(
        self, plan: Plan, line: Line, keep: Kind | None, coming: Sequence[Generation]
    ) -> Line:
        """Rows and sections up to the line are in place, or up to a lower one."""
        best, resident, size = plan.best, self._resident, len(plan.served)
        tier = best.tier if best is not None else ""
        if best is not None and tier == Park.name:
            outcome = self._park.restore(best, resident, keep, size)
            if not outcome.ok:
                self.tier = Resident.name
                return resident.account.best_line(resident.account.valid) or COLD
        elif best is not None and tier == Store.name:
            self._bring(best.entry, line, keep, size)
        elif best is not None and tier == SPILL:
            return self._restored(plan, best.entry, line, keep, coming)
        elif best is not None and tier == DISK:
            self._park.save(resident, best.entry.base, keep, size)
            return self._read(plan.ask, best.entry, coming)
        else:
            self._park.save(resident, line.tokens, keep, size)
        return line

    def _bring(self, entry: Standing, line: Line, keep: Kind | None, size: int) -> None:
        """A snapshot's rows come in place, but for those that are there already."""
        self._park.save(self._resident, entry.base, keep, size)
        write_blocks(self._model.cache_state(), entry.blocks)
        self._takes(entry.account.aside(line.tokens, [line.tokens]), entry.base)

    def _takes(self, arriving: Account, base: int) -> None:
        """Rows from `base` on are another sequence's now; anchors below are still right."""
        resident, own = self._resident, list(arriving.anchors)
        lines = {anchor.tokens for anchor in own}
        below = [
            anchor
            for anchor in resident.account.anchors
            if anchor.tokens <= min(base, arriving.valid - 1) and anchor.tokens not in lines
        ]
        every = sorted([*below, *own], key=lambda anchor: anchor.tokens)
        arriving.anchors = Anchors.of(self._config.anchors, every)
        resident.exchange(arriving)

    def warm(self, plan: Plan) -> bool:
        """The conversation that a plan wants comes from the drive with nobody asking for it yet."""
        resident, best, ask = self._resident, plan.best, plan.ask
        assert best is not None
        resident.account.left = ask.session is not None and resident.account.session == ask.session
        if plan.in_place.rows < resident.account.valid:
            self.ghosts.add(resident.account.ids)
        self._park.save(resident, best.entry.base, self._keep(plan), best.entry.stop)
        return self.come_back(best.entry, plan.line)

    def come_back(self, spilled: Spilled, line: Line) -> bool:
        """A conversation comes in place from the drive with nobody asking for it, and the model
        resumes at its line; False, and the rows in place cut, when that failed."""
        if not spilled.bring(self._model, line.tokens):
            self._resident.cut(min(spilled.base, self._resident.account.valid))
            return False
        account = spilled.account
        self._takes(account.aside(line.tokens, account.anchors.lines), spilled.base)
        self._resident.restore(line, self._model)
        return True

    def _restored(
        self,
        plan: Plan,
        spilled: Spilled,
        line: Line,
        keep: Kind | None,
        coming: Sequence[Generation],
    ) -> Line:
        """A whole conversation comes from the drive. When a file is no good, or there is no room,
        it starts from what is in place, or from the heads of prompts that the drive has."""
        resident, disk = self._resident, self._disk
        self._park.save(resident, spilled.base, keep, max(len(plan.served), spilled.stop))
        if spilled.bring(self._model, line.tokens):
            account = spilled.account
            self._takes(account.aside(line.tokens, account.anchors.lines), spilled.base)
            return line
        self.tier = Resident.name
        # Whatever came above is not to be trusted.
        resident.cut(min(spilled.base, resident.account.valid))
        line = resident.account.best_line(resident.account.valid) or COLD
        cost = self._model.cost()
        ask = replace(plan.ask, ids=plan.served)
        offer = disk.offer(ask, resident.account, cost) if disk is not None else None
        if offer is None or not _pays(offer, line, cost):
            return line
        self.tier = DISK
        return self._read(ask, offer.entry, coming)

    def _read(self, ask: Ask, chain: Chain, coming: Sequence[Generation]) -> Line:
        """Rows come from files above those in place that are the same.

        When a file is no good the next best entry is tried, on what has come so far; without any
        it starts from what is in place.
        """
        resident, cost, disk = self._resident, self._model.cost(), self._disk
        assert disk is not None
        while True:
            # The next best may lie below what has come.
            resident.cut(chain.base)
            # Answers among the rows that come are known by what was in place.
            resident.account.coming = [answer for answer in coming if answer.stop > chain.base]
            done = chain.bring(self._model, chain.entry.line)
            resident.arrived(chain.account)
            line = resident.account.best_line(resident.account.valid) or COLD
            if done:
                return line
            self.tier = Resident.name
            if disk.holds(chain.entry):
                return line  # Nothing is wrong with it: there was no room, or no file to open.
            offer = disk.offer(ask, resident.account, cost)
            if offer is None or not _pays(offer, line, cost):
                return line
            chain, self.tier = offer.entry, DISK

    def _keep(self, plan: Plan) -> Kind | None:
        """What to keep of the rows in place that this request replaces.

        A compaction replaces its own conversation, of which only the head comes back; one that goes
        on from its answers leaves the head in place, until somebody else comes. A prompt that goes
        on with more than half of the rows is an edit of the same conversation, and what it left is
        dead; anything else is another conversation.
        """
        account, ask, rows = self._resident.account, plan.ask, plan.in_place.rows
        answers = account.generations
        head_stays = bool(answers) and rows > answers[0].start
        if ask.kind == COMPACTION:
            self._park.forget_session(ask.session, plan.best.entry if plan.best else None)
            if account.session is None or account.session == ask.session:
                return None if head_stays else "pin"
        elif account.compacted:
            return None if head_stays or account.session == ask.session else "pin"
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
        entry, rows = plan.best.entry, plan.best.met.rows
        account: Account = self._resident.account if entry is None else entry.account
        if plan.best.tier == DISK:
            # Files know no answers; the rows in place may hold some of the prompt's.
            account = self._resident.account
            rows = common_prefix(account.ids, plan.served)
        return [answer.up_to(rows) for answer in account.generations if answer.start < rows]


def _pays(offer: Offer, line: Line, cost: Cost) -> bool:
    """Whether reading takes less time than forwarding from a line that is in place."""
    return offer.read_s < (offer.line.tokens - line.tokens) / cost.prefill_tokens_s
