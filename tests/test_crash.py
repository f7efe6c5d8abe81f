"""Goal: the states that a crash may leave, all of them and no other, and each known fault is seen.

Method: random tiny logs against a brute force that tries every subset at every point; a toy writer
of versioned blocks and a manifest, right and with one step of the protocol left out, whose losses
are counted over all states; logs too large to be tried in full; the
logs of the simulated files. Covers sim.pending.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.crash import Counts, CrashState, Order, crash_states, drawn
from sim.files import SimFiles
from sim.micro import (
    Create,
    Data,
    Fsync,
    FsyncDir,
    FsyncFailed,
    Grow,
    Note,
    Op,
    Rename,
    Truncate,
    Unlink,
)
from sim.pending import Start

Found = set[tuple[frozenset[tuple[str, bytes]], tuple[str, ...]]]
NONE, ALL, TORN, ZEROS = range(4)
DATA = Data | Grow | Truncate
SYNCS = Fsync | FsyncFailed | FsyncDir | Note


class Recorder:
    """A directory in memory that writes down what is done to it."""

    def __init__(self, files: dict[str, bytes] | None = None) -> None:
        files = files or {}
        self.start = Start.of(files)
        self.names = dict(self.start.names)
        self.data = {inode: bytearray(data) for inode, data in self.start.contents.items()}
        self.log: list[Op] = []

    def create(self, name: str) -> int:
        inode = len(self.data) + 1
        self.data[inode] = bytearray()
        self.names[name] = inode
        self.log.append(Create(name, inode))
        return inode

    def write(self, inode: int, offset: int, piece: bytes) -> None:
        data = self.data[inode]
        self.log.append(Data(inode, offset, piece, len(data)))
        data.extend(bytes(max(0, offset - len(data))))
        data[offset : offset + len(piece)] = piece

    def grow(self, inode: int, size: int) -> None:
        if size > len(self.data[inode]):
            self.log.append(Grow(inode, size))
            self.data[inode].extend(bytes(size - len(self.data[inode])))

    def rename(self, old: str, new: str) -> None:
        inode = self.names[new] = self.names.pop(old)
        self.log.append(Rename(old, new, inode))

    def unlink(self, name: str) -> None:
        self.log.append(Unlink(name, self.names.pop(name)))

    def truncate(self, inode: int) -> None:
        self.data[inode].clear()
        self.log.append(Truncate(inode))

    def fsync(self, inode: int, *, fails: bool = False) -> None:
        self.log.append(FsyncFailed(inode) if fails else Fsync(inode))

    def fsyncdir(self) -> None:
        self.log.append(FsyncDir())

    def note(self, what: str) -> None:
        self.log.append(Note(what))

    def files(self) -> dict[str, bytes]:
        return {name: bytes(self.data[inode]) for name, inode in self.names.items()}


# the brute force


def played(start: Start, log: list[Op], parts: dict[int, int]) -> dict[str, bytes]:
    """The log on a drive to which of each operation only this part came."""
    true, names = dict(start.names), dict(start.names)
    data = {inode: bytes(held) for inode, held in start.contents.items()}
    for at, op in enumerate(log):
        part = parts.get(at, ALL)
        if isinstance(op, Create | Rename | Unlink):
            gone = op.old if isinstance(op, Rename) else op.name
            inode = true.pop(gone, -1)
            if isinstance(op, Create):
                inode = op.inode
            if part and not isinstance(op, Create):
                names.pop(gone, None)
            if not isinstance(op, Unlink):
                new = op.new if isinstance(op, Rename) else op.name
                true[new] = inode
                if part:
                    names[new] = inode
        elif isinstance(op, Truncate) and part:
            data[op.inode] = b""
        elif isinstance(op, Data) and part:
            held = data.get(op.inode, b"")
            new = b"" if part == ZEROS else op.piece
            new = new[: len(new) // 2] if part == TORN else new
            stop = op.offset + (len(op.piece) if part == ZEROS else len(new))
            held = held.ljust(stop if part == ZEROS else op.offset, b"\0")
            data[op.inode] = held[: op.offset] + new + held[op.offset + len(new) :]
        elif isinstance(op, Grow) and part:
            data[op.inode] = data.get(op.inode, b"").ljust(op.size, b"\0")
    return {name: data.get(inode, b"") for name, inode in names.items()}


def parts_of(op: Op) -> tuple[int, ...]:
    """What may have come of an operation that nothing covers."""
    if isinstance(op, Data):
        grows = op.offset + len(op.piece) > op.old_size
        return (NONE, ALL, TORN, ZEROS) if grows else (NONE, ALL, TORN)
    return (ALL,) if isinstance(op, SYNCS) else (NONE, ALL)


def covered(log: list[Op], at: int) -> bool:
    """Whether a sync after operation `at` covers it."""
    op, later = log[at], log[at + 1 :]
    if isinstance(op, DATA):
        own = [s for s in later if isinstance(s, Fsync | FsyncFailed) and s.inode == op.inode]
        return bool(own) and isinstance(own[0], Fsync)
    return isinstance(op, SYNCS) or any(isinstance(sync, FsyncDir) for sync in later)


def possible(log: list[Op], parts: dict[int, int], order: Order) -> bool:
    """Whether this order lets these parts come without the others."""
    if order is Order.WEAK:
        return True
    if order is Order.ORDERED:
        names = Create | Rename | Unlink
        came = [p > NONE for at, p in sorted(parts.items()) if isinstance(log[at], names)]
        return came == sorted(came, reverse=True)
    come = [part for at, part in sorted(parts.items()) if parts_of(log[at]) != (ALL,)]
    broken = next((at for at, part in enumerate(come) if part != ALL), len(come))
    return not any(come[broken + 1 :])


def brute(start: Start, log: list[Op], order: Order) -> Found:
    """All states at all points, by trying everything."""
    found: Found = set()
    for size in range(len(log) + 1):
        done = log[:size]
        options = [(ALL,) if covered(done, at) else parts_of(op) for at, op in enumerate(done)]
        notes = tuple(op.what for op in done if isinstance(op, Note))
        for chosen in product(*options):
            parts = dict(enumerate(chosen))
            if possible(done, parts, order):
                found.add((frozenset(played(start, done, parts).items()), notes))
    return found


def listed(start: Start, log: list[Op], order: Order, **more: int) -> list[CrashState]:
    return list(crash_states(start, log, order, **more))


def as_set(states: list[CrashState]) -> Found:
    return {(frozenset(state.files.items()), state.notes) for state in states}


KINDS = ["create", "write", "grow", "truncate", "rename", "unlink", "fsync", "fails", "dir", "note"]


@st.composite
def recorded(draw: st.DrawFn) -> Recorder:
    """A few random calls on a directory that may have files already."""
    on = Recorder(draw(st.dictionaries(st.sampled_from("ab"), st.binary(max_size=4), max_size=2)))
    handles = list(on.data)
    for number in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(KINDS))
        name = draw(st.sampled_from("abc"))
        inode = draw(st.sampled_from(handles)) if handles else None
        if kind == "create" and name not in on.names:
            handles.append(on.create(name))
        elif kind == "rename" and on.names:
            old = draw(st.sampled_from(sorted(on.names)))
            if old != name:
                on.rename(old, name)
        elif kind == "unlink" and name in on.names:
            on.unlink(name)
        elif kind == "dir":
            on.fsyncdir()
        elif kind == "note":
            on.note(str(number))
        elif inode is None:
            continue
        elif kind == "write":
            piece = draw(st.binary(min_size=2, max_size=4))
            on.write(inode, draw(st.sampled_from((0, 2, 4))), piece)
        elif kind == "grow":
            on.grow(inode, draw(st.integers(1, 6)))
        elif kind == "truncate":
            on.truncate(inode)
        else:
            on.fsync(inode, fails=kind == "fails")
    return on


@pytest.mark.parametrize("order", Order)
@given(on=recorded())
def test_every_state_that_may_be_and_no_other(order: Order, on: Recorder) -> None:
    states = listed(on.start, on.log, order)
    assert as_set(states) == brute(on.start, on.log, order)
    assert len(states) == len(as_set(states))


@given(on=recorded())
def test_a_stricter_order_leaves_fewer(on: Recorder) -> None:
    weak, ordered, strict = (as_set(listed(on.start, on.log, order)) for order in Order)
    assert strict <= ordered <= weak


@pytest.mark.parametrize("order", Order)
@given(on=recorded())
def test_chosen_states_are_some_of_all_with_the_first_and_the_last(
    order: Order, on: Recorder
) -> None:
    counts = Counts()
    chosen = as_set(list(crash_states(on.start, on.log, order, combinations_max=1, counts=counts)))
    assert chosen <= brute(on.start, on.log, order)
    notes = tuple(op.what for op in on.log if isinstance(op, Note))
    assert (frozenset(on.files().items()), notes) in chosen
    assert counts.states == len(chosen) <= counts.combinations


@pytest.mark.parametrize("order", [Order.WEAK, Order.ORDERED])
@given(on=recorded(), seed=st.integers(0, 1 << 32))
def test_a_drawn_state_is_one_of_them(order: Order, on: Recorder, seed: int) -> None:
    state = drawn(on.start, on.log, random.Random(seed), order)
    assert state in listed(on.start, on.log, order, since=len(on.log))


def test_any_state_may_be_drawn() -> None:
    on = Recorder({"a": b"1234"})
    on.write(1, 2, b"abcd")
    on.rename("a", "b")
    states = as_set(listed(on.start, on.log, Order.WEAK))
    assert as_set([drawn(on.start, on.log, random.Random(n)) for n in range(300)]) == states


def test_a_large_log_is_sampled_and_repeats() -> None:
    on = Recorder()
    inode = on.create("a")
    for at in range(40):
        on.write(inode, 4 * at, bytes([at + 1]) * 4)
    on.fsyncdir()
    counts = Counts()
    states = list(crash_states(on.start, on.log, counts=counts))
    assert counts.sampled == counts.points == 2
    assert 200 < counts.states <= counts.combinations < 2_000
    assert states == listed(on.start, on.log, Order.WEAK)
    assert states != listed(on.start, on.log, Order.WEAK, seed=1)
    contents = {state.files.get("a") for state in states}
    whole = on.files()["a"]
    for at in range(40):
        part = slice(4 * at, 4 * at + 4)
        left_out = whole[: part.start] + bytes(4) + whole[part.stop :]
        assert left_out.rstrip(b"\0") in {data.rstrip(b"\0") for data in contents if data}
        assert whole[: part.start] in contents
    assert None in contents and b"" in contents


def test_what_is_synced_stays() -> None:
    on = Recorder({"old": b"1234"})
    inode = on.create("new.tmp")
    on.write(inode, 0, b"abcd")
    on.fsync(inode)
    on.rename("new.tmp", "new")
    on.fsyncdir()
    on.note("saved")
    states = listed(on.start, on.log, Order.WEAK)
    assert all(state.files["old"] == b"1234" for state in states)
    owed = [state for state in states if "saved" in state.notes]
    assert [state.files for state in owed] == [{"old": b"1234", "new": b"abcd"}]


# the protocol's faults, on a toy writer


def saves(on: Recorder, version: int, blocks: list[bytes], without: str) -> None:
    """Save blocks: each under a new name, then the manifest, then what nothing names goes.

    `without` leaves one step out, or does it too early.
    """
    old = [name for name in on.names if name != "manifest"]
    names = [f"{version}-{number}" for number in range(len(blocks))]
    if without == "order of garbage":
        for name in old:
            on.unlink(name)
    for name, block in zip(names, blocks, strict=True):
        on.rename(whole_file(on, block, without), name)
    if without != "fsyncdir of blocks":
        on.fsyncdir()
    text = b"".join(name.encode() + b"=" + b for name, b in zip(names, blocks, strict=True))
    if without == "new manifest":
        inode = on.names.get("manifest", -1)
        inode = on.create("manifest") if inode < 0 else inode
        on.write(inode, 0, text)
        on.fsync(inode)
    else:
        step = "fsync of blocks" if without == "fsync of the manifest" else ""
        on.rename(whole_file(on, text, step), "manifest")
    if without != "fsyncdir of the manifest":
        on.fsyncdir()
    on.note(f"{version}")
    if without != "order of garbage":
        for name in old:
            on.unlink(name)
        on.fsyncdir()


def whole_file(on: Recorder, data: bytes, without: str) -> str:
    inode = on.create("tmp")
    on.write(inode, 0, data)
    if without != "fsync of blocks":
        on.fsync(inode)
    return "tmp"


def found_version(files: dict[str, bytes]) -> int:
    """The version that a reader gets: every block of the manifest must be there as it says."""
    text = files.get("manifest", b"")
    versions = set()
    for at in range(0, len(text), 8):
        name, block = text[at : at + 3].decode(errors="replace"), text[at + 4 : at + 8]
        if text[at + 3 : at + 4] != b"=" or files.get(name) != block:
            return 0
        versions.add(int(name[0]))
    return versions.pop() if len(versions) == 1 else 0


def losses(without: str, order: Order) -> int:
    """States in which an acknowledged version, or a later one, can't be read."""
    on = Recorder()
    saves(on, 1, [b"old0", b"old1"], "")
    saves(on, 2, [b"new0", b"new1"], without)
    states = listed(on.start, on.log, order)
    return sum(found_version(state.files) < int(state.notes[-1]) for state in states if state.notes)


@pytest.mark.parametrize("order", Order)
def test_the_right_protocol_loses_nothing_that_was_acknowledged(order: Order) -> None:
    assert losses("", order) == 0


@pytest.mark.parametrize(
    ("without", "seen_by"),
    [
        ("fsync of blocks", {Order.WEAK, Order.ORDERED}),
        ("fsync of the manifest", {Order.WEAK, Order.ORDERED}),
        ("fsyncdir of the manifest", set(Order)),
        ("fsyncdir of blocks", {Order.WEAK}),
        ("order of garbage", set(Order)),
        ("new manifest", set(Order)),
    ],
)
def test_canary_each_step_left_out_is_seen(without: str, seen_by: set[Order]) -> None:
    assert {order for order in Order if losses(without, order)} == seen_by


# the simulated files write such a log


def test_the_simulated_files_lose_what_they_did_not_sync() -> None:
    state = {"old": b"x" * 4_096}
    files = SimFiles(state)

    def put(name: str, sync: Callable[[int], None]) -> None:
        data = files.buffer(8_192)
        data[:] = name.encode()[:1] * 8_192
        handle = files.create(f"{name}.tmp")
        files.preallocate(handle, 8_192)
        files.start_write(handle, 0, data).wait()
        sync(handle)
        files.close(handle)
        files.rename(f"{name}.tmp", name)
        files.fsyncdir()
        files.note(name)

    put("synced", files.fsync)
    put("unsynced", lambda handle: None)
    files.unlink("old")
    states = list(crash_states(Start.of(state), files.log))
    owed = [state for state in states if "synced" in state.notes]
    assert all(state.files.get("synced") == b"s" * 8_192 for state in owed)
    late = [state for state in states if "unsynced" in state.notes]
    contents = {state.files.get("unsynced") for state in late}
    assert {b"u" * 8_192, bytes(8_192), b""} <= contents and None not in contents
    assert {"old" in state.files for state in late} == {True, False}
    assert files.snapshot() in [state.files for state in late]


def test_the_simulated_files_start_from_any_state() -> None:
    for state in some_states():
        again = SimFiles(state.files)
        assert again.snapshot() == state.files
        assert list(crash_states(Start.of(state.files), again.log)) == [
            CrashState(state.files, (), 0)
        ]


def some_states() -> Iterator[CrashState]:
    files = SimFiles()
    handle = files.create("a")
    data = files.buffer(4_096)
    data[:5] = b"hello"
    files.write(handle, 0, data)
    files.close(handle)
    return crash_states(Start.of({}), files.log)
