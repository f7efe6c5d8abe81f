"""Other conversations' rows in memory: a pool under one budget, moved in and out by blocks."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from cache.account import Account
from cache.budget import Grow, freely
from cache.meet import Meeting
from cache.parked import Kind, Outgoing, ParkConfig, Parked, outgoing_of
from cache.pool import Pool
from cache.ports import Model
from cache.resident import Resident
from cache.rows import RowBlock, block_spans, try_copy, write_rows
from cache.source import in_place
from cache.types import Ask, Offer, Outcome


class Park(Pool):
    """The pool. Entries are given up by tokens saved per byte, less the longer nobody used them."""

    name = "park"

    def __init__(
        self, config: ParkConfig, model: Model, meeting: Meeting, grow: Grow = freely
    ) -> None:
        super().__init__(config, model, grow)
        self._meeting = meeting
        self._covered = 0

    # the tier's questions and answers

    def offer(self, ask: Ask) -> Offer | None:
        """The best line any entry has for this ask. Changes nothing."""
        best: Offer | None = None
        for entry in self.entries:
            met = self._meeting(entry.account, ask)
            line = entry.account.best_line(met.limit)
            if line is None:
                continue
            offer = Offer(self.name, line, met, entry)
            if best is None or offer.forwarded < best.forwarded:
                best = offer
        return best

    def restore(self, offer: Offer, resident: Resident, keep: Kind | None, size: int) -> Outcome:
        """Bring an entry's rows back up to the offer's line, and put what they replace aside.

        `size` is the length of the prompt that will be served from there. A block at a time: the
        block in place is copied aside if anybody needs it, the entry's is written. What the entry
        has above the line stays with it. When a copy fails half way, the rows in place are the
        entry's up to there and nothing else, the entry still has the rest, and the conversation
        they replaced is kept up to there.
        """
        entry: Parked = offer.entry
        start, top = entry.base, offer.line.tokens
        lines = [line for line in entry.account.anchors.lines if line <= top]
        arriving = entry.account.aside(top, lines)
        if top <= start:
            # Its rows up to there are in place already; only its copy of the sections is wanted.
            outcome = self.save(resident, top, keep, size)
            resident.exchange(arriving)
            return outcome
        was = replace(entry, account=replace(entry.account))
        coming = [block for block in entry.blocks if block.start < top]
        entry.leave_above(top, self._floor(top))
        entry.used_turn = self._turn
        self._drop_useless()
        copies = len(arriving.anchors) + (arriving.end is not None)
        self._arriving_bytes = self._bytes(0, copies)
        done, why = self._move(resident, start, keep, coming, entry, self._reach(size))
        self._arriving_bytes = 0
        if why:
            entry.put_back(was, done)
            self.entries = [*(e for e in self.entries if e is not entry), entry]
            arriving.cut(min(done, top))
        resident.exchange(arriving)
        self._drop_useless()
        return Outcome(not why, why)

    def save(self, resident: Resident, line: int, keep: Kind | None, size: int) -> Outcome:
        """Rows from `line` to `size` are about to be overwritten: put aside what is worth it."""
        _, why = self._move(resident, self._floor(line), keep, [], None, self._reach(size))
        return Outcome(not why, why)

    def cover(self, size: int) -> None:
        """A sequence grows to `size` rows: copy what others still have in place up to there."""
        reach, before = self._reach(size), self._covered
        self._covered = reach
        if reach != before and any(entry.uncovered(reach) for entry in self.entries):
            self._make_room(reach, None, None, reach)
            self._cover(reach)

    def admit(self, account: Account, base: int) -> Outcome:
        """Keep a guest that goes, if it is worth it; rows from `base` on are its own."""
        base = self._floor(base)
        copied = account.aside(account.valid, account.anchors.lines)
        guest = Parked("park", copied, base, [], self._turn, high=copied.valid)
        need = self._bytes(guest.top - base, guest.copies)
        if not guest.copies or guest.top <= base or need > self._config.budget_bytes:
            return Outcome(False, "nothing to keep")
        while not self._fits(need):
            lowest = min(self.entries, key=self._worth, default=None)
            if lowest is None or self._worth(lowest) > self._worth(guest):
                return Outcome(False, "the others are worth more")
            self._give_up(lowest)
        state = self._model.cache_state()
        spans = block_spans(base, guest.top, self._config.block_rows)
        blocks = [try_copy(state, start, stop) for start, stop in spans]
        if None in blocks:
            return Outcome(False, "no room for a copy")
        guest.blocks = [block for block in blocks if block is not None]
        self.entries.append(guest)
        return Outcome(True)

    def next_turn(self) -> None:
        """Entries grow older."""
        self._turn += 1
        self._covered = 0

    def forget_session(self, session: str | None, but: object = None) -> None:
        """A compaction: the session's older conversation will not come back, `but` what the
        compaction itself starts from."""
        if session is not None:
            self.entries = [e for e in self.entries if e.account.session != session or e is but]

    def lose_rows(self) -> None:
        """What was in place is unknown: entries that stand on it are lost."""
        for entry in self.entries:
            entry.cut(0 if entry.base else entry.high)
        self._drop_useless()

    def _move(
        self,
        resident: Resident,
        start: int,
        keep: Kind | None,
        coming: list[RowBlock],
        source: Parked | None,
        reach: int,
    ) -> tuple[int, str]:
        """Rows in place [start, reach) go, blocks of `source` come; (rows moved, why not all).

        `source` does not stand on the rows that go, so none of them is kept for it.
        """
        account, state = resident.account, self._model.cache_state()
        reach = max([start, reach, *(block.stop for block in coming)])
        outgoing = self._leaving(account, start, reach, keep) if keep else None
        if keep == "park" and not self._whole(outgoing) and self._evicted(account):
            outgoing = None
        outgoing = self._make_room(start, outgoing, source, reach)
        self._cover(reach)
        dependents = self._dependents(start, source)
        stop = self._stop(start, outgoing, source)
        parked = self._enter(outgoing, account) if outgoing else None
        saved: list[RowBlock] = []
        last = max(stop, coming[-1].stop if coming else start)
        done, why = start, ""
        for begin, end in block_spans(start, last, self._config.block_rows):
            if begin < stop:
                copied = try_copy(state, begin, min(end, stop))
                if copied is None:
                    why = "no room for a copy"
                    break
                saved.append(copied)
            if coming:
                # Let go of as it is written, so that a swap needs little more than one block.
                write_rows(state, coming.pop(0))
            done = end
        if parked is not None:
            parked.blocks = [block for block in saved if block.start < parked.high]
            if why:
                parked.cut(min(parked.top, done))
        for entry in dependents:
            self._stand_on(entry, saved, start)
        self._drop_useless()
        return done, why

    def _dependents(self, start: int, source: Parked | None) -> list[Parked]:
        """Entries that stand on rows in place from `start` on."""
        return [e for e in self.entries if e.base > start and e is not source]

    def _stop(self, start: int, outgoing: Outgoing | None, source: Parked | None) -> int:
        """Where the rows end that must be copied."""
        stop = max(start, outgoing.stop if outgoing else 0)
        return max([stop, *(entry.base for entry in self._dependents(start, source))])

    def _cover(self, reach: int) -> None:
        """Copy what entries have in place above their blocks, up to `reach`, or give it up."""
        state = self._model.cache_state()
        for entry in self.entries:
            stop = entry.high + entry.uncovered(reach)
            for begin, end in block_spans(entry.high, stop, self._config.block_rows):
                copied = try_copy(state, begin, end)
                if copied is None:
                    entry.cut(begin)
                    break
                entry.blocks.append(copied)
                entry.high = end
        self._drop_useless()

    def _enter(self, outgoing: Outgoing, account: Account) -> Parked:
        top = outgoing.tops[0]
        copied = account.aside(top.rows, top.anchors)
        if not top.with_end:
            copied.end = None
        start, high = outgoing.start, outgoing.stop
        parked = Parked(outgoing.kind, copied, start, [], self._turn, high)
        self.entries.append(parked)
        return parked

    def _stand_on(self, entry: Parked, saved: list[RowBlock], start: int) -> None:
        """Give an entry the rows below its base that are about to go."""
        below = [block for block in saved if block.start < entry.base]
        if (below[-1].stop if below else start) < entry.base:
            entry.cut(0)
            return
        # A block that reaches over the base holds another conversation's rows past it.
        entry.blocks = [*below, *entry.blocks]
        entry.base = start

    # what to keep, and what to give up

    def _leaving(self, account: Account, start: int, reach: int, keep: Kind) -> Outgoing | None:
        """The ways to keep the sequence in place that fit the budget at all, the most first."""
        limit = self._config.pin_bytes if keep == "pin" else self._config.budget_bytes
        outgoing = outgoing_of(account, start, reach, keep, self._config)
        cost = self._model.cost()
        outgoing.tops = [top for top in outgoing.tops if outgoing.bytes_of(top, cost) <= limit]
        return outgoing if outgoing.tops else None

    @staticmethod
    def _whole(outgoing: Outgoing | None) -> bool:
        """Whether all rows of what goes are to be kept."""
        return outgoing is not None and outgoing.top == outgoing.account.valid

    def _evicted(self, account: Account) -> bool:
        """Whether all of the conversation in place lies on a drive now."""
        return self.leaves(in_place(account, self._model), "evict")

    def _make_room(
        self, start: int, outgoing: Outgoing | None, source: Parked | None, reach: int
    ) -> Outgoing | None:
        """Give entries up, or less be kept of what goes, until the rest fits the budget."""
        while not self._fits(self._need(start, outgoing, source, reach)):
            lowest = min(
                (e for e in self.entries if e is not source), key=self._worth, default=None
            )
            own = outgoing.worth(self._model.cost()) if outgoing else inf
            if lowest is not None and self._worth(lowest) <= own:
                self._give_up(lowest)
            elif outgoing is not None:
                whole = outgoing.kind == "park" and self._whole(outgoing)
                outgoing.tops.pop(0)
                if (whole and self._evicted(outgoing.account)) or not outgoing.tops:
                    outgoing = None
            else:
                # What lies above the rows that come back is all that is left to give up.
                assert source is not None
                source.cut(0)
        return outgoing

    def _need(
        self, start: int, outgoing: Outgoing | None, source: Parked | None, reach: int
    ) -> int:
        """Bytes that copying rows [start, reach) would add."""
        rows = self._stop(start, outgoing, source) - start
        rows += sum(entry.uncovered(reach) for entry in self.entries)
        return self._bytes(rows, outgoing.copies if outgoing else 0)

    # accounts

    def _floor(self, row: int) -> int:
        """The start of the block a row lies in."""
        return row // self._config.block_rows * self._config.block_rows

    def _reach(self, size: int) -> int:
        """The end of the last block that a sequence of `size` rows may write to."""
        return self._floor(size + self._config.margin_rows) + self._config.block_rows

    def check(self, resident: Resident) -> None:
        """Integrity: blocks without a gap, and every base stands on the rows in place."""
        for entry in self.entries:
            at = entry.base
            for block in entry.blocks:
                assert block.start == at, (block.start, at)
                at = block.stop
            assert at >= entry.high and entry.base <= entry.high <= entry.top
            assert entry.high == entry.top or entry.high >= resident.account.valid
            shared = resident.account.ids[: entry.base]
            assert (shared == entry.account.ids[: entry.base]).all() and len(shared) == entry.base
            entry.account.check(self._model.grid)
        assert self.held_bytes() <= self._config.budget_bytes
