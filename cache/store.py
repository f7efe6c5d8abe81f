"""State store: whole snapshots by their tokens, of shared prompt heads and of short chats."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from typing import Literal

import numpy as np

from cache.account import Account
from cache.anchors import Anchor, AnchorConfig, Anchors, copy_sections
from cache.budget import Grow, freely
from cache.hashing import Hashes, prefix_hashes
from cache.journal import CacheEvent
from cache.meet import Meeting, exactly
from cache.ports import Model
from cache.rows import RowBlock, block_spans, try_copy
from cache.snapshot import Snapshot, Standing, StoreConfig, Use
from cache.types import Ask, Cost, Gate, Ids, Met, Offer, Outcome, common_prefix


class Store:
    """The snapshots, the least recently used first. One store may serve several slots of a model.

    A snapshot serves a prompt that starts with all its tokens. A prefix snapshot is taken where a
    prefill from a cold state passes a grid line, and is held to the bit gate; a session snapshot is
    taken after a generation, and is held to the greedy gate. Tokens are compared one by one before
    anything is restored: the hash only says where to look.
    """

    name = "store"

    def __init__(
        self,
        config: StoreConfig,
        grid: int,
        meeting: Meeting = exactly,
        grow: Grow = freely,
    ) -> None:
        self.config = config
        self._grid = grid
        self._meeting = meeting
        self._grow = grow
        self.in_use: Snapshot | None = None
        """It is being restored: it can't be given back."""
        self._snapshots: OrderedDict[int, Snapshot] = OrderedDict()
        self._number = 0
        """Snapshots taken so far; each is known by its own."""
        self._served: dict[int, int] = {}
        """When a snapshot served last, counted in snapshots taken."""
        self.declines: Counter[str] = Counter()
        self.evictions = 0
        self._said: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._events: list[CacheEvent] = []

    def __len__(self) -> int:
        return len(self._snapshots)

    def __iter__(self) -> Iterator[Snapshot]:
        return iter(self._snapshots.values())

    # the tier's questions and answers

    def offer(self, ask: Ask, in_place: Account) -> Offer | None:
        """The snapshot that leaves the least of this ask to forward. Changes nothing."""
        offers = [self._offer(met, snapshot, in_place) for snapshot, met in self._matching(ask)]
        return min(offers, key=lambda o: (o.forwarded, o.line.gate), default=None)

    def _offer(self, met: Met, snapshot: Snapshot, in_place: Account) -> Offer:
        line = snapshot.account.best_line(snapshot.tokens)
        assert line is not None and line.tokens == snapshot.tokens
        shared = common_prefix(snapshot.account.ids, in_place.ids)
        for taint in (snapshot.account.taint, in_place.taint):
            shared = shared if taint is None else min(shared, taint)
        # Whole chunks of both sides are a cold prefill's rows, bit for bit.
        base = shared // self._grid * self._grid
        standing = Standing(snapshot, base // self.config.block_rows * self.config.block_rows)
        return Offer(self.name, line, met, standing)

    def _matching(self, ask: Ask) -> Iterator[tuple[Snapshot, Met]]:
        hashes = self._hashes(ask.ids)
        for snapshot in self._snapshots.values():
            size = snapshot.tokens
            if snapshot.use == "session":
                met = self._meeting(snapshot.account, ask)
                if met.limit == size:
                    yield snapshot, met
                continue
            hint = size < len(ask.ids) and hashes[size - 1] == snapshot.hash
            # No more than a hint: another prompt's state must never answer this one.
            if hint and common_prefix(snapshot.account.ids, ask.ids) == size:
                yield snapshot, Met(size, size, ask.ids)

    def _hashes(self, ids: Ids) -> Hashes:
        sizes = (s.tokens for s in self._snapshots.values() if s.use == "prefix")
        return prefix_hashes(ids[: max(sizes, default=0)])

    def use(self, snapshot: Snapshot) -> None:
        """It is about to serve: it is the last to go, and not before `in_use` is cleared."""
        self.in_use = snapshot
        self._served[self._touch(snapshot)] = self._number

    def _touch(self, snapshot: Snapshot) -> int:
        place = next(n for n, held in self._snapshots.items() if held is snapshot)
        self._snapshots.move_to_end(place)
        return place

    # taking snapshots

    def boundaries(self, start: int, size: int, cost: Cost, head: int = 0) -> frozenset[int]:
        """Grid lines to keep of a prefill of rows [start, size): the longest that fit, and the last
        below row `head`, up to which other prompts are expected to be the same.
        """
        grid, most = self._grid, min(self.config.entry_bytes, self.config.budget_bytes)
        top = min(size - 1, (most - cost.anchor_bytes) // cost.row_bytes) // grid
        lines = [line * grid for line in range(start // grid + 1, top + 1)]
        shared = [line for line in lines if line <= head][-1:]
        return frozenset(shared + lines[-self.config.boundaries :])

    def put(self, use: Use, account: Account, model: Model) -> Outcome:
        """Copy the rows of an account, all of them, with the model's sections at their end.

        The model must be settled at exactly that length. Room is made before anything is copied.
        """
        assert model.length == account.valid > 0
        why = self._room(account, model.cost())
        if why == "known":
            return Outcome(True, why)
        if why:
            return self.decline(why, account)
        state, spans = model.cache_state(), block_spans(0, account.valid, self.config.block_rows)
        blocks = [try_copy(state, start, stop) for start, stop in spans]
        whole = tuple(block for block in blocks if block is not None)
        if len(whole) < len(blocks):
            return self.decline("memory", account)
        snapshot = self._snapshot(use, account, whole, model)
        self._supersede(snapshot)
        self._number += 1
        self._snapshots[self._number] = snapshot
        if use == "prefix" and account.valid == account.system // self._grid * self._grid:
            # Others will share it: it counts as one that served, before the first of them comes.
            self._served[self._number] = self._number
        return Outcome(True, "", snapshot.nbytes)

    def decline(self, why: str, account: Account) -> Outcome:
        """Count a snapshot that was not taken; it is reported once a conversation and reason."""
        self.declines[why] += 1
        said = (_conversation(account), why)
        if said not in self._said:
            self._said[said] = None
            event = CacheEvent(self.name, "decline", account.session, account.valid, why=why)
            self._events.append(event)
            while len(self._said) > self.config.said_max:
                self._said.popitem(last=False)
        return Outcome(False, why)

    def _room(self, account: Account, cost: Cost) -> str:
        """Make room for a snapshot; why there is none, or `known` when there is one already."""
        need = account.valid * cost.row_bytes + cost.anchor_bytes
        if need > min(self.config.entry_bytes, self.config.budget_bytes):
            return "big"
        if same := self._same(account):
            self._touch(same)
            return "known"
        while self.held_bytes() + need > self.config.budget_bytes:
            if not self._evict():
                return "no room"
        if self._grow(self.name, need):
            return ""
        # As much of its own must go, and no more: others may hold what is wanted.
        freed = self.release(need)
        return "" if freed >= need and self._grow(self.name, need) else "no room"

    def _same(self, account: Account) -> Snapshot | None:
        """A snapshot of the same tokens under no weaker gate."""
        gate = account.gate(account.valid)
        for snapshot in self._snapshots.values():
            if snapshot.gate <= gate and np.array_equal(snapshot.account.ids, account.ids):
                return snapshot
        return None

    def _snapshot(
        self, use: Use, account: Account, blocks: tuple[RowBlock, ...], model: Model
    ) -> Snapshot:
        cost, size = model.cost(), account.valid
        sections = copy_sections(model.cache_state())
        kind: Literal["grid", "end"] = "grid" if use == "prefix" else "end"
        gate = account.gate(size) if use == "prefix" else Gate.GREEDY
        copied = account.aside(size, ())
        copied.end = None
        copied.anchors = Anchors.of(_ONE, [Anchor(size, gate, sections, kind)])
        nbytes = size * cost.row_bytes + cost.anchor_bytes
        return Snapshot(use, copied, blocks, int(prefix_hashes(copied.ids)[-1]), nbytes)

    def _supersede(self, newer: Snapshot) -> None:
        """An earlier end of the same conversation goes next: its turn has come and gone."""
        if newer.use == "prefix":
            return
        for number, snapshot in list(self._snapshots.items()):
            size = snapshot.tokens
            older = snapshot.use == "session" and size < newer.tokens
            if older and np.array_equal(snapshot.account.ids, newer.account.ids[:size]):
                self._snapshots.move_to_end(number, last=False)

    # giving back

    def _evict(self) -> int:
        """One goes: such as never served before such as did, each the oldest first."""
        spare = [n for n, snapshot in self._snapshots.items() if snapshot is not self.in_use]
        never = [n for n in spare if self._number - self._served.get(n, -RECENT) >= RECENT]
        if not spare:
            return 0
        return self._drop((never or spare)[0])

    def _drop(self, number: int) -> int:
        self._served.pop(number, None)
        self.evictions += 1
        return self._snapshots.pop(number).nbytes

    def release(self, nbytes: int) -> int:
        """Give back at least `nbytes`, or all that is not in use; returns how much."""
        given = 0
        while given < nbytes and (freed := self._evict()):
            given += freed
        return given

    def configure(self, config: StoreConfig) -> None:
        """Other settings; what is too large goes, then over the budget what goes first. Blocks stay
        as they are."""
        assert config.block_rows == self.config.block_rows and self.in_use is None
        self.config = config
        for number, snapshot in list(self._snapshots.items()):
            if snapshot.nbytes > config.entry_bytes:
                self._drop(number)
        while self.held_bytes() > config.budget_bytes:
            self._evict()

    def clear(self) -> None:
        """Forget all snapshots."""
        self._snapshots.clear()
        self._served.clear()

    # accounts

    def held_bytes(self) -> int:
        """Bytes of all snapshots."""
        return sum(snapshot.nbytes for snapshot in self._snapshots.values())

    def copies(self) -> set[int]:
        """Which copies of the sections the snapshots hold."""
        return {id(anchor.tensors) for s in self for anchor in s.account.anchors}

    def spare_bytes(self) -> int:
        """Bytes that `release` could give."""
        return self.held_bytes() - (self.in_use.nbytes if self.in_use else 0)

    def events(self) -> list[CacheEvent]:
        """What there is to report since the last call."""
        told, self._events = self._events, []
        return told

    def check(self, grid: int) -> None:
        """Integrity; raises AssertionError."""
        for snapshot in self._snapshots.values():
            snapshot.account.check(grid)
            at = 0
            for block in snapshot.blocks:
                assert block.start == at
                at = block.stop
            assert at == snapshot.tokens and snapshot.nbytes <= self.config.entry_bytes
            assert snapshot.account.anchors.lines == [snapshot.tokens]
        assert self.held_bytes() <= self.config.budget_bytes


RECENT = 64
"""Snapshots taken after which one that served is as good as one that never did."""
_ONE = AnchorConfig(budget_bytes=0, newest_kept=1)
"""A snapshot has one copy of the sections."""


def _conversation(account: Account) -> str:
    """Whose rows these are, as far as it was said."""
    if account.session is not None:
        return account.session
    return f"hash {int(prefix_hashes(account.ids[:1_024])[-1])}"
