"""The n-gram table's file: a header of one page, then rows at a stride for direct reads

4,096 bytes   magic, version, dtype, rows, width, stride; zeros; CRC-32 of all that
rows          each at the next multiple of the stride, zeros behind its elements
zeros         to the end of the page
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass

import numpy as np
import torch

from cache.checksum import crc32
from cache.ports import PAGE
from engine.bad import BadInput, Unreadable

MAGIC = b"MOORNGRM"
VERSION = 1
SECTOR = 512
"""Bytes. The least a drive reads; what offset and length of a direct read are multiples of."""
DTYPES = {
    name: getattr(torch, name) for name in ("float32", "bfloat16", "float16", "float8_e4m3fn")
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
BLOCK_ROWS = 4_096
"""Rows that are drawn and written at a time."""

_FIELDS = struct.Struct("<8sI16sQQQ")
_CRC = struct.Struct("<I")


class TableUnreadable(Unreadable):
    """Rows of a table can't be had: the drive fails, or the file is not what it was.

    Raised by `rows`, and so by an engine's prefill and verify: the turn under way fails, its slot
    forgets what it holds, and the next request is served as any other.
    """

    def __init__(self, path: str, why: str) -> None:
        super().__init__(path, f"rows of the n-gram table can't be read: {why}")


@dataclass(frozen=True, slots=True)
class Header:
    """What a table's file says of itself."""

    rows: int
    width: int
    """Elements of a row."""
    dtype: torch.dtype

    @property
    def row_bytes(self) -> int:
        """Bytes of a row's elements."""
        return self.width * self.dtype.itemsize

    @property
    def stride(self) -> int:
        """Bytes from a row to the next."""
        return stride_of(self.row_bytes)

    @property
    def file_bytes(self) -> int:
        """Bytes of the whole file, in whole pages."""
        return PAGE + -(-self.rows * self.stride // PAGE) * PAGE

    def packed(self) -> bytes:
        """The page at the file's start."""
        name = NAMES[self.dtype].encode()
        fields = _FIELDS.pack(MAGIC, VERSION, name, self.rows, self.width, self.stride)
        checked = fields.ljust(PAGE - _CRC.size, b"\0")
        return checked + _CRC.pack(crc32(checked))


def stride_of(row_bytes: int) -> int:
    """The smallest stride at which no row lies in more sectors than its bytes need.

    A row is whole sectors and a rest. If rows begin at multiples of a power of two that is no
    smaller than the rest, the rest never reaches over a sector's end.
    """
    assert row_bytes > 0
    whole, rest = divmod(row_bytes - 1, SECTOR)
    return whole * SECTOR + (1 << rest.bit_length())


def unpacked(path: str, page: bytes, file_bytes: int) -> Header:
    """The header of a file of `file_bytes` that begins with `page`; raises BadInput."""
    if len(page) < PAGE:
        raise BadInput(path, None, f"{file_bytes:,} bytes are no n-gram table: it has no header")
    magic, version, name, rows, width, stride = _FIELDS.unpack_from(page)
    if magic != MAGIC:
        raise BadInput(path, None, "not an n-gram table")
    if version != VERSION:
        raise BadInput(path, None, f"an n-gram table of version {version}, not {VERSION}")
    if crc32(page[: -_CRC.size]) != _CRC.unpack(page[-_CRC.size :])[0]:
        raise BadInput(path, None, "the header's checksum is wrong")
    dtype = DTYPES.get(name.rstrip(b"\0").decode("ascii", "replace"))
    if dtype is None or not rows or not width:
        raise BadInput(path, None, f"a table of {rows} rows of {width} {name!r} is none")
    header = Header(rows, width, dtype)
    if stride != header.stride:
        raise BadInput(path, None, f"rows every {stride:,} bytes, not every {header.stride:,}")
    if file_bytes != header.file_bytes:
        what = f"{file_bytes:,} bytes, {rows:,} rows make {header.file_bytes:,}"
        raise BadInput(path, None, what)
    return header


def check(
    path: str,
    header: Header,
    *,
    rows: int | None = None,
    width: int | None = None,
    dtype: torch.dtype | None = None,
) -> None:
    """Raise BadInput where a table is another than the model wants."""
    has = (header.rows, header.width, NAMES[header.dtype])
    wants = (rows, width, None if dtype is None else NAMES.get(dtype, str(dtype)))
    for what, a, b in zip(("rows", "width", "dtype"), has, wants, strict=True):
        if b is not None and a != b:
            raise BadInput(path, None, f"the n-gram table's {what}: {a}, the model's: {b}")


def random_blocks(header: Header, seed: int) -> Iterator[torch.Tensor]:
    """A random table's rows, BLOCK_ROWS at a time: normal, drawn in float32, each block from the
    seed and its own number."""
    for block, at in enumerate(range(0, header.rows, BLOCK_ROWS)):
        shape = (min(BLOCK_ROWS, header.rows - at), header.width)
        noise = np.random.default_rng((seed, block)).standard_normal(shape, np.float32)
        yield torch.from_numpy(noise).to(header.dtype)


def write_blocks(path: str, header: Header, blocks: Iterable[torch.Tensor]) -> None:
    """Write a table of these rows, in blocks [n, width] of the header's dtype; raises BadInput.

    It has its name when all of it is on the drive, and leaves nothing in the page cache.
    """
    part = f"{path}.part"
    try:
        with ExitStack() as undo:
            undo.callback(_remove, part)
            _write(part, header, blocks)
            os.replace(part, path)
            undo.pop_all()
    except OSError as error:
        raise BadInput(path, None, f"cannot be written: {error.strerror}") from None


def _remove(part: str) -> None:
    with suppress(OSError):
        os.unlink(part)


def _write(part: str, header: Header, blocks: Iterable[torch.Tensor]) -> None:
    with open(part, "wb") as file:
        file.write(header.packed())
        done = 0
        for block in blocks:
            assert block.dtype == header.dtype and block.shape[1:] == (header.width,), block.shape
            padded = np.zeros((len(block), header.stride), np.uint8)
            padded[:, : header.row_bytes] = block.contiguous().view(torch.uint8).numpy()
            file.write(padded.data)
            done += len(block)
        assert done == header.rows, f"{done} rows of {header.rows}"
        file.write(bytes(header.file_bytes - file.tell()))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
