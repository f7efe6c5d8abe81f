"""The shelf: which entries there are, and the order of writing that survives a crash."""

from __future__ import annotations

from collections.abc import Iterable

from cache.account import Account
from cache.disk.notes import Notes
from cache.format import Bad, read_record, write_record
from cache.ports import Files
from cache.saving import TMP, Saving, code_of
from cache.spill.entry import Block, Copy, Entry, Loose
from cache.spill.manifest import described, image_of
from cache.spill.names import LAST, manifest_name
from cache.spill.saver import Saved
from cache.spill.shapes import Shapes

_State = tuple[Account | None, tuple[Block, ...], tuple[Copy, ...], dict[int, Loose]]


class Shelf:
    """Entries and their files.

    Blocks and copies first, then their names, then the manifest by rename, then its name, then what
    nothing names any more goes: an older entry lasts until the newer one does. Removing goes the
    other way round. What could not be removed is tried again.
    """

    def __init__(self, files: Files, shapes: Shapes, notes: Notes) -> None:
        """Use `open_spill`."""
        self._files = files
        self._shapes = shapes
        self.notes = notes
        self._entries: list[Entry] = []
        self._left: set[str] = set()
        """Names that should be gone."""
        self._unsure = False
        """A manifest has its name, and whether that lasts is not known: the older one may be found
        in its place, so nothing that either names goes."""
        self._last: int | None = None
        self.in_use: Entry | None = None
        """It is about to be read: it does not make room for others."""
        self.reserved: set[str] = set()
        """Names that somebody else's files have."""

    # which there are

    def whole(self) -> list[Entry]:
        """The entries that can be offered."""
        return [entry for entry in self._entries if entry.account is not None]

    def holds(self, entry: Entry) -> bool:
        """Whether an entry that was offered is still there."""
        return any(other is entry for other in self._entries)

    def held_bytes(self) -> int:
        """What all files count for under the budget."""
        return sum(entry.held_bytes for entry in self._entries)

    def add(self, entry: Entry) -> None:
        """An entry that was found on the drive."""
        self._entries.append(entry)

    def like(self, account: Account) -> Entry | None:
        """The entry that goes on in this conversation; it is replaced, and shares what it can.

        A session may have several: an agent's helpers speak under its name.
        """
        mine = [entry for entry in self._entries if entry.session == account.session]
        found = [(shared, entry) for entry in mine if (shared := entry.goes_on(account.ids))]
        return max(found, key=lambda pair: pair[0])[1] if found else None

    def of(self, account: Account, now_s: float) -> Entry:
        """The entry that a save of this conversation goes to, a new one if there is none."""
        entry = self.like(account)
        if entry is None:
            key = max((other.key for other in self._entries), default=0) + 1
            taken = {int(name[:16], 16) for name in self._left | self.reserved if "." in name}
            key = max([key, *(used + 1 for used in taken)])
            entry = Entry(key, account.session, used_s=now_s)
            self._entries.append(entry)
        return entry

    # coming

    def publish(self, entry: Entry, account: Account, saved: Saved, now_s: float) -> str:
        """Everything of the conversation is on the drive but its manifest: write that, if it says
        anything new, and let go of what the older one named. Why that failed, or empty."""
        blocks = tuple(saved.blocks[start] for start in sorted(saved.blocks))
        copies = tuple(sorted(saved.copies, key=lambda copy: (copy.tokens, copy.kind == "end")))
        before, names, why = self._state(entry), entry.names, ""
        entry.blocks, entry.copies, entry.loose = blocks, copies, {}
        entry.account = described(account, copies)
        entry.used_s = now_s
        if saved.written or not _same(before, self._state(entry)):
            try:
                image = image_of(entry, self._shapes, self._files)
                self._files.fsyncdir()
                self._name(entry, image)
            except (OSError, MemoryError) as error:
                fresh = entry.names - names
                entry.account, entry.blocks, entry.copies, entry.loose = before
                self._left.add(manifest_name(entry.key) + TMP)
                self._remove(fresh)
                return code_of(error) if isinstance(error, OSError) else "memory"
            entry.manifest_bytes = len(image)
            why = self._lasting()
        self._remove(names - entry.names)
        return why

    def _name(self, entry: Entry, image: memoryview) -> None:
        """Put a manifest in the older one's place. Raises OSError; that is still there then."""
        saving = Saving.begin(self._files, manifest_name(entry.key), image)
        try:
            saving.finish()
            saving.publish()
        except OSError:
            saving.abandon()
            raise

    def _lasting(self) -> str:
        """All names are on the drive; why that is not known, or empty."""
        try:
            self._files.fsyncdir()
        except OSError as error:
            self._unsure = True
            self.notes.note("stuck", None, 0, 0, f"the directory: {code_of(error)}")
            return code_of(error)
        self._unsure = False
        return ""

    @staticmethod
    def _state(entry: Entry) -> _State:
        return entry.account, entry.blocks, entry.copies, entry.loose

    def let_go(self, names: set[str]) -> None:
        """A stopped save wrote these, and a later one other rows in their place."""
        if names:
            self._remove(names)

    def settle(self, entry: Entry, saved: Saved | None = None) -> None:
        """A save of it came to nothing: files that it wrote go, and an entry that has no other."""
        names = {loose.block.piece.name for loose in entry.loose.values()}
        names |= {copy.piece.name for copy in saved.copies} if saved is not None else set()
        entry.loose = {}
        if entry.account is None:
            self._entries.remove(entry)
        self._remove(names - entry.names)

    # going

    def make_room(self, entry: Entry, need: int, budget_bytes: int) -> bool:
        """Let others go, those used longest ago first, until the entry may take `need` in all;
        False, with nothing gone, when it never may."""
        if need > budget_bytes:
            return False
        self.evict_to(budget_bytes - max(0, need - entry.held_bytes), entry)
        return True

    def evict_to(self, budget_bytes: int, spared: Entry | None) -> None:
        """Let the entries used longest ago go until no more than this is held."""
        while self.held_bytes() > budget_bytes:
            others = [e for e in self._entries if e is not spared and e is not self.in_use]
            if not others:
                return
            self._gone(min(others, key=lambda entry: entry.used_s), "evict", "budget")

    def expire(self, now_s: float, ttl_s: float) -> None:
        """Let go of what nobody used for so long; a clock that went back makes nothing older."""
        old = [entry for entry in self._entries if now_s - entry.used_s > ttl_s]
        for entry in old:
            self._gone(entry, "expire", "ttl")
        for entry in self._entries:
            entry.used_s = min(entry.used_s, now_s)
        if self._left:
            self._remove(())

    def _gone(self, entry: Entry, event: str, why: str) -> None:
        tokens = entry.account.valid if entry.account is not None else 0
        self.notes.note(event, entry.session, tokens, entry.held_bytes, why)
        self.drop(entry)

    def drop(self, entry: Entry) -> None:
        """An entry goes: its manifest first."""
        self._entries.remove(entry)
        if self._last == entry.key:
            self._last = None
        self._remove([manifest_name(entry.key)])
        self._remove(entry.names)

    def clear(self) -> None:
        """All go."""
        for entry in list(self._entries):
            self.drop(entry)

    def _remove(self, names: Iterable[str]) -> None:
        """These files go, and those that would not go before. A manifest's name is gone for good
        before the files that it names are touched."""
        wanted = {*names, *self._left} - self.reserved
        kept = {name for entry in self._entries for name in entry.names}
        wanted -= kept | {manifest_name(e.key) for e in self._entries if e.account is not None}
        if not wanted:
            self._left = set()
            return
        self._left = wanted
        if self._unsure and self._lasting():
            return
        for name in sorted(wanted):
            try:
                self._files.unlink(name)
            except FileNotFoundError:
                pass
            except OSError as error:
                self.notes.note("stuck", None, 0, 0, f"{name}: {code_of(error)}")
                continue
            self._left.discard(name)
        self._lasting()

    # the conversation in place

    def point_at(self, entry: Entry) -> None:
        """The next start brings this one back."""
        self._last = entry.key
        meta = {"entry": f"{entry.key:016x}"}
        if why := self._not_ours() or write_record(self._files, LAST, LAST, meta):
            self._left.add(LAST + TMP)
            self.notes.note("stuck", entry.session, 0, 0, f"{LAST}: {why}")

    def _not_ours(self) -> str:
        """Why the record must not be written over: another's, a later version's, not to be read."""
        try:
            there = self._files.exists(LAST)
        except OSError as error:
            return code_of(error)
        record = read_record(self._files, LAST, LAST) if there else {}
        if isinstance(record, Bad) and (record.foreign or record.future or record.error):
            return record.why
        return ""

    def pointed(self) -> Entry | None:
        """The one that the process before pointed at."""
        found = [entry for entry in self.whole() if entry.key == self._last]
        return found[0] if found else None

    def take_last(self, key: int | None) -> None:
        """What the record said."""
        self._last = key

    @property
    def ratio(self) -> float:
        """What the blocks on the drive weigh, of what their rows would as they are; 1 at first."""
        blocks = [block for entry in self._entries for block in entry.blocks]
        raw = sum(self._shapes.expected_weight(b.stop - b.start, 0) for b in blocks)
        return min(1.0, sum(block.piece.weight for block in blocks) / raw) if raw else 1.0

    def check(self, grid: int) -> None:
        """Integrity; raises AssertionError."""
        keys = [entry.key for entry in self._entries]
        assert len(keys) == len(set(keys))
        for entry in self.whole():
            assert entry.account is not None
            entry.account.check(grid)
            assert [b.stop for b in entry.blocks][-1:] == [entry.account.valid]
            assert all(copy.tokens <= entry.account.valid for copy in entry.copies)


def _same(before: _State, now: _State) -> bool:
    """Whether a manifest would say the same of an entry as the one that is there."""
    old, new = before[0], now[0]
    if old is None or new is None or before[1:3] != now[1:3]:
        return False
    told = ("valid", "taint", "session", "kind", "tools", "system", "prompt", "generations")
    same = all(getattr(old, name) == getattr(new, name) for name in told)
    return same and bool((old.ids == new.ids).all())
