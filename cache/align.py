"""Alignment: a client's copy of a conversation meets the rows where it says the same as they do.

A client sends back text, and the template renders it again. The copy then has other tokens than the
rows although nobody changed a word: the reasoning is left out, an answer's ends are stripped, text
is cut into other tokens, a tool call's arguments are written anew, and what the server put in was
never sent. Only the answers among the rows may differ in these ways, and only in these; everything
else must be the rows' own tokens.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cache.account import Account, Known
from cache.pieces import Pieces
from cache.types import Ask, Generation, Ids, Met, common_prefix

_GLUE_MAX = 8
"""Tokens of whitespace before an answer that may be one with it."""


class Alignment:
    """A meeting that looks through what clients do to answers.

    An answer is compared in segments between structure tokens, which must be the same on both
    sides. A segment's bytes must be equal but for whitespace at its ends and beside a hidden span;
    the reasoning's may be missing altogether; spans that stand for equal values are equal. A copy
    that says no more of an answer meets the rows up to there. The rows' own tokens are served.
    """

    def __init__(self, pieces: Pieces, *, text: bool = True) -> None:
        """Without `text`, only hidden spans and the whitespace beside them may be missing."""
        self._pieces = pieces
        self._text = text

    def __call__(self, account: Account, ask: Ask) -> Met:
        """How far the ask goes on with the account's rows."""
        rows, copy = account.ids, ask.ids
        row = at = low = 0
        known = account.known if account.known and account.known.begins(ask) else None
        if known is not None:
            row, at = known.row, known.at
        shared = common_prefix(rows[row:], copy[at:])
        row, at = row + shared, at + shared
        sent: _Copy | None = None
        whole: tuple[int, int] | None = None
        for answer in account.generations:
            if answer.stop <= row:
                low = answer.stop
                continue
            start = self._glue(rows, low, answer.start)
            if start > row or row == len(rows) or at == len(copy):
                break
            if sent is None:
                sent, held = _Copy(ask, self._pieces), _Structure(self._pieces, rows, start)
            walk = _Walk(self._pieces, rows, start, answer, held, sent, text=self._text)
            step = walk.through(at - (row - start))
            if step is None or step.row <= row:
                break
            row, at, low = step.row, step.at, answer.stop
            if not step.whole:
                break
            whole = row, at
            shared = common_prefix(rows[row:], copy[at:])
            row, at = row + shared, at + shared
        if whole is not None:
            valued = tuple(span for span in ask.valued if span.stop <= whole[1])
            account.known = Known(copy, valued, *whole)
        moved = sent is not None or known is not None
        return Met(row, at, np.concatenate([rows[:row], copy[at:]]) if moved else copy)

    def _glue(self, rows: Ids, low: int, start: int) -> int:
        """Where the whitespace before an answer begins: it may be one token with the answer's."""
        low = max(low, start - _GLUE_MAX)
        blank = self._pieces.blank(rows[low:start]).tolist()
        while blank and blank.pop():
            start -= 1
        return start


class _Step(NamedTuple):
    """`row` rows stand for the copy's first `at` tokens; `whole` when all of the answer does."""

    row: int
    at: int
    whole: bool


class _Structure:
    """Where the structure tokens of a sequence stand from a position on, found once."""

    def __init__(self, pieces: Pieces, ids: Ids, start: int = 0) -> None:
        found = pieces.structure(ids[start:]).nonzero()[0] + start
        self._places: list[int] = found.tolist()

    def between(self, start: int, stop: int) -> list[int]:
        """Those in [start, stop), counted from `start`."""
        low, high = bisect_left(self._places, start), bisect_left(self._places, stop)
        return [place - start for place in self._places[low:high]]

    def next(self, at: int, end: int) -> int:
        """The first from `at` on, or `end`."""
        place = bisect_left(self._places, at)
        return self._places[place] if place < len(self._places) else end


class _Copy:
    """A client's copy, with its structure found once."""

    def __init__(self, ask: Ask, pieces: Pieces) -> None:
        self.ids = ask.ids
        self.valued = {span.start: span for span in ask.valued}
        self._structure = _Structure(pieces, ask.ids)

    def structure_from(self, at: int) -> int:
        """The next structure token, or the end."""
        return self._structure.next(at, len(self.ids))


class _Walk:
    """One answer of the rows beside the copy, segment by segment."""

    def __init__(
        self,
        pieces: Pieces,
        rows: Ids,
        start: int,
        generation: Generation,
        held: _Structure,
        sent: _Copy,
        *,
        text: bool,
    ) -> None:
        self._pieces, self._sent, self._text = pieces, sent, text
        self._start, self._answer = start, generation
        self._at = _visible(start, generation)
        """Rows of what the client saw, ascending."""
        if generation.hidden:
            self._ids = rows[self._at]
            self._structure: list[int] = pieces.structure(self._ids).nonzero()[0].tolist()
        else:
            self._ids = rows[start : generation.stop]
            self._structure = held.between(start, generation.stop)
        self._valued = {span.start: span for span in generation.valued}

    def through(self, at: int) -> _Step | None:
        """From the answer's begin, which the copy has at `at`, as far as both say the same."""
        sent, place, bare = self._sent, 0, False
        for stop in [*self._structure, len(self._ids)]:
            if stop < place:
                continue  # inside a span that was compared by value
            edge = sent.structure_from(at)
            after = self._segment(place, stop, at, edge)
            if after is None:
                step = self._cut_short(place, stop, at, edge)
                bare = self._still_bare(bare, place, stop, at, edge)
                if bare and step is not None and step.whole and self._says(step.at):
                    return None
                return step
            bare = self._still_bare(bare, place, stop, at, edge)
            if stop == len(self._ids):
                # Behind the token that closes a thought, where that is what the copy has not.
                if bare and self._says(edge + 1 if self._is_thinking(place) else after):
                    return None
                return _Step(self._answer.stop, after, whole=True)
            if edge == len(sent.ids) or self._ids[stop] != sent.ids[edge]:
                if self._left_out(place, stop, at, edge):
                    # A thought is served with the token that closes it, or not at all.
                    return _Step(int(self._at[place]), at, whole=False)
                return _Step(int(self._at[stop]), edge, whole=False)
            place, at = self._past(stop, edge)
        return None

    def _past(self, stop: int, edge: int) -> tuple[int, int]:
        """Behind a structure token, or behind the span that begins there if its value is equal."""
        ours, theirs = self._valued.get(int(self._at[stop])), self._sent.valued.get(edge)
        if self._text and ours and theirs and ours.value == theirs.value:
            hidden = self._answer.hidden
            place = int(np.searchsorted(self._at, ours.stop)) if hidden else ours.stop - self._start
            return place, theirs.stop
        return stop + 1, edge + 1

    def _segment(self, place: int, stop: int, at: int, edge: int) -> int | None:
        """Where the copy goes on when the segments say the same."""
        ours, theirs = self._ids[place:stop], self._sent.ids[at:edge]
        if ours.tobytes() == theirs.tobytes():
            return edge
        last = stop == len(self._ids)
        if last and place == stop:
            return at  # the answer ends with structure: what the copy has here comes after it
        text = _stripped(self._pieces.text(theirs))
        if self._text and not text and self._is_thinking(place):
            if not last:
                return edge
            return at + common_prefix(ours, theirs) if self._answer.whole else None
        if not self._text and not self._beside_hidden(place, stop):
            return None
        if not _says(list(self._parts(place, stop)), text):
            return None
        if not last or (len(ours) and self._pieces.blank(ours[-1:])[0]):
            return edge
        # The rows end with this segment and without whitespace: the copy's is what comes next.
        blank = self._pieces.blank(theirs)
        return edge - int(np.argmin(blank[::-1])) if not blank.all() else at

    def _still_bare(self, bare: bool, place: int, stop: int, at: int, edge: int) -> bool:
        """Whether nothing but a thought was met, and the copy does not have that. Of an answer that
        was cut off again nobody knows what it said."""
        if not self._answer.whole:
            return False
        if self._is_thinking(place):
            return bare or self._left_out(place, stop, at, edge)
        return bare and not _stripped(self._pieces.text(self._ids[place:stop]))

    def _says(self, at: int) -> bool:
        """Whether the copy says anything from a position to the next structure, or calls there. A
        thought that it left out is not that of what the answer never said."""
        edge = self._sent.structure_from(at)
        said = _stripped(self._pieces.text(self._sent.ids[at:edge]))
        return bool(said) or edge in self._sent.valued

    def _left_out(self, place: int, stop: int, at: int, edge: int) -> bool:
        """Whether the copy has nothing where the rows have a thought."""
        if not self._is_thinking(place):
            return False
        sides = self._ids[place:stop], self._sent.ids[at:edge]
        ours, theirs = (bool(_stripped(self._pieces.text(ids))) for ids in sides)
        return ours and not theirs

    def _cut_short(self, place: int, stop: int, at: int, edge: int) -> _Step | None:
        """The copy's segment is not the rows': how far the answer was kept, if it was cut."""
        ours, theirs = self._ids[place:stop], self._sent.ids[at:edge]
        shared = common_prefix(ours, theirs)
        if shared == len(ours) and stop == len(self._ids):
            # The copy goes on: an answer's last token was never forwarded, or its rows were cut.
            return _Step(self._answer.stop, at + shared, whole=True)
        if not self._text or self._is_thinking(place):
            return None
        whole, kept = self._pieces.text(ours).lstrip(), _stripped(self._pieces.text(theirs))
        if not whole.startswith(kept):
            return None
        return _Step(int(self._at[place + shared]), at + shared, whole=False)

    def _is_thinking(self, place: int) -> bool:
        """Whether a segment lies in the reasoning that the answer begins with."""
        answer = self._answer
        row = int(self._at[place]) if place < len(self._at) else answer.stop
        return row < answer.think_end and answer.start < answer.think_end

    def _parts(self, place: int, stop: int) -> Iterator[bytes]:
        """A segment's bytes, a part each side of a hidden span."""
        jumps = np.flatnonzero(np.diff(self._at[place:stop]) > 1) + 1 + place
        for start, end in itertools.pairwise([place, *jumps.tolist(), stop]):
            yield self._pieces.text(self._ids[start:end])

    def _beside_hidden(self, place: int, stop: int) -> bool:
        """Whether a hidden span lies inside a segment or at one of its ends."""
        first = int(self._at[place - 1]) + 1 if place else self._start
        last = int(self._at[stop]) if stop < len(self._at) else self._answer.stop
        return last - first > stop - place


def _visible(start: int, generation: Generation) -> npt.NDArray[np.int64]:
    """Rows from `start` to the answer's end without its hidden spans."""
    if not generation.hidden:
        return np.arange(start, generation.stop)
    shown = np.ones(generation.stop - start, bool)
    for at, size in generation.hidden:
        shown[at - start : at - start + size] = False
    return start + np.flatnonzero(shown)


def _stripped(text: bytes) -> bytes:
    """Without whitespace at the ends, whatever a client counts as such; broken text as bytes."""
    try:
        return text.decode().strip().encode()
    except UnicodeDecodeError:
        return text.strip()


def _says(parts: list[bytes], text: bytes) -> bool:
    """Whether a stripped text is these parts in order, with any whitespace between them."""
    for part in parts:
        wanted = _stripped(part)
        if not text.startswith(wanted):
            return False
        text = text[len(wanted) :]
        if len(parts) > 1:
            text = text.lstrip()
    return not text
