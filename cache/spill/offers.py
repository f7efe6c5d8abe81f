"""What the spill's entries have for a prompt, beside the rows in place."""

from __future__ import annotations

from cache.account import Account
from cache.disk.rate import ReadRate
from cache.meet import Meeting, exactly
from cache.spill.entry import Entry
from cache.spill.names import NAME
from cache.spill.shapes import Shapes
from cache.spill.shelf import Shelf
from cache.spill.spilled import Bring, Spilled
from cache.spill.unserved import Unserved, why_not
from cache.types import Ask, Cost, Ids, Offer, common_prefix

CHUNKS_SHARED = 4
"""An entry that shares so many chunks with a prompt and serves none of it is worth a line."""


class Offers:
    """Pure questions: nothing is read, counted or changed."""

    def __init__(self, shapes: Shapes, shelf: Shelf, rate: ReadRate, bring: Bring) -> None:
        self.meeting: Meeting = exactly
        self._shapes = shapes
        self._shelf = shelf
        self._rate = rate
        self._bring = bring

    def best(self, ask: Ask, in_place: Account, cost: Cost) -> Offer | None:
        """The entry that costs this ask least, reading and prefilling."""
        offers = [self._offer(entry, ask, in_place) for entry in self._shelf.whole()]
        found = [offer for offer in offers if offer is not None]
        return min(found, key=lambda offer: offer.cost_s(cost), default=None)

    def _offer(self, entry: Entry, ask: Ask, in_place: Account) -> Offer | None:
        assert entry.account is not None
        if not _may_serve(entry, ask, self._shapes.grid):
            return None
        met = self.meeting(entry.account, ask)
        line = entry.account.best_line(met.limit)
        if line is None:
            return None
        spilled = self.beside(entry, in_place, line.tokens)
        # Equal tokens that were written in the same steps are probably the same bits: sums tell.
        alike = in_place.taint == entry.account.taint
        unread = spilled.shared if alike else spilled.base
        blocks = [b.piece.weight for b in entry.up_to(line.tokens, spilled.base) if b.stop > unread]
        copies = [copy.piece.weight for copy in entry.copies_to(line.tokens)]
        nbytes = sum(blocks) + sum(copies)
        return Offer(NAME, line, met, spilled, nbytes, nbytes / self._rate.bytes_s())

    def beside(self, entry: Entry, in_place: Account, line: int) -> Spilled:
        """An entry beside the rows in place, to be brought up to a line."""
        account, shapes = entry.account, self._shapes
        assert account is not None
        shared = common_prefix(in_place.ids, account.ids)
        # Whole chunks of a cold prefill are the same bits in both; above, only sums can tell.
        clean = min([shared, line, *(a.taint for a in (in_place, account) if a.taint is not None)])
        base = clean // shapes.grid * shapes.grid // shapes.block_rows * shapes.block_rows
        stop = max((block.stop for block in entry.up_to(line)), default=0)
        return Spilled(entry, base, shared, stop, self._bring)

    def unserved(self, ask: Ask, in_place: Account, ram: int) -> Unserved | None:
        """Why no entry serves a prompt that shares several chunks with one, more than memory
        serves; `ram` is the line that memory has."""
        shares = [(common_prefix(_ids(entry), ask.ids), entry) for entry in self._shelf.whole()]
        shared, entry = max(shares, key=lambda pair: pair[0], default=(0, None))
        few = CHUNKS_SHARED * self._shapes.grid
        if entry is None or entry.account is None or shared < few or shared <= ram:
            return None
        own, met = self._offer(entry, ask, in_place), self.meeting(entry.account, ask)
        line = own.line.tokens if own is not None else 0
        slow = line > ram + self._shapes.grid
        why = why_not(entry, met, own, ram, slow=slow)
        return Unserved(entry, len(ask.ids), shared, line, ram, why)


def _may_serve(entry: Entry, ask: Ask, slack: int) -> bool:
    """Whether a prompt goes on with an entry up to one of its lines at all: a quick look.

    Before the first answer nothing is aligned, but for blanks right before it (`slack` tokens are
    more than those): who parts there has what is common and no more.
    """
    account = entry.account
    assert account is not None
    lowest = min((copy.tokens for copy in entry.copies), default=0)
    first = account.generations[0].start if account.generations else account.valid
    return common_prefix(account.ids, ask.ids) >= min(lowest, first - slack)


def _ids(entry: Entry) -> Ids:
    assert entry.account is not None
    return entry.account.ids
