"""The file of a suffix store: a header, then documents of token ids, a checksum to each."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from cache.types import Ids

MAGIC = b"moorage suffixes"
VERSION = 1
NO_TOKENIZER = bytes(32)

_HEADER = struct.Struct(">16sI32sI")
"""Magic, version, the tokenizer's sha256 or zeros, CRC-32 of what comes before."""
_HEAD = struct.Struct(">4sIII")
"""Of a document: marker, tokens, CRC-32 of the tokens, CRC-32 of what comes before."""
HEADER_BYTES, HEAD_BYTES = _HEADER.size, _HEAD.size
_MARKER = b"\xffdoc"
"""No token id is negative, so a word with the top bit set is never one: where bytes are damaged,
the next document is found by its marker."""
SEPARATOR = b"\xff\xff\xff\xff"
"""After each document in the text that is searched; no token id."""


@dataclass(frozen=True, slots=True)
class Document:
    """A whole document in the file: where its head begins, and its tokens."""

    at: int
    tokens: int

    @property
    def stop(self) -> int:
        """The byte after it."""
        return self.at + HEAD_BYTES + 4 * self.tokens


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a file holds."""

    documents: tuple[Document, ...]
    damaged: int
    """Places between whole documents where something else stands."""
    torn_bytes: int
    """Bytes after the last whole document."""


def head(tokenizer: bytes | None) -> bytes:
    """A file's header."""
    start = _HEADER.pack(MAGIC, VERSION, tokenizer or NO_TOKENIZER, 0)[:-4]
    return start + struct.pack(">I", zlib.crc32(start))


def record(ids: Ids) -> bytes:
    """A document as it stands in the file; its ids are big-endian, as the suffix array wants."""
    assert len(ids) and int(ids.min()) >= 0, "only tokens of text"
    body = ids.astype(">u4").tobytes()
    start = _HEAD.pack(_MARKER, len(ids), zlib.crc32(body), 0)[:-4]
    return start + struct.pack(">I", zlib.crc32(start)) + body


def parse(data: bytes) -> Parsed:
    """The whole documents of a file with a good header; nothing else is taken for tokens."""
    documents: list[Document] = []
    at = end = HEADER_BYTES
    damaged = 0
    while at >= 0:
        found = _document(data, at)
        if found is None:
            at = _next_marker(data, at + 4)
            continue
        damaged += found.at > end
        documents.append(found)
        at = end = found.stop
    return Parsed(tuple(documents), damaged, len(data) - end)


def _document(data: bytes, at: int) -> Document | None:
    """The document whose head begins here, if all of it is here and as it was written."""
    if at + HEAD_BYTES > len(data):
        return None
    marker, tokens, body_sum, head_sum = _HEAD.unpack_from(data, at)
    found = Document(at, tokens)
    if marker != _MARKER or zlib.crc32(data[at : at + 12]) != head_sum or not tokens:
        return None
    if found.stop > len(data):
        return None
    body = memoryview(data)[at + HEAD_BYTES : found.stop]
    return found if zlib.crc32(body) == body_sum else None


def _next_marker(data: bytes, at: int) -> int:
    while (at := data.find(_MARKER, at)) >= 0 and at % 4:
        at += 1
    return at


def refusal(data: bytes, tokenizer: bytes | None) -> str:
    """Why a file of these bytes is not opened; empty when it may be."""
    if len(data) < HEADER_BYTES or not data.startswith(MAGIC):
        return "no suffix store, or one that was cut off"
    _, version, recorded, checksum = _HEADER.unpack_from(data)
    if version > VERSION:
        return f"version {version} is newer than this program, which reads up to {VERSION}"
    if version < VERSION or zlib.crc32(data[: HEADER_BYTES - 4]) != checksum:
        return "its header is damaged"
    if recorded != NO_TOKENIZER and recorded != tokenizer:
        wanted = tokenizer.hex()[:12] if tokenizer else "unknown"
        return f"its tokens are of tokenizer {recorded.hex()[:12]}, not of {wanted}"
    return ""


def unrecorded(data: bytes) -> bool:
    """Whether a file with a good header does not say which tokenizer it is of."""
    return data[20:52] == NO_TOKENIZER


def text_of(data: bytes, found: Parsed) -> bytes:
    """The documents as the suffix array reads them: big-endian ids, a separator after each."""
    view = memoryview(data)
    parts = [
        part for d in found.documents for part in (view[d.at + HEAD_BYTES : d.stop], SEPARATOR)
    ]
    return b"".join(parts)
