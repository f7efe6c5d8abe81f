"""Input files: plain, gzip or zstd by their first bytes, and folders; writing lines"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO, Any

import zstandard

from engine.bad import BadInput

ENDINGS = (".jsonl", ".json", ".jsonl.gz", ".json.gz", ".jsonl.zst", ".json.zst")
"""What is read of a folder."""
_CHUNK = 1 << 20
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


class Malformed(ValueError):
    """What is wrong with a piece of input, before it is known where the piece stood."""


def find_files(paths: Sequence[Path]) -> list[Path]:
    """The files that `paths` name: a folder stands for its input files, in the order of names."""
    files: list[Path] = []
    for path in paths:
        try:
            if not path.is_dir():
                files.append(path)
                continue
            found = sorted(p for p in path.iterdir() if p.name.endswith(ENDINGS) and p.is_file())
        except OSError as error:
            raise BadInput(str(path), None, f"cannot be read: {error.strerror}") from error
        if not found:
            raise BadInput(str(path), None, f"no file in it ends in one of {' '.join(ENDINGS)}")
        files += found
    return files


def stem(path: Path) -> str:
    """A file's name without the endings this module knows."""
    name = path.name
    for ending in (".gz", ".zst", ".jsonl", ".json"):
        name = name.removesuffix(ending)
    return name or path.name


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """(line number from 1, text) of every line that is not blank."""
    rest, number = b"", 0
    for chunk in _chunks(path):
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            number += 1
            if line and not line.isspace():
                yield number, _text(path, number, line)
    if rest and not rest.isspace():
        yield number + 1, _text(path, number + 1, rest)


def read_head(path: Path, nbytes: int) -> str:
    """The first bytes of a file, unpacked; a character cut at their end is left out."""
    head = b""
    for chunk in _chunks(path):
        head += chunk
        if len(head) >= nbytes:
            break
    return head[:nbytes].decode("utf-8", errors="ignore")


def read_document(path: Path) -> Any:
    """The one JSON value a file holds."""
    data = b"".join(_chunks(path))
    if not data or data.isspace():
        raise BadInput(str(path), None, "the file is empty")
    text = _text(path, None, data)
    try:
        return parse_json(text)
    except Malformed as wrong:
        cause = wrong.__cause__
        line = cause.lineno if isinstance(cause, json.JSONDecodeError) else None
        raise BadInput(str(path), line, str(wrong)) from None


def parse_json(text: str) -> Any:
    """JSON as its standard has it: no NaN, no Infinity."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except Malformed:
        raise
    except json.JSONDecodeError as error:
        cut = " (cut off?)" if error.pos >= len(text.rstrip()) else ""
        raise Malformed(f"not JSON: {error.msg} at column {error.colno}{cut}") from error
    except RecursionError:
        raise Malformed("not JSON: nested too deeply") from None
    except ValueError as error:  # an integer of thousands of digits
        raise Malformed(f"not JSON: {error}") from None


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines, packed as the name's ending says; the name is taken only by a finished file.

    The same lines give the same bytes: no time goes into a gzip header.
    """
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as raw, _packed(raw, path.suffix) as out:
        for line in lines:
            out.write(line.encode() + b"\n")
    partial.replace(path)


def _packed(raw: IO[bytes], suffix: str) -> AbstractContextManager[Any]:
    if suffix == ".zst":
        return zstandard.ZstdCompressor(level=10, write_checksum=True).stream_writer(raw)
    if suffix == ".gz":
        return gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0)
    return nullcontext(raw)


def _no_constant(name: str) -> None:
    raise Malformed(f"not JSON: {name} is no number")


def _text(path: Path, line: int | None, data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(str(path), line, f"not UTF-8 at byte {error.start}") from None


def _chunks(path: Path) -> Iterator[bytes]:
    """A file's bytes, unpacked; whatever the file or its packing lacks is BadInput."""
    try:
        with path.open("rb") as raw:
            head = raw.read(len(_ZSTD))
            raw.seek(0)
            if head.startswith(_GZIP):
                yield from _unpack(raw, lambda: zlib.decompressobj(wbits=31))
            elif head == _ZSTD:
                yield from _unpack(raw, zstandard.ZstdDecompressor().decompressobj)
            else:
                yield from iter(lambda: raw.read(_CHUNK), b"")
    except OSError as error:
        raise BadInput(str(path), None, error.strerror or str(error)) from None
    except (zlib.error, zstandard.ZstdError) as error:
        raise BadInput(str(path), None, f"cannot be unpacked: {error}") from None
    except Malformed as wrong:
        raise BadInput(str(path), None, str(wrong)) from None


def _unpack(raw: IO[bytes], start: Callable[[], Any]) -> Iterator[bytes]:
    """Unpack the frames of a file one after another. A cut frame is an error, not an end."""
    frame = start()
    while data := raw.read(_CHUNK):
        while data:
            if frame.eof:
                frame = start()
            yield frame.decompress(data)
            data = frame.unused_data
    if not frame.eof:
        raise Malformed("cannot be unpacked: the file is cut off")
