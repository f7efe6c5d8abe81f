"""Byte planes to zstd frames and back, on workers; what does not shrink stays as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np
import torch
import zstandard

from cache.ports import Pending, Result, Workers

Mode = Literal["planes", "raw"]
"""Compress what shrinks; nothing."""
Plane = memoryview | torch.Tensor
"""Bytes without gaps: a flat memoryview of them, or a uint8 tensor (n,) in the host's memory."""
Frames = Sequence[Sequence[int] | None]
"""Of each plane its frames' lengths in bytes, or None where it lies as it is.

A plane of n bytes in c frames is cut at i * n // c. A frame as long as its part of the plane is
that part, uncompressed.
"""

FRAME_BYTES_MIN, FRAME_BYTES_MAX = 4_096, 1 << 30
LEVELS = range(1, 20)
"""Below them zstd leaves out the entropy coding that planes shrink by; above, it takes memory."""
COPY_MIN = 1 << 16
"""Bytes below which planes that lie as they are come back in one piece of work."""
SAVES_MIN = 32
"""A part that compression makes shorter by less than this fraction of it (1 in 32) stays as it is:
reading it back is quicker than decompressing it."""
PROBES, PROBE_BYTES = 8, 8_192
"""What is compressed of a part, spread over it, to see whether it shrinks at all."""
MAGIC = b"\x28\xb5\x2f\xfd"
"""How a zstd frame begins (RFC 8878, 3.1.1)."""


@dataclass(frozen=True, slots=True)
class CodecConfig:
    """How planes are written; ValueError in one line that names the setting."""

    mode: Mode = "planes"
    level: int = 1
    """Of zstd. Level 3 was both worse and slower on planes."""
    frame_bytes: int = 8 << 20
    """Most bytes of a plane in one frame (the seed's figure): the workers' unit of work."""
    plane_min: int = 4_096
    """Bytes below which a plane is not worth a frame: a file is whole pages anyway."""

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            raise ValueError(f"mode must be one of {', '.join(get_args(Mode))}")
        if self.level not in LEVELS:
            raise ValueError(f"level must be from {LEVELS[0]} to {LEVELS[-1]}")
        if not FRAME_BYTES_MIN <= self.frame_bytes <= FRAME_BYTES_MAX:
            limits = f"{FRAME_BYTES_MIN:,} to {FRAME_BYTES_MAX:,}"
            raise ValueError(f"frame_bytes must be from {limits}")
        if self.plane_min < 0:
            raise ValueError("plane_min must not be negative")


@dataclass(frozen=True, slots=True)
class Packed:
    """Planes as they are written."""

    frames: tuple[tuple[int, ...] | None, ...]
    parts: tuple[bytes | memoryview, ...]
    """The bytes, in order. Parts that stayed as they are lie in the planes themselves, which are
    left alone until all is written."""
    nbytes: int


class Packing:
    """Planes that workers compress."""

    def __init__(
        self,
        planes: Sequence[memoryview],
        parts: Sequence[Sequence[memoryview]],
        work: Sequence[Sequence[Pending[bytes]]],
        rest: Sequence[Pending[bytes]],  # On planes without work of their own.
    ) -> None:
        self._planes, self._parts, self._work, self._rest = planes, parts, work, rest

    def wait(self) -> Packed:
        """All planes, packed; raises what a worker raised, once none has a plane in hand."""
        done = iter(_all([*(one for plane in self._work for one in plane), *self._rest]))
        frames: list[tuple[int, ...] | None] = []
        written: list[bytes | memoryview] = []
        for plane, parts in zip(self._planes, self._parts, strict=True):
            given = [next(done) for _ in parts]
            if any(given):
                packed = [frame or part for frame, part in zip(given, parts, strict=True)]
                frames.append(tuple(len(one) for one in packed))
                written += packed
            else:
                frames.append(None)
                written.append(plane)
        return Packed(tuple(frames), tuple(written), sum(len(one) for one in written))


class Unpacking:
    """Frames that workers decompress into planes."""

    def __init__(self, work: Sequence[Pending[str]], why: str = "") -> None:
        self._work, self._why = work, why

    def wait(self) -> str:
        """Nothing when every plane is whole, or why one isn't; no worker has one in hand then."""
        return next((why for why in [self._why, *_all(self._work)] if why), "")


def pack(planes: Sequence[Plane], config: CodecConfig, workers: Workers) -> Packing:
    """Begin to compress planes, each on its own; the caller leaves them alone.

    Whether a part shrinks is tried on pieces of it first, so that a plane of noise costs next to
    nothing. One that would shrink only between those pieces is written as it is.
    """
    whole = [_flat(plane) for plane in planes]
    parts: list[list[memoryview]] = [[] for _ in whole]
    if config.mode == "planes":
        parts = [
            _cut(plane, -(-len(plane) // config.frame_bytes))
            if len(plane) >= config.plane_min
            else []
            for plane in whole
        ]
    work = [
        [workers.start("pack", len(part), _compress(part, config.level)) for part in plane]
        for plane in parts
    ]
    rest = sum(len(plane) for plane, some in zip(whole, parts, strict=True) if not some)
    last = [workers.start("pack", rest, lambda: b"")] if rest else []
    return Packing(whole, parts, work, last)


def unpack(frames: Frames, data: memoryview, into: Sequence[Plane], workers: Workers) -> Unpacking:
    """Begin to fill planes, whose sizes the caller knows, from what `pack` gave for them.

    `frames` and `data` are bytes from a drive: whatever they hold, nothing is written outside the
    planes, and no more memory is taken than a plane's part has.
    """
    planes = [_flat(plane) for plane in into]
    why = _mismatch(frames, len(data), [len(plane) for plane in planes])
    if why:
        return Unpacking([], why)
    work: list[Pending[str]] = []
    small: list[tuple[memoryview, memoryview]] = []
    at = 0
    for plane, lengths in zip(planes, frames, strict=True):
        if lengths is None and len(plane) < COPY_MIN:
            small.append((data[at : at + len(plane)], plane))
            at += len(plane)
            continue
        sizes = [len(plane)] if lengths is None else lengths
        for part, nbytes in zip(_cut(plane, len(sizes)), sizes, strict=True):
            frame = data[at : at + nbytes]
            at += nbytes
            if nbytes == len(part):
                work.append(workers.start("copy", nbytes, _copy([(frame, part)])))
            else:
                work.append(workers.start("unpack", len(part), _decompress(frame, part)))
    if small:
        nbytes = sum(len(part) for _, part in small)
        work.append(workers.start("copy", nbytes, _copy(small)))
    return Unpacking(work)


def _flat(plane: Plane) -> memoryview:
    if isinstance(plane, torch.Tensor):
        assert plane.dtype == torch.uint8 and plane.dim() == 1 and plane.is_contiguous()
        plane = plane.numpy().data
    assert plane.format == "B" and plane.ndim == 1 and plane.c_contiguous
    return plane


def _cut(plane: memoryview, count: int) -> list[memoryview]:
    """As many parts, whose sizes differ by a byte at most."""
    edges = [i * len(plane) // count for i in range(count + 1)] if count else []
    return [plane[start:stop] for start, stop in pairwise(edges)]


def _all(work: Sequence[Pending[Result]]) -> list[Result]:
    """What every piece of work gave; the first error is raised only when all have ended."""
    given: list[Result] = []
    failed: BaseException | None = None
    for one in work:
        try:
            given.append(one.wait())
        except BaseException as error:
            failed = failed or error
    if failed is not None:
        raise failed
    return given


def _compress(part: memoryview, level: int) -> Callable[[], bytes]:
    """Work that gives the part's frame, or nothing where it would not be short enough."""

    def work() -> bytes:
        step = len(part) // PROBES
        if step > 4 * PROBE_BYTES:
            probe = b"".join(part[i * step : i * step + PROBE_BYTES] for i in range(PROBES))
            if not _saves(len(_compressor(level).compress(probe)), len(probe)):
                return b""
        frame = _compressor(level).compress(part)
        return frame if _saves(len(frame), len(part)) else b""

    return work


def _saves(packed: int, plain: int) -> bool:
    return SAVES_MIN * (plain - packed) >= plain


def _compressor(level: int) -> zstandard.ZstdCompressor:
    """At level 1, one that hardly looks for repeats: a plane of rows has few, and shrinks because
    its bytes are unequally frequent. Looking took half the time, and what it found cost bits.
    """
    if level > 1:
        return zstandard.ZstdCompressor(level=level)
    sparse = zstandard.ZstdCompressionParameters.from_level(1, min_match=7, hash_log=6)
    return zstandard.ZstdCompressor(compression_params=sparse)


def _copy(pairs: Sequence[tuple[memoryview, memoryview]]) -> Callable[[], str]:
    def work() -> str:
        for data, part in pairs:
            # Not by the views themselves: numpy lets other threads run meanwhile.
            np.copyto(np.frombuffer(part, np.uint8), np.frombuffer(data, np.uint8))
        return ""

    return work


def _decompress(frame: memoryview, part: memoryview) -> Callable[[], str]:
    """Work that fills a part from one frame; gives nothing, or why the frame is none of it."""

    def work() -> str:
        try:
            why = _misfit(frame, len(part))
            if why:
                return why
            # The whole frame and room for all of it: zstd decompresses in place, in one step.
            with zstandard.ZstdDecompressor().stream_reader(frame) as reader:
                if reader.readinto(part) != len(part):
                    return "a frame ends early"
        except (zstandard.ZstdError, MemoryError) as error:
            return f"a frame does not decode: {error}"
        return ""

    return work


def _misfit(frame: memoryview, size: int) -> str:
    """Why a frame is not one that fills `size` bytes and ends where it should, by what it states.

    A header may ask for a window of gigabytes; ours never asks for more than its content.
    """
    if frame[: len(MAGIC)] != MAGIC:
        return "no frame begins where one should"
    head = zstandard.get_frame_parameters(frame)
    if head.content_size != size:
        return "a frame states another length"
    if head.dict_id or head.window_size > size:
        return "a frame asks for what none was given"
    at = zstandard.frame_header_size(frame)
    last = 0
    while not last:
        # RFC 8878, 3.1.1.2: last block, type in 2 bits, size in 21. A run's content is one byte.
        block = int.from_bytes(frame[at : at + 3], "little")
        last, run = block & 1, block >> 1 & 3 == 1
        at += 3 + (1 if run else block >> 3)
        if at > len(frame):
            return "a frame is cut off"
    if at + 4 * head.has_checksum != len(frame):
        return "a frame has another length"
    return ""


def _mismatch(frames: Any, nbytes: int, planes: Sequence[int]) -> str:
    """Why frames of these lengths are not `nbytes` that fill planes of these sizes."""
    if not isinstance(frames, list | tuple) or len(frames) != len(planes):
        return "frames of another number of planes"
    total = 0
    for lengths, size in zip(frames, planes, strict=True):
        if lengths is None:
            total += size
            continue
        if not isinstance(lengths, list | tuple) or not lengths:
            return "a plane of an impossible number of frames"
        edges = (i * size // len(lengths) for i in range(len(lengths) + 1))
        for length, (start, stop) in zip(lengths, pairwise(edges), strict=True):
            if type(length) is not int or not 0 < length <= stop - start:
                return "a frame of an impossible length"
            total += length
    return "" if total == nbytes else "frames of another length in all"
