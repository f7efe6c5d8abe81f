"""A process over a spill on a real drive: its engine and caches, and what of its state is where"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cache.anchors import AnchorConfig
from cache.config import StackConfig
from cache.direct import DirectFiles
from cache.guest import GuestConfig
from cache.host import SystemClock, ThreadJobs
from cache.journal import CacheEvent, Journal
from cache.parked import ParkConfig
from cache.planned import drain, read_back
from cache.snapshot import StoreConfig
from cache.spill.codec import CodecConfig, Mode
from cache.spill.config import SpillConfig
from cache.spill.entry import Block
from cache.spill.open import open_spill
from cache.spill.tier import Spill
from cache.stack import Stack
from cache.types import Gate, Ids, Refusal
from cache.workers import ThreadWay, ThreadWorkers
from cache.writeguard import GuardConfig, WriteGuard
from engine.bad import BadInput
from engine.box import Box
from engine.events import Ready, Tokens
from engine.identity import identity_of
from engine.prompt import Prompt
from engine.sampling import Greedy
from engine.turn import turn
from replay.gate_case import Case, drawn, in_a_process
from replay.models import build, verifier

LINES = 3
"""Whole chunks of the conversation's first prompt."""
TURNS = 4
ONE, TWO = "one", "two"
"""The session that is looked at, and a stranger's."""
_ANSWER = 7
"""Tokens of an answer."""
_FRAME_BYTES = 1 << 16
"""So small a model's planes have several frames as well."""
_LOSSES = ("skip", "fail", "damage", "stuck")
State = dict[str, str]
"""Of everything in place: its name, and the SHA-256 of its bytes."""


@dataclass(frozen=True, slots=True)
class Said:
    """A turn: what served it, what it answered, and the state that it left."""

    source: str
    cached: int
    rows: int
    """Of the conversation afterwards."""
    logits: str
    """The digest of the prompt's last position's."""
    answer: list[int]
    state: State
    why: str = ""
    """What differs from a cold prefill, where that was asked; empty when nothing does."""
    losses: str = ""
    """What the spill could not do or lost, and why."""


@dataclass(frozen=True, slots=True)
class Talk:
    """A conversation as it goes when nothing of it ever leaves memory."""

    prompts: list[Ids]
    said: list[Said]


@dataclass(frozen=True, slots=True)
class Seen:
    """What a new process saw: what came back, the next turn, and blocks before a save and after."""

    back: State
    said: Said
    before: dict[str, int]
    """Block files of the conversation, and when each was written, in nanoseconds."""
    after: dict[str, int] = field(default_factory=dict)


class Home:
    """One process's engine and caches; without a folder nothing ever leaves its memory."""

    def __init__(self, case: Case, folder: Path | None, mode: Mode = "raw") -> None:
        """Opens the spill there, or makes one; raises BadInput."""
        board = case.board
        board = replace(board, window=(LINES + 4) * board.grid, side_window=board.grid)
        engine = self._engine = build(
            case.model, board, case.seed, block_logits=True, knobs=case.knobs
        )
        self.grid, self.vocab, self._seed = board.grid, engine.vocab, case.seed
        self._jobs, self._workers, self._clock = ThreadJobs(), ThreadWorkers(), SystemClock()
        self._folder = folder
        self._spill: Spill | None = None
        if folder is not None:
            self.files = DirectFiles(folder)
            self._spill = self._opened(mode)
        # Nothing but the drive may bring a conversation back, and no copy of the state gives way.
        caches = StackConfig(
            AnchorConfig(budget_bytes=4 * TURNS * engine.cost().anchor_bytes),
            ParkConfig(park_bytes=0, pin_bytes=0),
            GuestConfig(tokens_max=0),
            StoreConfig(budget_bytes=0, entry_bytes=0),
            checkpoint_tokens=0,
        )
        stack = Stack(engine, caches, spill=self._spill)
        self._box = Box(engine, stack, self._clock, self._jobs, Journal())
        self._check = verifier(engine)
        self._events: list[CacheEvent] = []

    def _opened(self, mode: Mode) -> Spill:
        # Whatever the board's rows weigh and the drive gives: what is there is to be read.
        config = SpillConfig(
            budget_bytes=1 << 60,
            min_free_bytes=0,
            floor_bytes=0,
            tokens_min=1,
            park_tokens_min=1,
            block_rows=self.grid,
            codec=CodecConfig(mode, frame_bytes=_FRAME_BYTES, plane_min=1),
            idle_s=0.0,
            read_bytes_s=1e18,
            rate_memory_s=1e-9,
        )
        clock, identity = self._clock, identity_of(self._engine)
        guard = WriteGuard(clock, GuardConfig())
        engine, workers = self._engine, self._workers
        way = ThreadWay()
        spill = open_spill(self.files, clock, config, engine, identity, workers, guard, way)
        if isinstance(spill, Refusal):
            raise BadInput("--dir", None, f"{spill.name}: {spill.why}")
        return spill

    def close(self) -> None:
        """The process ends."""
        self._jobs.close()
        self._workers.close()
        if self._spill is not None:
            self._spill.close()
            self.files.close_all()

    # turns

    def says(self, ids: Ids, session: str, *, cold: bool = False) -> Said:
        """Serve a prompt by a real turn; with `cold`, hold it to a cold prefill's bits."""
        box, why, logits, answer = self._box, "", torch.empty(0), list[int]()
        for event in turn(box, Prompt(ids, session), Greedy(), limit=_ANSWER):
            if isinstance(event, Tokens):
                answer += event.ids
            if isinstance(event, Ready):
                logits = event.logits.clone()
                if cold:
                    why = self._check.check(event.ids, logits, Gate.BITS, len(ids)).why
        losses = "".join(f"; {e.event}: {e.why}" for e in self._noted() if e.event in _LOSSES)
        row, rows = box.journal.rows[-1], box.stack.resident.account.valid
        return Said(
            *(row.source, row.cached, rows, _digest(logits), answer, self.state(), why, losses)
        )

    def stranger(self) -> None:
        """A prompt of another conversation, which overwrites every row of the first one."""
        self.says(drawn((LINES + 1) * self.grid, self._seed + 1_000, self.vocab), TWO)

    def stops(self) -> int:
        """A planned stop; how many conversations are on the drive now."""
        return drain(self._box.stack, self._engine)

    def comes_back(self) -> int | None:
        """A start; where the conversation in place at the last stop resumes."""
        line = read_back(self._box.stack, self._engine)
        return line.tokens if line is not None else None

    # what there is to see

    def state(self) -> State:
        """Everything in place: rows up to the account's end, and its copies of the sections."""
        account = self._box.stack.resident.account
        views = self._engine.cache_state().views
        found = {f"rows of {v.name}": _digest(v.rows(0, account.valid)) for v in views}
        for anchor in account.anchors:
            found[f"the {anchor.kind} anchor at {anchor.tokens}"] = _digest(*anchor.tensors)
        if account.end is not None:
            found[f"the end anchor at {account.end.tokens}"] = _digest(*account.end.tensors)
        return found

    def blocks(self) -> dict[str, int]:
        """The conversation's block files, and when each was written, in nanoseconds."""
        assert self._folder is not None
        names = [block.piece.name for block in self._blocks()]
        return {name: (self._folder / name).stat().st_mtime_ns for name in names}

    def block(self, number: int) -> str:
        """The name of one of its block files; empty when it is not on the drive."""
        blocks = self._blocks()
        return blocks[number].piece.name if number < len(blocks) else ""

    def _blocks(self) -> Sequence[Block]:
        whole = self._spill.shelf.whole() if self._spill is not None else []
        return next((entry.blocks for entry in whole if entry.session == ONE), ())

    def told(self, event: str) -> list[CacheEvent]:
        """What the spill noted of this kind, of the session that is looked at."""
        return [e for e in self._noted() if e.event == event and e.session == ONE]

    def _noted(self) -> list[CacheEvent]:
        self._events += [*self._box.journal.events, *self._box.stack.events()]
        self._box.journal.events.clear()
        return self._events


def _digest(*tensors: torch.Tensor) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).cpu().numpy().data)
    return digest.hexdigest()


@contextmanager
def home(case: Case, folder: Path | None, mode: Mode = "raw") -> Iterator[Home]:
    """A process, ended afterwards."""
    one = Home(case, folder, mode)
    try:
        yield one
    finally:
        one.close()


def twin(case: Case) -> Talk:
    """The conversation, every turn going on from the one before, in memory all the time."""
    talk = Talk([], [])
    with home(case, None) as one:
        grid, vocab = one.grid, one.vocab
        ids = drawn(LINES * grid + grid // 8, case.seed, vocab)
        for number in range(TURNS):
            said = one.says(ids, ONE)
            talk.prompts.append(ids)
            talk.said.append(said)
            own = drawn(min(90, max(1, grid // 16)), case.seed + 1 + number, vocab)
            ids = np.concatenate([ids, np.array(said.answer, np.int32), own])
    return talk


# in a process of its own


def fresh(case: Case, folder: Path, mode: Mode, ids: Ids) -> Seen | str:
    """What a new process sees, which is asked this prompt and stops; or why it sees nothing."""
    of = {"case": asdict(case), "folder": str(folder.absolute()), "mode": mode, "ids": ids.tolist()}
    seen = in_a_process("replay.spill_home", of)
    if isinstance(seen, str):
        return seen
    if "why" in seen:
        return f"nothing came back{seen['why']}"
    return Seen(**seen | {"said": Said(**seen["said"])})


def look(case: Case, folder: Path, mode: Mode, ids: Ids) -> dict[str, Any]:
    """That, in this process, in plain values."""
    with home(case, folder, mode) as one:
        if one.comes_back() is None:
            return {"why": "".join(f"; {e.event}: {e.why}" for e in one._noted())}
        back, before = one.state(), one.blocks()
        said = one.says(ids, ONE)
        one.stops()
        return asdict(Seen(back, said, before, one.blocks()))


def main() -> None:
    """As standard input says, printed as a line of JSON."""
    of = json.load(sys.stdin)
    ids = np.array(of["ids"], np.int32)
    seen = look(Case.told(of["case"]), Path(of["folder"]), of["mode"], ids)
    sys.stdout.write(json.dumps(seen) + "\n")


if __name__ == "__main__":
    main()
