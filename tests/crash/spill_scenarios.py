"""Scenarios of the spill: what happens to its directory from a state of it, while a log is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cache as once
from typing import Any

from rig import WALL_S, identity
from spill_oracle import SpillOracle
from spill_rig import CONFIG, OTHERS, PLANES, RAW, SpillRig, astray
from states import Tally

from cache.disk.open import Identity
from cache.planned import drain
from cache.spill.codec import CodecConfig
from cache.spill.config import SpillConfig
from cache.spill.saver import Stop
from sim.crash import Order
from sim.files import SimFiles
from sim.micro import Note, Op

DAY_S = 86_400.0
Play = Callable[[SpillRig], None]


@dataclass(frozen=True, slots=True)
class Begin:
    """A directory, and what was noted while it came to be."""

    files: Mapping[str, bytes] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Scenario:
    """A state, what is done then, and under which settings."""

    name: str
    start: Callable[[CodecConfig], Begin]
    play: Play
    sees: Set[str]
    """Events without which it is not what its name says."""
    config: SpillConfig = CONFIG
    who: str = "a"
    wall_s: float = WALL_S
    ample: bool = True
    whole: bool = True
    """All files are good; else nothing that was noted before is owed."""
    park_rows: int = 0
    recodes: bool = False
    """What was written with one codec goes on with the other."""

    def identity(self) -> Identity:
        return identity(self.who)

    def begin(self, codec: CodecConfig) -> Begin:
        begin = self.start(codec)
        # Of what is damaged, or of other rows, nothing is owed; but nothing else may come back.
        owed = self.whole and self.who == "a"
        return begin if owed else replace(begin, notes=unowed(begin.notes))

    def settings(self, codec: CodecConfig) -> SpillConfig:
        other = RAW if codec.mode == "planes" else PLANES
        return replace(self.config, codec=other if self.recodes else codec)

    def rig(
        self, files: object, codec: CodecConfig, tell: Callable[[str], None] | None = None
    ) -> SpillRig:
        """Open it; the log begins before."""
        return SpillRig(
            files,
            config=self.settings(codec),
            who=self.identity(),
            wall_s=self.wall_s,
            tell=tell,
            notes=self.begin(codec).notes,
            park_rows=self.park_rows,
        )

    def run(self, files: SimFiles, codec: CodecConfig) -> list[Op]:
        """All of it: opened, done, closed. What was logged."""
        rig = self.rig(files, codec)
        self.play(rig)
        rig.close()
        found = rig.wrong + astray(rig, self.begin(codec).files)
        assert not found, found
        if files.fault is None:
            seen = {event for event, count in rig.spill.notes.counters.items() if count}
            assert self.sees <= seen, rig.spill.notes.counters
        return files.log

    def oracle(self, codec: CodecConfig) -> SpillOracle:
        return SpillOracle(
            self.settings(codec), self.identity(), ample=self.ample, damaged=not self.whole
        )

    def crashes(
        self,
        codec: CodecConfig,
        log: Sequence[Op],
        order: Order = Order.WEAK,
        oracle: SpillOracle | None = None,
        **how: Any,
    ) -> Tally:
        """Every crash in a log of it, from its opening on."""
        begin, name = self.begin(codec), f"spill {self.name}, {codec.mode}"
        oracle, how = oracle or self.oracle(codec), {"since": len(begin.notes)} | how
        return oracle.crashes(name, begin.files, log, order, **how)


def unowed(notes: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(note for note in notes if note.startswith("begun"))


# what is there before


def left(play: Play, codec: CodecConfig, config: SpillConfig = CONFIG, park_rows: int = 0) -> Begin:
    """What a process leaves that played this and was stopped."""
    files = SimFiles()
    rig = SpillRig(files, config=replace(config, codec=codec), park_rows=park_rows)
    play(rig)
    rig.close()
    assert not rig.wrong + astray(rig), rig.wrong + astray(rig)
    return Begin(files.snapshot(), tuple(op.what for op in files.log if isinstance(op, Note)))


def talked(*sessions: str | None) -> Play:
    """A turn of each, saved as the next one comes or at the end."""

    def play(rig: SpillRig) -> None:
        for session in sessions:
            rig.turn(session)
        drain(rig.stack, rig.engine)

    return play


@once
def saved(codec: CodecConfig, *sessions: str | None, config: SpillConfig = CONFIG) -> Begin:
    """A directory with these conversations; the last was in place."""
    return left(talked(*sessions), codec, config)


def nothing(codec: CodecConfig) -> Begin:
    return Begin()


def of(*sessions: str | None, config: SpillConfig = CONFIG) -> Callable[[CodecConfig], Begin]:
    return lambda codec: saved(codec, *sessions, config=config)


def name_of(files: Mapping[str, bytes], kind: str, number: int = 0) -> str:
    """One of the files of a kind."""
    return sorted(name for name in files if name.endswith(kind))[number]


def flipped(begin: Begin, kind: str, number: int = 0) -> Begin:
    """One bit of a file's bytes past its header is another."""
    name = name_of(begin.files, kind, number)
    data = bytearray(begin.files[name])
    data[4_096 + 5] ^= 4
    return replace(begin, files={**begin.files, name: bytes(data)})


def damaged(kind: str, number: int, *sessions: str) -> Callable[[CodecConfig], Begin]:
    return lambda codec: flipped(saved(codec, *sessions), kind, number)


def lacking(codec: CodecConfig) -> Begin:
    """A block is gone."""
    begin = saved(codec, "a")
    gone = name_of(begin.files, ".block", 1)
    return replace(begin, files={n: data for n, data in begin.files.items() if n != gone})


def beside_others(codec: CodecConfig) -> Begin:
    begin = saved(codec, "a")
    return replace(begin, files={**begin.files, **OTHERS})


# what happens


def after(blocks: int) -> Stop:
    """Somebody wants the engine when so many blocks were written."""
    left = [None] * blocks

    def stop() -> bool:
        return not left or left.pop() is not None

    return stop


def grows(rig: SpillRig) -> None:
    rig.comes_back()
    rig.turn("a")
    drain(rig.stack, rig.engine)


def unchanged(rig: SpillRig) -> None:
    rig.comes_back()
    drain(rig.stack, rig.engine)


def stopped(rig: SpillRig) -> None:
    """A save ends after a block; the conversation goes on, and the next save takes that up."""
    rig.comes_back()
    rig.turn("a", more=8)
    assert rig.save(after(1)).why == "yielded"
    rig.turn("a", more=2, answer=2)
    assert rig.save().ok


def given_up(rig: SpillRig) -> None:
    """A save that was stopped is never taken up: another session comes, and all is cleared."""
    rig.turn("a", more=8)
    assert rig.save(after(1)).why == "yielded"
    rig.spill.clear()
    rig.turn("b")
    assert rig.save().ok


def ages(rig: SpillRig) -> None:
    """Three days pass."""
    rig.clock.charge(3 * DAY_S)
    rig.turn("b")
    drain(rig.stack, rig.engine)


def clears(rig: SpillRig) -> None:
    rig.spill.clear()
    rig.turn("b")
    assert rig.save().ok


def takes_turns(rig: SpillRig) -> None:
    """Two sessions, each in the other's place."""
    for session in ("a", "b", "a"):
        rig.turn(session)


def reads_badly(rig: SpillRig) -> None:
    """What can't be read is computed again, and saved again."""
    entry = rig.spill.shelf.whole()[0]
    assert entry.account is not None
    rig.said["a"] = entry.account.ids.copy()
    rig.turn("a")
    assert rig.save().ok


DAMAGE = frozenset({"fail", "damage", "write"})
SMALL = replace(CONFIG, budget_bytes=80_000)
"""Room for one conversation's files and not for two."""
SCENARIOS = (
    Scenario("first save", nothing, talked("a"), {"write"}),
    Scenario("grown", of("a"), grows, {"hit", "write"}),
    Scenario("unchanged", of("a"), unchanged, {"hit", "write"}),
    Scenario("stopped", nothing, stopped, {"yield", "write"}),
    Scenario("stopped, grown", of("a"), stopped, {"hit", "yield", "write"}),
    Scenario("stopped, given up", nothing, given_up, {"yield", "clear", "write"}),
    Scenario("budget", of("a", config=SMALL), talked("b"), {"evict"}, SMALL, ample=False),
    Scenario("too old", of("a"), ages, {"expire", "write"}),
    Scenario("cleared", of("a", "b"), clears, {"clear", "write"}),
    Scenario("two sessions", of("b"), takes_turns, {"hit", "write"}),
    Scenario("parked", nothing, talked("a", "b"), {"write"}, park_rows=64),
    Scenario("no session", of(None), talked(None, "a"), {"write"}),
    Scenario("another fingerprint", of("a"), talked("a"), {"sweep", "write"}, who="b"),
    Scenario("block damaged", damaged(".block", 1, "a"), reads_badly, DAMAGE, whole=False),
    Scenario("copy damaged", damaged(".anchor", 0, "a"), reads_badly, DAMAGE, whole=False),
    Scenario("block missing", lacking, talked("a"), {"sweep", "write"}, whole=False),
    Scenario("another codec", of("a"), grows, {"hit", "write"}, recodes=True),
    Scenario("others' files", beside_others, grows, {"hit", "write"}),
)
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
CODECS = {"planes": PLANES, "raw": RAW}
