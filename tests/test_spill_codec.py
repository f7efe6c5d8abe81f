"""The codec of byte planes: what comes back, what stays as it is, and what damage is told from.

Method: random planes, frame sizes and modes there and back, with workers that do work in a random
order as with threads; zstd's own one-shot calls are the oracle of every frame. Every flipped byte
and every cut of packed data either has a reason or changes a sum; canaries for both halves.
"""

from __future__ import annotations

import io
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Generic

import pytest
import torch
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from cache.ports import Result
from cache.spill import codec
from cache.spill.codec import CodecConfig, Frames, Packed, pack, unpack
from cache.spill.planes import join, split
from cache.spill.sums import sums_of
from cache.workers import ThreadWorkers

SMALL = CodecConfig(plane_min=0, frame_bytes=4_096)


class Late(Generic[Result]):
    def __init__(self, work: Callable[[], Result]) -> None:
        self._work, self._done = work, list[Result]()

    def wait(self) -> Result:
        if not self._done:
            self._done.append(self._work())
        return self._done[0]


class LateWorkers:
    """Work is done when it is waited for; counts what was started."""

    def __init__(self) -> None:
        self.started: Counter[str] = Counter()

    def start(self, kind: str, nbytes: int, work: Callable[[], Result]) -> Late[Result]:
        self.started[kind] += nbytes
        return Late(work)


def noise(seed: int, nbytes: int) -> bytes:
    return random.Random(seed).randbytes(nbytes)


def uneven(seed: int, nbytes: int) -> bytes:
    """Bytes with few values, as a plane of exponents has."""
    return bytes(random.Random(seed).choices(b"ABCDEFGH", (40, 30, 15, 8, 4, 2, 1, 1), k=nbytes))


def packed(planes: Sequence[bytes], config: CodecConfig = SMALL) -> tuple[Packed, bytes]:
    views = [memoryview(plane) for plane in planes]
    found = pack(views, config, LateWorkers()).wait()
    data = b"".join(found.parts)
    assert found.nbytes == len(data)
    return found, data


def unpacked(frames: Frames, data: bytes, sizes: Sequence[int]) -> tuple[str, list[bytes]]:
    """The reason, and the planes; what lies around them must stay."""
    around = [bytearray(b"\xa5" * (size + 32)) for size in sizes]
    into = [memoryview(one)[16 : len(one) - 16] for one in around]
    why = unpack(frames, memoryview(data), into, LateWorkers()).wait()
    assert all(one[:16] == one[-16:] == b"\xa5" * 16 for one in around), "written outside"
    return why, [bytes(one[16 : len(one) - 16]) for one in around]


MODES = st.sampled_from(["planes", "raw"])
PLANE = st.builds(
    lambda kind, seed, nbytes: kind(seed, nbytes),
    st.sampled_from([noise, uneven, lambda _, nbytes: bytes(nbytes)]),
    st.integers(0, 99),
    st.one_of(st.integers(0, 300), st.integers(4_000, 4_200), st.integers(0, 20_000)),
)


@given(
    st.lists(st.lists(PLANE, max_size=3).map(b"".join), max_size=4),
    st.builds(
        CodecConfig,
        st.sampled_from(["planes", "raw"]),
        st.integers(1, 4),
        st.integers(4_096, 9_999),
    ),
)
def test_planes_come_back(planes: list[bytes], config: CodecConfig) -> None:
    found, data = packed(planes, config)
    sizes = [len(plane) for plane in planes]
    assert unpacked(found.frames, data, sizes) == ("", planes)
    # As a header's JSON gives them.
    as_lists = [None if lengths is None else list(lengths) for lengths in found.frames]
    assert unpacked(as_lists, data, sizes) == ("", planes)
    assert found.nbytes <= sum(sizes)
    if config.mode == "raw":
        assert set(found.frames) <= {None} and data == b"".join(planes)


@given(st.lists(PLANE, min_size=1, max_size=3).map(b"".join), st.integers(4_096, 9_999))
def test_every_frame_is_zstds_own(plane: bytes, frame_bytes: int) -> None:
    config = CodecConfig(plane_min=0, frame_bytes=frame_bytes)
    found, data = packed([plane], config)
    (lengths,) = found.frames
    if lengths is None:
        assert data == plane
        return
    count, at, whole = len(lengths), 0, b""
    assert count == -(-len(plane) // frame_bytes)
    for i, length in enumerate(lengths):
        size = len(plane) * (i + 1) // count - len(plane) * i // count
        assert size <= frame_bytes
        frame = data[at : at + length]
        assert length == size or 32 * length <= 31 * size
        whole += frame if length == size else zstandard.decompress(frame)
        at += length
    assert at == len(data) and whole == plane


@pytest.mark.parametrize("level", [1, 2, 5, 19])
@pytest.mark.parametrize("nbytes", [1, 1_000, 1 << 17, (1 << 20) + 1])
def test_frames_of_any_level_ask_for_no_more_than_they_hold(level: int, nbytes: int) -> None:
    plane = uneven(0, nbytes // 4 + 1) * 4
    zeros = bytes(nbytes)  # Blocks of one byte run on, from the second on.
    found, data = packed([plane, zeros], CodecConfig(plane_min=0, level=level))
    assert unpacked(found.frames, data, [len(plane), nbytes]) == ("", [plane, zeros])
    assert found.frames[0] is not None or nbytes < 1_000


def test_levels_above_the_first_look_for_repeats() -> None:
    """And the first does not, which is what makes it quick on planes."""
    plane = noise(0, 20_000) * 2
    sizes = [
        packed([plane], CodecConfig(plane_min=0, level=level))[0].nbytes for level in (1, 2, 5)
    ]
    assert sizes[0] == 40_000 and max(sizes[1:]) < 21_000


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.complex64], ids=str)
def test_a_view_there_and_back_on_threads(dtype: torch.dtype) -> None:
    """As the spill does it: sums, planes, frames, and back into other rows with gaps."""
    workers = ThreadWorkers(4)
    generator = torch.Generator().manual_seed(0)
    real = torch.randn(3, 700, 16, generator=generator)
    rows = real.to(dtype)[:, 100:612]
    cut = torch.empty(rows.itemsize, rows.numel(), dtype=torch.uint8)
    split(rows, cut)
    found = pack(list(cut), SMALL, workers).wait()
    assert found.frames[0] is None, "noise"
    assert found.frames[-1] is not None and found.nbytes < 0.95 * rows.nbytes
    data = b"".join(found.parts)
    back = torch.zeros_like(cut)
    assert unpack(found.frames, memoryview(data), list(back), workers).wait() == ""
    other = torch.zeros(3, 900, 16, dtype=dtype)
    join(back, other[:, 5:517])
    assert sums_of([other[:, 5:517]]) == sums_of([rows])
    assert not other[:, :5].any() and not other[:, 517:].any()
    workers.close()


# what stays as it is, and what that costs


def compressed_bytes(monkeypatch: pytest.MonkeyPatch, plane: bytes, config: CodecConfig) -> int:
    """Bytes that went through a compressor."""
    seen: list[int] = []
    make = codec._compressor

    class Counted:
        def __init__(self, level: int) -> None:
            self._own = make(level)

        def compress(self, data: memoryview) -> bytes:
            seen.append(len(data))
            return self._own.compress(data)

    with monkeypatch.context() as patch:
        patch.setattr(codec, "_compressor", Counted)
        packed([plane], config)
    return sum(seen)


def test_noise_is_noticed_without_compressing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    nbytes = 4 << 20
    large = CodecConfig(plane_min=0, frame_bytes=1 << 20)
    assert compressed_bytes(monkeypatch, noise(0, nbytes), large) <= nbytes // 16
    # The canary: what shrinks is compressed, once, and its probes.
    plane = uneven(0, 1 << 17) * 32
    assert nbytes < compressed_bytes(monkeypatch, plane, large) <= nbytes + nbytes // 16


def test_a_plane_half_noise_is_packed_where_it_shrinks() -> None:
    plane = noise(0, 8_192) + uneven(0, 8_192)
    found, data = packed([plane])
    assert found.frames[0] is not None
    assert found.frames[0][:2] == (4_096, 4_096) and max(found.frames[0][2:]) < 2_500
    assert unpacked(found.frames, data, [16_384]) == ("", [plane])


def test_a_plane_that_saves_next_to_nothing_stays() -> None:
    """One byte in 32 is the least."""
    for zeros, stays in ((60, True), (100, True), (200, False), (400, False)):
        plane = noise(0, 4_096 - zeros) + bytes(zeros)
        found, data = packed([plane])
        assert (found.frames == (None,)) is stays
        assert (data == plane) is stays


def test_what_stays_is_not_copied() -> None:
    plane = bytearray(noise(0, 5_000))
    for config in (SMALL, CodecConfig("raw")):
        found = pack([memoryview(plane)], config, LateWorkers()).wait()
        plane[7] ^= 1
        assert found.parts[0][7] == plane[7]


def test_what_workers_are_charged_for() -> None:
    workers = LateWorkers()
    planes = [memoryview(noise(0, 10_000)), memoryview(uneven(0, 10_000))]
    found = pack(planes, SMALL, workers).wait()
    assert workers.started == {"pack": 20_000}
    data, into = b"".join(found.parts), [memoryview(bytearray(10_000)) for _ in planes]
    assert unpack(found.frames, memoryview(data), into, workers).wait() == ""
    assert workers.started == {"pack": 20_000, "copy": 10_000, "unpack": 10_000}
    assert pack(planes, CodecConfig("raw"), LateWorkers()).wait().frames == (None, None)


# damage


def test_every_flipped_byte_has_a_reason_or_changes_a_sum() -> None:
    planes = [uneven(1, 5_000), noise(2, 300), uneven(3, 700)]
    sizes = [len(plane) for plane in planes]
    found, data = packed(planes)
    assert [lengths is None for lengths in found.frames] == [False, True, False]
    want = sums_of([torch.frombuffer(bytearray(plane), dtype=torch.uint8) for plane in planes])
    told: Counter[str] = Counter()
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << at % 8
        why, back = unpacked(found.frames, bytes(damaged), sizes)
        if why:
            told["reason"] += 1
            continue
        changed = back != planes
        got = sums_of([torch.frombuffer(bytearray(one), dtype=torch.uint8) for one in back])
        assert (got != want) is changed
        told["sums" if changed else "same bytes"] += 1
    # Both are needed; a bit that zstd does not read, one a frame at most, changes no byte.
    assert told["reason"] > 30 and told["sums"] > 500
    assert told["same bytes"] <= 3


def test_every_cut_and_every_byte_too_many_has_a_reason() -> None:
    planes = [uneven(1, 5_000), noise(2, 90)]
    sizes = [len(plane) for plane in planes]
    found, data = packed(planes)
    assert found.frames[1] is None
    for size in range(len(data)):
        assert unpacked(found.frames, data[:size], sizes)[0]
    assert unpacked(found.frames, data + b"\0", sizes)[0]
    for longer in (b"\0", b"\0" * 9, data, b"\x50\x2a\x4d\x18\x01\0\0\0x"):
        # A frame with something behind it, of a length that its header does not hide.
        first = found.frames[0]
        assert first is not None
        more = [(first[0] + len(longer), *first[1:]), found.frames[1]]
        moved = data[: first[0]] + longer + data[first[0] :]
        assert unpacked(more, moved, sizes)[0]
        fewer = [(first[0] - 1, *first[1:]), found.frames[1]]
        assert unpacked(fewer, data[: first[0] - 1] + data[first[0] :], sizes)[0]


BAD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 10**30),
    st.floats(),
    st.text(max_size=3),
    st.dictionaries(st.text(max_size=1), st.integers(), max_size=2),
)
ANY_FRAMES = st.recursive(BAD, lambda inner: st.lists(inner, max_size=4), max_leaves=9)


@given(ANY_FRAMES, st.binary(max_size=200), st.lists(st.integers(0, 99), max_size=3), st.booleans())
def test_frames_that_say_anything_have_a_reason(
    frames: Any, data: bytes, sizes: list[int], as_many: bool
) -> None:
    if as_many and isinstance(frames, list):
        sizes = [(sizes or [7])[i % max(1, len(sizes))] for i in range(len(frames))]
    why, back = unpacked(frames, data, sizes)
    assert isinstance(why, str)
    if not why:
        assert sum(len(one) for one in back) >= len(data)


@pytest.mark.parametrize("said", [1, 1.0, True, "x", {"x": 1}, [True], [1.0], ["x"], [None], []])
def test_a_plane_said_to_be_no_list_of_lengths_has_a_reason(said: Any) -> None:
    assert unpacked([said], b"x", [1])[0]
    assert unpacked([[1]], b"x", [1]) == ("", [b"x"])


@given(st.lists(st.integers(-1, 5_000), max_size=6), st.integers(0, 9_000))
def test_lengths_that_do_not_add_up_have_a_reason(lengths: list[int], size: int) -> None:
    plane = noise(0, size)
    why, back = unpacked([lengths], plane, [size])
    parts = [size * (i + 1) // len(lengths) - size * i // len(lengths) for i in range(len(lengths))]
    assert (why == "") is (lengths == parts != [] and 0 not in parts)
    if not why:
        assert back == [plane]


def frame(content: bytes, **settings: Any) -> bytes:
    return zstandard.ZstdCompressor(**settings).compress(content)


def test_a_frame_that_asks_for_more_is_refused() -> None:
    content = uneven(0, 4_000)
    sound = frame(content)
    assert unpacked([(len(sound),)], sound, [4_000]) == ("", [content])
    two = frame(content[:2_000]) + frame(content[2_000:])
    unknown = frame(content, write_content_size=False)
    wide = bytearray(unknown)
    wide[5] = 0xA8  # A window of 2 GiB.
    huge = b"\x28\xb5\x2f\xfd\xc0\xa8" + (4_000).to_bytes(8, "little") + unknown[6:]
    skipped = b"\x50\x2a\x4d\x18" + (4_000).to_bytes(4, "little") + bytes(100)
    assert sound[4] == 0x60, "one segment, its length in two bytes, no dictionary"
    named = sound[:4] + b"\x61\x07" + sound[5:]
    cases = {
        frame(content[:-1]): "a frame states another length",
        frame(content + b"x"): "a frame states another length",
        two: "a frame states another length",
        unknown: "a frame states another length",
        bytes(wide): "a frame states another length",
        huge: "a frame asks for what none was given",
        named: "a frame asks for what none was given",
        skipped: "no frame begins where one should",
        b"plane" * 20: "no frame begins where one should",
        b"\0": "no frame begins where one should",
        sound[:4]: "a frame does not decode",
        sound[:-1]: "a frame is cut off",
        sound + b"\0": "a frame has another length",
        sound[:7] + b"\x07\0\0": "a frame does not decode",
    }
    for bad, why in cases.items():
        assert unpacked([(len(bad),)], bad, [4_000])[0].split(":")[0] == why
    # As long as the plane but for a byte: nothing that was ever written, and not to be copied.
    near = noise(0, 4_000)
    assert unpacked([(3_999,)], near[:-1], [4_000])[0] == "no frame begins where one should"


def test_a_decoder_that_stops_or_finds_no_memory_is_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Stops:
        def stream_reader(self, frame: memoryview) -> Any:
            return io.BytesIO(bytes(3_999))

    class Full(Stops):
        def stream_reader(self, frame: memoryview) -> Any:
            raise MemoryError("no room")

    data = frame(uneven(0, 4_000))
    for decoder, why in ((Stops, "a frame ends early"), (Full, "a frame does not decode: no room")):
        with monkeypatch.context() as patch:
            patch.setattr(codec.zstandard, "ZstdDecompressor", decoder)
            assert unpacked([(len(data),)], data, [4_000])[0] == why


def test_lengths_that_no_frame_of_a_part_has_are_refused_before_it_is_read() -> None:
    content = noise(0, 100)
    longer = frame(content)
    assert len(longer) > len(content)
    for lengths in ((len(longer),), (0, len(longer))):
        why = unpacked([lengths], longer, [100])[0]
        assert why == "a frame of an impossible length"


def test_a_sound_frame_with_a_checksum_is_read_and_a_wrong_one_told() -> None:
    content = uneven(0, 4_000)
    sealed = frame(content, write_checksum=True)
    assert unpacked([(len(sealed),)], sealed, [4_000]) == ("", [content])
    sealed = sealed[:-1] + bytes([sealed[-1] ^ 1])
    assert "does not decode" in unpacked([(len(sealed),)], sealed, [4_000])[0]


def test_canary_zstd_alone_takes_what_lies_behind_a_frame() -> None:
    """The reader stops at the frame's end and says nothing of the rest: so we look."""
    content = uneven(0, 4_000)
    data = frame(content) + b"rest"
    into = bytearray(4_000)
    with zstandard.ZstdDecompressor().stream_reader(data) as reader:
        assert reader.readinto(into) == 4_000
    assert into == content
    assert unpacked([(len(data),)], data, [4_000])[0] == "a frame has another length"


def test_whoever_waits_is_told_only_when_no_worker_has_a_plane_in_hand() -> None:
    workers, plane = LateWorkers(), memoryview(uneven(0, 20_000))
    ran: list[int] = []

    class Breaks(LateWorkers):
        def start(self, kind: str, nbytes: int, work: Callable[[], Result]) -> Late[Result]:
            number = sum(self.started.values())
            self.started[kind] += 1

            def counted() -> Result:
                ran.append(number)
                if number == 1:
                    raise MemoryError("no room")
                return work()

            return Late(counted)

    with pytest.raises(MemoryError):
        pack([plane], SMALL, Breaks()).wait()
    assert ran == [0, 1, 2, 3, 4]
    found = pack([plane], SMALL, workers).wait()
    damaged = bytearray(b"".join(found.parts))
    damaged[0] ^= 1
    ran.clear()

    class Counts(Breaks):
        def start(self, kind: str, nbytes: int, work: Callable[[], Result]) -> Late[Result]:
            def counted() -> Result:
                ran.append(1)
                return work()

            return Late(counted)

    into = [memoryview(bytearray(20_000))]
    assert unpack(found.frames, memoryview(damaged), into, Counts()).wait()
    assert len(ran) == 5 and bytes(into[0][4_000:]) == bytes(plane[4_000:])


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"mode": "zip"}, "mode"),
        ({"level": 0}, "level"),
        ({"level": -5}, "level"),
        ({"level": 20}, "level"),
        ({"frame_bytes": 4_095}, "frame_bytes"),
        ({"frame_bytes": (1 << 30) + 1}, "frame_bytes"),
    ],
)
def test_settings_are_refused_in_one_line_that_names_them(
    settings: dict[str, Any], named: str
) -> None:
    with pytest.raises(ValueError, match=f"^{named} must be [^\n]+$"):
        CodecConfig(**settings)


def test_planes_with_gaps_are_a_programmers_error() -> None:
    for plane in (
        torch.zeros(8, dtype=torch.int8),
        torch.zeros(8, dtype=torch.uint8)[::2],
        memoryview(bytes(8))[::2],
        memoryview(bytes(8)).cast("H"),
    ):
        with pytest.raises(AssertionError):
            pack([plane], SMALL, LateWorkers())


def test_small_planes_lie_as_they_are_and_come_back_in_one_piece_of_work() -> None:
    planes = [torch.full((size,), n, dtype=torch.uint8) for n, size in enumerate((9, 4_095, 4_096))]
    workers = ThreadWorkers(1)
    packed = pack(planes, CodecConfig(), workers).wait()
    assert [frames is None for frames in packed.frames] == [True, True, False]
    data = memoryview(b"".join(bytes(part) for part in packed.parts))
    back = [torch.empty_like(plane) for plane in planes]
    unpacking = unpack([f and list(f) for f in packed.frames], data, back, workers)
    assert len(unpacking._work) == 2 and unpacking.wait() == ""
    assert all(torch.equal(a, b) for a, b in zip(planes, back, strict=True))
