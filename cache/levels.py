"""The caches as the memory budget sees them: what each could give back, the cheapest first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cache.anchors import Kept
from cache.budget import Level
from cache.ports import Model
from cache.stack import Stack
from cache.store import Store


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of copies over all slots."""

    name: str
    held: Callable[[], int]
    give: Callable[[int], int]

    def held_bytes(self) -> int:
        """Bytes that could be given back now."""
        return self.held()

    def release(self, nbytes: int) -> int:
        """Give back at least `nbytes`, or all; returns how many."""
        return self.give(nbytes)


class Slot:
    """The copies of one slot. What a request under way stands on is never given back."""

    def __init__(self, stack: Stack, model: Model) -> None:
        self._stack = stack
        self._model = model

    @property
    def _line(self) -> int | None:
        """Where the copies stand in the rows in place that are being restored."""
        using = self._stack.using
        return using.line.tokens if using is not None and using.entry is None else None

    def _kept(self) -> Kept:
        """What is in use, or held by a cheaper or dearer cache as well."""
        line, others = self._line, self._stack.store.copies() | self._stack.park.copies()
        return lambda anchor: anchor.tokens == line or id(anchor.tensors) in others

    @property
    def _copy_bytes(self) -> int:
        return self._model.cost().anchor_bytes

    def body_bytes(self) -> int:
        """All anchors in place but the newest."""
        return self._stack.resident.account.anchors.body(self._kept()) * self._copy_bytes

    def give_body(self, nbytes: int) -> int:
        """Those, the least worth first."""
        resident, count = self._stack.resident, -(-nbytes // self._copy_bytes)
        given = resident.account.anchors.give(count, resident.layout, self._kept())
        return given * self._copy_bytes

    def end_bytes(self) -> int:
        """The end anchor, and the newest anchors."""
        account, kept = self._stack.resident.account, self._kept()
        copies = account.anchors.spare(kept) - account.anchors.body(kept)
        end = account.end is not None and account.end.tokens != self._line
        return (copies + end) * self._copy_bytes

    def give_end(self, nbytes: int) -> int:
        """Those, the end anchor first."""
        resident, given = self._stack.resident, 0
        account = resident.account
        if account.end is not None and account.end.tokens != self._line:
            account.end, given = None, self._copy_bytes
        if given < nbytes:
            count, kept = -(-(nbytes - given) // self._copy_bytes), self._kept()
            more = account.anchors.give(count, resident.layout, kept, newest=True)
            given += more * self._copy_bytes
        return given

    def stash_bytes(self) -> int:
        """What a guest borrowed, when it has been served."""
        return 0 if self._stack.serving else self._stack.visits.held_bytes()

    def give_stash(self, nbytes: int) -> int:
        """The guest goes, and what it borrowed is put back."""
        held = self.stash_bytes()
        if held:
            self._stack.leave()
        return held


def levels_of(slots: Sequence[tuple[Stack, Model]], encoded: Level | None = None) -> list[Level]:
    """What gives back, in order, over slots that share a store; `encoded` is the engine's own."""
    all_of = [Slot(stack, model) for stack, model in slots]
    store: Store = slots[0][0].store
    assert all(stack.store is store for stack, _ in slots)
    parks = [stack.park for stack, _ in slots]
    levels: list[Level] = [
        Part("store", store.spare_bytes, store.release),
        _over("anchors", [s.body_bytes for s in all_of], [s.give_body for s in all_of]),
        _over("end", [s.end_bytes for s in all_of], [s.give_end for s in all_of]),
        _over("stash", [s.stash_bytes for s in all_of], [s.give_stash for s in all_of]),
    ]
    for kind in ("park", "pin"):
        held = [lambda park=park, kind=kind: park.spare_bytes(kind) for park in parks]
        give = [lambda n, park=park, kind=kind: park.release(kind, n) for park in parks]
        levels.append(_over(kind, held, give))
    return levels if encoded is None else [encoded, *levels]


def _over(
    name: str, held: Sequence[Callable[[], int]], give: Sequence[Callable[[int], int]]
) -> Level:
    """The same part of several slots; those asked for last give first."""

    def given(nbytes: int) -> int:
        total = 0
        for one in reversed(give):
            if total < nbytes:
                total += one(nbytes - total)
        return total

    return Part(name, lambda: sum(one() for one in held), given)
