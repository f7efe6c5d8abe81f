"""Opening a spill's directory: what is refused, what is swept, which entries are whole."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from cache.claim import claim
from cache.disk.notes import Notes
from cache.disk.open import Identity
from cache.format import Bad, read_header, read_record
from cache.ports import Clock, Files, Model, Way, Workers
from cache.saving import TMP, code_of, said
from cache.spill.config import SpillConfig
from cache.spill.entry import Entry
from cache.spill.manifest import read_manifest
from cache.spill.names import LAST, LOCK, MANIFEST, MARKER, NAME, OURS, RECORDS, key_of
from cache.spill.shapes import Shapes
from cache.spill.shelf import Shelf
from cache.spill.tier import Spill
from cache.types import Refusal
from cache.writeguard import WriteGuard


@dataclass(slots=True)
class _Found:
    """What lies in the directory."""

    entries: list[Entry] = field(default_factory=list)
    useless: dict[str, str] = field(default_factory=dict)
    """Files of ours that go, and why."""
    foreign: set[str] = field(default_factory=set)
    unread: set[int] = field(default_factory=set)
    """Entries whose manifest the drive would not read just now: their files stay."""
    newer: dict[int, int] = field(default_factory=dict)
    """Keys of entries that go because their conversation has a newer one, and that one's."""


def open_spill(
    files: Files,
    clock: Clock,
    config: SpillConfig,
    model: Model,
    identity: Identity,
    workers: Workers,
    guard: WriteGuard,
    way: Way,
) -> Spill | Refusal:
    """Open the spill of a directory, or make one.

    A manifest makes an entry; what none names is a write that did not end, and goes, and so does
    what something else computed. Nothing that is not ours is touched. Where the drive refuses to
    delete, the spill goes on without those files; it never raises.
    """
    claimed = claim(files, MARKER, LOCK, NAME, "spill")
    if isinstance(claimed, Refusal):
        return claimed
    names, lock = claimed.names, claimed.lock
    accepted = frozenset({identity.fingerprint, *identity.accepts(files)})
    shapes = Shapes(model, identity.fingerprint, config.block_rows)
    found = _look(files, names, accepted, shapes)
    notes = Notes(NAME)
    shelf = Shelf(files, shapes, notes)
    for entry in found.entries:
        entry.used_s = min(entry.used_s, clock.wall_s())
        shelf.add(entry)
    shelf.reserved = {name for name in found.foreign if OURS.fullmatch(name)}
    _sweep(files, notes, found)
    _recall(files, shelf, found, there=LAST in names)
    spill = Spill(files, clock, config, shapes, accepted, shelf, workers, guard, way, lock)
    spill.absorb()
    shelf.evict_to(config.budget_bytes, None)
    return spill


def _look(files: Files, names: Sequence[str], accepted: Collection[str], shapes: Shapes) -> _Found:
    """Read every manifest, and see whether the files that it names are there."""
    found, pieces = _Found(), dict[str, int]()
    sizes = dict[str, int]()
    for name in names:
        plain = name.removesuffix(TMP)
        if not (OURS.fullmatch(plain) or RECORDS.fullmatch(plain)):
            found.foreign |= {name} - {LOCK}
        elif name != plain:
            found.useless[name] = "unfinished"
        elif plain.endswith(MANIFEST):
            _enter(files, name, accepted, shapes, found)
        elif OURS.fullmatch(name):
            sizes[name] = pieces[name] = 0
    whole = list[Entry]()
    for entry in found.entries:
        if why := _lacks(files, entry, found):
            found.useless[f"{entry.key:016x}.{MANIFEST}"] = why
        else:
            whole.append(entry)
    found.entries = _newest(whole, found)
    named = {name for entry in found.entries for name in entry.names}
    for name in pieces:
        key = key_of(name)
        if name not in named and key not in found.unread and name not in found.foreign:
            _orphan(files, name, found)
    return found


def _enter(
    files: Files, name: str, accepted: Collection[str], shapes: Shapes, found: _Found
) -> None:
    entry = read_manifest(files, name, shapes, accepted)
    if isinstance(entry, Entry):
        found.entries.append(entry)
    elif entry.foreign:
        found.foreign.add(name)
    elif entry.error or entry.future:
        # Another time it may be read, or by another program; its files stay.
        found.unread.add(int(name[:16], 16))
        found.foreign.add(name)
    else:
        found.useless[name] = entry.why


def _newest(entries: Sequence[Entry], found: _Found) -> list[Entry]:
    """One entry a conversation. There are two where one could not be read for a while, and the
    conversation was saved meanwhile: the older goes."""
    newest = list[Entry]()
    for entry in sorted(entries, key=lambda entry: (entry.used_s, entry.key), reverse=True):
        after = [n for n in newest if n.session == entry.session and _is_past(entry, n)]
        if after:
            found.useless[f"{entry.key:016x}.{MANIFEST}"] = "its conversation has a newer one"
            found.newer[entry.key] = after[0].key
        else:
            newest.append(entry)
    return sorted(newest, key=lambda entry: entry.key)


def _is_past(entry: Entry, newer: Entry) -> bool:
    assert newer.account is not None
    return entry.goes_on(newer.account.ids) > 0


def _lacks(files: Files, entry: Entry, found: _Found) -> str:
    """Which of its files is not there, at its size; an entry that the drive won't tell of stays."""
    for piece in entry.pieces:
        try:
            if files.size(piece.name) != piece.nbytes:
                return f"{piece.name} has another size"
        except FileNotFoundError:
            return f"{piece.name} is missing"
        except OSError as error:
            found.unread.add(entry.key)
            found.foreign.add(f"{entry.key:016x}.{MANIFEST}")
            return said(error)
    return ""


def _orphan(files: Files, name: str, found: _Found) -> None:
    """A file that no manifest names, unless it is somebody else's or a later version's."""
    header = read_header(files, name)
    if isinstance(header, Bad) and (header.foreign or header.future or header.error):
        found.foreign.add(name)
    else:
        found.useless[name] = "no entry names it"


def _sweep(files: Files, notes: Notes, found: _Found) -> None:
    """Remove what serves nobody, manifests before what they name, and say so."""
    useless = {name: why for name, why in found.useless.items() if name not in found.foreign}
    for manifests in (True, False):
        some = [name for name in useless if name.endswith(MANIFEST) is manifests]
        for name in some:
            try:
                files.unlink(name)
            except OSError as error:
                notes.note("stuck", None, 0, 0, f"{name}: {code_of(error)}")
                continue
            notes.note("sweep", None, 0, 0, f"{name}: {useless[name]}")
        if some:
            try:
                files.fsyncdir()
            except OSError as error:
                notes.note("stuck", None, 0, 0, f"the directory: {code_of(error)}")
    notes.counters["foreign"] += len(found.foreign)


def _recall(files: Files, shelf: Shelf, found: _Found, *, there: bool) -> None:
    """Which conversation was in place."""
    record = read_record(files, LAST, LAST) if there else Bad("there is none")
    if isinstance(record, Bad):
        return
    key = record.get("entry")
    if isinstance(key, str) and len(key) == 16 and set(key) <= set("0123456789abcdef"):
        last = int(key, 16)
        while last in found.newer:
            last = found.newer[last]
        shelf.take_last(last)
