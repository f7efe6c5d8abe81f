"""The header of a file: a checked prefix, then JSON that says what lies where in it.

    32 bytes   magic, version, header lines, bytes of JSON, its CRC-32, CRC-32 of these 24 bytes, 0
    JSON       kind, meta, nbytes (of the whole file), sections; zeros to the end of the line
    sections   each at the next multiple of 64; zeros between them and to the end of the page

A line is a page. Version 1 has exactly one, and for the rest is read alike.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from cache.checksum import crc32
from cache.ports import PAGE

MAGIC = b"MOORAGE\0"
VERSION = 2
ALIGN = 64
"""Bytes. A vector load of any processor; a multiple of every item's size."""
LINES_MAX = 1 << 14
"""64 MiB of header. More is no header of ours, whatever its checksum says."""

_PREFIX = struct.Struct("<8s5I")
_CHECKED = struct.Struct("<8s4I")
_PREFIX_BYTES = 32
_NAMED = (
    "bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 bfloat16 float32 float64 "
    "complex64 complex128 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu"
)
DTYPES: Mapping[str, torch.dtype] = {name: getattr(torch, name) for name in _NAMED.split()}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Bad:
    """Why a file can't be used; at most one of the flags is set."""

    why: str
    future: bool = False
    """Sound, and written by a later version: not ours to read, to overwrite or to delete."""
    foreign: bool = False
    """It does not begin as a file of ours does."""
    error: str = ""
    """What the system said when it could not be read; whether it is sound is not known then."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A section as it lies in a file."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    """Bytes from the start of the file."""
    crc: int
    """CRC-32 of its bytes."""

    @property
    def nbytes(self) -> int:
        """Bytes it takes."""
        return prod(self.shape) * self.dtype.itemsize

    @property
    def stop(self) -> int:
        """First byte after it."""
        return self.offset + self.nbytes

    def entry(self) -> dict[str, Any]:
        """As the JSON has it; equally long whatever the checksum."""
        return {
            "name": self.name,
            "dtype": _NAMES[self.dtype],
            "shape": list(self.shape),
            "offset": self.offset,
            "nbytes": self.nbytes,
            "crc": f"{self.crc:08x}",
        }


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says of itself, once it is known to be sound."""

    kind: str
    version: int
    meta: dict[str, Any]
    sections: tuple[Stored, ...]
    nbytes: int
    """Of the whole file, in whole pages."""
    header_bytes: int
    """Of the header, in whole pages."""

    @staticmethod
    def parse(first: bytes | memoryview) -> Header | Bad:
        """The header at the start of `first`, which must hold all of it; Bad says what is wrong."""
        prefix = Prefix.parse(first)
        if isinstance(prefix, Bad):
            return prefix
        if len(first) < prefix.header_bytes:
            return Bad(f"its header is cut off at byte {len(first)}")
        body = bytes(first[_PREFIX_BYTES : prefix.header_bytes])
        text, rest = body[: prefix.json_bytes], body[prefix.json_bytes :]
        if crc32(text) != prefix.json_crc:
            return Bad("its header is damaged")
        if rest.strip(b"\0"):
            return Bad("its header is followed by bytes that are not zero")
        try:
            return _checked(json.loads(text), prefix)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            return Bad(f"its header makes no sense: {type(error).__name__} {error}")

    def json(self) -> bytes:
        """Its JSON; equally long whatever the checksums."""
        body = {
            "kind": self.kind,
            "meta": self.meta,
            "nbytes": self.nbytes,
            "sections": [section.entry() for section in self.sections],
        }
        return json.dumps(body, separators=(",", ":"), allow_nan=False).encode()

    def encoded(self) -> bytes:
        """All its lines, to be written at the start of the file."""
        text, lines = self.json(), self.header_bytes // PAGE
        checked = _CHECKED.pack(MAGIC, self.version, lines, len(text), crc32(text))
        head = checked + crc32(checked).to_bytes(4, "little")
        whole = head.ljust(_PREFIX_BYTES, b"\0") + text
        assert len(whole) <= self.header_bytes
        return whole.ljust(self.header_bytes, b"\0")


@dataclass(frozen=True, slots=True)
class Prefix:
    """The first bytes of a file: how much of it is header."""

    version: int
    header_bytes: int
    json_bytes: int
    json_crc: int

    @staticmethod
    def parse(first: bytes | memoryview) -> Prefix | Bad:
        """The prefix at the start of `first`, if this program can read what follows."""
        start = bytes(first[:_PREFIX_BYTES])
        if not start.startswith(MAGIC):
            return _without_magic(start)
        if len(start) < _PREFIX_BYTES:
            return Bad("its header is cut off")
        _, version, lines, json_bytes, json_crc = _CHECKED.unpack_from(start)
        if crc32(start[: _CHECKED.size]) != _PREFIX.unpack_from(start)[-1]:
            return Bad("its header is damaged")
        if version > VERSION:
            why = f"version {version} is newer than this program, which reads up to {VERSION}"
            return Bad(why, future=True)
        fits = 0 < lines <= LINES_MAX and json_bytes <= lines * PAGE - _PREFIX_BYTES
        if not version or not fits or (version == 1 and lines != 1) or any(start[_PREFIX.size :]):
            return Bad("its header is damaged")
        return Prefix(version, lines * PAGE, json_bytes, json_crc)


def _without_magic(start: bytes) -> Bad:
    """A file that does not begin as ours do: somebody else's, unless the rest says otherwise."""
    checked = MAGIC + start[len(MAGIC) : _CHECKED.size]
    ours = len(start) == _PREFIX_BYTES and crc32(checked) == _PREFIX.unpack_from(start)[-1]
    if ours:
        return Bad("its first bytes are damaged")
    return Bad("no file of moorage", foreign=True)


def lines_for(json_bytes: int) -> int:
    """Pages that a header with so much JSON takes."""
    return -(-(_PREFIX_BYTES + json_bytes) // PAGE)


def aligned(offset: int, to: int = ALIGN) -> int:
    """The first multiple at or after `offset`."""
    return -(-offset // to) * to


def _checked(body: dict[str, Any], prefix: Prefix) -> Header:
    """The header that a JSON describes; raises ValueError and its like where it describes none."""
    kind, meta, nbytes = body["kind"], body["meta"], body["nbytes"]
    if not isinstance(kind, str) or not isinstance(meta, dict):
        raise ValueError("kind or meta")
    sections = tuple(_section(entry) for entry in body["sections"])
    if len({section.name for section in sections}) != len(sections):
        raise ValueError("two sections of one name")
    at = prefix.header_bytes
    for section in sections:
        if section.offset != aligned(at):
            raise ValueError(f"{section.name} lies at {section.offset}, not at {aligned(at)}")
        at = section.stop
    if type(nbytes) is not int or nbytes != aligned(at, PAGE):
        raise ValueError(f"{nbytes} bytes, not {aligned(at, PAGE)}")
    return Header(kind, prefix.version, meta, sections, nbytes, prefix.header_bytes)


def _section(entry: dict[str, Any]) -> Stored:
    name, shape, offset, crc = (entry[key] for key in ("name", "shape", "offset", "crc"))
    if not isinstance(name, str) or not isinstance(crc, str) or len(crc) != 8:
        raise ValueError("a section's name or checksum")
    if not all(type(number) is int and number >= 0 for number in (*shape, offset)):
        raise ValueError(f"{name}: shape or offset")
    section = Stored(name, DTYPES[entry["dtype"]], tuple(shape), offset, int(crc, 16))
    if section.entry() != entry:
        raise ValueError(f"{name}: {entry}")
    return section
