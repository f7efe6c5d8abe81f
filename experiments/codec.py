"""What a spilled conversation weighs: byte planes, beside zstd over the rows as they are.

Both at one level, in frames of one size, on the same bytes, in turn. Rates are this machine's: by
its processor's seconds on one thread, by the clock's on two. Cutting into planes and joining them
counts too, though a device would do that. What can be compared are the two ways in one run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import zstandard

from cache.spill.codec import CodecConfig, Frames, pack, unpack
from cache.spill.planes import join, split
from cache.spill.sums import sums_of
from cache.workers import ThreadWorkers
from engine.config import HybridConfig
from engine.hybrid import Hybrid
from experiments.figure import Figure
from replay.progress import progress
from sim.profile import Profile

NAME = "codec"
ABOUT = "what byte planes save of rows and states, and how fast, beside zstd on whole rows"

ENTRY_GB, ENTRY_PACKED_GB = 5.20, 3.04
"""The seed's entry of 48,853 tokens: as it lay in memory, and what its restore read."""
MB = 1e6
CONFIG = CodecConfig()

Rows = Sequence[torch.Tensor]


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    numbers: int = 16 << 20
    """Gaussian ones, in bfloat16."""
    tokens: int = 8_192
    """Random ones that the model reads; their rows take 4 KiB a token."""
    heads: int = 48
    """Of a state in each of three layers, 128 x 128 each as in the seed's model."""
    state_tokens: int = 1_024
    """What the model has read whose state it is."""
    rounds: int = 7
    """The quickest of so many counts: others use the machine too."""


class Way(Protocol):
    """Rows there and back. Each step works on what the one before it left."""

    def pack(self) -> None:
        """Rows to frames."""

    def arrive(self) -> int:
        """The frames as a file has them, one after another; gives their bytes. Not timed."""

    def unpack(self) -> None:
        """The file's bytes to rows."""

    def same(self) -> bool:
        """Whether those are the rows that were packed."""


class Planes:
    """As the spill does it."""

    def __init__(self, rows: Rows, workers: ThreadWorkers) -> None:
        self._rows, self._workers = rows, workers
        shapes = [(one.itemsize, one.numel()) for one in rows]
        self._cut = [torch.zeros(shape, dtype=torch.uint8) for shape in shapes]
        self._read = [torch.zeros_like(one) for one in self._cut]
        self._back = [torch.zeros_like(one) for one in rows]
        self._parts: Sequence[bytes | memoryview] = ()
        self._frames: Frames = ()
        self._file = b""

    def pack(self) -> None:
        for rows, planes in zip(self._rows, self._cut, strict=True):
            split(rows, planes)
        packed = pack([plane for cut in self._cut for plane in cut], CONFIG, self._workers).wait()
        self._parts, self._frames = packed.parts, packed.frames

    def arrive(self) -> int:
        self._file = b"".join(self._parts)
        return len(self._file)

    def unpack(self) -> None:
        planes = [plane for read in self._read for plane in read]
        why = unpack(self._frames, memoryview(self._file), planes, self._workers).wait()
        assert not why, why
        for read, rows in zip(self._read, self._back, strict=True):
            join(read, rows)

    def same(self) -> bool:
        return sums_of(self._back) == sums_of(self._rows)


class Whole:
    """zstd over the rows' bytes in their order, everything else the same."""

    def __init__(self, rows: Rows, workers: ThreadWorkers) -> None:
        self._workers = workers
        self._rows = [one.contiguous().view(-1).view(torch.uint8).numpy().data for one in rows]
        self._back = [memoryview(bytearray(len(one))) for one in self._rows]
        self._frames: list[bytes] = []

    def pack(self) -> None:
        def compress(part: memoryview) -> Callable[[], bytes]:
            return lambda: zstandard.ZstdCompressor(level=CONFIG.level).compress(part)

        work = [
            self._workers.start("pack", len(part), compress(part)) for part in _parts(self._rows)
        ]
        self._frames = [one.wait() for one in work]

    def arrive(self) -> int:
        return sum(len(frame) for frame in self._frames)

    def unpack(self) -> None:
        def decompress(frame: bytes, part: memoryview) -> Callable[[], int]:
            reader = zstandard.ZstdDecompressor().stream_reader(frame)
            return lambda: int(reader.readinto(part))

        work = [
            self._workers.start("unpack", len(part), decompress(frame, part))
            for frame, part in zip(self._frames, _parts(self._back), strict=True)
        ]
        for one in work:
            one.wait()

    def same(self) -> bool:
        return self._back == self._rows


def _parts(buffers: Sequence[memoryview]) -> list[memoryview]:
    step = CONFIG.frame_bytes
    return [one[at : at + step] for one in buffers for at in range(0, len(one), step)]


@dataclass(frozen=True, slots=True)
class Timed:
    """One way on some threads: how much shorter it makes the rows, and bytes of them a second."""

    ratio: float
    pack_bytes_s: float
    unpack_bytes_s: float


def run(board: Profile, size: Size | None = None) -> list[Figure]:
    """Three kinds of numbers, both ways on one thread and on two."""
    size = size or Size()
    kinds = kinds_of(size)
    figures: list[Figure] = []
    with progress("codec", 2 * len(kinds), unit="runs") as advance:
        for kind, rows in kinds.items():
            one = timed(rows, 1, size.rounds, time.process_time)
            advance(1)
            two = timed(rows, 2, size.rounds, time.perf_counter)
            advance(1)
            figures += figures_of(kind, sum(tensor.nbytes for tensor in rows), one, two)
    by_key = {figure.key: figure.ours for figure in figures}
    ratio = by_key["rows.ratio"]
    off = 100 * (1 - ENTRY_PACKED_GB / ENTRY_GB)
    return [
        *figures,
        Figure("rows.off", off, 100 - 100 / ratio, "%", "of the bytes; there with its anchors"),
        Figure("entry_gb", ENTRY_PACKED_GB, ENTRY_GB / ratio, "GB", "5.20 GB at the rows' ratio"),
    ]


def kinds_of(size: Size) -> dict[str, Rows]:
    """Gaussian numbers, and the rows and states of random models that read random tokens."""
    generator = torch.Generator().manual_seed(0)
    gauss = torch.randn(size.numbers, generator=generator).to(torch.bfloat16)
    of_rows = _read(size.tokens, 3).cache_state()
    of_state = _read(size.state_tokens, size.heads).cache_state()
    return {
        "gauss": [gauss],
        "rows": [view.rows(0, size.tokens) for view in of_rows.views],
        "state": [one.tensor for one in of_state.sections if one.name == "gdn.S"],
    }


def _read(tokens: int, heads: int) -> Hybrid:
    """A model of one attention layer and three others that has read so many tokens."""
    torch.set_num_threads(1)
    config = HybridConfig.replay(
        vocab=4_096,
        hidden=256,
        q_heads=4,
        kv_heads=4,
        head_dim=256,
        key_heads=heads // 3,
        value_heads=heads,
        key_dim=128,
        value_dim=128,
        dtype="bfloat16",
        draft=False,
        vision=None,
    )
    engine = Hybrid.random(config, 0, grid=256, window=tokens)
    engine.resume_at(0)
    ids = np.random.default_rng(0).integers(0, config.vocab, tokens).astype(np.int32)
    for start in range(0, tokens, engine.grid):
        engine.prefill(ids[start : start + engine.grid])
    return engine


def timed(rows: Rows, threads: int, rounds: int, now: Callable[[], float]) -> tuple[Timed, Timed]:
    """Planes and whole rows, in turn, so that a busy moment meets both."""
    workers = ThreadWorkers(threads)
    ways: list[Way] = [Planes(rows, workers), Whole(rows, workers)]
    nbytes = sum(tensor.nbytes for tensor in rows)
    took: list[list[tuple[float, float]]] = [[], []]
    written = [0, 0]
    for _ in range(1 + rounds):
        for number, way in enumerate(ways):
            begun = now()
            way.pack()
            packed_s = now() - begun
            written[number] = way.arrive()
            begun = now()
            way.unpack()
            took[number].append((packed_s, now() - begun))
            assert way.same(), "what came back is something else"
    workers.close()
    planes, whole = (
        # The round before the first touches the buffers.
        Timed(nbytes / written[n], *(nbytes / min(s[at] for s in took[n][1:]) for at in (0, 1)))
        for n in (0, 1)
    )
    return planes, whole


def figures_of(
    kind: str, nbytes: int, one: tuple[Timed, Timed], two: tuple[Timed, Timed]
) -> list[Figure]:
    """A kind's ratios and rates, with what the planes gain over the rows as they are."""
    planes, whole = one
    figures = [
        Figure(f"{kind}.ratio", None, planes.ratio, "times", f"{nbytes / MB:.1f} MB in planes"),
        Figure(f"{kind}.whole_ratio", None, whole.ratio, "times", "zstd on whole rows"),
    ]
    for what in ("pack", "unpack"):
        rates = [getattr(timed, f"{what}_bytes_s") for timed in (*one, *two)]
        over, over_two = rates[0] / rates[1], rates[2] / rates[3]
        said = f"whole rows: {rates[1] / MB:.0f} MB/s, on two threads {rates[3] / MB:.0f}"
        figures += [
            Figure(f"{kind}.{what}_mb_s", None, rates[0] / MB, "MB/s", said),
            Figure(f"{kind}.{what}_over_whole", None, over, "times", "one thread"),
            Figure(f"{kind}.{what}_two_mb_s", None, rates[2] / MB, "MB/s", "two threads"),
            Figure(f"{kind}.{what}_two_over_whole", None, over_two, "times", "two threads"),
        ]
    return figures
