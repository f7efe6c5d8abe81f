"""The spill's oracle: a directory as a crash, a fault or a bad drive left it is opened and used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rig import WALL_S, identity
from spill_owed import Owed, Shot
from spill_rig import CONFIG, SpillRig, astray
from states import Files, State, Tally, crashed
from support import joined, tokens

from cache.disk.open import Identity
from cache.spill.config import SpillConfig
from cache.spill.entry import Entry
from sim.crash import Order
from sim.files import SimFiles
from sim.micro import Op

NEW = "new"
"""A session that nobody ever saved."""


@dataclass(slots=True)
class Used:
    """What a directory was good for once it was open."""

    held: list[Shot] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Recovered:
    """What a directory was like when it was opened."""

    held: list[Shot] = field(default_factory=list)
    last: str | None = None
    """The session that a start reads back."""
    problems: list[str] = field(default_factory=list)
    log: Sequence[Any] = ()
    """Of the opening."""


@dataclass(slots=True)
class SpillOracle:
    """Checks directories, each once: many crashes leave the same."""

    config: SpillConfig = CONFIG
    who: Identity = field(default_factory=identity)
    ample: bool = True
    """The budget has room for everything."""
    damaged: bool = False
    """Files may be no good although they are there at their size."""
    found: dict[State, Recovered] = field(default_factory=dict)
    used: dict[State, Used] = field(default_factory=dict)

    def noted(self, state: Files, notes: Sequence[str]) -> list[str]:
        """All that is wrong, with what was noted until the crash."""
        recovered = self.recover(state)
        return [*recovered.problems, *self._against(Owed.by(notes), recovered)]

    def _against(self, owed: Owed, recovered: Recovered) -> list[str]:
        if self.damaged:
            owed.pointed = set()
        return owed.against(recovered.held, ample=self.ample, last=recovered.last)

    def opening(self, state: Files) -> Sequence[Any]:
        """The log of opening it."""
        return self.recover(state).log

    def crashes(
        self, name: str, start: Files, log: Sequence[Op], order: Order = Order.WEAK, **how: Any
    ) -> Tally:
        """Every crash in a log; see `crashed`."""
        return crashed(self, name, start, log, order, **how)

    def recover(self, state: Files) -> Recovered:
        """Open it; look what is left; open again; bring everything back, go on, save, come back."""
        key = frozenset(state.items())
        if key not in self.found:
            self.found[key] = self._recovered(dict(state))
        return self.found[key]

    def _rig(self, files: SimFiles) -> SpillRig:
        return SpillRig(files, config=self.config, who=self.who, wall_s=WALL_S, tell=_nobody)

    def _recovered(self, state: dict[str, bytes]) -> Recovered:
        files = SimFiles(state)
        try:
            rig = self._rig(files)
        except Exception as error:
            # Opening never raises and never refuses: whatever does is the finding.
            return Recovered(problems=[f"it can't be opened: {type(error).__name__} {error}"])
        found = Recovered(problems=astray(rig, state), log=list(files.log))
        pointed = rig.spill.shelf.pointed()
        found.last = (pointed.session or "-") if pointed is not None else None
        rig.close()
        found.problems += [f"handle {handle} is open" for handle in files.handles]
        clean = files.snapshot()
        key = frozenset(clean.items())
        if key not in self.used:
            used = self.used[key] = Used()
            try:
                self._use(clean, used)
            except Exception as error:
                used.problems.append(f"it can't be used: {type(error).__name__} {error}")
        found.held = self.used[key].held
        found.problems += self.used[key].problems
        return found

    def _use(self, clean: dict[str, bytes], used: Used) -> None:
        """Every conversation comes back, and goes on; then all is saved, and comes back again."""
        rig = self._rig(SimFiles(clean))
        entries = rig.spill.shelf.whole()
        if rig.files.snapshot() != clean:
            used.problems.append("opening twice changed something")
        for entry in entries:
            shot = rig.brings(entry)
            if shot is not None:
                used.held.append(shot)
                used.problems += self._goes_on(rig, entry)
            elif not self.damaged:
                used.problems.append(f"{entry.session} could not be read")
        if not self.damaged and rig.files.snapshot() != clean:
            used.problems.append("reading changed something")
        saved = self._saved(rig, used)
        used.problems += rig.wrong + astray(rig, clean)
        rig.close()
        rig = self._rig(SimFiles(rig.files.snapshot()))
        shots = [rig.brings(entry) for entry in rig.spill.shelf.whole()]
        there = {shot.conversation for shot in shots if shot is not None}
        if self.ample:
            used.problems += [f"{session} was saved in vain" for session, *_ in saved - there]
        elif not saved & there:
            used.problems.append("nothing that was saved is there")
        used.problems += rig.wrong + astray(rig, clean)
        rig.close()

    def _goes_on(self, rig: SpillRig, entry: Entry) -> list[str]:
        """On an engine that holds nothing the next turn is served by the entry, to its end."""
        assert entry.account is not None and entry.account.end is not None
        rig.reset()
        ids = joined(entry.account.ids, tokens(7, 77))
        row = rig.ask(ids, entry.session)
        where = (row.source, row.cached)
        good = where == ("spill.end", entry.account.end.tokens)
        return [] if good or self.damaged else [f"{entry.session} goes on from {where}"]

    def _saved(self, rig: SpillRig, used: Used) -> set[tuple[str, ...]]:
        """Every session goes on and is saved, and a new one: what was saved."""
        saved = set[tuple[str, ...]]()
        for session in [*dict.fromkeys(shot.session for shot in used.held), NEW]:
            rig.reset()
            rig.turn(None if session == "-" else session)
            shot, outcome = rig.shot(), rig.save()
            if outcome.ok:
                saved.add(shot.conversation)
            elif self.ample:
                used.problems.append(f"{session} can't be saved: {outcome.why}")
        rig.reset()
        return saved


def _nobody(what: str) -> None:
    """What happens after a crash is not owed to anybody."""
