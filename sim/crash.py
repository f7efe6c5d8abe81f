"""States that a crash may leave after a log of file operations, each once."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from math import prod

from sim.micro import Fsync, FsyncDir, FsyncFailed, Note, Op
from sim.pending import Part, Piece, Point, Resolved, Start

COMBINATIONS_MAX = 4_096
"""A crash point with more than these is sampled."""
SAMPLES = 200

Files = dict[str, bytes]
Parts = dict[int, Part]
"""By the index of an open operation, what of it arrived."""


class Order(StrEnum):
    """What a drive and its file system keep in order."""

    WEAK = "weak"
    """Nothing but what a sync covers."""
    ORDERED = "ordered"
    """Directory operations among themselves, as a journal does."""
    SEQUENTIAL = "sequential"
    """Everything: what is there is a prefix of what was done."""


@dataclass(frozen=True, slots=True)
class CrashState:
    """What is found when the machine is on again."""

    files: Files
    notes: tuple[str, ...]
    """What had been acknowledged, in order."""
    point: int
    """Operations of the log that had been issued."""


@dataclass(slots=True)
class Counts:
    """How far an enumeration has come."""

    points: int = 0
    """Crash points looked at: before each sync and each note, and after the last operation."""
    sampled: int = 0
    """Of those, the points whose combinations were not all looked at."""
    combinations: int = 0
    states: int = 0
    """Of the combinations, those that no earlier one equals."""


def crash_states(
    start: Start,
    log: Sequence[Op],
    order: Order = Order.WEAK,
    *,
    since: int = 0,
    counts: Counts | None = None,
    combinations_max: int = COMBINATIONS_MAX,
    seed: int = 0,
) -> Iterator[CrashState]:
    """Every state that a crash at any point of the log from `since` on may leave, each once.

    An operation is durable when a later sync of its file, or of the directory, was issued before
    the crash. Of the others each arrived or not: a piece of data whole, not, torn, or as zeros
    where the file grew; a directory operation whole or not. A rename may be durable without the
    creation of the name it moves and without the bytes. Where a point has more than
    `combinations_max`: all, none, every single one left out, every single one alone, every prefix,
    and samples by the seed.

    Between two syncs or notes more operations only add to what may be there, so a point stands
    before each of these and one at the end. States are equal when files and notes are.
    """
    counts = counts if counts is not None else Counts()
    seen: set[tuple[tuple[str, ...], frozenset[tuple[str, bytes]]]] = set()
    done = Resolved.of(start, log)
    for index in _points(log, since):
        counts.points += 1
        point = done.point(index)
        found = (
            _prefixes(done, point, index)
            if order is Order.SEQUENTIAL
            else _of_point(point, order, counts, combinations_max, random.Random(seed + index))
        )
        notes = tuple(op.what for op in log[:index] if isinstance(op, Note))
        for files in found:
            counts.combinations += 1
            key = (notes, frozenset(files.items()))
            if key not in seen:
                seen.add(key)
                counts.states += 1
                yield CrashState(files, notes, index)


def drawn(
    start: Start, log: Sequence[Op], draw: random.Random, order: Order = Order.WEAK
) -> CrashState:
    """One of the states that a crash after the whole log may leave, in a weak or ordered drive.

    Most of what was open arrived, or half, or little.
    """
    assert order is not Order.SEQUENTIAL
    point = Resolved.of(start, log).point(len(log))
    share = draw.choice((0.1, 0.5, 0.9))
    parts = {
        index: draw.choice(may) if draw.random() < 0.2 else Part(draw.random() < share)
        for index, may in _open(point).items()
    }
    notes = tuple(op.what for op in log if isinstance(op, Note))
    return CrashState(_built(point, order, parts), notes, len(log))


def _points(log: Sequence[Op], since: int) -> list[int]:
    closing = Fsync | FsyncFailed | FsyncDir | Note
    points = {at for at, op in enumerate(log) if isinstance(op, closing)} | {len(log)}
    return sorted(at for at in points if at >= since)


def _of_point(
    point: Point, order: Order, counts: Counts, most: int, draw: random.Random
) -> Iterator[Files]:
    """All its states where they are few enough, else chosen ones."""
    whole = _all_of(point, order, most)
    if whole is not None:
        return iter(whole)
    counts.sampled += 1
    return (_built(point, order, parts) for parts in _chosen(point, draw))


def _all_of(point: Point, order: Order, most: int) -> list[Files] | None:
    """Every state; what a file without a name holds is not varied. None when they are too many."""
    size = len(point.entries)
    if (1 << size if order is Order.WEAK else size + 1) > most:
        return None
    variants: dict[int, list[bytes]] = {}
    for inode, pieces in point.pieces.items():
        if prod(len(piece.parts) for piece in pieces) > most:
            return None
        every = product(*(piece.parts for piece in pieces))
        variants[inode] = list(dict.fromkeys(point.content(inode, parts) for parts in every))
    found: list[Files] = []
    for names in _directories(point, order):
        inodes = sorted(set(names.values()))
        choices = [variants.get(inode) or [point.content(inode, ())] for inode in inodes]
        if len(found) + prod(map(len, choices)) > most:
            return None
        for contents in product(*choices):
            data = dict(zip(inodes, contents, strict=True))
            found.append({name: data[inode] for name, inode in names.items()})
    return found


def _directories(point: Point, order: Order) -> list[dict[str, int]]:
    """The directories that may be found, each once."""
    size = len(point.entries)
    if order is Order.WEAK:
        choices: list[tuple[bool, ...]] = list(product((False, True), repeat=size))
    else:
        choices = [tuple(at < kept for at in range(size)) for kept in range(size + 1)]
    found: dict[frozenset[tuple[str, int]], dict[str, int]] = {}
    for choice in choices:
        names = point.named(choice)
        found.setdefault(frozenset(names.items()), names)
    return list(found.values())


def _chosen(point: Point, draw: random.Random) -> Iterator[Parts]:
    """All, none, each left out or cut, each alone, every prefix, and samples."""
    may = _open(point)
    order = list(may)
    everything, nothing = dict.fromkeys(order, Part.ALL), dict.fromkeys(order, Part.NONE)
    yield everything
    yield nothing
    for at, index in enumerate(order):
        for part in may[index]:
            yield everything | {index: part}
            yield nothing | {index: part}
        yield nothing | dict.fromkeys(order[:at], Part.ALL)
    for _ in range(SAMPLES):
        yield {index: draw.choice(may[index]) for index in order}


def _open(point: Point) -> dict[int, tuple[Part, ...]]:
    """Of each open operation, in order, what may have arrived."""
    may = {entry.index: (Part.NONE, Part.ALL) for entry in point.entries}
    may |= {p.index: p.parts for pieces in point.pieces.values() for p in pieces}
    return dict(sorted(may.items()))


def _built(point: Point, order: Order, parts: Parts) -> Files:
    arrived = [parts[entry.index] is Part.ALL for entry in point.entries]
    if order is Order.ORDERED and False in arrived:
        first = arrived.index(False)
        arrived = [at < first for at in range(len(arrived))]
    return {
        name: point.content(inode, [parts[p.index] for p in point.pieces.get(inode, ())])
        for name, inode in point.named(arrived).items()
    }


def _prefixes(done: Resolved, point: Point, index: int) -> Iterator[Files]:
    """Everything up to some operation past the last that a sync covers, the next one cut or not."""
    before = done.before(index)
    covered = max((at for at, op in enumerate(before) if op.durable < index), default=-1)
    for kept in range(covered + 1, len(before) + 1):
        parts = {op.index: Part.ALL if at < kept else Part.NONE for at, op in enumerate(before)}
        yield _built(point, Order.SEQUENTIAL, parts)
        following = before[kept] if kept < len(before) else None
        if isinstance(following, Piece):
            for part in following.parts:
                yield _built(point, Order.SEQUENTIAL, parts | {following.index: part})
