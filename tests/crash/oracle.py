"""The oracle: a directory as a crash, a fault or a bad drive left it is opened and used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rig import CONFIG, GRID, PROMPTS, Owed, Recovered, Rig, Used, astray, identity
from states import Files, State, Tally, crashed

from cache.disk.config import DiskConfig
from cache.disk.open import Identity
from cache.types import Ids
from sim.crash import Order
from sim.files import SimFiles
from sim.micro import Op

__all__ = ("Oracle", "Tally")


@dataclass(slots=True)
class Oracle:
    """Checks directories, each once: many crashes leave the same."""

    config: DiskConfig = CONFIG
    who: Identity = field(default_factory=identity)
    prompts: Sequence[Ids] = PROMPTS
    ample: bool = True
    """The budget has room for all prompts, so that each is served from the drive afterwards."""
    found: dict[State, Recovered] = field(default_factory=dict)
    used: dict[State, Used] = field(default_factory=dict)

    def recover(self, state: Files) -> Recovered:
        """Open it; look what is left; open again; ask; let it write; ask again."""
        key = frozenset(state.items())
        if key not in self.found:
            self.found[key] = self._recovered(dict(state))
        return self.found[key]

    def _recovered(self, state: dict[str, bytes]) -> Recovered:
        files = SimFiles(state)
        try:
            rig = Rig(files, config=self.config, who=self.who)
            rig.settle()
        except Exception as error:
            # Opening never raises and never refuses: whatever does is the finding.
            return Recovered(problems=[f"it can't be opened: {type(error).__name__} {error}"])
        written = rig.guard.written()
        found = Recovered(rig.entries(), rig.counts(), written, log=list(files.log))
        found.problems += astray(rig, state)
        rig.close()
        found.problems += [f"handle {handle} is open" for handle in files.handles]
        used = self._used(files.snapshot())
        found.served = used.served
        found.problems += used.problems
        return found

    def _used(self, clean: dict[str, bytes]) -> Used:
        """What an opened directory is good for; many crashes leave what opens to the same one."""
        # What was written before is far below a day's budget; and where there is room for all,
        # what was counted and used before changes nothing.
        same = {"writes", "counts"} if self.ample else {"writes"}
        key = frozenset(item for item in clean.items() if item[0] not in same)
        if key not in self.used:
            used = self.used[key] = Used()
            try:
                self._use(clean, used)
            except Exception as error:
                used.problems.append(f"it can't be used: {type(error).__name__} {error}")
        return self.used[key]

    def _use(self, clean: dict[str, bytes], used: Used) -> None:
        lines = []
        for ids in self.prompts:
            rig = Rig(SimFiles(clean), config=self.config, who=self.who)
            rig.settle()
            if rig.files.snapshot() != clean:
                used.problems.append("opening twice changed something")
            row = rig.ask(ids)
            lines.append(row.cached if row.source == "disk.grid" else 0)
            rig.close()
            used.problems += rig.wrong + astray(rig, clean)
        used.served = tuple(lines)
        self._save_all(clean, used)

    def _save_all(self, clean: dict[str, bytes], used: Used) -> None:
        """Every prompt is asked, then again: it was written, where there is room."""
        rig = Rig(SimFiles(clean), config=self.config, who=self.who)
        for again, ids in [(again, ids) for again in (False, True) for ids in self.prompts]:
            row, line = rig.ask(ids), (len(ids) - 1) // GRID * GRID
            if again and self.ample and (row.source, row.cached) != ("disk.grid", line):
                used.problems.append(f"{row.source} {row.cached} served {len(ids)} that was saved")
            rig.reset()
        rig.close()
        used.problems += rig.wrong + astray(rig, clean)

    def judge(self, state: Files, owed: Owed) -> list[str]:
        """All that is wrong with a directory, of which so much was acknowledged before."""
        return self.recover(state).against(owed, self.prompts)

    def noted(self, state: Files, notes: Sequence[str]) -> list[str]:
        """All that is wrong, with what was noted until the crash."""
        return self.judge(state, Owed.by(notes))

    def opening(self, state: Files) -> Sequence[Any]:
        """The log of opening it."""
        return self.recover(state).log

    def crashes(
        self, name: str, start: Files, log: Sequence[Op], order: Order = Order.WEAK, **how: Any
    ) -> Tally:
        """Every crash in a log; see `crashed`."""
        return crashed(self, name, start, log, order, **how)
