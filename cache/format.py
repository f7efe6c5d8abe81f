"""Files of the caches: laid out, sealed with checksums, read back only when they are whole."""

from __future__ import annotations

import errno
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from cache.checksum import crc32
from cache.header import DTYPES, VERSION, Bad, Header, Prefix, Stored, aligned, lines_for
from cache.ports import PAGE, Files
from cache.saving import Saving, said, save_now

__all__ = (
    "Bad",
    "Header",
    "Layout",
    "Part",
    "Saving",
    "read_header",
    "read_record",
    "save_now",
    "tensors_of",
    "unsealed",
    "write_record",
)


@dataclass(frozen=True, slots=True)
class Part:
    """What a section of a file is."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the parts of a file lie in its image, and how the image becomes the file.

    To read a file, lay its parts out with the meta of the file's own header.
    """

    kind: str
    meta: Mapping[str, Any]
    """Any JSON object; 64-bit numbers as text."""
    parts: Sequence[Part]
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Names of sections in files of version 1, to the parts they are."""
    absent: Collection[str] = ()
    """Parts that files of version 1 lack, and that are all zeros for whatever such a file holds."""
    header: Header = field(init=False)
    """The file's header, but for the checksums."""

    def __post_init__(self) -> None:
        parts = tuple(self.parts)
        assert len({part.name for part in parts}) == len(parts), "two parts of one name"
        assert all(part.dtype in DTYPES.values() for part in parts), "a type that no file holds"
        object.__setattr__(self, "parts", parts)
        header = _laid_out(self.kind, dict(self.meta), parts, 1)
        # Offsets grow with the header and the header with its offsets; neither ever shrinks.
        while (lines := lines_for(len(header.json()))) * PAGE > header.header_bytes:
            header = _laid_out(self.kind, dict(self.meta), parts, lines)
        object.__setattr__(self, "header", header)

    @property
    def nbytes(self) -> int:
        """Bytes of the file: whole pages."""
        return self.header.nbytes

    @property
    def header_bytes(self) -> int:
        """Bytes of the file's header: whole pages."""
        return self.header.header_bytes

    def tensors(self, buffer: memoryview) -> list[torch.Tensor]:
        """The parts as tensors over a file's image, in their order, to be filled or read."""
        return [_over(buffer, section) for section in self.header.sections]

    def seal(self, buffer: memoryview) -> memoryview:
        """The finished image, buffer[:nbytes]: gaps zero, checksums computed, header in place."""
        assert len(buffer) >= self.nbytes
        image, at, sections = buffer[: self.nbytes], self.header_bytes, list[Stored]()
        for section in self.header.sections:
            image[at : section.offset] = bytes(section.offset - at)
            at = section.stop
            sections.append(replace(section, crc=crc32(image[section.offset : at])))
        image[at:] = bytes(self.nbytes - at)
        header = replace(self.header, sections=tuple(sections))
        image[: self.header_bytes] = header.encoded()
        return image


def _laid_out(kind: str, meta: dict[str, Any], parts: Sequence[Part], lines: int) -> Header:
    at, sections = lines * PAGE, list[Stored]()
    for part in parts:
        sections.append(Stored(part.name, part.dtype, part.shape, aligned(at), 0))
        at = sections[-1].stop
    return Header(kind, VERSION, meta, tuple(sections), aligned(at, PAGE), lines * PAGE)


def _over(buffer: memoryview, section: Stored) -> torch.Tensor:
    """A section of an image as a tensor over its bytes."""
    assert not buffer.readonly and len(buffer) >= section.stop
    count = section.nbytes // section.dtype.itemsize
    if not count:
        return torch.empty(section.shape, dtype=section.dtype)
    flat = torch.frombuffer(buffer, dtype=section.dtype, count=count, offset=section.offset)
    return flat.view(section.shape)


def tensors_of(header: Header, image: memoryview, layout: Layout) -> list[torch.Tensor]:
    """The layout's parts in a file that `unsealed` found whole, over its image.

    In a file of this version they are `layout.tensors(image)`. In one of version 1 they lie
    elsewhere, and what it lacks comes as zeros of their own.
    """
    if header.version == VERSION:
        return layout.tensors(image)
    found = {layout.renamed.get(section.name, section.name): section for section in header.sections}
    return [
        _over(image, found[part.name])
        if part.name in found
        else torch.zeros(part.shape, dtype=part.dtype)
        for part in layout.parts
    ]


def unsealed(header: Header, image: memoryview, layout: Layout) -> str:
    """Why a file's image is not what the layout says, whole and unchanged; empty when it is.

    `header` is what was read of the file before; the image must begin with the same one. Every
    byte is looked at, zeros between the sections too. Changes nothing, raises nothing.
    """
    if len(image) < header.nbytes:
        return f"it is cut off at byte {len(image)}"
    own = Header.parse(image)
    if isinstance(own, Bad):
        return own.why
    if own != header:
        return "it is another file than the one that was looked at before"
    if why := _differs(header, layout):
        return why
    at = header.header_bytes
    for section in header.sections:
        if bytes(image[at : section.offset]).strip(b"\0"):
            return f"bytes before {section.name} are not zero"
        at = section.stop
        if crc32(image[section.offset : at]) != section.crc:
            return f"{section.name} is damaged"
    return (
        "bytes after its end are not zero" if bytes(image[at : header.nbytes]).strip(b"\0") else ""
    )


def _differs(header: Header, layout: Layout) -> str:
    """What of a file's description is not the layout's."""
    if header.kind != layout.kind:
        return f"it is a file of kind {header.kind}, not {layout.kind}"
    old = header.version != VERSION
    wanted = [part for part in layout.parts if not (old and part.name in layout.absent)]
    renamed = layout.renamed if old else {}
    found = [Part(renamed.get(s.name, s.name), s.dtype, s.shape) for s in header.sections]
    for have, want in zip(found, wanted, strict=False):
        if have != want:
            return f"it has {_described(have)} where {_described(want)} belongs"
    if len(found) != len(wanted):
        return f"it has {len(found)} sections, not {len(wanted)}"
    if not old and header.header_bytes != layout.header_bytes:
        return "its sections lie elsewhere"
    return ""


def _described(part: Part) -> str:
    return f"{part.name} {part.dtype} {list(part.shape)}"


def read_header(files: Files, name: str) -> Header | Bad:
    """The header of a file that has all its bytes; of those only the header's are read."""
    try:
        size = files.size(name)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return Bad("no file of moorage, but a link, a directory or such", foreign=True)
        return Bad(f"cannot be read: {said(error)}", error=said(error))
    try:
        handle = files.open(name)
        try:
            first = files.read(handle, 0, PAGE)
            prefix = Prefix.parse(first)
            if isinstance(prefix, Bad):
                return prefix
            if PAGE < prefix.header_bytes <= size:
                first = files.read(handle, 0, prefix.header_bytes)
        finally:
            files.close(handle)
    except OSError as error:
        return Bad(f"cannot be read: {said(error)}", error=said(error))
    header = Header.parse(first)
    if isinstance(header, Header) and header.nbytes != size:
        return Bad(f"it has {size} bytes, not {header.nbytes}")
    return header


def write_record(files: Files, name: str, kind: str, meta: Mapping[str, Any]) -> str:
    """Write a file that is a header alone; why that failed, or empty."""
    layout = Layout(kind, meta, ())
    try:
        buffer = files.buffer(layout.nbytes)
    except OSError as error:
        return said(error)
    return save_now(files, name, layout.seal(buffer))


def read_record(files: Files, name: str, kind: str) -> dict[str, Any] | Bad:
    """The meta of a record of this kind."""
    header = read_header(files, name)
    if isinstance(header, Bad):
        return header
    if header.kind != kind or header.sections:
        return Bad(f"it is a file of kind {header.kind}, not a record of kind {kind}")
    return header.meta
