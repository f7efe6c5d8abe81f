"""A guest in the house: a sequence over borrowed rows, kept in the pool when it leaves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from cache.account import Account
from cache.anchors import AnchorConfig
from cache.budget import Grow, freely
from cache.guest import GuestConfig, Stash
from cache.park import Park
from cache.parked import Parked
from cache.ports import Model
from cache.resident import Resident
from cache.types import Ask, Generation, Ids, Line, Offer


class Elsewhere(Protocol):
    """A sequence that is not in place: its rows up to `base` are, `bring` writes the others.

    Nothing is written from `stop` on.
    """

    @property
    def account(self) -> Account: ...

    @property
    def base(self) -> int: ...

    @property
    def stop(self) -> int: ...

    def bring(self, model: Model, top: int) -> bool: ...


class Visits:
    """At most one guest at a time; the rows in place stay the resident's.

    A guest starts from the rows in place or from its own in the pool, which are written over the
    borrowed ones. It has the last of its grid anchors and its end. When the next request comes its
    rows go to the pool, if it may come again, and what it borrowed is put back.
    """

    def __init__(
        self,
        config: GuestConfig,
        model: Model,
        resident: Resident,
        park: Park,
        grow: Grow = freely,
    ) -> None:
        self._model = model
        self._grow = grow
        self._resident = resident
        self._park = park
        self._stash = Stash(config, model, grow)
        self.base = 0
        """The guest's rows below are the resident's as well."""
        self.guest: Resident | None = None

    def configure(self, config: GuestConfig) -> None:
        """Other settings; nobody is a guest now."""
        assert self.guest is None
        self._stash.configure(config)

    def may_enter(self, served: Ids, best: Offer | None) -> bool:
        """Whether a prompt is short enough, beside the rows in place, to borrow some of them."""
        return self._stash.is_guest(len(served), base_of(best), self._resident.account.valid)

    def enter(
        self,
        ask: Ask,
        tools: int,
        system: int,
        served: Ids,
        best: Offer | None,
        coming: Sequence[Generation],
    ) -> bool:
        """Let the guest in, and the model resume for it; False, with nothing changed, if no room
        is left to copy what it borrows."""
        entry: Elsewhere | None = best.entry if best else None
        base, valid = base_of(best), self._resident.account.valid
        reach = max(len(served), entry.stop if entry else 0)
        if not self._stash.open(base, reach, valid):
            return False
        line = best.line if best else None
        if entry is not None and line is not None and not entry.bring(self._model, line.tokens):
            self._stash.put_back()
            return False
        anchors = AnchorConfig(budget_bytes=0, newest_kept=1)
        guest = Resident(
            self._model.window,
            anchors,
            keeps_end=self._resident.keeps_end,
            grow=self._grow,
            shared=lambda: self._resident.copies() | self._resident.shared(),
        )
        if line:
            guest.exchange(self._account(entry, line, anchors))
            guest.restore(line, self._model)
        else:
            guest.start_cold(self._model)
        guest.begin(ask, tools, system, len(served), coming)
        self.guest, self.base = guest, base
        self._park.borrowed = base
        return True

    def _account(self, entry: Elsewhere | None, line: Line, anchors: AnchorConfig) -> Account:
        """What is known of the rows up to the line it starts from."""
        source = entry.account if entry else self._resident.account
        account = source.aside(line.tokens, [line.tokens])
        account.anchors = account.anchors.under(anchors)
        if isinstance(entry, Parked) and account.end is not None:
            # Its end's copies will be written to again: they have one owner.
            self._park.entries.remove(entry)
        return account

    def grows(self, stop: int) -> None:
        """Rows up to `stop` will be written: more is copied, or honestly given up."""
        resident, stash = self._resident, self._stash
        if not stash.cover(stop, resident.account.valid):
            self._park.save(resident, stash.covered, None, stop)
            resident.cut(stash.covered)

    def leave(self, *, whole: bool = True) -> None:
        """The guest is gone: it is kept if that is worth it, and the rows are given back."""
        guest, self.guest = self.guest, None
        if guest is None:
            return
        if whole and guest.account.goes_on:
            self._park.admit(guest.account, self.base)
        self._stash.put_back()
        self._park.borrowed = None

    def held_bytes(self) -> int:
        """Bytes of the rows that are put aside."""
        return self._stash.held_bytes()


def base_of(best: Offer | None) -> int:
    """Rows that the guest shares with the rows in place, and does not overwrite."""
    if best is None:
        return 0
    entry: Elsewhere | None = best.entry
    line = best.line.tokens
    return min(line, entry.base) if entry is not None else line
