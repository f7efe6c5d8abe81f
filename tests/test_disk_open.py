"""Opening a tier's directory: what is not ours is left as it is, what serves nobody goes.

Method: one directory that a real process wrote, spoiled in one way at a time, on files in memory,
on a drive, and around its page cache; afterwards a whole process works on it, and every file that
is not the tier's must be what it was. Faults of single calls in a loop; other users and processes
are real ones.
"""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from support import GRID, box, engine, joined, plain, serve, tier, tokens

from cache.direct import DirectFiles
from cache.disk.config import DiskConfig
from cache.disk.index import anchor_name, chunk_name
from cache.disk.open import open_tier
from cache.disk.shapes import Shapes
from cache.disk.tier import DiskTier, lines_of
from cache.format import Header, Layout
from cache.header import VERSION
from cache.host import OsFiles
from cache.journal import CacheEvent
from cache.ports import PAGE, Files
from cache.types import Refusal
from sim.clock import VirtualClock
from sim.faults import Fault
from sim.files import SimFiles
from sim.jobs import SeededJobs

KINDS = ("simulated", "real", "direct")
PROMPT = joined(tokens(3 * GRID, 70), tokens(20, 71))
HASHES = lines_of(PROMPT, GRID)
CHUNKS = [chunk_name(name) for name in HASHES]
ANCHOR = anchor_name(HASHES[-1])
CONFIG = DiskConfig(tokens_min=1, floor_bytes=0, min_free_bytes=0, head_anchors=0)
TEXT = b"somebody's own text"


def opened(files: Files, config: DiskConfig = CONFIG) -> DiskTier | Refusal:
    """A process opens the directory."""
    jobs = SeededJobs(0)
    return open_tier(files, VirtualClock(), jobs, config, engine("witness"), plain())


class Directory:
    """A directory of one of three kinds, as somebody sees it who is no tier."""

    def __init__(self, kind: str, root: Path, state: Mapping[str, bytes] | None = None) -> None:
        self.kind, self.root = kind, root
        self._sim = SimFiles(state)
        if kind != "simulated":
            root.mkdir(exist_ok=True)
            for name, data in (state or {}).items():
                (root / name).write_bytes(data)

    def files(self) -> Any:
        """As the next process would open it."""
        if self.kind == "simulated":
            return self._sim
        return (DirectFiles if self.kind == "direct" else OsFiles)(self.root)

    def put(self, name: str, data: bytes) -> None:
        """Write a file; nobody has the directory open."""
        if self.kind == "simulated":
            self._sim = SimFiles(self.snapshot() | {name: data})
        else:
            (self.root / name).write_bytes(data)

    def remove(self, name: str) -> None:
        """Remove one."""
        self.files().unlink(name)

    def snapshot(self) -> dict[str, bytes]:
        """What is in it; links, pipes and directories by what they are."""
        if self.kind == "simulated":
            return self._sim.snapshot()
        return {path.name: seen(path) for path in sorted(self.root.iterdir())}


def seen(path: Path) -> bytes:
    """A file's bytes, or what else it is."""
    mode = path.lstat().st_mode
    if stat.S_ISREG(mode):
        return path.read_bytes()
    target = os.readlink(path) if stat.S_ISLNK(mode) else ""
    return f"{stat.filemode(mode)} {target}".encode()


@dataclass(slots=True)
class Lived:
    """What a process saw: its tier, where PROMPT was served from, and all that was told."""

    tier: DiskTier
    sources: list[str]
    events: list[CacheEvent]

    def whys(self, event: str) -> set[str]:
        """Reasons of the events of a name."""
        return {told.why for told in self.events if told.event == event}


def process(directory: Directory, *, times: int = 1, clear: bool = False) -> Lived:
    """A whole process: opens, serves PROMPT, lets its jobs end, and closes."""
    files, sources, events = directory.files(), list[str](), list[CacheEvent]()
    of = engine("witness")
    found = tier(files, of, head_anchors=0)
    for _ in range(times):
        on = box(of, disk=found)
        on.stack.resident.start_cold(of)
        row, _ = serve(on, PROMPT, tokens(2, 72))
        sources.append(row.source)
        settle(found)
        events += on.journal.events
    if clear:
        found.clear()
        settle(found)
    found.check()
    found.close()
    if isinstance(files, SimFiles):
        assert not files.handles
    else:
        files.close_all()
    return Lived(found, sources, events + found.events())


def settle(found: DiskTier) -> None:
    """All that is to be done is done and taken in."""
    for _ in range(3):
        found.keeper.jobs.drain()
        found.keeper.absorb()


def written() -> dict[str, bytes]:
    """What two readings of PROMPT leave: marker, lock, counts, three chunks and an anchor."""
    directory = Directory("simulated", Path())
    process(directory, times=2)
    return directory.snapshot()


STATE = written()


@pytest.fixture(params=KINDS)
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Directory:
    """A tier's directory with an entry."""
    return Directory(request.param, tmp_path / "tier", STATE)


@pytest.fixture(params=KINDS)
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Directory:
    """An empty directory."""
    return Directory(request.param, tmp_path / "tier")


# what is opened


def test_what_a_process_left_serves_the_next(directory: Directory) -> None:
    assert set(STATE) == {"moorage-disk", "lock", "counts", *CHUNKS, ANCHOR}
    lived = process(directory)
    assert lived.sources == ["disk.grid"] and not lived.whys("sweep")
    assert set(directory.snapshot()) == set(STATE)


def test_opening_twice_changes_nothing(directory: Directory) -> None:
    for _ in range(2):
        found = opened(directory.files())
        assert isinstance(found, DiskTier) and len(found.index.entries) == 1
        found.close()
        assert directory.snapshot() == STATE


def test_an_empty_directory_becomes_a_tiers(empty: Directory) -> None:
    found = opened(empty.files())
    assert isinstance(found, DiskTier) and not found.index.entries
    found.close()
    assert set(empty.snapshot()) == {"moorage-disk", "lock"}
    if empty.kind != "simulated":
        modes = {path.stat().st_mode & 0o777 for path in empty.root.iterdir()}
        assert modes == {0o600}
    assert process(empty, times=3).sources == ["cold", "cold", "disk.grid"]


@pytest.mark.parametrize("name", ["lock", "moorage-disk.tmp"])
def test_a_crash_before_the_marker_was_there_ends_nothing(empty: Directory, name: str) -> None:
    empty.put(name, STATE["moorage-disk"][:100] if name != "lock" else b"")
    assert process(empty).sources == ["cold"]
    assert empty.snapshot()["moorage-disk"] == STATE["moorage-disk"]
    assert not [name for name in empty.snapshot() if name.endswith(".tmp")]


# what is refused


def refused(directory: Directory) -> Refusal:
    """It is refused in one printable line, touches nothing, and lets go of all."""
    before, files = directory.snapshot(), directory.files()
    found = opened(files)
    assert isinstance(found, Refusal)
    said = f"{found.name}: {found.why}"
    assert said.isprintable() and said.encode() and 10 < len(said) < 200
    after = directory.snapshot()
    assert {n: d for n, d in after.items() if n != "lock"} == {
        n: d for n, d in before.items() if n != "lock"
    }
    if isinstance(files, SimFiles):
        assert not files.handles
    return found


@pytest.mark.parametrize(
    "name", ["notes.txt", "counts", CHUNKS[0], f"{CHUNKS[0]}.tmp", ".hidden", "lost+found", "a\nb"]
)
def test_a_directory_without_a_marker_is_not_ours(empty: Directory, name: str) -> None:
    empty.put(name, STATE.get(name, TEXT))
    found = refused(empty)
    assert "which is no disk tier's" in found.why and name.split("\n")[0] in found.why


def test_a_name_that_is_no_text_is_told_too(tmp_path: Path) -> None:
    (tmp_path / "tier").mkdir()
    (tmp_path / "tier" / os.fsdecode(b"\xff\xfe")).touch()
    assert "which is no disk tier's" in refused(Directory("real", tmp_path / "tier")).why


def later(data: bytes) -> bytes:
    """The same header as a later version would write it."""
    header = Header.parse(data)
    assert isinstance(header, Header)
    return replace(header, version=VERSION + 1).encoded() + data[header.header_bytes :]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (TEXT, "no file of moorage"),
        (b"", "no file of moorage"),
        (TEXT * PAGE, "no file of moorage"),
        (later(STATE["moorage-disk"]), f"version {VERSION + 1} is newer"),
    ],
    ids=["text", "empty", "long", "future"],
)
def test_a_marker_that_is_not_ours_is_not_overwritten(
    directory: Directory, data: bytes, why: str
) -> None:
    directory.put("moorage-disk", data)
    found = refused(directory)
    assert found.name == "moorage-disk" and why in found.why


def test_a_marker_that_cannot_be_read_just_now_is_left_as_it_is() -> None:
    class Unread(SimFiles):
        created: ClassVar[list[str]] = []

        def open(self, name: str) -> int:
            if name == "moorage-disk":
                raise OSError(errno.EIO, "planted")
            return super().open(name)

        def create(self, name: str) -> int:
            self.created.append(name)
            return super().create(name)

    found = opened(Unread(STATE))
    assert isinstance(found, DiskTier) and len(found.index.entries) == 1
    found.close()
    assert "moorage-disk.tmp" not in Unread.created


@pytest.mark.parametrize("spoil", ["bit", "cut", "kind", "grown"])
def test_a_marker_that_was_damaged_is_written_again(directory: Directory, spoil: str) -> None:
    data = STATE["moorage-disk"]
    flipped = data[:50] + bytes([data[50] ^ 1]) + data[51:]
    spoiled = {"bit": flipped, "cut": data[:100], "kind": STATE["counts"], "grown": data * 2}
    directory.put("moorage-disk", spoiled[spoil])
    assert process(directory).sources == ["disk.grid"]
    assert directory.snapshot()["moorage-disk"] == data


def test_one_process_at_a_time(directory: Directory) -> None:
    files = directory.files()
    found = opened(files)
    assert isinstance(found, DiskTier)
    second = opened(files if directory.kind == "simulated" else directory.files())
    assert second == Refusal("lock", "another process uses this directory")
    found.close(), found.close()
    third = opened(directory.files())
    assert isinstance(third, DiskTier)
    third.close()


CHILD = """
import fcntl, os, sys
handle = os.open(sys.argv[1] + "/lock", os.O_RDWR)
fcntl.flock(handle, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def child(root: Path) -> subprocess.Popen[str]:
    """Another process that holds the directory's lock."""
    command = [sys.executable, "-c", CHILD, str(root)]
    return subprocess.Popen(
        command,
        cwd=Path(__file__).parent.parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_another_process_that_holds_it_and_is_killed(tmp_path: Path) -> None:
    directory = Directory("direct", tmp_path / "tier", STATE)
    with child(directory.root) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        assert refused(directory).why == "another process uses this directory"
        other.kill()
    assert process(directory).sources == ["disk.grid"]


# other users and full drives


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_another_users_directory(tmp_path: Path) -> None:
    directory = Directory("real", tmp_path / "tier", STATE)
    for path in (directory.root, *directory.root.iterdir()):
        os.chown(path, 12_345, 12_345)
    assert OsFiles(directory.root).unfit() == "belongs to another user (uid 12345)"


@pytest.mark.parametrize("made", [True, False])
def test_a_directory_that_nobody_may_write_is_refused(
    tmp_path: Path, made: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = Directory("real", tmp_path / "tier", STATE if made else None)

    class Closed(OsFiles):
        """A file system that was mounted for reading alone."""

        def _open(self, name: str, flags: int) -> int:
            if flags & (os.O_CREAT | os.O_RDWR):
                raise OSError(errno.EROFS, "Read-only file system", name)
            return super()._open(name, flags)

    monkeypatch.setattr(directory, "files", lambda: Closed(directory.root))
    assert "Read-only file system" in refused(directory).why


def test_a_full_drive_refuses_a_new_tier_and_serves_an_old_one() -> None:
    full = SimFiles(capacity_bytes=PAGE // 2)
    found = opened(full)
    assert isinstance(found, Refusal) and found.name == "moorage-disk"
    assert "cannot be written" in found.why and not full.handles
    held = sum(map(len, STATE.values()))
    files = SimFiles(STATE, capacity_bytes=held)
    of = engine("witness")
    old = tier(files, of, head_anchors=0, admit_after=1)
    on = box(of, disk=old)
    assert serve(on, PROMPT, tokens(2, 72))[0].source == "disk.grid"
    assert serve(on, tokens(3 * GRID, 99), tokens(2, 72))[0].source == "cold"
    settle(old)
    drops = {event.why for event in old.events() if event.event == "drop"}
    assert drops == {"floor"} and not any(name.endswith(".tmp") for name in files.list())
    files.free = lambda: 1 << 40  # It says there is room, and there is none.
    serve(on, tokens(3 * GRID, 98), tokens(2, 72))
    settle(old)
    drops = {event.why for event in old.events() if event.event == "drop"}
    assert drops == {"ENOSPC"} and not any(name.endswith(".tmp") for name in files.list())
    old.check()
    old.close()


@pytest.mark.parametrize("for_ever", [False, True])
@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS, errno.ENOSPC, errno.EMFILE])
def test_a_call_that_fails_is_a_refusal_or_a_tier(code: int, for_ever: bool) -> None:
    """Whichever call fails, opening never raises, leaks nothing, and loses nothing of another's."""
    state = STATE | {"README": TEXT, f"{'0' * 16}.rows.tmp": b"x"}
    whole, number = False, 0
    while not whole:
        files = SimFiles(state)
        files.fault = Fault(number, code, for_ever=for_ever)
        found = opened(files)
        whole, number = not files.failed, number + 1
        files.fault = None
        if isinstance(found, DiskTier):
            settle(found)
            found.check()
            found.close()
        assert not files.handles and files.snapshot()["README"] == TEXT
        again = opened(files)
        assert isinstance(again, DiskTier)
        assert code != errno.EMFILE or len(again.index.entries) == 1, number - 1
        again.close()
    assert number > 15


# what else lies there

OTHERS = {
    "README": TEXT,
    f"{CHUNKS[0]}.bak": STATE[CHUNKS[0]],
    CHUNKS[0].upper(): TEXT,
    f"{CHUNKS[0]}\n": TEXT,
    f"x{CHUNKS[0]}": TEXT,
    CHUNKS[0][1:]: TEXT,
    "lock.tmp": TEXT,
    "counts2": TEXT,
    "inputs-xyz": TEXT,
    "sub.rows": TEXT,
    ".tmp": TEXT,
    "moorage-disk.tmp.tmp": TEXT,
}


def test_other_files_are_never_touched(directory: Directory) -> None:
    for name, data in OTHERS.items():
        directory.put(name, data)
    lived = process(directory, times=2, clear=True)
    assert {n: d for n, d in directory.snapshot().items() if n in OTHERS} == OTHERS
    assert lived.tier.stats()["foreign"] == len(OTHERS) and not lived.tier.index.entries


NOT_OURS: dict[str, Callable[[str], bytes]] = {
    "text": lambda name: TEXT,
    "empty": lambda name: b"",
    "future": lambda name: later(STATE[name]),
}


@pytest.mark.parametrize("name", [CHUNKS[1], ANCHOR, "counts"])
@pytest.mark.parametrize("what", sorted(NOT_OURS))
def test_another_file_under_one_of_our_names_is_never_touched(
    directory: Directory, what: str, name: str
) -> None:
    data = NOT_OURS[what](name)
    directory.put(name, data)
    lived = process(directory, times=3, clear=True)
    assert directory.snapshot()[name] == data and not lived.tier.index.entries
    if name == "counts":
        assert lived.sources == ["disk.grid"] * 3
    else:
        assert lived.sources == ["cold"] * 3, "it could not be written"
        assert lived.whys("drop") == {"foreign"}
    leftovers = set(directory.snapshot()) - {name, "moorage-disk", "lock", "counts"}
    assert not leftovers


def linked(root: Path, name: str, what: str) -> None:
    """Put something there that is no file."""
    (root / name).unlink(missing_ok=True)
    if what == "link":
        (root.parent / "outside").write_bytes(STATE.get(name, TEXT))
        (root / name).symlink_to(root.parent / "outside")
    elif what == "dangling":
        (root / name).symlink_to(root.parent / "nowhere")
    elif what == "pipe":
        os.mkfifo(root / name)
    else:
        (root / name).mkdir()


WHATS = ("link", "dangling", "pipe", "directory")


@pytest.mark.parametrize("kind", ["real", "direct"])
@pytest.mark.parametrize("what", WHATS)
@pytest.mark.parametrize("name", [CHUNKS[1], ANCHOR, "counts"])
def test_what_is_no_file_is_never_followed_nor_replaced(
    tmp_path: Path, kind: str, name: str, what: str
) -> None:
    directory = Directory(kind, tmp_path / "tier", STATE)
    linked(directory.root, name, what)
    before = seen(directory.root / name)
    lived = process(directory, times=2, clear=True)
    assert seen(directory.root / name) == before and not (tmp_path / "nowhere").exists()
    assert what != "link" or (tmp_path / "outside").read_bytes() == STATE[name]
    assert lived.sources == ["disk.grid" if name == "counts" else "cold"] * 2


@pytest.mark.parametrize("kind", ["real", "direct"])
@pytest.mark.parametrize("what", WHATS)
@pytest.mark.parametrize("name", ["moorage-disk", "lock"])
def test_a_marker_or_lock_that_is_no_file_is_refused(
    tmp_path: Path, kind: str, name: str, what: str
) -> None:
    directory = Directory(kind, tmp_path / "tier", STATE)
    linked(directory.root, name, what)
    before = seen(directory.root / name)
    assert refused(directory).name == name
    assert seen(directory.root / name) == before and not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("what", WHATS)
def test_a_passing_name_that_is_no_file_is_no_way_out(tmp_path: Path, what: str) -> None:
    directory = Directory("real", tmp_path / "tier", STATE)
    directory.remove(ANCHOR)
    linked(directory.root, f"{ANCHOR}.tmp", what)
    process(directory, times=2)
    assert not (tmp_path / "nowhere").exists()
    assert what != "link" or (tmp_path / "outside").read_bytes() == TEXT
    stuck = (directory.root / f"{ANCHOR}.tmp").exists()
    assert stuck == (what == "directory"), "the rest is removed, as what a crash left"


# what goes


def remade(name: str, **changes: Any) -> bytes:
    """A sound file of the directory with another meta."""
    data = STATE[name]
    header = Header.parse(data)
    assert isinstance(header, Header)
    meta = {k: v for k, v in (header.meta | changes).items() if v is not None}
    return replace(header, meta=meta).encoded() + data[header.header_bytes :]


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def spoiled() -> Iterator[tuple[str, str, bytes, str]]:
    """(what, file, its bytes now, the reason that is told)."""
    for name in (CHUNKS[1], ANCHOR):
        kind, data = name.split(".")[1], STATE[name]
        yield f"{kind} header", name, flipped(data, 60), "damaged"
        yield f"{kind} prefix", name, flipped(data, 9), "damaged"
        yield f"{kind} cut", name, data[:-PAGE], f"it has {len(data) - PAGE} bytes"
        yield f"{kind} cut to nothing much", name, data[:16], "cut off"
        yield f"{kind} grown", name, data + bytes(PAGE), f"it has {len(data) + PAGE} bytes"
        yield f"{kind} renamed", name, STATE[CHUNKS[0]], "another file than its name says"
        yield f"{kind} fingerprint", name, remade(name, fingerprint="e" * 64), "fingerprint"
        yield f"{kind} no fingerprint", name, remade(name, fingerprint=None), "fingerprint"
        yield f"{kind} grid", name, remade(name, grid=2 * GRID), "fingerprint"
        stop = "stop" if kind == "rows" else "line"
        for value in (None, 0, -GRID, GRID + 1, "64", 64.0, [GRID]):
            yield f"{kind} {value!r}", name, remade(name, **{stop: value}), "it ends at no line"
    below = [f"{name:016x}" for name in HASHES]
    for chunks in (None, [], below[:2], [*below[:2], "x"], below[::-1], 5, [5], "../../../x"):
        data = remade(ANCHOR, chunks=chunks)
        yield f"anchor on {chunks!r}", ANCHOR, data, "a chunk below it is missing"
    yield "anchor lower", ANCHOR, remade(ANCHOR, line=2 * GRID), "a chunk below it is missing"
    yield "chunk elsewhere", CHUNKS[1], remade(CHUNKS[1], stop=3 * GRID), "no anchor reads it"
    yield "packages", ANCHOR, remade(ANCHOR, packages=7), "a chunk below it is missing"


CASES = {what: (name, data, why) for what, name, data, why in spoiled()}


@pytest.mark.parametrize("what", sorted(CASES))
def test_a_file_that_serves_nobody_goes_and_is_written_again(what: str) -> None:
    name, data, why = CASES[what]
    directory = Directory("simulated", Path(), STATE | {name: data})
    lived = process(directory, times=2)
    told = {said.split(": ", 1)[0]: said for said in lived.whys("sweep")}
    assert name in told and why in told[name], told
    assert lived.sources == ["cold", "disk.grid"]
    again = directory.snapshot()
    assert {n: again[n] for n in (*CHUNKS, ANCHOR)} == {n: STATE[n] for n in (*CHUNKS, ANCHOR)}


def test_an_anchor_under_another_lines_name_goes() -> None:
    """It says that hash itself, and has every chunk below its line."""
    name = anchor_name(HASHES[0])
    data = remade(ANCHOR, hash=f"{HASHES[0]:016x}")
    directory = Directory("simulated", Path(), STATE | {name: data})
    assert process(directory).sources == ["disk.grid"]
    assert name not in directory.snapshot()


def test_a_missing_chunk_takes_its_anchor_and_the_chunks_nobody_reads(directory: Directory) -> None:
    directory.remove(CHUNKS[1])
    found = opened(directory.files())
    assert isinstance(found, DiskTier) and not found.index.chunks
    whys = sorted(event.why.split(": ")[1] for event in found.events())
    assert whys == ["a chunk below it is missing", "no anchor reads it", "no anchor reads it"]
    found.close()
    assert set(directory.snapshot()) == {"moorage-disk", "lock", "counts"}


def test_a_shorter_anchor_keeps_its_chunks_when_a_longer_one_goes(directory: Directory) -> None:
    short = Layout(
        "anchor", header_of(ANCHOR).meta | short_meta(), Shapes(engine("witness"), "").sections
    )
    buffer = SimFiles().buffer(short.nbytes)
    image = bytes(short.seal(buffer))
    directory.put(anchor_name(HASHES[0]), image)
    directory.remove(CHUNKS[2])
    found = opened(directory.files())
    assert isinstance(found, DiskTier)
    assert set(found.index.entries) == {HASHES[0]} and set(found.index.chunks) == {HASHES[0]}
    found.close()
    left = set(directory.snapshot())
    assert left == {"moorage-disk", "lock", "counts", CHUNKS[0], anchor_name(HASHES[0])}


def header_of(name: str) -> Header:
    """A sound file's header."""
    header = Header.parse(STATE[name])
    assert isinstance(header, Header)
    return header


def short_meta() -> dict[str, Any]:
    """What an anchor at the first line says."""
    first = f"{HASHES[0]:016x}"
    return {"hash": first, "line": GRID, "chunks": [first]}


@pytest.mark.parametrize("name", [CHUNKS[0], ANCHOR, "counts", "moorage-disk", "equal"])
def test_what_a_crash_left_half_written_goes(directory: Directory, name: str) -> None:
    left = f"{name}.tmp"
    directory.put(left, STATE.get(name, b"")[:100])
    assert process(directory).sources == ["disk.grid"]
    assert left not in directory.snapshot()


def test_what_the_drive_will_not_remove_is_told_and_serves_nobody() -> None:
    class Stubborn(SimFiles):
        """Files that can't be removed."""

        def unlink(self, name: str) -> None:
            raise OSError(errno.EROFS, "Read-only file system", name)

    files = Stubborn(STATE | {CHUNKS[1]: flipped(STATE[CHUNKS[1]], 60)})
    found = opened(files)
    assert isinstance(found, DiskTier) and not found.index.entries
    told = found.events()
    stuck = [event.why for event in told if event.event == "stuck"]
    assert len(stuck) == 4 and all(why.endswith("EROFS") for why in stuck)
    assert "sweep" not in {event.event for event in told}
    found.close()


def test_a_damaged_record_costs_counts_and_no_entry(directory: Directory) -> None:
    directory.put("counts", flipped(STATE["counts"], 60))
    lived = process(directory)
    assert lived.sources == ["disk.grid"] and not lived.tier.keeper.counts.plain()
    assert isinstance(Header.parse(directory.snapshot()["counts"]), Header), "written anew"
