"""Opening a tier's directory: what is refused, what is swept, and what of the files is whole."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

from cache.claim import claim
from cache.counted import CountedFiles
from cache.disk.config import SESSIONS, DiskConfig
from cache.disk.index import Chunk, Entry, Index
from cache.disk.notes import NAME
from cache.disk.shapes import ANCHOR, ROWS, Shapes
from cache.disk.tier import DiskTier
from cache.disk.work import COUNTS
from cache.format import Bad, Header, read_header, read_record
from cache.ports import Clock, Files, Jobs, Model, Way
from cache.saving import TMP, code_of
from cache.types import Refusal
from cache.writeguard import WRITES, WriteGuard

MARKER, LOCK = "moorage-disk", "lock"
_DATA = re.compile(r"([0-9a-f]{16})\.(rows|anchor)")
_RECORDS = re.compile(rf"{MARKER}|{COUNTS}|{WRITES}|equal|inputs-[0-9a-f]{{12}}")


@dataclass(frozen=True, slots=True)
class Identity:
    """What computes the rows that this engine stores, and whose files hold the same rows."""

    fingerprint: str
    accepts: Callable[[Files], Collection[str]]
    """Other fingerprints whose files are read in a directory; it may record there why."""


@dataclass(slots=True)
class _Found:
    """What lies in the directory."""

    headers: dict[str, Header]
    useless: dict[str, str]
    """Files of ours that go, and why."""
    foreign: list[str]
    unread: list[str]
    """Files that the drive would not read just now: what may stand on them stays."""


def open_tier(
    files: Files,
    clock: Clock,
    jobs: Jobs,
    config: DiskConfig,
    model: Model,
    identity: Identity,
    guard: WriteGuard | None = None,
    way: Way | None = None,
) -> DiskTier | Refusal:
    """Open the tier of a directory, or make one.

    Files are the index. What a crash left half-written goes, and so does what something else
    computed. Nothing that is not ours is touched. Where the drive refuses to delete, the tier goes
    on without those files; it never raises.

    A `guard` takes in the directory's record and is told every byte that is written here from then
    on, in what budgets count; files that are counted already are taken as they are.
    """
    shapes = Shapes(model, identity.fingerprint)
    if guard is not None and not isinstance(files, CountedFiles):
        files = CountedFiles(files, partial(guard.wrote, "tier"), shapes.weigh)
    claimed = claim(files, MARKER, LOCK, NAME, "disk tier", lambda name: _counts(files, name))
    if isinstance(claimed, Refusal):
        return claimed
    names, lock = claimed.names, claimed.lock
    fingerprints = frozenset({identity.fingerprint, *identity.accepts(files)})
    found = _look(files, names, fingerprints, shapes)
    index = _index(found, shapes)
    tier = DiskTier(
        files, clock, jobs, config, shapes, fingerprints, model.window, index, lock, guard, way
    )
    _sweep(files, tier, found)
    _recall(files, tier, there=COUNTS in names)
    if guard is not None and (unread := guard.load(files)):
        tier.notes.note("unread", None, 0, 0, f"{WRITES}: {unread}")
    tier.keeper.absorb()
    tier.keeper.evict_to(config.budget_bytes)
    return tier


def _counts(files: Files, name: str) -> bool:
    """Whether a name makes a directory not empty: what may be written in it without a tier does
    not."""
    return name not in (WRITES, WRITES + TMP) and not _is_sessions(files, name)


def _is_sessions(files: Files, name: str) -> bool:
    """Whether that is the conversations' folder, which has an owner of its own."""
    if name != SESSIONS:
        return False
    try:
        files.size(name)
    except OSError as error:
        return error.errno == errno.EINVAL
    return False


def _look(
    files: Files, names: Sequence[str], fingerprints: Collection[str], shapes: Shapes
) -> _Found:
    """Read every header."""
    found = _Found({}, {}, [], [])
    for name in names:
        plain = name.removesuffix(TMP)
        if not (_DATA.fullmatch(plain) or _RECORDS.fullmatch(plain)):
            found.foreign += [name] * (name != LOCK and not _is_sessions(files, name))
        elif name != plain:
            found.useless[name] = "unfinished"
        elif match := _DATA.fullmatch(name):
            header = read_header(files, name)
            if isinstance(header, Bad):
                if header.foreign or header.future:
                    found.foreign.append(name)
                elif header.error:
                    found.unread.append(name)
                else:
                    found.useless[name] = header.why
            elif why := _useless(header, match.group(1), match.group(2), fingerprints, shapes):
                found.useless[name] = why
            else:
                found.headers[name] = header
    return found


def _useless(
    header: Header, name: str, kind: str, fingerprints: Collection[str], shapes: Shapes
) -> str:
    """Why a sound file can serve nobody here; the rest is seen when it is read."""
    meta = header.meta
    if header.kind != kind or meta.get("hash") != name:
        return "it is another file than its name says"
    if meta.get("fingerprint") not in fingerprints or meta.get("grid") != shapes.grid:
        return "fingerprint"
    stop = meta.get("stop" if kind == ROWS else "line")
    if not isinstance(stop, int) or stop <= 0 or stop % shapes.grid:
        return "it ends at no line"
    return ""


def _index(found: _Found, shapes: Shapes) -> Index:
    """The entries that have every chunk below them; the other files have no use."""
    index = Index()
    for name, header in found.headers.items():
        if header.kind == ROWS:
            nbytes = shapes.weight(ROWS, header.nbytes)
            index.add_chunk(Chunk(int(name[:16], 16), header.meta["stop"], nbytes))
    lonely: dict[str, str] = {}
    for name, header in found.headers.items():
        if header.kind == ANCHOR and not _entered(index, name, header, shapes):
            lonely[name] = "a chunk below it is missing"
    for name in index.orphans(list(index.chunks)):
        lonely[name] = "no anchor reads it"
    if not found.unread:
        found.useless |= lonely
    return index


def _entered(index: Index, name: str, header: Header, shapes: Shapes) -> bool:
    """Whether an anchor's chunks are there, each where it belongs."""
    meta, hash_ = header.meta, int(name[:16], 16)
    try:
        chunks = tuple(int(chunk, 16) for chunk in meta["chunks"])
        packages = tuple(str(package) for package in meta.get("packages", ()))
    except (KeyError, TypeError, ValueError):
        return False
    stops = [index.chunks[chunk].stop if chunk in index.chunks else 0 for chunk in chunks]
    grid, line = shapes.grid, meta["line"]
    if stops != list(range(grid, line + 1, grid)) or chunks[-1] != hash_:
        return False
    nbytes = shapes.weight(ANCHOR, header.nbytes)
    return index.add(Entry(hash_, line, chunks, nbytes, packages))


def _sweep(files: Files, tier: DiskTier, found: _Found) -> None:
    """Remove what serves nobody, and say so."""
    for name, why in found.useless.items():
        try:
            files.unlink(name)
        except OSError as error:
            tier.notes.note("stuck", None, 0, 0, f"{name}: {code_of(error)}")
            continue
        tier.notes.note("sweep", None, 0, 0, f"{name}: {why}")
    if found.useless:
        try:
            files.fsyncdir()
        except OSError as error:
            tier.notes.note("stuck", None, 0, 0, f"the directory: {code_of(error)}")
    tier.work.reserved |= {name for name in found.foreign if _DATA.fullmatch(name)}
    tier.notes.counters["foreign"] += len(found.foreign)


def _recall(files: Files, tier: DiskTier, *, there: bool) -> None:
    """Counts and uses, as the process before left them."""
    record = read_record(files, COUNTS, COUNTS)
    if isinstance(record, Bad):
        # A later version's is not ours to overwrite, nor one that the drive may read another time.
        unread = there and bool(record.error)
        tier.keeper.keeps_record = not (record.future or record.foreign or unread)
        record = {}
    tier.keeper.take_record(record)
