"""Tokens of a trace: ids from a seeded hash, equal where copied, parting where fresh

Every fresh token is a hash of (seed, request, place in its sequence) in the id range of its class.
A sequence is kept as stretches of requests' fresh tokens; of arrays those asked for last are kept.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import numpy.typing as npt

from cache.types import Ids, Valued
from engine.pictures.picture import Picture
from replay.images import Images, picture_of
from replay.marks import marks
from replay.pieces import SPECIALS_END, WHITESPACE_END, TracePieces
from replay.source import Marks
from replay.trace import FRESH, NAMED, SPECIAL, TEXT, WHITESPACE, Request, Run, Trace, values

_Stretches = npt.NDArray[np.int32]
"""A sequence as stretches of fresh tokens, shape (n, 3): request, place in its sequence, length."""
_REQUEST, _PLACE, _LENGTH = range(3)
_Fresh = npt.NDArray[np.int32]
"""A request's fresh runs, shape (n, 3): place, class, first token's id or -1 for the hash's."""
_CLASS, _FIRST = 1, 2

_START = (-1, -1)
"""Before a sequence's first token; others are named by (request, place) they were drawn for."""

_MASK = (1 << 64) - 1
_GAMMA, _M1, _M2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""Constants of splitmix64 (Steele, Lea, Flood 2014)."""
_PIECE = 1 << 14
"""Tokens drawn at once: the temporaries stay in the cache."""


class Tokens:
    """A trace's prompts and outputs as ids. Two traces in one replay get different seeds."""

    def __init__(
        self, trace: Trace, vocab: int = 248_320, seed: int = 0, keep_tokens: int = 1 << 23
    ) -> None:
        """Keeps up to `keep_tokens` ids of the sequences asked for last, and one in any case."""
        assert vocab > WHITESPACE_END + 1
        self._low = np.zeros(3, dtype=np.uint64)
        self._low[[SPECIAL, WHITESPACE, TEXT]] = 0, SPECIALS_END, WHITESPACE_END
        high = np.zeros(3, dtype=np.uint64)
        high[[SPECIAL, WHITESPACE, TEXT]] = SPECIALS_END, WHITESPACE_END, vocab
        self._span = high - self._low
        self._seed = _mix(seed + _GAMMA)
        self._keep_tokens = keep_tokens
        self._kept: OrderedDict[int, Ids] = OrderedDict()
        self._kept_tokens = 0
        self._requests = {request.number: request for request in trace.requests}
        self._stretches: dict[int, _Stretches] = {}
        self._fresh: dict[int, _Fresh] = {}
        self._after: dict[tuple[int, int], set[int]] = {}
        self._values: dict[int, list[Valued]] = {}
        self._images = Images()
        self._marks = marks(trace)
        for request in trace.requests:
            self._resolve(request)
            self._values[request.number] = values(request, self._values)

    @property
    def pieces(self) -> TracePieces:
        """The class is in the id."""
        return TracePieces()

    def prompt(self, number: int) -> Ids:
        """Ids of a request's prompt, read-only, shape (prompt tokens,)."""
        return self.sequence(number)[: self._requests[number].prompt_tokens]

    def output(self, number: int) -> Ids:
        """Ids of a request's output, read-only, shape (output tokens,)."""
        return self.sequence(number)[self._requests[number].prompt_tokens :]

    def sequence(self, number: int) -> Ids:
        """Ids of prompt and output, read-only, shape (prompt + output tokens,)."""
        if number in self._kept:
            self._kept.move_to_end(number)
            return self._kept[number]
        request = self._requests[number]
        ids = np.empty(request.prompt_tokens + request.output_tokens, dtype=np.int32)
        at = drawn = 0
        for run in self._images.runs(request):
            source = self._kept.get(run.src)
            stop = at + run.length
            if source is not None:
                # What no kept sequence has is drawn in as few pieces as there are copies.
                self._draw(ids[drawn:at], _cut(self._stretches[number], drawn, at - drawn))
                ids[at:stop] = source[run.offset : run.offset + run.length]
                drawn = stop
            at = stop
        self._draw(ids[drawn:], _cut(self._stretches[number], drawn, at - drawn))
        ids.flags.writeable = False
        self._keep(number, ids)
        return ids

    def prompt_values(self, number: int) -> tuple[Valued, ...]:
        """Spans of the prompt that stand for values, ascending."""
        size = self._requests[number].prompt_tokens
        return tuple(span for span in self._values[number] if span.stop <= size)

    def output_values(self, number: int) -> tuple[Valued, ...]:
        """The same of the output, counted from its start."""
        size = self._requests[number].prompt_tokens
        later = (span for span in self._values[number] if span.start >= size)
        return tuple(Valued(span.start - size, span.stop - size, span.value) for span in later)

    def pictures(self, number: int) -> tuple[Picture, ...]:
        """Pictures of the prompt's images, in order, without patches."""
        return tuple(picture_of(image) for image in self._requests[number].images)

    def marks(self, number: int) -> Marks:
        """Where in the prompt its last user message and the first answer start."""
        return self._marks[number]

    def _keep(self, number: int, ids: Ids) -> None:
        self._kept[number] = ids
        self._kept_tokens += len(ids)
        while self._kept_tokens > self._keep_tokens and len(self._kept) > 1:
            _, gone = self._kept.popitem(last=False)
            self._kept_tokens -= len(gone)

    def _resolve(self, request: Request) -> None:
        """Find a request's stretches, and settle the first ids of its fresh runs."""
        number = request.number
        stretches: list[_Stretches] = []
        fresh: list[tuple[int, int, int]] = []
        before, at = _START, 0
        last: Run | None = None
        for run in self._images.runs(request):
            if run.src != FRESH:
                piece = self._copied(run)
                first = self._id(*piece[0, :_LENGTH].tolist())
            else:
                piece = np.array([(number, at, run.length)], dtype=np.int32)
                fresh += self._settled(number, at, run, before, last)
                first = fresh[-1][_FIRST]
                first = first if first >= 0 else self._drawn(number, at, run.offset)
            self._after.setdefault(before, set()).add(first)
            end = piece[-1].tolist()
            before = (end[_REQUEST], end[_PLACE] + end[_LENGTH] - 1)
            at += run.length
            last = run
            stretches.append(piece)
        self._fresh[number] = np.array(fresh, dtype=np.int32).reshape(-1, 3)
        self._stretches[number] = _merged(stretches)

    def _copied(self, run: Run) -> _Stretches:
        """The stretches of a run that copies, or is an image's: those are stretches of it alone."""
        if run.src < FRESH:
            return np.array([(run.src, 0, run.length)], dtype=np.int32)
        return _cut(self._stretches[run.src], run.offset, run.length)

    def _settled(
        self, number: int, at: int, run: Run, before: tuple[int, int], last: Run | None
    ) -> list[tuple[int, int, int]]:
        """The rows of `_fresh` for a fresh run."""
        if run.offset >= NAMED:
            name = run.offset - NAMED
            kind = SPECIAL if name < SPECIALS_END else WHITESPACE
            return [(place, kind, name) for place in range(at, at + run.length)]
        first = drawn = self._drawn(number, at, run.offset)
        # Behind a fresh run any id will do: nobody else has what stands before it.
        if last is None or last.src != FRESH:
            first = self._parted(drawn, run.offset, before, last)
        return [(at, run.offset, first if first != drawn else -1)]

    def _parted(self, drawn: int, kind: int, before: tuple[int, int], copied: Run | None) -> int:
        """The id a fresh run begins with, so that its sequence parts from earlier ones here.

        It differs from the id that follows the copy in its source, and from every id that followed
        the token before in any sequence, as long as the class has that many.
        """
        low, span = int(self._low[kind]), int(self._span[kind])
        taken = self._after.get(before, set()) | self._next(*before)
        circle = [low + (drawn - low + step) % span for step in range(len(taken) + 1)]
        free = next((candidate for candidate in circle if candidate not in taken), None)
        if free is not None:
            return free
        source = self._next(copied.src, copied.offset + copied.length - 1) if copied else set()
        return circle[1] if drawn in source else drawn

    def _next(self, number: int, place: int) -> set[int]:
        """The id after a place of a request's sequence, if there is one."""
        stretches = self._stretches.get(number)
        if stretches is None or place + 1 >= stretches[:, _LENGTH].sum():
            return set()
        return {self._id(*_cut(stretches, place + 1, 1)[0, :_LENGTH].tolist())}

    def _id(self, number: int, place: int) -> int:
        """The id of one fresh token, or of an image's row."""
        if number < FRESH:
            return int(self._images.ids(number)[place])
        fresh = self._fresh[number]
        row = int(np.searchsorted(fresh[:, 0], place, side="right")) - 1
        start, kind, first = fresh[row].tolist()
        return first if first >= 0 and start == place else self._drawn(number, place, kind)

    def _drawn(self, number: int, place: int, kind: int) -> int:
        """What the hash gives for one token, in plain integers."""
        z = _mix(self._key(number) + place * _GAMMA)
        return int(self._low[kind]) + ((z >> 32) * int(self._span[kind]) >> 32)

    def _key(self, number: int) -> int:
        return _mix(self._seed + number * _GAMMA)

    def _draw(self, out: Ids, stretches: _Stretches) -> None:
        """Fill `out` with the ids of stretches of its length."""
        at = 0
        for number, place, length in stretches.tolist():
            if number < FRESH:
                out[at : at + length] = self._images.ids(number)[place : place + length]
                at += length
                continue
            fresh = self._fresh[number]
            for start in range(place, place + length, _PIECE):
                stop = min(start + _PIECE, place + length)
                part = out[at + start - place : at + stop - place]
                rows = slice(
                    int(np.searchsorted(fresh[:, 0], start, side="right")) - 1,
                    int(np.searchsorted(fresh[:, 0], stop, side="left")),
                )
                self._draw_piece(part, number, start, fresh[rows])
            at += length

    def _draw_piece(self, out: Ids, number: int, start: int, fresh: _Fresh) -> None:
        """`out` becomes the ids from place `start` on; `fresh` are the runs it touches."""
        edges = np.append(fresh[:, 0], start + len(out))
        edges[0] = start
        lengths = np.diff(edges)
        low, span = self._low[fresh[:, _CLASS]], self._span[fresh[:, _CLASS]]
        if len(fresh) > 1:
            low, span = np.repeat(low, lengths), np.repeat(span, lengths)
        z = _hashes(self._key(number) + start * _GAMMA & _MASK, len(out))
        z >>= np.uint64(32)
        z *= span
        z >>= np.uint64(32)
        z += low
        out[:] = z
        settled = (fresh[:, _FIRST] >= 0) & (fresh[:, 0] >= start)
        out[fresh[settled, 0] - start] = fresh[settled, _FIRST]


def _mix(z: int) -> int:
    """splitmix64's output function."""
    z &= _MASK
    z = (z ^ z >> 30) * _M1 & _MASK
    z = (z ^ z >> 27) * _M2 & _MASK
    return z ^ z >> 31


_STEPS = np.arange(_PIECE, dtype=np.uint64) * np.uint64(_GAMMA)


def _hashes(start: int, count: int) -> npt.NDArray[np.uint64]:
    """`_mix` of start, start + gamma, ...; at most _PIECE of them."""
    z = _STEPS[:count] + np.uint64(start)
    scratch = z >> np.uint64(30)
    z ^= scratch
    z *= np.uint64(_M1)
    np.right_shift(z, np.uint64(27), out=scratch)
    z ^= scratch
    z *= np.uint64(_M2)
    np.right_shift(z, np.uint64(31), out=scratch)
    z ^= scratch
    return z


def _cut(stretches: _Stretches, offset: int, length: int) -> _Stretches:
    """The stretches of tokens [offset, offset + length), as a copy."""
    if not length:
        return stretches[:0]
    ends = np.cumsum(stretches[:, _LENGTH], dtype=np.int64)
    first = int(np.searchsorted(ends, offset, side="right"))
    last = int(np.searchsorted(ends, offset + length, side="left"))
    cut = stretches[first : last + 1].copy()
    skip = offset - int(ends[first] - stretches[first, _LENGTH])
    cut[-1, _LENGTH] -= int(ends[last]) - (offset + length)
    cut[0, _PLACE] += skip
    cut[0, _LENGTH] -= skip
    return cut


def _merged(pieces: list[_Stretches]) -> _Stretches:
    """The pieces in a row, with neighbours that continue each other made one."""
    if not pieces:
        return np.empty((0, 3), dtype=np.int32)
    rows = np.concatenate(pieces)
    follows = (rows[1:, _REQUEST] == rows[:-1, _REQUEST]) & (
        rows[1:, _PLACE] == rows[:-1, _PLACE] + rows[:-1, _LENGTH]
    )
    starts = np.flatnonzero(np.concatenate([[True], ~follows]))
    merged = rows[starts]
    merged[:, _LENGTH] = np.add.reduceat(rows[:, _LENGTH], starts)
    return merged
