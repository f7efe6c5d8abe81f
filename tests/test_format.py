"""The file format: what is written is read back, and what is not whole is never accepted.

Goal: round trips of any parts; one flipped bit at any byte, a cut at any 64 bytes, exchanged
sections, stale and foreign files are refused; files of format 1 are read.
Method: images in memory against a writer of format 1 spelled out byte by byte, zlib as the
checksum's oracle, and hypothesis over parts. Canaries accept without looking and must go red.
"""

from __future__ import annotations

import json
import mmap
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from old_files import format_1

from cache.checksum import crc32
from cache.format import Bad, Header, Layout, Part, tensors_of, unsealed
from cache.header import ALIGN, DTYPES, LINES_MAX, MAGIC, VERSION
from cache.ports import PAGE

PARTS = (
    Part("state", torch.float32, (2, 3, 5)),
    Part("tail", torch.bfloat16, (7, 3)),
    Part("packed", torch.uint8, (33,)),
    Part("none", torch.float16, (0, 4)),
    Part("mark", torch.int64, ()),
)
META = {"hash": "00ff00ff00ff00ff", "line": 4096, "chunks": ["0123456789abcdef"]}


def buffer_of(nbytes: int) -> memoryview:
    """Page-aligned memory, full of what was there before."""
    buffer = memoryview(mmap.mmap(-1, nbytes))
    buffer[:] = b"\xa5" * nbytes
    return buffer


def filled(tensors: Sequence[torch.Tensor], seed: int = 0) -> list[torch.Tensor]:
    """Random bytes into every tensor; copies of what they then hold."""
    generator = torch.Generator().manual_seed(seed)
    for tensor in tensors:
        flat = tensor.view(-1)
        high = 2 if tensor.dtype is torch.bool else 256
        raw = torch.randint(high, (flat.nbytes,), generator=generator, dtype=torch.uint8)
        flat.copy_(raw.view(tensor.dtype))
    return [tensor.clone() for tensor in tensors]


def sealed(layout: Layout, seed: int = 0) -> tuple[memoryview, list[torch.Tensor]]:
    """A file's image with random content, and the content."""
    buffer = buffer_of(layout.nbytes + PAGE)
    held = filled(layout.tensors(buffer), seed)
    return layout.seal(buffer), held


def header_of(image: bytes | memoryview) -> Header:
    """The header of a sound image."""
    header = Header.parse(image)
    assert isinstance(header, Header), header
    return header


def same(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> bool:
    """Equal in types, shapes and bits."""
    return len(a) == len(b) and all(
        x.dtype == y.dtype
        and x.shape == y.shape
        and torch.equal(x.reshape(-1).view(torch.uint8), y.reshape(-1).view(torch.uint8))
        for x, y in zip(a, b, strict=True)
    )


def accepts(image: memoryview, layout: Layout, of: Header | None = None) -> bool:
    """Whether a reader takes these bytes: the header it finds, or read before, then all of it."""
    header = of or Header.parse(image)
    return isinstance(header, Header) and unsealed(header, image, layout) == ""


Takes = Callable[[memoryview, Layout], bool]


# round trips

shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
any_parts = st.lists(
    st.builds(Part, st.text(max_size=12), st.sampled_from(list(DTYPES.values())), shapes),
    max_size=6,
    unique_by=lambda part: part.name,
)
any_meta = st.dictionaries(
    st.text(max_size=8), st.integers(-(2**63), 2**63) | st.text(max_size=600) | st.none()
)


@given(st.text(max_size=10), any_meta, any_parts, st.integers(0, 2**32))
def test_what_is_sealed_is_read_back(
    kind: str, meta: dict[str, Any], parts: list[Part], seed: int
) -> None:
    layout = Layout(kind, meta, parts)
    image, held = sealed(layout, seed)
    header = header_of(image)
    assert unsealed(header, image, layout) == ""
    again = Layout(kind, header.meta, parts)
    assert same(again.tensors(image), held)
    assert (header.kind, header.meta, header.version) == (kind, meta, VERSION)
    assert len(image) == layout.nbytes == header.nbytes and layout.nbytes % PAGE == 0
    assert all(section.offset % ALIGN == 0 for section in header.sections)


def test_tensors_are_the_buffers_own_bytes() -> None:
    layout = Layout("anchor", META, PARTS)
    buffer = buffer_of(layout.nbytes)
    layout.tensors(buffer)[2].fill_(7)
    section = layout.header.sections[2]
    assert bytes(buffer[section.offset : section.stop]) == b"\7" * 33


def test_a_header_of_several_lines() -> None:
    """Each section's offset grows with the header, and the header with its offsets."""
    parts = [Part(f"section.{n}", torch.float16, (n,)) for n in range(75)]
    layout = Layout("anchor", {"chunks": [f"{n:016x}" for n in range(256)]}, parts)
    image, held = sealed(layout)
    header = header_of(image)
    assert header.header_bytes == layout.header_bytes > 2 * PAGE
    assert unsealed(header, image, layout) == "" and same(layout.tensors(image), held)
    cut = Header.parse(image[:PAGE])
    assert isinstance(cut, Bad) and "cut off" in cut.why


@pytest.mark.parametrize("extra", range(0, 140, 7))
def test_a_header_that_just_fits_its_line(extra: int) -> None:
    """Around the size where a second line begins."""
    layout = Layout("rows", {"x": "y" * (3_900 + extra)}, PARTS[:1])
    image, _ = sealed(layout)
    assert accepts(image, layout) and layout.header_bytes in (PAGE, 2 * PAGE)


def test_the_checksum_is_zlibs() -> None:
    data = torch.randint(256, (70_001,), dtype=torch.uint8).numpy().tobytes()
    for size in (0, 1, 63, 64, 65, 4_096, 70_001):
        assert crc32(data[:size]) == zlib.crc32(data[:size])
        assert crc32(memoryview(data)[size:], crc32(data[:size])) == zlib.crc32(data)


def test_the_prefix_is_as_documented() -> None:
    """Spelled out again, so that another program could read it."""
    image, _ = sealed(Layout("rows", META, PARTS))
    magic, version, lines, size, body, own = struct.unpack_from("<8sIIIII", image)
    text = bytes(image[32 : 32 + size])
    assert (magic, version, lines) == (MAGIC, 2, 1)
    assert body == zlib.crc32(text) and own == zlib.crc32(image[:24])
    found = json.loads(text)
    first = found["sections"][0]
    data = image[first["offset"] : first["offset"] + first["nbytes"]]
    assert int(first["crc"], 16) == zlib.crc32(data) and found["nbytes"] == len(image)


# damage

SMALL = Layout("anchor", META, (Part("a", torch.int16, (9,)), Part("b", torch.uint8, (5,))))


def survivors(image: memoryview, layout: Layout, takes: Takes) -> list[int]:
    """Bytes of which one bit may be flipped without being noticed."""
    passed = []
    for at in range(len(image)):
        bit = 1 << (at * 5 % 8)
        image[at] ^= bit
        if takes(image, layout):
            passed.append(at)
        image[at] ^= bit
    return passed


def test_one_flipped_bit_anywhere_is_refused() -> None:
    image, _ = sealed(SMALL)
    assert survivors(image, SMALL, accepts) == []
    assert accepts(image, SMALL), "the flips were undone"


def test_one_flipped_bit_is_refused_with_the_header_of_before() -> None:
    image, _ = sealed(SMALL)
    header = header_of(image)
    assert survivors(image, SMALL, lambda i, of: accepts(i, of, header)) == []


def test_a_cut_anywhere_is_refused() -> None:
    image, _ = sealed(SMALL)
    header = header_of(image)
    for size in range(0, len(image), 64):
        assert not accepts(image[:size], SMALL) and not accepts(image[:size], SMALL, header)
        zeroed = memoryview(bytearray(image[:size]) + bytes(len(image) - size))
        assert accepts(zeroed, SMALL) == (bytes(zeroed) == bytes(image))


def test_exchanged_sections_are_refused() -> None:
    pair = Layout("rows", {}, (Part("K", torch.int32, (16,)), Part("V", torch.int32, (16,))))
    image, _ = sealed(pair)
    a, b = (slice(s.offset, s.stop) for s in pair.header.sections)
    image[a], image[b] = bytes(image[b]), bytes(image[a])
    assert unsealed(header_of(image), image, pair) == "K is damaged"


def test_a_file_under_another_ones_name_is_refused() -> None:
    """A stale or misdirected file is sound in itself; the header that was read before tells."""
    image, _ = sealed(Layout("rows", {"hash": "1" * 16}, PARTS))
    other, _ = sealed(Layout("rows", {"hash": "2" * 16}, PARTS))
    layout = Layout("rows", {"hash": "1" * 16}, PARTS)
    assert "another file" in unsealed(header_of(image), other, layout)
    younger, _ = sealed(layout, seed=1)
    assert "another file" in unsealed(header_of(image), younger, layout)


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (Layout("rows", META, PARTS), "kind"),
        (Layout("anchor", META, PARTS[:-1]), "sections"),
        (Layout("anchor", META, (*PARTS, Part("z", torch.int8, (0,)))), "sections"),
        (Layout("anchor", META, (PARTS[1], PARTS[0], *PARTS[2:])), "belongs"),
        (Layout("anchor", META, (Part("s", torch.float32, (2, 3, 5)), *PARTS[1:])), "belongs"),
        (Layout("anchor", META, (Part("state", torch.int32, (2, 3, 5)), *PARTS[1:])), "belongs"),
        (Layout("anchor", META, (Part("state", torch.float32, (6, 5)), *PARTS[1:])), "belongs"),
        (Layout("anchor", {"x": "y" * PAGE}, PARTS), "elsewhere"),
    ],
)
def test_another_layout_is_refused(other: Layout, why: str) -> None:
    image, _ = sealed(Layout("anchor", META, PARTS))
    assert why in unsealed(header_of(image), image, other)


def canary_no_checksums(image: memoryview, layout: Layout) -> bool:
    """A reader that believes a sound header."""
    return isinstance(Header.parse(image), Header)


def canary_no_gaps(image: memoryview, layout: Layout) -> bool:
    """A reader that checks sections and header, and not what lies between."""
    header = Header.parse(image)
    return isinstance(header, Header) and all(
        crc32(image[s.offset : s.stop]) == s.crc for s in header.sections
    )


@pytest.mark.parametrize("takes", [canary_no_checksums, canary_no_gaps])
def test_canary_flips_pass_a_reader_that_looks_at_less(takes: Takes) -> None:
    image, _ = sealed(SMALL)
    assert survivors(image, SMALL, takes)


def test_canary_a_reader_without_the_header_of_before_takes_a_stale_file() -> None:
    younger, _ = sealed(SMALL, seed=1)
    assert accepts(younger, SMALL)


# what is not ours, or not yet


def forged(body: Any, *, version: int = VERSION, lines: int = 1, size: int = 2 * PAGE) -> bytes:
    """A file whose checksums are right, whatever it says."""
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    start = struct.pack("<8sIIII", MAGIC, version, lines, len(text), zlib.crc32(text))
    return (start + struct.pack("<II", zlib.crc32(start), 0) + text).ljust(size, b"\0")


def test_a_future_version_is_told_from_damage() -> None:
    found = Header.parse(forged({"any": "thing"}, version=VERSION + 1, lines=9_999))
    assert isinstance(found, Bad) and found.future and not found.foreign and "newer" in found.why
    broken = bytearray(forged({}, version=VERSION + 1))
    broken[8] ^= 4
    found = Header.parse(bytes(broken))
    assert isinstance(found, Bad) and not found.future, "a damaged version is no future one"


@pytest.mark.parametrize("data", [b"", b"MOOR", b"#!/bin/sh\n", bytes(PAGE), b"\x7fELF" * 64])
def test_a_foreign_file_is_told_from_damage(data: bytes) -> None:
    found = Header.parse(data)
    assert isinstance(found, Bad) and found.foreign and not found.future


def test_a_file_of_ours_without_its_magic_is_damaged_and_not_foreign() -> None:
    """Whatever stands there instead: the prefix's checksum tells whose it was."""
    whole = forged({"any": "thing"})
    for at in range(8):
        for bit in range(8):
            data = bytearray(whole)
            data[at] ^= 1 << bit
            found = Header.parse(bytes(data))
            assert isinstance(found, Bad) and not found.foreign and not found.future
    found = Header.parse(bytes(8) + whole[8:])
    assert isinstance(found, Bad) and not found.foreign


ENTRY = {"name": "a", "dtype": "int16", "shape": [2], "offset": PAGE, "nbytes": 4, "crc": "0" * 8}
WHOLE = {"kind": "rows", "meta": {}, "nbytes": 2 * PAGE, "sections": [ENTRY]}


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[" * 3_000,
        b"\xff\xfe",
        b'{"kind": ' + b"9" * 4_000 + b"}",
        [],
        None,
        {},
        WHOLE | {"kind": 5},
        WHOLE | {"meta": []},
        WHOLE | {"nbytes": PAGE},
        WHOLE | {"nbytes": 2.0 * PAGE},
        WHOLE | {"sections": {}, "nbytes": 7},
        WHOLE | {"sections": 5},
        WHOLE | {"sections": ["a"]},
        WHOLE | {"sections": [ENTRY, ENTRY]},
        *(
            WHOLE | {"sections": [ENTRY | change]}
            for change in (
                {"name": 1},
                {"dtype": "float5"},
                {"dtype": []},
                {"shape": [-2]},
                {"shape": [True, 2]},
                {"shape": [1 << 62]},
                {"shape": "2"},
                {"offset": PAGE + 64},
                {"offset": 0},
                {"nbytes": 5},
                {"crc": "0"},
                {"crc": "zzzzzzzz"},
                {"crc": 0},
                {"more": 1},
            )
        ),
    ],
)
def test_nonsense_with_sound_checksums_is_refused(body: Any) -> None:
    found = Header.parse(forged(body))
    assert isinstance(found, Bad) and not found.future and not found.foreign


@pytest.mark.parametrize(("version", "lines"), [(0, 1), (1, 2), (2, 0), (2, LINES_MAX + 1)])
def test_a_prefix_that_cannot_be_is_refused(version: int, lines: int) -> None:
    assert isinstance(Header.parse(forged(WHOLE)), Header), "the body itself is sound"
    assert isinstance(Header.parse(forged(WHOLE, version=version, lines=lines)), Bad)


@given(st.binary(max_size=200), st.integers(0, 60))
def test_any_bytes_are_refused_and_nothing_is_raised(data: bytes, keep: int) -> None:
    whole = forged(WHOLE)
    assert isinstance(Header.parse(data), Bad)
    assert isinstance(Header.parse(whole[:keep] + data), Bad)


# format 1

OLD = {"gdn.S": "S", "gdn.conv": "conv"}


def old_anchor() -> tuple[memoryview, dict[str, torch.Tensor]]:
    state = {"S": torch.randn(2, 4, 4), "conv": torch.randn(2, 6, 3).to(torch.bfloat16)}
    return memoryview(bytearray(format_1("anchor", META, state))), state


def new_anchor(meta: Mapping[str, Any], *, absent: Sequence[str] = ("shift",)) -> Layout:
    parts = (
        Part("gdn.S", torch.float32, (2, 4, 4)),
        Part("gdn.conv", torch.bfloat16, (2, 6, 3)),
        Part("shift", torch.int64, (1,)),
    )
    renamed = {old: new for new, old in OLD.items()}
    return Layout("anchor", meta, parts, renamed, absent)


def test_an_anchor_of_format_1_is_read() -> None:
    image, state = old_anchor()
    header = header_of(image)
    layout = new_anchor(header.meta)
    assert header.version == 1 and unsealed(header, image, layout) == ""
    found = tensors_of(header, image, layout)
    assert same(found, [state["S"], state["conv"], torch.zeros(1, dtype=torch.int64)])


def test_a_chunk_of_format_1_is_read() -> None:
    rows = {"ids": torch.arange(8, dtype=torch.int32), "K": torch.randn(8, 3)}
    image = memoryview(bytearray(format_1("rows", META, rows)))
    header = header_of(image)
    parts = [Part(name, rows[name].dtype, tuple(rows[name].shape)) for name in rows]
    layout = Layout("rows", header.meta, parts)
    assert unsealed(header, image, layout) == ""
    assert same(tensors_of(header, image, layout), list(rows.values()))


def test_what_format_1_lacked_is_not_made_up() -> None:
    """A section that is not named as absent then must be there."""
    image, _ = old_anchor()
    header = header_of(image)
    assert "sections" in unsealed(header, image, new_anchor(header.meta, absent=()))
    plain = Layout("anchor", header.meta, new_anchor({}).parts)
    assert "belongs" in unsealed(header, image, plain)


def test_format_2_may_not_lack_what_format_1_lacked() -> None:
    whole = new_anchor(META)
    image, _ = sealed(Layout("anchor", META, whole.parts[:2]))
    assert "sections" in unsealed(header_of(image), image, whole)
    image, _ = sealed(Layout("anchor", META, [Part("S", torch.float32, (2, 4, 4))]))
    assert "belongs" in unsealed(header_of(image), image, whole)


def test_one_flipped_bit_of_format_1_is_refused() -> None:
    image, _ = old_anchor()
    layout = new_anchor(META)
    assert accepts(image, layout) and survivors(image, layout, accepts) == []
