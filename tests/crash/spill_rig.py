"""What the spill's crash tests share: a spill on a tiny grid under real turns, and its files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from rig import WALL_S, Refused, identity, later
from spill_owed import Shot, marks_of
from support import VOCAB, box, joined, serve, tokens

from cache.account import Account
from cache.disk.open import Identity
from cache.journal import TurnRow
from cache.planned import read_back
from cache.source import Rows, Source, in_place
from cache.spill.codec import CodecConfig
from cache.spill.config import SpillConfig
from cache.spill.entry import Entry
from cache.spill.names import LAST, LOCK, MARKER, OURS, manifest_name
from cache.spill.open import open_spill
from cache.spill.saver import Stop
from cache.spill.writer import Who, never
from cache.stack import Stack
from cache.types import Ids, Outcome, Refusal
from cache.writeguard import GuardConfig, WriteGuard
from engine.witness import Witness
from replay.verify import WitnessVerifier
from sim.clock import VirtualClock
from sim.timed_workers import TimedWay, TimedWorkers

GRID, WINDOW, BLOCK_ROWS = 4, 64, 8
PLANES, RAW = CodecConfig(plane_min=1), CodecConfig(mode="raw")
CONFIG = SpillConfig(
    budget_bytes=1 << 20,
    min_free_bytes=0,
    floor_bytes=0,
    tokens_min=1,
    park_tokens_min=1,
    anchors_kept=1,
    block_rows=BLOCK_ROWS,
)
OTHERS = {
    "notes.txt": b"mine",
    f"{1 << 32:016x}.manifest": later(b"MOORAGE\0".ljust(8_192, b"\1")),
    f"{1 << 33:016x}.00000000-00000008.{2:016x}.block": b"not of this program",
}
"""What lies in a directory and is not ours to touch."""


class SpillRig:
    """One process: an engine with a spill, its requests held to a cold prefill's tokens.

    Sessions are named by a letter. What it says of its saves goes to `tell`, without one into the
    files' log, where they keep one: `begun` before a save, `saved` when it returned, `gone` before
    an entry's files are touched; `points` and `last` before and after one is remembered.
    """

    def __init__(
        self,
        files: Any,
        *,
        config: SpillConfig = CONFIG,
        who: Identity | None = None,
        wall_s: float = WALL_S,
        tell: Callable[[str], None] | None = None,
        notes: Iterable[str] = (),
        park_rows: int = 0,
    ) -> None:
        """`notes` were said before; they are owed still."""
        self.files = files
        self.clock = VirtualClock(wall_s)
        self.wrong: list[str] = []
        """What no request may give: rows of other tokens."""
        self.said: dict[str | None, Ids] = {}
        self._park_rows = park_rows
        self._told = tell or getattr(files, "note", None)
        for note in notes:
            self.tell(note)
        model = Witness(GRID, WINDOW, vocab=VOCAB)
        found = open_spill(
            *(files, self.clock, config, model, who or identity()),
            TimedWorkers(VirtualClock(), {}),
            WriteGuard(self.clock, GuardConfig()),
            TimedWay(VirtualClock()),
        )
        if isinstance(found, Refusal):
            raise Refused(found)
        self.spill = found
        self._listen()
        self._seat(model)

    def _listen(self) -> None:
        """Every save and every removal is noted."""
        writer, shelf = self.spill.writer, self.spill.shelf
        save, drop, point_at = writer.save, shelf.drop, shelf.point_at

        def saves(source: Source, who: Who, stop: Stop = never) -> Outcome:
            shot = shot_of(source.account, source.rows)
            self.tell(f"begun {shot.note()}")
            outcome = save(source, who, stop)
            if outcome.ok:
                entry = shelf.like(source.account)
                assert entry is not None
                self.tell(f"saved {shot.session} {shot.digest} {marks_of(entry)}")
            return outcome

        def drops(entry: Entry) -> None:
            self.tell(f"gone {entry.session or '-'}")
            drop(entry)

        def points(entry: Entry) -> None:
            self.tell(f"points {entry.session or '-'}")
            stuck = shelf.notes.counters["stuck"]
            point_at(entry)
            if shelf.notes.counters["stuck"] == stuck:
                self.tell(f"last {entry.session or '-'}")

        writer.save, shelf.drop = saves, drops  # type: ignore[method-assign]
        shelf.point_at = points  # type: ignore[method-assign]

    def _seat(self, engine: Witness) -> None:
        self.engine = engine
        self.box = box(engine, anchors=4, newest=2, park_rows=self._park_rows)
        self.box.stack = Stack(engine, self.box.stack.config, spill=self.spill)
        self.box.clock = self.clock
        self.check = WitnessVerifier(engine)

    @property
    def stack(self) -> Stack:
        return self.box.stack

    def reset(self) -> None:
        """An engine that holds nothing, on the same spill."""
        self._seat(Witness(GRID, WINDOW, vocab=VOCAB))

    def tell(self, what: str) -> None:
        """That happened now."""
        if self._told is not None:
            self._told(what)

    # what happens

    def turn(self, session: str | None, more: int = 6, answer: int = 4) -> TurnRow:
        """A session's next turn: everything said so far, and a message."""
        before = self.said.get(session)
        at = 0 if before is None else len(before)
        message = tokens(more, 100 * at + sum((session or "-").encode()))
        return self.ask(message if before is None else joined(before, message), session, answer)

    def ask(self, ids: Ids, session: str | None, answer: int = 4) -> TurnRow:
        """A prompt; what it was served with is checked."""
        written = tokens(answer, 1_000 + len(ids))
        row, verdict = serve(self.box, ids, written, check=self.check, session=session)
        if verdict is None or not verdict.ok:
            self.wrong.append(f"{session}: {len(ids)} from {row.source} {row.cached}: {verdict}")
        self.said[session] = joined(ids, written)
        self.stack.check()
        return row

    def save(self, stop: Stop = never) -> Outcome:
        """Write the conversation in place."""
        source = in_place(self.stack.resident.account, self.engine)
        return self.spill.writer.save(source, "drain", stop)

    def comes_back(self) -> int:
        """As at a start: rows of the conversation that was in place, 0 without one."""
        line = read_back(self.stack, self.engine)
        account = self.stack.resident.account
        if line is not None:
            self.said[account.session] = account.ids.copy()
        return line.tokens if line is not None else 0

    def brings(self, entry: Entry) -> Shot | None:
        """An entry on an engine that holds nothing; what is in place then."""
        self.reset()
        self.spill.shelf.take_last(entry.key)
        return self.shot() if self.comes_back() else None

    def shot(self) -> Shot:
        """What is in place."""
        return shot_of(
            self.stack.resident.account,
            lambda a, b: [view.rows(a, b) for view in self.engine.cache_state().views],
        )

    def close(self) -> None:
        self.stack.check()
        self.spill.close()


def shot_of(account: Account, rows: Rows) -> Shot:
    """A conversation in memory, as it is told apart from any other."""
    digest = _digest([torch.from_numpy(account.ids.copy()), *rows(0, account.valid)])
    copies = {
        f"{anchor.kind}{anchor.tokens}": anchor.tensors
        for anchor in account.anchors
        if anchor.kind == "grid"
    }
    if account.end is not None:
        copies[f"end{account.end.tokens}"] = account.end.tensors
    told = frozenset(f"{mark}:{_digest(tensors)}" for mark, tensors in copies.items())
    return Shot(account.session or "-", digest, told)


def _digest(tensors: Iterable[torch.Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def ours(name: str) -> bool:
    """Whether a spill may have written a file of this name."""
    plain = name.removesuffix(".tmp")
    known = plain in (MARKER, LOCK, LAST, "equal") or plain.startswith("inputs-")
    return known or OURS.fullmatch(plain) is not None


def astray(rig: SpillRig, before: Mapping[str, bytes] | None = None) -> list[str]:
    """Files that no entry answers for, what of an entry no file answers for, and wrong accounts.

    And what others had there `before` and is not as it was.
    """
    snapshot, shelf = rig.files.snapshot(), rig.spill.shelf
    sizes = {piece.name: piece.nbytes for entry in shelf._entries for piece in entry.pieces}
    whole = shelf.whole()
    sizes |= {manifest_name(entry.key): entry.manifest_bytes for entry in whole}
    data = {n: len(d) for n, d in snapshot.items() if OURS.fullmatch(n) and n not in OTHERS}
    found = [f"{name} is left" for name in data.keys() - sizes.keys()]
    found += [f"{name} is not there" for name in sizes.keys() - data.keys()]
    both = data.keys() & sizes.keys()
    found += [f"{n} has {data[n]} bytes, not {sizes[n]}" for n in both if data[n] != sizes[n]]
    found += [f"{name} is left" for name in snapshot if name.endswith(".tmp") and ours(name)]
    if shelf.held_bytes() != sum(sizes.values()):
        found.append(f"{shelf.held_bytes()} bytes are counted, {sum(sizes.values())} lie there")
    for name, held in (before or {}).items():
        if (not ours(name) or name in OTHERS) and snapshot.get(name) != held:
            found.append(f"{name}, which is not ours, was touched")
    return found
