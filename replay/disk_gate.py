"""The disk tier's gate on a real drive: heads that come back, held to a cold prefill's bits"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from cache.anchors import AnchorConfig
from cache.config import StackConfig
from cache.direct import DirectFiles
from cache.disk.config import DiskConfig
from cache.disk.index import chunk_name
from cache.disk.open import open_tier
from cache.disk.tier import lines_of
from cache.guest import GuestConfig
from cache.host import SystemClock, ThreadJobs
from cache.journal import Journal
from cache.parked import ParkConfig
from cache.snapshot import StoreConfig
from cache.stack import Stack
from cache.types import Gate, Ids, Refusal
from engine.bad import BadInput
from engine.box import Box
from engine.events import Chunk, Ready
from engine.forced import Forced
from engine.identity import identity_of
from engine.prompt import Prompt
from engine.turn import turn
from replay.gate_case import Case, drawn, flip, in_a_process
from replay.models import build, verifier

LINES = 5
"""Whole chunks of the head that all sessions share."""
DAMAGED = 3
"""The chunk of it that gets a wrong bit."""
STEPS = 6
"""How often `gate` says that it has come further."""
_MORE, _ANSWER = 90, 7
"""Tokens of a session's own message, and of an answer."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What served a prompt, and whether its gate held."""

    source: str
    cached: int
    why: str
    """What differs from a cold prefill; empty when nothing does."""
    told: tuple[str, ...] = ()
    """What the tier lost, dropped or could not do, and why."""


class House:
    """One process's engine and caches over the files of a directory."""

    def __init__(self, case: Case, folder: Path) -> None:
        """Opens the tier there, or makes one; raises BadInput."""
        board = case.board
        board = replace(board, window=(LINES + 4) * board.grid, side_window=board.grid)
        engine = build(case.model, board, case.seed, knobs=case.knobs)
        self.grid, self._vocab, self._seed = board.grid, engine.vocab, case.seed
        self.head = drawn(LINES * board.grid + board.grid // 4, case.seed, engine.vocab)
        """What all sessions begin with."""
        self.files, self._jobs = DirectFiles(folder), ThreadJobs()
        # Whatever the board's rows weigh: what is on the drive is to be read.
        config = DiskConfig(
            budget_bytes=1 << 60,
            min_free_bytes=0,
            floor_bytes=0,
            tokens_min=1,
            read_bytes_s=1e18,
            rate_memory_s=1e-9,
        )
        clock = SystemClock()
        found = open_tier(self.files, clock, self._jobs, config, engine, identity_of(engine))
        if isinstance(found, Refusal):
            raise BadInput("--dir", None, f"{found.name}: {found.why}")
        self.tier = found
        # Nothing but the drive may bring a head back.
        caches = StackConfig(
            AnchorConfig(budget_bytes=4 * engine.cost().anchor_bytes),
            ParkConfig(park_bytes=0, pin_bytes=0),
            GuestConfig(tokens_max=0),
            StoreConfig(budget_bytes=0, entry_bytes=0),
            checkpoint_tokens=0,
        )
        stack = Stack(engine, caches, disk=found)
        self._box = Box(engine, stack, clock, self._jobs, Journal())
        self._check = verifier(engine)

    def close(self) -> None:
        """The process ends, once what it writes is written."""
        self._jobs.close()
        self.tier.close()
        self.files.close_all()

    def session(self, number: int) -> Seen:
        """A session's first prompt: the head, then a message of its own."""
        own = drawn(min(_MORE, self.grid // 2), self._seed + 1 + number, self._vocab)
        return self.sends(np.concatenate([self.head, own]), f"session {number}", len(self.head))

    def stranger(self) -> Seen:
        """A prompt that overwrites every row of the head."""
        ids = drawn((LINES + 2) * self.grid, self._seed + 1_000, self._vocab)
        return self.sends(ids, None, 0, "title")

    def sends(self, ids: Ids, session: str | None, last_user: int, kind: str = "turn") -> Seen:
        """Serve a prompt by a real turn, and let all of it be written."""
        answer = drawn(_ANSWER, self._seed + 2_000, self._vocab)
        rule = Forced(answer, seed="check", vocab=self._vocab, drafts=3, accepted=0.6)
        prompt, box, why = Prompt(ids, session, kind=kind, last_user=last_user), self._box, ""
        for event in turn(box, prompt, rule, limit=_ANSWER):
            if isinstance(event, Chunk):
                self._jobs.drain()  # However short the chunk, there is a buffer for each anchor.
            if isinstance(event, Ready):
                verdict = self._check.check(event.ids, event.logits, Gate.BITS, len(ids))
                why = verdict.why or ("" if box.stack.taint is None else "its rows are tainted")
        self._jobs.drain()
        box.stack.leave()
        self._jobs.drain()
        told = [e for e in box.journal.events if e.event in ("drop", "fail", "damage", "stuck")]
        told += [e for e in self.tier.events() if e.event in ("drop", "fail", "damage", "stuck")]
        row = box.journal.rows[-1]
        return Seen(row.source, row.cached, why, tuple(f"{e.event}: {e.why}" for e in told))


def gate(folder: Path, case: Case, went_on: Callable[[int], None] = lambda steps: None) -> str:
    """Save heads on a drive and bring them back, each held to a cold prefill; why that failed.

    In the same process, after a reopening, in a fresh process, and after one file was damaged.
    Empty when all held. Raises BadInput for a folder that is no good.
    """
    for why in _steps(folder, case):
        if why:
            return why
        went_on(1)
    return ""


def _steps(folder: Path, case: Case) -> Iterator[str]:
    """What is wrong after each step."""
    with house(case, folder) as first:
        whole = LINES * first.grid
        cold = wrong("a cold prompt", first.session(0), "cold", 0)
        yield cold or wrong("a stranger's prompt", first.stranger(), "cold", 0)
        yield wrong("in the same process", first.session(1), "disk.grid", whole)
    with house(case, folder) as again:
        yield wrong("after a reopening", again.session(2), "disk.grid", whole)
    yield wrong("in a fresh process", fresh(case, folder, 3), "disk.grid", whole)
    yield _damaged(case, folder)
    with house(case, folder) as last:
        yield wrong("written again after the damage", last.session(5), "disk.grid", whole)


@contextmanager
def house(case: Case, folder: Path) -> Iterator[House]:
    """A process, ended afterwards."""
    one = House(case, folder)
    try:
        yield one
    finally:
        one.close()


def _damaged(case: Case, folder: Path) -> str:
    """Below a chunk with a wrong bit the next lower line serves, and the chunk is gone."""
    with house(case, folder) as one:
        name = chunk_name(lines_of(one.head, one.grid)[DAMAGED - 1])
        if not one.files.exists(name):
            return "before the damage: the head is not on the drive"
        flip(one.files, name)
        seen = one.session(4)
        what = "after a damaged file"
        if not any(name in told for told in seen.told):
            return f"{what}: nobody noticed that {name} has a wrong bit"
        return wrong(what, seen, None, (DAMAGED - 1) * one.grid)


def wrong(what: str, seen: Seen, source: str | None, cached: int) -> str:
    """What is not as it should be: other bits, or another line than this; None is any source."""
    told = "".join(f"; {one}" for one in seen.told)
    if seen.why:
        return f"{what}: {seen.why} ({seen.source}, {seen.cached} rows{told})"
    if (source is not None and seen.source != source) or seen.cached != cached:
        wanted = f"{source or 'anything'}, {cached} rows"
        return f"{what}: {seen.source}, {seen.cached} rows instead of {wanted}{told}"
    return ""


# in a fresh process


def fresh(case: Case, folder: Path, number: int) -> Seen:
    """What a session sees in a process of its own."""
    of = asdict(case) | {"folder": str(folder.absolute()), "number": number}
    seen = in_a_process("replay.disk_gate", of)
    if isinstance(seen, str):
        return Seen("none", 0, seen)
    return Seen(seen["source"], seen["cached"], seen["why"], tuple(seen["told"]))


def main() -> None:
    """One session in this process, as standard input says, printed as a line of JSON."""
    of = json.load(sys.stdin)
    with house(Case.told(of), Path(of["folder"])) as one:
        seen = one.session(of["number"])
    sys.stdout.write(json.dumps(asdict(seen)) + "\n")


if __name__ == "__main__":
    main()
