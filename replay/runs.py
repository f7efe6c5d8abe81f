"""Token ids to runs: what a sequence copies from earlier ones, exact at token resolution."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cache.keys import whole_keys
from cache.types import Ids, common_prefix
from replay.grams import GramIndex, Places, gram_hashes
from replay.prefix_tree import PrefixTree
from replay.trace import FRESH, NAMED, SPECIAL, Run

GRAM = 16
"""Tokens that must be equal before text counts as copied; shorter repeats are chance."""
NEAR_GRAM = 4
"""The same right behind the previous turn's prompt, where its answer is expected back."""
_NEAR_BEFORE = 8
"""Tokens before the answer that may differ: a continued message's last ones join what follows."""
_NEAR_SLACK = 64
"""Tokens beyond the answer's own length among which it is looked for."""


class _Latest(NamedTuple):
    """A session's latest request: its number, its sequence, and where the answer starts in it."""

    number: int
    ids: Ids
    answer: int


class RunFinder:
    """Turns sequences, in the order of their requests, into runs over the earlier ones.

    First the longest prefix shared with any earlier sequence (prompt + output), then, greedily
    from left to right, text that stands anywhere in one: after a dropped reasoning, an edit, in a
    compaction. What is left is fresh. Keeps the sequences, and 16 bytes a token not copied.
    """

    def __init__(
        self,
        classes: npt.NDArray[np.uint8],
        gram: int = GRAM,
        names: npt.NDArray[np.int64] | None = None,
    ) -> None:
        """`classes` gives a token's class by id (TEXT, WHITESPACE, SPECIAL), `names` its name or
        -1; a token with a name is known wherever it stands."""
        self._classes = classes.astype(np.int64)
        if names is not None:
            self._classes = np.where(names >= 0, NAMED + names, self._classes)
        self._gram = gram
        self._sequences: list[Ids] = []
        self._tree = PrefixTree(self._sequences)
        self._index = GramIndex()
        self._latest: dict[str, _Latest] = {}

    def add(
        self, prompt: Ids, output: Ids, session: str | None = None, *, leads: bool = True
    ) -> tuple[tuple[Run, ...], tuple[Run, ...]]:
        """Runs of the next request's prompt and output; its number is the count of calls before.

        Of equally long copies the one from the session's latest request is preferred, and this
        one becomes it unless it is no turn of the conversation (`leads` is false).
        """
        number = len(self._sequences)
        latest = self._latest.get(session) if session is not None else None
        prefix = self._prefix(prompt, latest)
        prompt_runs = [*prefix, *self._copies(prompt, prefix, latest)]
        output_runs = [*self._copies(output, [], latest)]
        ids = np.concatenate([prompt, output])
        self._sequences.append(ids)
        self._tree.add(number)
        self._learn(number, ids, prompt_runs + output_runs)
        if session is not None and leads:
            self._latest[session] = _Latest(number, ids, len(prompt))
        return tuple(prompt_runs), tuple(output_runs)

    def _prefix(self, ids: Ids, latest: _Latest | None) -> list[Run]:
        """The run of the longest shared prefix, or none."""
        src, length = self._tree.longest(ids)
        length = whole_keys(ids, length)
        if latest and common_prefix(latest.ids, ids) == length:
            src = latest.number
        return [Run(src, 0, length)] if length else []

    def _copies(self, ids: Ids, prefix: list[Run], latest: _Latest | None) -> Iterator[Run]:
        """Runs of what comes after the prefix, in order."""
        at = prefix[0].length if prefix else 0
        far = _Hits(at, self._index.find(gram_hashes(ids[at:], self._gram)))
        near = self._near(ids, at, prefix[0], latest) if prefix and latest else _NOWHERE
        fresh = spot = at
        while (spot := min(far.next(spot), near.next(spot))) < len(ids):
            places = [*near.places(spot), *far.places(spot)]
            best = max(
                (self._copy(ids, spot, place, latest) for place in places),
                key=lambda run: run.length,
            )
            least = NEAR_GRAM if near.places(spot) else self._gram
            if best.length < least:  # equal hashes of different grams
                spot += 1
                continue
            best = self._yielding(ids, spot, best, near)
            yield from self._fresh(ids[fresh:spot])
            yield best
            fresh = spot = spot + best.length
            if latest and (again := self._near(ids, spot, best, latest)):
                near = again
        yield from self._fresh(ids[fresh:])

    def _yielding(self, ids: Ids, spot: int, run: Run, near: _Hits) -> Run:
        """A copy cut short where the latest answer begins to come back, if that is most of it:
        answers are like each other, and a copy of an older one must not break this one's.
        """
        end, other = spot + run.length, spot
        same = (run.src << 32) + run.offset - spot
        while (other := near.next(other + 1)) < end:
            for place in near.places(other):
                if place - other != same and 2 * self._match(ids, other, place) >= run.length:
                    return run._replace(length=other - spot)
        return run

    def _near(self, ids: Ids, at: int, before: Run, latest: _Latest) -> _Hits:
        """Where the latest answer may come back behind a run that reaches it: a client that
        leaves the reasoning out, or strips the answer's ends, sends the rest right there.
        """
        reached = before.offset + before.length
        if before.src != latest.number or reached < latest.answer - _NEAR_BEFORE:
            return _NOWHERE
        reached = max(reached, latest.answer)
        answer = gram_hashes(latest.ids[reached:], NEAR_GRAM)
        window = ids[at : at + len(latest.ids) - reached + _NEAR_SLACK]
        index = GramIndex()
        index.add(answer, (latest.number << 32) + reached + np.arange(len(answer)))
        return _Hits(at, index.find(gram_hashes(window, NEAR_GRAM)))

    def _copy(self, ids: Ids, spot: int, place: int, latest: _Latest | None) -> Run:
        """The copy from a place, as long as it goes; of length 0 when it isn't one.

        A turn repeats its history at the same offsets, and only the request that brought a token
        in is indexed: the latest request of the session often has the same text there and more.
        """
        src, offset = place >> 32, place & 0xFFFF_FFFF
        best = Run(src, offset, self._match(ids, spot, place))
        if latest and src != latest.number:
            length = common_prefix(latest.ids[offset:], ids[spot:])
            if length >= best.length:
                best = Run(latest.number, offset, length)
        return best

    def _match(self, ids: Ids, spot: int, place: int) -> int:
        """Tokens at a place that stand in `ids` from `spot` on."""
        return common_prefix(self._sequences[place >> 32][place & 0xFFFF_FFFF :], ids[spot:])

    def _fresh(self, ids: Ids) -> Iterator[Run]:
        """Fresh tokens as runs of one class or name each."""
        # A picture's rows are negative; a trace names the pictures beside its runs.
        classes = np.where(ids < 0, SPECIAL, self._classes[np.maximum(ids, 0)])
        cuts = [0, *(np.flatnonzero(np.diff(classes)) + 1).tolist(), len(ids)]
        for start, stop in itertools.pairwise(cuts):
            if start < stop:
                yield Run(FRESH, int(classes[start]), stop - start)

    def _learn(self, number: int, ids: Ids, runs: list[Run]) -> None:
        """Index the grams that stand nowhere yet: those not inside one copied run."""
        width = self._gram
        lengths = [run.length for run in runs]
        owner = np.repeat(np.arange(len(runs)), lengths)
        fresh = np.repeat([run.src == FRESH for run in runs], lengths)
        assert len(owner) == len(ids), "runs do not add up to their sequence"
        first = max(0, lengths[0] - width) if runs and not fresh[0] else 0
        hashes = gram_hashes(ids[first:], width)
        starts = first + np.arange(len(hashes))
        new = fresh[starts] | (owner[starts] != owner[starts + width - 1])
        self._index.add(hashes[new], (number << 32) + starts[new])


class _Hits:
    """Positions of a sequence whose gram has a known place."""

    def __init__(self, start: int, found: Places) -> None:
        self._start = start
        self._found = found
        known = np.any(found >= 0, axis=0) if len(found) else np.empty(0, bool)
        self._spots: npt.NDArray[np.int64] = start + np.flatnonzero(known)

    def __bool__(self) -> bool:
        return len(self._spots) > 0

    def next(self, at: int) -> int:
        """The first such position from `at` on; far past every sequence when there is none."""
        index = int(np.searchsorted(self._spots, at))
        return int(self._spots[index]) if index < len(self._spots) else 1 << 62

    def places(self, spot: int) -> list[int]:
        """Known places of the gram at a position, newest first."""
        at = spot - self._start
        if at >= self._found.shape[1]:
            return []
        return [place for place in self._found[:, at].tolist() if place >= 0]


_NOWHERE = _Hits(0, np.empty((0, 0), np.int64))
