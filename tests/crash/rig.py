"""What the crash tests share: a tier on a tiny grid under real turns, and what is owed by it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from support import VOCAB, box, joined, serve, tokens

from cache.adopt import accepted
from cache.checksum import crc32
from cache.disk.config import DiskConfig
from cache.disk.open import Identity, open_tier
from cache.disk.tier import lines_of
from cache.fingerprint import digest
from cache.journal import TurnRow
from cache.stack import Stack
from cache.types import Ids, Refusal
from cache.writeguard import GuardConfig, WriteGuard
from engine.witness import Witness
from replay.verify import WitnessVerifier
from sim.clock import VirtualClock
from sim.jobs import SeededJobs

GRID, WINDOW = 4, 64
CONFIG = DiskConfig(
    budget_bytes=1 << 20,
    min_free_bytes=0,
    floor_bytes=0,
    admit_after=1,
    head_anchors=2,
    tokens_min=4,
)
WALL_S = 1_000_000.0
HEAD = tokens(8, 1)
A, B = joined(HEAD, tokens(5, 2)), joined(HEAD, tokens(6, 3))
LONG = joined(A, tokens(6, 4))
STRANGER = tokens(10, 5)
PROMPTS = (A, B, LONG)


def later(data: bytes) -> bytes:
    """A file as a later version writes it: the same start, another number."""
    head = data[:8] + (99).to_bytes(4, "little") + data[12:24]
    return head + crc32(head).to_bytes(4, "little") + data[28:]


OTHERS = {
    "notes.txt": b"mine",
    f"{1:016x}.rows": later(b"MOORAGE\0".ljust(8_192, b"\1")),
    f"{2:016x}.anchor": b"not of this program",
}
"""What lies in a directory and is not ours to touch."""


ADOPTS = "adopts"


def identity(model: str = "a") -> Identity:
    """What computes the rows: another name is another fingerprint.

    ADOPTS is one whose older formula gives what "a" is.
    """
    if model != ADOPTS:
        return Identity(model * 64, lambda files: ())
    inputs, older = {"model": "new"}, {"old": [identity("a").fingerprint]}
    return Identity(digest(inputs), lambda files: accepted(files, inputs, older))


class Watched(SeededJobs):
    """Seeded jobs that let somebody look before every step."""

    def __init__(self, seed: int, look: Callable[[], None]) -> None:
        super().__init__(seed)
        self._look = look

    def _step(self, index: int) -> None:
        self._look()
        super()._step(index)


class Kept(WriteGuard):
    """A guard that knows what its last record says."""

    said = 0
    """Bytes of all its days."""

    def plain(self) -> dict[str, Any]:
        self.said = self.written()
        return super().plain()

    def written(self) -> int:
        """Bytes of all days."""
        return sum(tier + spill for _, tier, spill, _ in self.days())


class Refused(Exception):
    """The directory was not opened."""


class Rig:
    """One process: an engine with a disk tier, its requests held to a cold prefill's bits."""

    def __init__(
        self,
        files: Any,
        *,
        config: DiskConfig = CONFIG,
        who: Identity | None = None,
        seed: int = 0,
        wall_s: float = WALL_S,
        trusted: bool = True,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        """`trusted`: what is found at the opening is whole, and owed from then on. `tell` is told
        what is acknowledged; without one it goes into the files' log, where they keep one.
        """
        self.files = files
        self.clock = VirtualClock(wall_s)
        self.jobs = Watched(seed, self.look)
        self.wrong: list[str] = []
        """What no request may give: other bytes than a cold prefill's."""
        self._told = tell or getattr(files, "note", None)
        model = Witness(GRID, WINDOW, vocab=VOCAB)
        self.guard = Kept(self.clock, GuardConfig())
        found = open_tier(
            files, self.clock, self.jobs, config, model, who or identity(), self.guard
        )
        if isinstance(found, Refusal):
            raise Refused(found)
        self.tier = found
        self._noted = set() if trusted else set(found.index.entries)
        self.look()
        self._seat(model)

    def _seat(self, engine: Witness) -> None:
        self.engine = engine
        self.box = box(engine)
        self.box.stack = Stack(engine, self.box.stack.config, disk=self.tier)
        self.box.clock, self.box.jobs = self.clock, self.jobs
        self.check = WitnessVerifier(engine)

    def reset(self) -> None:
        """An engine that holds nothing, on the same tier."""
        self.settle()
        self._seat(Witness(GRID, WINDOW, vocab=VOCAB))

    def ask(self, ids: Ids, session: str | None = None, answer: int = 3) -> TurnRow:
        """A turn; what it was served with is checked."""
        row, verdict = serve(
            self.box, ids, tokens(answer, 1_000 + len(ids)), check=self.check, session=session
        )
        if verdict is None or not verdict.ok:
            self.wrong.append(f"{len(ids)} tokens from {row.source} {row.cached}: {verdict}")
        self.look()
        return row

    def settle(self) -> None:
        """All that is to be done is done, and taken in."""
        for _ in range(4):
            self.jobs.drain()
            self.tier.keeper.absorb()
            self.look()
        if not self.tier.notes.counters["stuck"] and self.tier.keeper.keeps_record:
            self.tell(f"counts {self.counts()}")
            self.tell(f"writes {self.guard.said}")

    def close(self) -> None:
        self.settle()
        self.tier.close()

    def counts(self) -> int:
        """Cold reads remembered."""
        return sum(self.tier.keeper.counts.plain().values())

    def entries(self) -> frozenset[int]:
        """Anchors that the tier answers for."""
        return frozenset(self.tier.index.entries)

    # what is owed

    def look(self) -> None:
        """Say which anchors have come and gone since the last time."""
        now = set(self.tier.index.entries)
        for name in sorted(now - self._noted):
            self.tell(f"anchor {name:016x}")
        for name in sorted(self._noted - now):
            self.tell(f"gone {name:016x}")
        self._noted = now

    def tell(self, what: str) -> None:
        """It is acknowledged now."""
        if self._told is not None:
            self._told(what)


@dataclass(frozen=True, slots=True)
class Owed:
    """What must be there when the machine is on again."""

    anchors: frozenset[int] = frozenset()
    counts: int = 0
    writes: int = 0
    """Bytes."""

    @classmethod
    def by(cls, notes: Iterable[str]) -> Owed:
        """What was acknowledged and not given up since."""
        anchors, counts, writes = set[int](), 0, 0
        for note in notes:
            kind, value = note.split()
            if kind == "anchor":
                anchors.add(int(value, 16))
            elif kind == "gone":
                anchors.discard(int(value, 16))
            elif kind == "writes":
                writes = int(value)
            else:
                counts = int(value)
        return cls(frozenset(anchors), counts, writes)

    def line(self, ids: Ids) -> int:
        """The highest line of a prompt that it must be able to resume at."""
        held = [n for n, name in enumerate(_lines(ids[:-1].tobytes()), 1) if name in self.anchors]
        return max(held, default=0) * GRID


@cache
def _lines(ids: bytes) -> list[int]:
    """Hashes of a prompt's lines; the same prompts are judged thousands of times."""
    return lines_of(np.frombuffer(ids, np.int32), GRID)


@dataclass(slots=True)
class Used:
    """What a directory was good for once it was open."""

    served: tuple[int, ...] = ()
    """Tokens of each prompt that came from the drive."""
    problems: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Recovered:
    """What a directory was like when it was opened."""

    entries: frozenset[int] = frozenset()
    counts: int = 0
    writes: int = 0
    served: tuple[int, ...] = ()
    problems: list[str] = field(default_factory=list)
    log: Sequence[Any] = ()
    """Of the opening."""

    def against(self, owed: Owed, prompts: Sequence[Ids]) -> list[str]:
        """All that is wrong, with what was acknowledged before."""
        found = [f"lost {name:016x}" for name in sorted(owed.anchors - self.entries)]
        for ids, served in zip(prompts, self.served, strict=False):
            if served < (line := owed.line(ids)):
                found.append(f"{served} tokens served, {line} were acknowledged")
        if self.counts < owed.counts:
            found.append(f"{self.counts} counts of {owed.counts}")
        if self.writes < owed.writes:
            found.append(f"{self.writes} bytes written of {owed.writes}")
        return [*self.problems, *found]


def astray(rig: Rig, before: Mapping[str, bytes] | None = None) -> list[str]:
    """Files that the index does not answer for, and what of the index no file answers for.

    And what others had there `before` and is not as it was.
    """
    snapshot = rig.files.snapshot()
    index = rig.tier.index
    sizes = {chunk.name: chunk.nbytes for chunk in index.chunks.values()}
    sizes |= {entry.name: entry.nbytes for entry in index}
    data = {n: len(d) for n, d in snapshot.items() if n.endswith((".rows", ".anchor"))}
    found = [f"{name} is left" for name in data.keys() - sizes.keys() - OTHERS.keys()]
    found += [f"{name} is not there" for name in sizes.keys() - data.keys()]
    both = data.keys() & sizes.keys()
    found += [f"{n} has {data[n]} bytes, not {sizes[n]}" for n in both if data[n] != sizes[n]]
    found += [f"{name} is left" for name in snapshot if name.endswith(".tmp")]
    for name, held in (before or {}).items():
        if (not ours(name) or name in OTHERS) and snapshot.get(name) != held:
            found.append(f"{name}, which is not ours, was touched")
    return found


def ours(name: str) -> bool:
    """Whether a tier may have written a file of this name."""
    plain = name.removesuffix(".tmp")
    records = ("moorage-disk", "lock", "counts", "writes", "equal")
    known = plain in records or plain.startswith("inputs-")
    return known or (len(plain.split(".")[0]) == 16 and plain.endswith((".rows", ".anchor")))
