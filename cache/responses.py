"""Response cache: identical greedy requests are answered from memory; off unless one is made."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cache.account import Answer
from cache.hashing import prefix_hashes
from cache.journal import TurnRow
from cache.types import Gate, Ids, Outcome

SOURCE = "response"
"""What a journal row says served the turn."""
ENTRY_BYTES = 1_024
"""Counted for an entry beside its tokens: the objects that hold it and its places, rounded up."""


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """All that decides a greedy answer of one model. Compared field by field, tokens one by one.

    What else a request says (who asks, for which conversation) decides only how much is reused.
    """

    ids: Ids
    """The prompt as the client sent it; rows without tokens have ids of what they show."""
    limit: int
    stop_ids: frozenset[int]
    rule: Hashable
    """The decode rule's key: what it does beside taking the likeliest token."""

    def same(self, other: Asked) -> bool:
        """Whether the two have the same answer."""
        alike = (self.limit, self.stop_ids, self.rule) == (other.limit, other.stop_ids, other.rule)
        return alike and np.array_equal(self.ids, other.ids)

    @property
    def hint(self) -> int:
        """Where to look: equal for equal prompts, and perhaps for others."""
        return int(prefix_hashes(self.ids)[-1])


@dataclass(frozen=True, slots=True, eq=False)
class Response:
    """An answer as it was written once."""

    asked: Asked
    tokens: Ids
    finish: str
    """`stop` or `length`."""
    gate: Gate
    """What the state that wrote it was held to."""

    @property
    def nbytes(self) -> int:
        """Bytes that it holds."""
        return self.asked.ids.nbytes + self.tokens.nbytes + ENTRY_BYTES

    def row(self, blank: TurnRow, finish: str) -> TurnRow:
        """A turn that it answered: nothing was forwarded, and no cache was asked."""
        return replace(
            blank,
            cached=blank.prompt,
            source=SOURCE,
            gate=self.gate.name.lower(),
            why=SOURCE,
            parted_at=blank.prompt,
            output=len(self.tokens),
            finish=finish,
        )


class Responses:
    """Answers under a budget of host memory, the least recently used given up first.

    Greedy text is a function of what was asked, so this remembers and does not guess. It belongs to
    one model and its grid; the slots of that model may share it. Nothing turns it on but whoever
    makes one: a benchmark must not measure a dictionary.
    """

    def __init__(self, budget_bytes: int) -> None:
        assert budget_bytes >= 0
        self._budget_bytes = budget_bytes
        self._responses: OrderedDict[int, Response] = OrderedDict()
        self._places: defaultdict[int, list[int]] = defaultdict(list)
        """Numbers of the responses with a hint."""
        self._number = self._held_bytes = 0
        self.counters: Counter[str] = Counter()
        """hits, misses, kept, evicted, and declined.REASON."""

    def __len__(self) -> int:
        return len(self._responses)

    def find(self, asked: Asked) -> Response | None:
        """The answer to an identical request, which is the last to go from now on."""
        number = self._number_of(asked)
        self.counters["misses" if number is None else "hits"] += 1
        if number is None:
            return None
        self._responses.move_to_end(number)
        return self._responses[number]

    def put(
        self,
        asked: Asked,
        served: Ids,
        tokens: Sequence[int],
        said: Answer,
        finish: str,
        gate: Gate,
    ) -> Outcome:
        """Keep an answer that was just written, if another such request would get the same one.

        Declined: an answer that was cancelled or failed, one that its window ended, one with tokens
        the client never sees, and one to a prompt read otherwise than it was sent, since the text
        that follows is the rows' and not the request's alone.
        """
        why = self._why_not(asked, served, tokens, said, finish)
        if why:
            self.counters[f"declined.{why}"] += 1
            return Outcome(False, why)
        known = self._number_of(asked)
        if known is not None:
            self._drop(known)
        own = Asked(asked.ids.copy(), asked.limit, asked.stop_ids, asked.rule)
        response = Response(own, np.array(tokens, np.int32), finish, gate)
        if response.nbytes > self._budget_bytes:
            self.counters["declined.big"] += 1
            return Outcome(False, "big")
        self.release(self._held_bytes + response.nbytes - self._budget_bytes)
        self._number += 1
        self._responses[self._number] = response
        self._places[own.hint].append(self._number)
        self._held_bytes += response.nbytes
        self.counters["kept"] += 1
        return Outcome(True, "", response.nbytes)

    @staticmethod
    def _why_not(
        asked: Asked, served: Ids, tokens: Sequence[int], said: Answer, finish: str
    ) -> str:
        if finish not in ("stop", "length"):
            return "unfinished"
        if tokens[-1] not in asked.stop_ids and len(tokens) < asked.limit:
            return "window"
        if said.hidden:
            return "hidden"
        return "" if np.array_equal(asked.ids, served) else "aligned"

    def _number_of(self, asked: Asked) -> int | None:
        """A hash is a hint: two requests of one hint are told apart here."""
        for number in self._places.get(asked.hint, ()):
            if self._responses[number].asked.same(asked):
                return number
        return None

    # giving back

    def _drop(self, number: int) -> None:
        gone = self._responses.pop(number)
        hint = gone.asked.hint
        self._places[hint].remove(number)
        if not self._places[hint]:
            del self._places[hint]
        self._held_bytes -= gone.nbytes

    def release(self, nbytes: int) -> int:
        """Give back at least `nbytes`, or all there is; returns how much."""
        given = 0
        while given < nbytes and self._responses:
            number, oldest = next(iter(self._responses.items()))
            self._drop(number)
            self.counters["evicted"] += 1
            given += oldest.nbytes
        return given

    def clear(self) -> None:
        """Forget all answers."""
        self._responses.clear()
        self._places.clear()
        self._held_bytes = 0

    # accounts

    def held_bytes(self) -> int:
        """Bytes of all answers and what was asked for them."""
        return self._held_bytes

    def check(self) -> None:
        """Integrity; raises AssertionError."""
        assert self._held_bytes == sum(r.nbytes for r in self._responses.values())
        assert self._held_bytes <= self._budget_bytes
        placed = sorted(number for places in self._places.values() for number in places)
        assert placed == sorted(self._responses) and all(self._places.values())
