"""The n-gram table's file: what was written is what is read, and every fault is one line.

Method: strides beside a count of sectors by hand; files of every dtype beside their blocks, read
with numpy alone; every byte of a header, and sizes around the right one, changed one at a time;
writes that fail. Canaries: a stride that lets rows straddle, a header whose checksum is not looked
at. Covers engine.flash.table_file and engine.flash.table_handle.
"""

from __future__ import annotations

import errno
import mmap
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tabled import write_table

from cache.ports import PAGE
from engine.bad import BadInput
from engine.flash import table_file
from engine.flash.table_file import (
    BLOCK_ROWS,
    DTYPES,
    SECTOR,
    Header,
    TableUnreadable,
    check,
    random_blocks,
    stride_of,
    write_blocks,
)
from engine.flash.table_handle import TableFile, page_cache_bytes
from engine.flash.table_warm import WarmTable
from engine.weights import file_digest

HEADER = Header(300, 20, torch.bfloat16)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("table") / "t"
    write_table(str(path), rows=300, width=20, dtype=torch.bfloat16, seed=1)
    return path


def copy(path: Path, to: Path, **patch: bytes) -> Path:
    """A copy with bytes replaced: `at_N=b"..."`."""
    data = bytearray(path.read_bytes())
    for name, new in patch.items():
        at = int(name.removeprefix("at_"))
        data[at : at + len(new)] = new
    to.write_bytes(data)
    return to


def refused(path: Path) -> str:
    with pytest.raises(BadInput) as caught:
        TableFile(str(path))
    said = str(caught.value)
    assert "\n" not in said and said.startswith(str(path)), said
    return said.removeprefix(f"{path}: ")


def most_sectors(row_bytes: int, stride: int) -> int:
    """Sectors of the row that has most; after SECTOR rows the places repeat."""
    first = np.arange(SECTOR) * stride
    return int(((first + row_bytes - 1) // SECTOR - first // SECTOR).max()) + 1


def check_stride(row_bytes: int) -> None:
    least = -(-row_bytes // SECTOR)
    assert most_sectors(row_bytes, stride_of(row_bytes)) == least
    tighter = range(row_bytes, stride_of(row_bytes))
    assert all(most_sectors(row_bytes, stride) > least for stride in tighter)


@given(st.integers(1, 2_600))
def test_a_row_needs_no_sector_more_than_it_must(row_bytes: int) -> None:
    check_stride(row_bytes)


def test_strides_by_hand() -> None:
    sizes = (1, 2, 36, 100, 511, 512, 513, 520, 640, 768, 769, 1_024, 5_000)
    strides = (1, 2, 64, 128, 512, 512, 513, 520, 640, 768, 1_024, 1_024, 5_120)
    assert tuple(map(stride_of, sizes)) == strides


@pytest.mark.parametrize("name", DTYPES)
def test_a_file_holds_its_blocks_and_nothing_else(tmp_path: Path, name: str) -> None:
    header = Header(BLOCK_ROWS + 77, 9, DTYPES[name])
    path = str(tmp_path / "t")
    write_blocks(path, header, random_blocks(header, 5))
    data = np.fromfile(path, np.uint8)
    assert len(data) == header.file_bytes and len(data) % PAGE == 0
    body = data[PAGE:][: header.rows * header.stride].reshape(header.rows, header.stride)
    rows = torch.cat(list(random_blocks(header, 5))).view(torch.uint8).numpy()
    assert (body[:, : header.row_bytes] == rows).all()
    assert not body[:, header.row_bytes :].any() and not data[PAGE + body.size :].any()
    assert len(np.unique(body, axis=0)) > header.rows * 0.9, "rows are alike"
    table = TableFile(path)
    assert table.header == header
    table.close()


def test_a_table_is_its_seed(tmp_path: Path) -> None:
    def made(name: str, seed: int) -> bytes:
        path = tmp_path / name
        write_table(str(path), rows=70, width=3, dtype=torch.float32, seed=seed)
        return path.read_bytes()

    assert made("a", 1) == made("b", 1) != made("c", 2)
    rows = torch.cat(list(random_blocks(Header(9_000, 8, torch.float32), 3)))
    assert abs(float(rows.mean())) < 0.02 and abs(float(rows.std()) - 1) < 0.02
    assert not torch.equal(rows[:100], rows[BLOCK_ROWS : BLOCK_ROWS + 100])


def test_the_digest_is_that_of_any_file_of_weights(written: Path, tmp_path: Path) -> None:
    table = TableFile(str(written))
    assert table.digest() == file_digest(str(written))
    other = copy(written, tmp_path / "o", at_5000=b"x")
    assert file_digest(str(other)) != table.digest()
    os.truncate(other, PAGE)
    broken = TableFile(str(written))
    broken.handle, kept = os.open(other, os.O_RDONLY), broken.handle
    with pytest.raises(TableUnreadable, match="changed after it was opened"):
        broken.digest()
    os.close(kept)
    broken.close()
    table.close()


def test_a_written_table_is_not_in_the_page_cache(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write_table(str(path), rows=3_000, width=50, dtype=torch.float32, seed=1)
    handle, size = os.open(path, os.O_RDONLY), path.stat().st_size
    assert page_cache_bytes(handle, size) == 0
    assert len(os.pread(handle, 3 * PAGE, 100 * PAGE)) == 3 * PAGE
    assert 3 * PAGE <= page_cache_bytes(handle, size) < size
    while os.read(handle, 1 << 20):
        pass
    assert page_cache_bytes(handle, size) == size
    assert page_cache_bytes(handle, 7 * PAGE) == 7 * PAGE
    os.close(handle)


def test_page_cache_is_counted_over_all_windows(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.flash.table_handle._WINDOW_BYTES", 2 * PAGE)
    written.read_bytes()
    table = TableFile(str(written))
    assert table.resident_bytes() == written.stat().st_size
    table.drop()
    assert table.resident_bytes() == 0
    table.close()


def test_where_the_kernel_does_not_say_what_was_read_is_counted(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of others' files it says that all of them is there."""
    others, may_write = os.geteuid() + 1, False
    monkeypatch.setattr(os, "geteuid", lambda: others)
    monkeypatch.setattr(os, "access", lambda *of, **named: may_write)
    written.read_bytes()
    warm = WarmTable(str(written))
    assert warm.resident_bytes() == 0, "nobody has read it here"
    warm.rows(torch.tensor([0, 1, 299]))
    assert warm.resident_bytes() == 2 * mmap.PAGESIZE, "rows 0 and 1 lie beside each other"
    warm.rows(torch.tensor([298]))
    assert warm.resident_bytes() == 2 * mmap.PAGESIZE
    warm.digest()
    assert warm.resident_bytes() == written.stat().st_size
    warm.file.drop()
    assert warm.resident_bytes() == 0
    warm.file.note(np.array([PAGE - 1]), PAGE + 2)
    assert warm.resident_bytes() == 3 * mmap.PAGESIZE, "a row that is longer than a page"
    may_write = True
    written.read_bytes()
    asked = TableFile(str(written))
    assert asked.resident_bytes() == written.stat().st_size, "who may write it is told"
    asked.close()
    warm.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_the_kernel_says_all_of_it_to_who_may_not_write(written: Path) -> None:
    """The file is handed over open, since its folder is closed to others."""
    ours = TableFile(str(written))
    ours.drop()
    os.pread(ours.handle, 1, PAGE)
    assert 0 < ours.resident_bytes() < written.stat().st_size
    mode = stat.S_IMODE(written.stat().st_mode)
    written.chmod(0o444)
    try:
        done = subprocess.run(
            [sys.executable, "-c", ASKS, str(ours.handle)],
            cwd=Path(__file__).parent.parent,
            pass_fds=[ours.handle],
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        written.chmod(mode)
        ours.close()
    assert done.stdout == f"{written.stat().st_size} 0\n", done.stderr


ASKS = """
import os, sys
from engine.flash.table_handle import TableFile, page_cache_bytes
os.setgid(65534)
os.setuid(65534)
table = TableFile(f"/proc/self/fd/{sys.argv[1]}")
print(page_cache_bytes(table.handle, table.header.file_bytes), table.resident_bytes())
"""


# bad input


def test_no_table_at_all(tmp_path: Path) -> None:
    assert refused(tmp_path / "none") == "cannot be opened: No such file or directory"
    assert refused(tmp_path) == "not a regular file"
    os.mkfifo(tmp_path / "pipe")
    assert refused(tmp_path / "pipe") == "not a regular file"
    (tmp_path / "empty").write_bytes(b"")
    assert refused(tmp_path / "empty") == "0 bytes are no n-gram table: it has no header"
    (tmp_path / "other").write_bytes(b"x" * 2 * PAGE)
    assert refused(tmp_path / "other") == "not an n-gram table"


def test_what_is_refused_is_closed_again(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    before = set(os.listdir("/proc/self/fd"))
    (tmp_path / "other").write_bytes(b"x" * 2 * PAGE)
    assert refused(tmp_path / "other") == "not an n-gram table"
    assert refused(tmp_path) == "not a regular file"
    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", failing)
        assert refused(written) == "cannot be read: Input/output error"
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_wrong_size(written: Path, tmp_path: Path) -> None:
    right = HEADER.file_bytes
    for size in (PAGE, right - PAGE, right - 1, right + 1, right + PAGE):
        cut = copy(written, tmp_path / "cut")
        os.truncate(cut, size)
        assert refused(cut) == f"{size:,} bytes, 300 rows make {right:,}"
    short = copy(written, tmp_path / "short")
    os.truncate(short, PAGE - 1)
    assert refused(short) == "4,095 bytes are no n-gram table: it has no header"


def resealed(header: Header, **patch: bytes) -> bytes:
    """A page with other fields and a checksum that fits."""
    page = bytearray(header.packed())
    for name, new in patch.items():
        at = int(name.removeprefix("at_"))
        page[at : at + len(new)] = new
    return bytes(page[:-4]) + table_file._CRC.pack(table_file.crc32(bytes(page[:-4])))


@pytest.mark.parametrize(
    ("patch", "said"),
    [
        ({"at_8": b"\x02"}, "an n-gram table of version 2, not 1"),
        ({"at_12": b"int4\0\0\0\0\0\0\0\0"}, "a table of 300 rows of 20 b'int4"),
        ({"at_12": b"\xff"}, "a table of 300 rows of 20 b'\\\\xff"),
        ({"at_28": bytes(8)}, "a table of 0 rows of 20"),
        ({"at_36": bytes(8)}, "a table of 300 rows of 0"),
        ({"at_36": b"\x40"}, "rows every 64 bytes, not every 128"),
        ({"at_44": b"\x80"}, "rows every 128 bytes, not every 64"),
        ({"at_28": b"\xff" * 8}, "rows make"),
    ],
)
def test_a_sound_page_of_something_else(
    written: Path, tmp_path: Path, patch: dict[str, bytes], said: str
) -> None:
    page = resealed(HEADER, **patch)
    assert re.search(said, refused(copy(written, tmp_path / "t", at_0=page)))


def check_bits(written: Path, to: Path) -> None:
    page = HEADER.packed()
    for at in (*range(60), 1_000, *range(PAGE - 4, PAGE)):
        for bit in (0, 7):
            flipped = bytes([page[at] ^ (1 << bit)])
            refused(copy(written, to, **{f"at_{at}": flipped}))


def test_a_flipped_bit_of_the_header_is_seen(written: Path, tmp_path: Path) -> None:
    check_bits(written, tmp_path / "t")


def test_another_table_than_the_model_wants() -> None:
    check("t", HEADER)
    check("t", HEADER, rows=300, width=20, dtype=torch.bfloat16)
    for wants, said in (
        ({"rows": 301}, "rows: 300, the model's: 301"),
        ({"width": 40}, "width: 20, the model's: 40"),
        ({"dtype": torch.float32}, "dtype: bfloat16, the model's: float32"),
        ({"dtype": torch.int32}, "dtype: bfloat16, the model's: torch.int32"),
    ):
        with pytest.raises(BadInput, match=said):
            check("t", HEADER, **wants)


# writes that fail


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t"
    with pytest.raises(BadInput, match="cannot be written: No such file or directory"):
        write_table(str(tmp_path / "no" / "t"), rows=1, width=1, dtype=torch.float32, seed=0)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(table_file.os, "fsync", full)
        with pytest.raises(BadInput, match="cannot be written: No space left on device"):
            write_table(str(path), rows=1, width=1, dtype=torch.float32, seed=0)
    with pytest.raises(AssertionError, match="300 rows of 301"):
        write_blocks(str(path), Header(301, 20, torch.bfloat16), random_blocks(HEADER, 1))
    assert list(tmp_path.iterdir()) == []


def test_a_table_replaces_one_of_its_name_when_it_is_whole(written: Path, tmp_path: Path) -> None:
    path = copy(written, tmp_path / "t")
    was = path.read_bytes()
    with pytest.raises(ZeroDivisionError):
        write_blocks(str(path), HEADER, (block / (1 // 0) for block in random_blocks(HEADER, 0)))
    assert path.read_bytes() == was
    write_table(str(path), rows=9, width=1, dtype=torch.float32, seed=0)
    assert len(path.read_bytes()) == 2 * PAGE and list(tmp_path.iterdir()) == [path]


# canaries


@pytest.mark.parametrize("wrong", [lambda n: n, lambda n: n + 4, lambda n: -(-n // 512) * 512])
def test_canary_a_stride_that_is_not_the_best(
    wrong: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "stride_of", wrong)
    with pytest.raises(AssertionError):
        for row_bytes in (36, 500, 520):
            check_stride(row_bytes)


def test_canary_a_checksum_that_nobody_looks_at(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealed = int.from_bytes(written.read_bytes()[PAGE - 4 : PAGE], "little")
    monkeypatch.setattr(table_file, "crc32", lambda data: sealed)
    with pytest.raises(pytest.fail.Exception):
        check_bits(written, tmp_path / "t")
