"""Scenarios: what happens to a tier's directory, from a state of it, while a log is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, replace
from functools import cache as once

from oracle import Oracle
from rig import ADOPTS, CONFIG, GRID, LONG, OTHERS, STRANGER, WALL_S, A, B, Rig, astray, identity

from cache.disk.config import DAY_S, DiskConfig
from cache.disk.open import Identity
from cache.disk.tier import lines_of
from sim.files import SimFiles
from sim.micro import Op

Files = Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A state, what is done then, and under which settings."""

    name: str
    start: Callable[[], Files]
    play: Callable[[Rig], None]
    sees: Set[str]
    """Events without which it is not what its name says."""
    config: DiskConfig = CONFIG
    who: str = "a"
    wall_s: float = WALL_S
    ample: bool = True
    whole: bool = True
    seed: int = 0

    def identity(self) -> Identity:
        return identity(self.who)

    def rig(
        self, files: object, seed: int | None = None, tell: Callable[[str], None] | None = None
    ) -> Rig:
        """Open it; the log begins before."""
        return Rig(
            files,
            config=self.config,
            who=self.identity(),
            seed=self.seed if seed is None else seed,
            wall_s=self.wall_s,
            trusted=self.whole,
            tell=tell,
        )

    def run(self, files: SimFiles, seed: int | None = None) -> list[Op]:
        """All of it: opened, done, closed. What was logged."""
        rig = self.rig(files, seed)
        self.play(rig)
        rig.close()
        found = rig.wrong + astray(rig, self.start())
        assert not found, found
        if seed is None and files.fault is None:
            assert self.sees <= rig.tier.notes.counters.keys(), rig.tier.notes.counters
        return files.log

    def oracle(self) -> Oracle:
        return Oracle(self.config, self.identity(), ample=self.ample)


@once
def saved(*prompts: int, config: DiskConfig = CONFIG) -> Files:
    """A directory where these prompts (0 is A, 1 is B, 2 is LONG) were saved."""
    files = SimFiles()
    rig = Rig(files, config=config)
    for number in prompts:
        rig.ask((A, B, LONG)[number], f"s{number}")
        rig.reset()
    rig.close()
    return files.snapshot()


def name_of(files: Files, kind: str, number: int = 0) -> str:
    """One of the files of a kind."""
    return sorted(name for name in files if name.endswith(kind))[number]


def flipped(files: Files, kind: str, number: int = 0) -> Files:
    """One bit of a file's bytes past its header is another."""
    name = name_of(files, kind, number)
    data = bytearray(files[name])
    data[4_096 + 5] ^= 4
    return {**files, name: bytes(data)}


def without(files: Files, kind: str, number: int = 0) -> Files:
    """A file is gone."""
    gone = name_of(files, kind, number)
    return {name: data for name, data in files.items() if name != gone}


def asks(*prompts: int) -> Callable[[Rig], None]:
    """These prompts, each on an engine that holds nothing."""

    def play(rig: Rig) -> None:
        for number in prompts:
            rig.ask((A, B, LONG)[number], f"s{number}")
            rig.reset()

    return play


def fenced(rig: Rig) -> None:
    """The next request begins while the first one's rows are still being copied."""
    rig.ask(A, "s0")
    rig.ask(STRANGER, "x")
    rig.settle()


def in_place(rig: Rig) -> None:
    """A chain fails half way over rows that are in use; those rows are asked for again."""
    rig.ask(STRANGER, "x")
    rig.ask(A, "s0")
    rig.ask(STRANGER, "x")
    rig.settle()


def cleared(rig: Rig) -> None:
    rig.ask(B, "s1")
    rig.tier.clear()
    rig.settle()


def cleared_early(rig: Rig) -> None:
    rig.ask(LONG, "s2")
    rig.jobs.pump()
    rig.tier.clear()
    rig.settle()


def aged(rig: Rig) -> None:
    """A week passes."""
    rig.clock.charge(8 * DAY_S)
    rig.ask(B, "s1")
    rig.settle()


DAMAGE = frozenset({"damage", "write"})
SMALL = replace(CONFIG, budget_bytes=6 * 8_192)
"""Room for one prompt's files, and not for two."""
TOP = f"{lines_of(A[:-1], GRID)[-1]:016x}.anchor"
"""The highest anchor of A."""

SCENARIOS = (
    Scenario("first save", dict, asks(0), {"write"}),
    Scenario("save that shares chunks", lambda: saved(0), asks(1), {"hit", "write"}),
    Scenario("longer save", lambda: saved(0, 1), asks(2), {"hit", "write"}),
    Scenario("chunk damaged", lambda: flipped(saved(0), ".rows", 1), asks(0), DAMAGE, whole=False),
    Scenario("anchor damaged", lambda: flipped(saved(0), TOP), asks(0), DAMAGE, whole=False),
    Scenario("chunk missing", lambda: without(saved(0), ".rows", 2), asks(0), {"sweep", "write"}),
    Scenario("budget", lambda: saved(0, config=SMALL), asks(1, 2), {"evict"}, SMALL, ample=False),
    Scenario("too old", lambda: saved(0), aged, {"expire", "write"}),
    Scenario("cleared", lambda: saved(0), cleared, {"clear"}),
    Scenario("cleared while writing", lambda: saved(0), cleared_early, {"clear", "drop"}),
    Scenario("another fingerprint", lambda: saved(0), asks(0), {"sweep", "write"}, who="b"),
    Scenario("adopted", lambda: saved(0), asks(0, 1), {"hit", "write"}, who=ADOPTS),
    Scenario("counts", lambda: saved(0), asks(0, 0), {"hit"}),
    Scenario(
        "damage over rows", lambda: flipped(saved(0), ".rows", 0), in_place, DAMAGE, whole=False
    ),
    Scenario("others' files", lambda: {**saved(0), **OTHERS}, asks(1), {"hit", "write"}),
    Scenario("fenced", dict, fenced, {"drop", "write"}, seed=3),
)
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
