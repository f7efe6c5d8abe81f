"""The n-gram table: warm, cold and in memory it gives the same bytes, and never wrong ones.

Method: files of rows in all sizes around a sector, asked for any keys through caches from nothing
to everything, beside the tensor itself; reads beside sectors counted by hand; mincore for what is
left in the page cache; threads on one table; drives that fail, files that are cut or rewritten
while they are open, file systems and kernels without direct or asynchronous reads. Canaries: a
row's place and a sector that are off by one, a failed read that nobody looks at, pages that stay.
Covers engine.flash.table, engine.flash.table_warm, engine.flash.table_cold and
engine.flash.table_lane.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tabled import write_table

from cache.ports import PAGE
from engine.bad import BadInput
from engine.flash import table_cold, table_lane
from engine.flash.table import MemoryTable, Table, open_table
from engine.flash.table_cold import ColdTable, Reads, reads_of
from engine.flash.table_file import SECTOR, Header, TableUnreadable
from engine.flash.table_handle import page_cache_bytes
from engine.flash.table_lane import DEPTH, Lane
from engine.flash.table_warm import WarmTable
from engine.weights import file_digest

ROWS = 700
SHAPES = [
    (18, torch.float32),
    (256, torch.bfloat16),
    (130, torch.bfloat16),
    (390, torch.float16),
    (33, torch.float8_e4m3fn),
    (513, torch.float8_e4m3fn),
    (1_200, torch.float32),
]
"""Rows of 72, 512, 260, 780, 33, 513 and 4,800 bytes."""
SEED = 4


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("tables")
    paths = [folder / str(number) for number in range(len(SHAPES))]
    for path, (width, dtype) in zip(paths, SHAPES, strict=True):
        write_table(str(path), rows=ROWS, width=width, dtype=dtype, seed=SEED)
    return paths


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A table of rows of 72 bytes, four to a sector, that a test may spoil."""
    write_table(str(tmp_path / "t"), rows=ROWS, width=18, dtype=torch.float32, seed=SEED)
    return tmp_path / "t"


@cache
def memory(shape: int) -> MemoryTable:
    width, dtype = SHAPES[shape]
    return MemoryTable.random(rows=ROWS, width=width, dtype=dtype, seed=SEED)


def same(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Bit for bit: a float of eight bits has no equality of its own."""
    return (
        found.dtype == wanted.dtype
        and found.shape == wanted.shape
        and torch.equal(found.view(torch.uint8), wanted.view(torch.uint8))
    )


def keys_of(*keys: int) -> torch.Tensor:
    return torch.tensor(keys, dtype=torch.int64)


def resident(path: Path) -> int:
    handle = os.open(path, os.O_RDONLY)
    try:
        return page_cache_bytes(handle, path.stat().st_size)
    finally:
        os.close(handle)


# the same bytes


def check_same(path: Path, shape: int, cache_bytes: int, calls: list[list[int]]) -> None:
    wanted, warm, cold = memory(shape), WarmTable(str(path)), ColdTable(str(path), cache_bytes)
    tables: list[Table] = [warm, cold]
    assert cold.hot.held_bytes() <= cache_bytes
    for call in calls:
        keys = torch.tensor(call, dtype=torch.int64)
        for table in tables:
            assert same(table.rows(keys), wanted.rows(keys))
    for table in tables:
        table.close()


CALLS = st.lists(st.lists(st.integers(0, ROWS - 1), max_size=60), max_size=6)


@settings(max_examples=40)
@given(shape=st.integers(0, len(SHAPES) - 1), share=st.floats(0, 1.2), calls=CALLS)
def test_warm_cold_and_memory_give_the_same(
    files: list[Path], shape: int, share: float, calls: list[list[int]]
) -> None:
    slot_bytes = memory(shape).header.row_bytes + 17
    check_same(files[shape], shape, int(share * ROWS * slot_bytes), calls)


@pytest.mark.parametrize("shape", range(len(SHAPES)))
def test_every_row_is_its_own(files: list[Path], shape: int) -> None:
    ordered = list(range(ROWS))
    check_same(files[shape], shape, 50_000, [ordered, ordered[::-1], [ROWS - 1], [0]])


@pytest.mark.parametrize("policy", ["warm", "cold"])
def test_no_keys_and_no_such_key(files: list[Path], policy: Any) -> None:
    table = open_table(str(files[1]), policy=policy)
    assert table.rows(keys_of()).shape == (0, 256)
    for keys in (
        keys_of(-1),
        keys_of(ROWS),
        keys_of(5, ROWS),
        torch.zeros(2, 2, dtype=torch.int64),
    ):
        with pytest.raises(AssertionError):
            table.rows(keys)
    with pytest.raises(AssertionError):
        table.rows(torch.tensor([1], dtype=torch.int32))
    table.close()


def test_rows_are_the_caller_s_own(files: list[Path]) -> None:
    table = ColdTable(str(files[0]), 1 << 20)
    first = table.rows(keys_of(3, 3))
    first.zero_()
    assert same(table.rows(keys_of(3, 3)), memory(0).rows(keys_of(3, 3)))
    table.close()


def test_a_digest_names_the_table(files: list[Path]) -> None:
    for policy in ("warm", "cold"):
        table = open_table(str(files[2]), policy=policy)
        assert table.digest() == file_digest(str(files[2]))
        table.close()
    assert memory(0).digest() == "random seed=4 700 x 18 torch.float32"


# what is read


@settings(max_examples=50)
@given(
    shape=st.integers(0, len(SHAPES) - 1),
    unit=st.sampled_from([SECTOR, PAGE]),
    keys=st.sets(st.integers(0, ROWS - 1), min_size=1, max_size=80),
)
def test_only_the_sectors_needed_are_read_each_once(shape: int, unit: int, keys: set[int]) -> None:
    header, data = memory(shape).header, np.arange(ROWS * 5_120 // unit * 2)
    asked = np.array(sorted(keys))
    reads = reads_of(asked, header, unit)
    units = [
        number
        for offset, size in zip(reads.offsets.tolist(), reads.sizes.tolist(), strict=True)
        for number in data[offset // unit : (offset + size) // unit].tolist()
    ]
    wanted = set()
    for key in asked.tolist():
        first = PAGE + key * header.stride
        wanted |= set(range(first // unit, (first + header.row_bytes - 1) // unit + 1))
    assert units == sorted(wanted) and not (reads.offsets % unit).any()
    assert (np.diff(units) == 1).sum() == len(units) - len(reads.offsets), "neighbours apart"


def test_what_is_here_is_not_read_again(files: list[Path]) -> None:
    table = ColdTable(str(files[1]), 1 << 20)
    table.rows(keys_of(4, 9, 4, 600))
    wanted = {"asked": 4, "other": 3, "found": 0, "read": 3, "reads": 3, "read_bytes": 3 * SECTOR}
    assert dict(table.counters) == wanted
    table.rows(keys_of(600, 10, 9))
    assert (table.counters["found"], table.counters["read"]) == (2, 4)
    everything = torch.arange(ROWS)
    table.rows(everything)
    table.counters.clear()
    table.rows(everything)
    assert table.counters["found"] == ROWS and not table.counters["read"]
    table.close()


def test_a_small_lane_reads_in_several_goes(files: list[Path]) -> None:
    for shape in (0, 6):
        table, keys = ColdTable(str(files[shape]), 0, lane_bytes=1), torch.arange(0, ROWS, 3)
        assert same(table.rows(keys), memory(shape).rows(keys))
        assert table.counters["reads"] > 20
        table.close()


def test_cold_leaves_nothing_in_the_page_cache_and_warm_what_it_read(files: list[Path]) -> None:
    path = files[1]
    path.read_bytes()
    assert resident(path) == path.stat().st_size
    cold = ColdTable(str(path), 100_000)
    assert resident(path) == 0, "what was there before"
    for seed in range(4):
        cold.rows(torch.randint(ROWS, (200,), generator=torch.Generator().manual_seed(seed)))
    cold.digest()
    assert resident(path) == cold.resident_bytes() == 0 and not cold.said
    warm = WarmTable(str(path))
    warm.rows(torch.arange(0, ROWS, 8))
    assert resident(path) == warm.resident_bytes() >= ROWS // 8 * PAGE
    assert memory(1).resident_bytes() == 0
    warm.close()
    cold.close()


def test_a_warm_table_that_cannot_say_what_is_there(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.preadv

    def plain(handle: int, into: Any, offset: int, flags: int = 0) -> int:
        if flags:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return whole(handle, into, offset)

    monkeypatch.setattr(os, "preadv", plain)
    check_same(files[3], 3, 9_000, [[5, 6, 5], [699]])


# kernels and file systems that have less


def no_direct(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.open

    def refusing(path: Any, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return whole(path, flags, mode)

    monkeypatch.setattr(table_cold.os, "open", refusing)


def test_without_direct_reads_pages_are_dropped(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    no_direct(monkeypatch)
    check_same(files[3], 3, 20_000, [[1, 2, 3], list(range(0, ROWS, 5))])
    table = ColdTable(str(files[3]), 0)
    assert table.said == "the file system refuses O_DIRECT; pages are dropped after use"
    table.rows(torch.arange(0, ROWS, 5))
    assert table.resident_bytes() == resident(files[3]) == 0
    table.close()


def unit_of(monkeypatch: pytest.MonkeyPatch, refused: set[int]) -> None:
    whole = Lane.read

    def read(self: Lane, handle: int, offsets: Any, sizes: Any) -> Any:
        if set(sizes.tolist()) & refused:
            return np.full(len(sizes), -errno.EINVAL)
        return whole(self, handle, offsets, sizes)

    monkeypatch.setattr(Lane, "read", read)


def test_a_drive_of_larger_sectors(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    unit_of(monkeypatch, {SECTOR})
    table = ColdTable(str(files[0]), 0)
    assert table.unit == PAGE and not table.said
    assert same(table.rows(keys_of(0, 31, 32, 699)), memory(0).rows(keys_of(0, 31, 32, 699)))
    assert table.counters["read_bytes"] == 3 * PAGE
    table.close()
    # A row of 4,800 bytes may lie in three of such sectors, and all of a call's must fit the lane.
    table, keys = ColdTable(str(files[6]), 0, lane_bytes=1), torch.arange(0, ROWS, 3)
    assert table.unit == PAGE and same(table.rows(keys), memory(6).rows(keys))
    table.close()
    with monkeypatch.context() as patch:
        unit_of(patch, {SECTOR, PAGE})
        before = handles()
        table = ColdTable(str(files[0]), 0)
        assert table.said.startswith("the file system refuses O_DIRECT")
        table.close()
        assert handles() == before


@pytest.mark.parametrize("machine", ["x86_64", "a machine of its own"])
def test_without_asynchronous_reads_they_follow_one_another(
    files: list[Path], monkeypatch: pytest.MonkeyPatch, machine: str
) -> None:
    monkeypatch.setattr(table_lane.platform, "machine", lambda: machine)
    monkeypatch.setattr(table_lane, "_syscall", lambda *_: -1)
    table, keys = ColdTable(str(files[4]), 0), torch.arange(0, ROWS, 30)
    assert same(table.rows(keys), memory(4).rows(keys))
    assert table.said.startswith("the kernel has no asynchronous reads to give")
    table.close()


def test_a_lane_reads_more_than_it_has_in_flight(tmp_path: Path) -> None:
    count = 3 * DEPTH + 7
    data = np.random.default_rng(0).integers(0, 256, count * 100, np.uint8)
    (tmp_path / "t").write_bytes(data.tobytes())
    handle, lane = os.open(tmp_path / "t", os.O_RDONLY), Lane(-(-data.size // PAGE) * PAGE)
    assert lane.queued
    order = np.random.default_rng(1).permutation(count)
    sizes = np.where(order % 2, 100, 60)
    offsets = order * 100
    offsets[5] = data.size - 10
    moved = lane.read(handle, offsets, sizes)
    wanted = np.where(np.arange(count) == 5, 10, sizes)
    assert (moved == wanted).all()
    at = 0
    for offset, size, got in zip(offsets, sizes, moved, strict=True):
        assert (lane.bytes[at : at + got] == data[offset : offset + got]).all()
        at += size
    os.close(handle)
    assert (lane.read(handle, offsets[:1], sizes[:1]) == -errno.EBADF).all()
    with pytest.raises(OSError, match="Bad file descriptor"):
        lane.read(handle, offsets, sizes)
    lane.close()


def test_a_full_queue_waits_for_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t").write_bytes(bytes(range(256)) * 40)
    handle, lane = os.open(tmp_path / "t", os.O_RDONLY), Lane(PAGE)
    whole, collect = table_lane._Queue._submit, table_lane._Queue._collect
    turns = list[bool]()

    def stingy(self: Any, pointers: Any, under_way: bool) -> int:
        turns.append(under_way)
        return 0 if under_way and len(turns) % 2 else whole(self, pointers[:3], under_way)

    def one(self: Any, moved: Any, least: int) -> int:
        with monkeypatch.context() as patch:
            patch.setattr(table_lane, "DEPTH", 1)
            return collect(self, moved, least)

    monkeypatch.setattr(table_lane._Queue, "_submit", stingy)
    monkeypatch.setattr(table_lane._Queue, "_collect", one)
    offsets, sizes = np.arange(40) * 256, np.full(40, 100)
    assert (lane.read(handle, offsets, sizes) == 100).all() and any(turns)
    assert (lane.bytes[:4_000].reshape(40, 100) == np.arange(100)).all()
    monkeypatch.setattr(table_lane, "_syscall", lambda *_: 0)
    monkeypatch.setattr(table_lane._Queue, "_submit", whole)
    monkeypatch.setattr(table_lane._Queue, "_collect", collect)
    with pytest.raises(OSError, match="temporarily unavailable"):
        lane.read(handle, offsets, sizes)
    monkeypatch.undo()
    os.close(handle)
    lane.close()


def test_a_read_that_fails_in_flight_has_its_own_reason(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(bytes(range(256)))
    handle, lane = os.open(tmp_path / "t", os.O_RDONLY), Lane(PAGE)
    assert lane._queue is not None
    nowhere = np.array([lane.bytes.ctypes.data, 0])
    moved = lane._queue.read(handle, nowhere, np.array([0, 100]), np.array([100, 100]))
    assert moved.tolist() == [100, -errno.EFAULT]
    os.close(handle)
    lane.close()


def test_what_was_sent_is_waited_for_before_a_failure_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t").write_bytes(bytes(range(256)) * 40)
    handle, lane = os.open(tmp_path / "t", os.O_RDONLY), Lane(PAGE)
    whole, collect = table_lane._Queue._submit, table_lane._Queue._collect
    sent, came = list[int](), list[int]()

    def once(self: Any, pointers: Any, under_way: bool) -> int:
        if sent:
            raise OSError(errno.EIO, "Input/output error")
        sent.append(whole(self, pointers[:3], under_way))
        return sent[-1]

    def one(self: Any, moved: Any, least: int) -> int:
        with monkeypatch.context() as patch:
            patch.setattr(table_lane, "DEPTH", 1)
            came.append(collect(self, moved, least))
        return came[-1]

    monkeypatch.setattr(table_lane._Queue, "_submit", once)
    monkeypatch.setattr(table_lane._Queue, "_collect", one)
    with pytest.raises(OSError, match="Input/output error"):
        lane.read(handle, np.arange(40) * 256, np.full(40, 100))
    assert sent == [3] and came == [1] * 3
    os.close(handle)
    lane.close()


# faults


def failing(kind: str) -> Callable[..., Any]:
    """A lane whose reads fail in the middle."""
    whole = Lane.read

    def read(self: Lane, handle: int, offsets: Any, sizes: Any) -> Any:
        moved = whole(self, handle, offsets, sizes)
        at = len(moved) // 2
        if kind == "raises":
            raise OSError(errno.EIO, "Input/output error")
        moved[at] = -errno.EIO if kind == "eio" else moved[at] - SECTOR
        return moved

    return read


def check_fault(path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, said: str) -> None:
    table, keys = ColdTable(str(path), 1 << 20), torch.arange(0, ROWS, 6)
    known = keys_of(1, 2, 50)
    table.rows(known)
    with monkeypatch.context() as patch:
        patch.setattr(Lane, "read", failing(kind))
        with pytest.raises(TableUnreadable, match=said):
            table.rows(keys)
        # What is here needs no drive.
        assert same(table.rows(known), memory(0).rows(known))
    assert same(table.rows(keys), memory(0).rows(keys)), "something wrong was kept"
    table.close()


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("eio", "Input/output error"),
        ("raises", "Input/output error"),
        ("short", "the file ends before its last row"),
    ],
)
def test_a_read_that_fails_fails_that_call_alone(
    path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, said: str
) -> None:
    check_fault(path, monkeypatch, kind, said)


def cut(path: Path) -> None:
    os.truncate(path, PAGE + 300 * 128)


def cut_and_filled(path: Path) -> None:
    size = path.stat().st_size
    os.truncate(path, PAGE)
    os.truncate(path, size)


def overwritten(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(PAGE)
        file.write(bytes(10_000))
    later = path.stat().st_mtime_ns + 1_000_000
    os.utime(path, ns=(later, later))


@pytest.mark.parametrize("spoil", [cut, cut_and_filled, overwritten])
@pytest.mark.parametrize("policy", ["warm", "cold"])
def test_a_file_that_changes_while_it_is_open(
    path: Path, spoil: Callable[[Path], None], policy: Any
) -> None:
    table = open_table(str(path), policy=policy, cache_bytes=1 << 20)
    known = keys_of(1, 299)
    assert same(table.rows(known), memory(0).rows(known))
    spoil(path)
    for keys in (keys_of(0, 2), keys_of(699), torch.arange(0, 699, 7)):
        with pytest.raises(TableUnreadable, match=r"changed after it was opened|ends before"):
            table.rows(keys)
    table.close()


def test_a_warm_read_that_fails(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = WarmTable(str(path))

    def broken(*_: Any) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", broken)
        with pytest.raises(TableUnreadable, match=r"can't be read: Input/output error"):
            table.rows(keys_of(1))
    assert same(table.rows(keys_of(1)), memory(0).rows(keys_of(1)))
    table.close()


# opening and closing


def handles() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("policy", ["warm", "cold"])
def test_a_table_that_the_model_cannot_use_is_closed_again(files: list[Path], policy: Any) -> None:
    before = handles()
    with pytest.raises(BadInput, match="rows: 700, the model's: 701"):
        open_table(str(files[0]), policy=policy, rows=701, cache_bytes=1_000)
    with pytest.raises(BadInput, match="width: 18, the model's: 36"):
        open_table(str(files[0]), policy=policy, width=36, dtype=torch.float32)
    with pytest.raises(BadInput, match="dtype: float32, the model's: bfloat16"):
        open_table(str(files[0]), policy=policy, rows=700, width=18, dtype=torch.bfloat16)
    with pytest.raises(BadInput, match="cannot be opened"):
        open_table(str(files[0]) + "x", policy=policy)
    table = open_table(str(files[0]), policy=policy, width=18, dtype=torch.float32)
    table.rows(torch.arange(90))
    table.close()
    assert handles() == before


def test_a_file_that_is_replaced_while_it_is_opened(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = handles()
    monkeypatch.setattr(table_cold.os.path, "sameopenfile", lambda a, b: False)
    with pytest.raises(BadInput, match="was replaced while it was opened"):
        ColdTable(str(files[0]), 0)
    assert handles() == before


# threads


@pytest.mark.parametrize("policy", ["warm", "cold"])
def test_threads_share_a_table(files: list[Path], policy: Any) -> None:
    table: Table = (
        WarmTable(str(files[1]))
        if policy == "warm"
        else ColdTable(str(files[1]), 60_000, lane_bytes=16_384)
    )
    wanted, wrong = memory(1), list[str]()

    def ask(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(25):
            count = int(torch.randint(1, 120, (1,), generator=generator))
            keys = torch.randint(ROWS, (count,), generator=generator)
            if not same(table.rows(keys), wanted.rows(keys)):
                wrong.append(f"{seed}: {keys.tolist()}")

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    if isinstance(table, ColdTable):
        counters = table.counters
        assert counters["found"] + counters["read"] == counters["other"]
        assert len(table._lanes) <= table_cold.LANES_KEPT
    table.close()


# canaries


def test_canary_a_place_that_is_off_by_one_row(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def off(keys: Any, header: Header, unit: int) -> Reads:
        right = reads_of(keys, header, unit)
        return replace(right, places=np.maximum(0, right.places - header.stride))

    monkeypatch.setattr(table_cold, "reads_of", off)
    with pytest.raises(AssertionError):
        test_every_row_is_its_own(files, 0)


def test_canary_an_offset_that_is_off_by_one_sector(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def off(keys: Any, header: Header, unit: int) -> Reads:
        right = reads_of(keys, header, unit)
        return replace(right, offsets=right.offsets - unit)

    monkeypatch.setattr(table_cold, "reads_of", off)
    with pytest.raises(AssertionError):
        check_same(files[1], 1, 0, [[5]])


def test_canary_a_failed_read_that_nobody_looks_at(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Lane.read

    def blind(self: Lane, handle: int, offsets: Any, sizes: Any) -> Any:
        whole(self, handle, offsets, sizes)
        return sizes

    monkeypatch.setattr(Lane, "read", blind)
    monkeypatch.setattr("engine.flash.table_handle.TableFile.check_unchanged", lambda self: None)
    with pytest.raises(pytest.fail.Exception):
        test_a_file_that_changes_while_it_is_open(path, cut, "cold")


def test_canary_reads_through_the_page_cache(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    no_direct(monkeypatch)
    monkeypatch.setattr("engine.flash.table_handle.TableFile.drop", lambda self: None)
    with pytest.raises(AssertionError):
        test_without_direct_reads_pages_are_dropped(files, pytest.MonkeyPatch())
