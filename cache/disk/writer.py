"""The writer of one sequence: plans what to keep of a prompt, stages it, and fences its rows."""

from __future__ import annotations

from cache.disk.admission import Candidate, admitted
from cache.disk.plan import Plan, Staged
from cache.disk.shapes import NO_ROOM
from cache.disk.tier import DiskTier, lines_of
from cache.keys import whole_keys
from cache.ports import Model
from cache.types import Ask, Ids

NEVER = 1 << 62
"""A row that no sequence has."""


class DiskWriter:
    """Between a prefill and the jobs that write. No request ever waits for a drive.

    An anchor is copied into a staging buffer as the prefill passes its line; the rows stay where
    they are, and a job copies them out after the prefill, until somebody is about to write there.
    """

    def __init__(self, tier: DiskTier, model: Model) -> None:
        self._tier = tier
        self._model = model
        self._cold: list[int] = []
        """Hashes of the lines of the prompt that is being read; [] when nothing is counted."""
        self._counted = False
        self._plan: Plan | None = None
        self._open: list[Plan] = []

    def begin(self, ask: Ask, served: Ids, line: int, *, clean: bool) -> None:
        """A prefill of `served` begins at `line`; `clean`: its rows will be a cold prefill's."""
        self.prefilled()
        tier, config = self._tier, self._tier.config
        self._cold = []
        if not config.writes or len(served) < config.tokens_min:
            return
        first = tier.first_long(ask.session, ask.first_answer)
        if not clean:
            return
        grid = tier.shapes.grid
        self._cold = hashes = lines_of(served, grid)
        stops = range((line // grid + 1) * grid, len(hashes) * grid + 1, grid)
        lines = [stop for stop in stops if whole_keys(served, stop) == stop]
        counts = tier.keeper.counts.with_one_more([hashes[n // grid - 1] for n in lines])
        prompt = Candidate(lines, counts, len(served), first, ask.last_user, ask.first_answer)
        wanted = [n for n in admitted(prompt, config) if tier.keeper.wants(hashes[n // grid - 1])]
        if wanted and self._skips(ask.session, wanted[-1]):
            return
        self._plan = self._planned(ask, served, hashes, wanted)

    def _skips(self, session: str | None, line: int) -> bool:
        """Whether the day's budget has no room for a plan; its lines are counted all the same."""
        guard = self._tier.guard
        if guard is None or guard.allows("tier", line):
            return False
        guard.skipped("tier", session, line)
        return True

    def _planned(self, ask: Ask, served: Ids, hashes: list[int], wanted: list[int]) -> Plan | None:
        """A plan that the budget has room for, if need be without the longest lines."""
        grid = self._tier.shapes.grid
        if wanted and not self._tier.ready():
            self._tier.notes.note("drop", ask.session, wanted[-1], 0, "memory")
            return None
        while wanted:
            top = wanted[-1]
            plan = Plan(
                model=self._model,
                ids=served[:top].copy(),
                hashes=tuple(hashes[: top // grid]),
                lines=tuple(wanted),
                session=ask.session,
                packages=ask.packages,
                need_bytes=0,
                fence=NEVER,
            )
            if self._tier.keeper.admit(plan):
                self._open.append(plan)
                return plan
            self._tier.notes.note("drop", ask.session, wanted.pop(), 0, "budget")
        return None

    def passed(self, stop: int) -> None:
        """The prefill has come to `stop`."""
        grid, tier, plan = self._tier.shapes.grid, self._tier, self._plan
        if not self._cold or stop % grid:
            return
        tier.keeper.counts.add(self._cold[stop // grid - 1])
        self._counted = True
        if plan is None or stop not in plan.lines:
            return
        staged = Staged(stop)
        plan.staged.append(staged)
        slot = tier.anchor_slots.take()
        if slot is None:
            staged.why = "staging"
            return
        layout = tier.shapes.anchor(
            plan.hashes[stop // grid - 1], stop, plan.chunks(stop), plan.named(stop)
        )
        sections = self._model.cache_state().sections
        try:
            for section, tensor in zip(sections, layout.tensors(slot), strict=True):
                tensor.copy_(section.tensor)
        except NO_ROOM:
            staged.why = "memory"
            tier.anchor_slots.give(slot)
            return
        tier.work.anchor(plan, staged, layout, slot)
        tier.keeper.run()

    def prefilled(self) -> None:
        """The prefill is over, or was given up where it was."""
        plan, self._plan, self._cold = self._plan, None, []
        if plan is not None and not plan.closed:
            plan.closed = True
            self._tier.keeper.rows_ready(plan)
        if self._counted:
            self._counted = False
            self._tier.keeper.save_record()

    def fence(self, row: int) -> None:
        """Rows from `row` on are about to be overwritten; waits for one chunk's copy at most."""
        self.prefilled()
        self._open = [plan for plan in self._open if not plan.finished]
        if any(row < plan.lines[-1] and row < plan.fence for plan in self._open):
            with self._model.device_calls():
                for plan in self._open:
                    plan.fence = min(plan.fence, row)
