"""Captured verify blocks: what a graph would replay is an ordinary verify, bit for bit.

Goal: for every size of a block, over commits, trims, settles, resumes, drafts and pictures before
it, logits, sections and rows are those of an engine without graphs; what can't be captured is
forwarded without; a capture holds the capture lock throughout.
Method: two engines over the same weights take the same random walk. The same calls again over
buffers in place (`Again`), and a tape of every call whose host numbers stay as they were when it
was made, as a graph's do, and which refuses whatever asks the device. The CUDA calls run on a
made-up torch.cuda. Canaries: buffers that are not filled, a row's place baked in, logits that are
not copied, and each is seen. Covers engine.forward, engine.layers.counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from pictured import ids_of, picture
from taped import NOT_CAPTURED, Tapes, attend_counted

from cache.types import Ids
from engine import graphs as graphs_module
from engine.capture import CAPTURE
from engine.config import HybridConfig
from engine.graphs import SIZES_MAX, Again, Captures, CudaGraphs, Made, captures_for
from engine.hybrid import Hybrid
from engine.layers.counted import Counted
from engine.layers.decoder import Decoder
from engine.layers.kv import Kv
from engine.moe_config import MoeConfig
from engine.vision_config import VisionConfig
from engine.weights import random_weights

GRID, WINDOW = 16, 160
KINDS = {
    "float32": HybridConfig.tiny(),
    "bfloat16": HybridConfig.tiny(dtype="bfloat16"),
    "e4m3": HybridConfig.tiny(kv="e4m3"),
    "sees": HybridConfig.tiny(vision=VisionConfig.small(), rotary_fraction=0.5),
}
DECODERS = {kind: Decoder(random_weights(config, 3)) for kind, config in KINDS.items()}


def engine(kind: str, graphs: Captures | bool) -> Hybrid:
    return Hybrid(DECODERS[kind], grid=GRID, window=WINDOW, graphs=graphs)


def read(of: Hybrid, kind: str) -> None:
    """A prompt; one with a picture where there is a tower."""
    seen = picture(8, 8)
    ids = ids_of(np.arange(3, dtype=np.int32), *([seen] if kind == "sees" else []), ODD)
    if kind == "sees":
        of.look(ids, [seen], 0)
    for line in range(0, len(ids), GRID):
        of.prefill(ids[line : line + GRID])


ODD = np.arange(7, 40, 2).astype(np.int32)


def unlike(one: Hybrid, other: Hybrid) -> list[str]:
    """Sections, and rows below the length, that are not equal bit for bit."""
    ours, theirs = one.cache_state(), other.cache_state()
    sections = zip(ours.sections, theirs.sections, strict=True)
    views = zip(ours.views, theirs.views, strict=True)
    bad = [a.name for a, b in sections if not same(a.tensor, b.tensor)]
    return bad + [a.name for a, b in views if not same(*(x.rows(0, one.length) for x in (a, b)))]


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def walk(kind: str, captures: Captures, steps: int = 12, seed: int = 0) -> list[str]:
    """What differs on one random walk of two engines; empty when nothing does."""
    plain, ours = engine(kind, False), engine(kind, captures)
    draw, bad = np.random.default_rng(seed), list[str]()
    for of in (plain, ours):
        read(of, kind)
    sizes = [*range(1, SIZES_MAX + 2)] * 2 + draw.integers(1, 9, steps).tolist()
    for step, n in enumerate(sizes):
        ids = draw.integers(0, 499, n).astype(np.int32)
        count, back, settles = (
            int(draw.integers(0, n + 1)),
            draw.random() < 0.2,
            draw.random() < 0.2,
        )
        if plain.length + n > WINDOW:
            back_to_a_line(plain, ours)
        logits = [of.verify(ids) for of in (plain, ours)]
        if not same(*logits):
            bad.append(f"step {step}: logits of {n}")
        for of in (plain, ours):
            of.accept(count)
            if back and count:
                assert of.trim_pending(of.length - 1)
            if settles:
                of.settle()
        if plain.draft(5, 2) != ours.draft(5, 2):
            bad.append(f"step {step}: drafts")
        bad += [f"step {step}: {name}" for name in unlike(ours, plain)]
    assert ours.graphs is not None and not ours.graphs.refused
    assert ours.graphs.replays == sum(n <= SIZES_MAX for n in sizes)
    return bad


def back_to_a_line(*engines: Hybrid) -> None:
    """The rows stay, and the sections are as they are: equal on both is enough here."""
    for of in engines:
        of.settle()
        of.resume_at(2 * GRID)


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_over_buffers_in_place_is_a_verify(kind: str) -> None:
    assert walk(kind, Again()) == []


@pytest.fixture
def one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention over counted rows as one call, which reads the count for itself."""

    def attend(self: Counted, q: torch.Tensor, past: int) -> torch.Tensor:
        return attend_counted(q, self._start, self.keys, self.values)

    monkeypatch.setattr(Counted, "attend", attend)


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "sees"])
def test_a_tape_of_a_block_is_a_verify_wherever_it_is_played(kind: str, one_call: None) -> None:
    assert walk(kind, Tapes()) == []


def test_a_resume_that_writes_the_buffers_is_seen_by_the_graph(one_call: None) -> None:
    """Copies come back into the memory that a tape reads; another sequence then goes on."""
    plain, ours = engine("float32", False), engine("float32", Tapes())
    for of in (plain, ours):
        read(of, "float32")
    ours.verify(ODD[:4])
    ours.accept(3)
    ours.settle()
    ours.verify(ODD[:4])
    for mine, theirs in zip(ours.cache_state().sections, plain.cache_state().sections, strict=True):
        mine.tensor.copy_(theirs.tensor)
    ours.resume_at(plain.length)
    for ids in (ODD[4:8], ODD[:1], ODD[3:7]):
        assert same(plain.verify(ids), ours.verify(ids))
        plain.accept(len(ids))
        ours.accept(len(ids))
    plain.settle()
    ours.settle()
    assert unlike(ours, plain) == []


def test_a_twin_captures_for_itself() -> None:
    ours = engine("float32", Again())
    ours.verify(ODD[:3])
    twin = ours.twin(64)
    assert twin.graphs is not None and twin.graphs is not ours.graphs and not twin.graphs.replays
    assert same(ours.verify(ODD[:3]), twin.verify(ODD[:3]))


def test_graphs_are_the_devices_and_can_be_off() -> None:
    assert captures_for(torch.device("cpu")) is None
    assert engine("float32", True).graphs is None and engine("float32", False).graphs is None


def test_experts_are_forwarded_without() -> None:
    config = HybridConfig.tiny(moe=MoeConfig.small())
    of = Hybrid(Decoder(random_weights(config, 1)), grid=16, window=32, graphs=Again())
    assert of.graphs is None and of.verify(ODD[:2]).shape == (2, config.vocab)


def test_a_block_with_a_pictures_rows_is_forwarded_without() -> None:
    plain, ours = engine("sees", False), engine("sees", Again())
    seen = picture(8, 8)
    ids = ids_of(ODD, seen)
    for of in (plain, ours):
        of.look(ids, [seen], 0)
        of.prefill(ids[:GRID])
    block = ids[GRID : GRID + 4]
    assert (block < 0).any() and same(plain.verify(block), ours.verify(block))
    assert ours.graphs is not None and ours.graphs.replays == 0


class Fails:
    """A device that can't capture."""

    def __init__(self) -> None:
        self.tried = 0

    def capture(self, run: Callable[[], Made]) -> tuple[Made, Callable[[], None]]:
        self.tried += 1
        run()
        raise RuntimeError(NOT_CAPTURED)


def test_what_cant_be_captured_is_forwarded_and_not_tried_again() -> None:
    fails = Fails()
    plain, ours = engine("float32", False), engine("float32", fails)
    for _ in range(2):
        assert same(plain.verify(ODD[:3]), ours.verify(ODD[:3]))
        plain.accept(2)
        ours.accept(2)
    assert fails.tried == 1 and ours.graphs is not None
    assert ours.graphs.refused == {3: NOT_CAPTURED}
    plain.settle()
    ours.settle()
    assert unlike(ours, plain) == []


# a capture on a made-up torch.cuda


SECOND = torch.device("cuda", 1)


class MadeUpCuda:
    """What a capture calls, in order; a call without the lock is a fault."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.current = torch.device("cuda", 0)

    def note(self, what: str) -> None:
        held = CAPTURE._depth > 0
        self.said.append(what if held else f"{what} without the lock")

    @contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        """A thread's device is the first one, unless it says otherwise."""
        self.current, before = device, self.current
        try:
            yield
        finally:
            self.current = before

    def new_stream(self) -> Stream:
        return Stream(self, "one aside", self.current)

    def its_stream(self) -> Stream:
        return Stream(self, "its own", self.current)

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        assert stream.device == SECOND
        self.note("aside")
        yield
        self.note("back")

    @contextmanager
    def graph(
        self, graph: object, pool: object, stream: Stream, capture_error_mode: str
    ) -> Iterator[None]:
        assert (pool, capture_error_mode) == ("pool", "global") and stream.device == SECOND
        self.note("begins")
        yield
        self.note("ends")


class Stream:
    def __init__(self, cuda: MadeUpCuda, name: str, device: torch.device) -> None:
        self.cuda, self.name, self.device = cuda, name, device

    def wait_stream(self, other: Stream) -> None:
        assert other.device == self.device
        self.cuda.note(f"{self.name} waits for {other.name}")


class Graph:
    def replay(self) -> None:
        pass


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> MadeUpCuda:
    made_up = MadeUpCuda()
    for name, value in {
        "graph_pool_handle": lambda: "pool",
        "device": made_up.device,
        "Stream": made_up.new_stream,
        "current_stream": made_up.its_stream,
        "stream": made_up.stream,
        "CUDAGraph": Graph,
        "graph": made_up.graph,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    return made_up


def test_a_capture_warms_up_aside_and_holds_the_lock_throughout(cuda: MadeUpCuda) -> None:
    captures = CudaGraphs(SECOND)

    def run() -> Made:
        cuda.note("runs")
        return (torch.zeros(1),)

    made, replay = captures.capture(run)
    warm = ["one aside waits for its own", "aside", "runs", "runs", "back"]
    assert cuda.said == [*warm, "its own waits for one aside", "begins", "runs", "ends"]
    assert len(made) == 1 and replay() is None and not CAPTURE._depth


def test_a_failed_capture_gives_the_lock_back(cuda: MadeUpCuda) -> None:
    def run() -> Made:
        raise RuntimeError(NOT_CAPTURED)

    with pytest.raises(RuntimeError, match="capturing"):
        CudaGraphs(SECOND).capture(run)
    assert not CAPTURE._depth and cuda.current == torch.device("cuda", 0)


# canaries


def test_canary_a_buffer_that_is_not_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = graphs_module._Captured.fill

    def once(self: graphs_module._Captured, ids: Ids, start: int) -> None:
        if self.replay is None:
            sound(self, ids, start)

    monkeypatch.setattr(graphs_module._Captured, "fill", once)
    assert walk("float32", Again(), steps=0)


def test_canary_ids_that_are_not_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = graphs_module._Captured.fill

    def places_only(self: graphs_module._Captured, ids: Ids, start: int) -> None:
        sound(self, np.zeros_like(ids), start)

    monkeypatch.setattr(graphs_module._Captured, "fill", places_only)
    assert walk("float32", Again(), steps=0)


def test_canary_a_place_baked_in(one_call: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows written where the host said at the capture: only the tape can see that."""

    def put(self: Counted, into: torch.Tensor, start: int, rows: torch.Tensor) -> None:
        with torch.utils._python_dispatch._disable_current_modes():
            at = int(self._start)
        Kv.put(self, into, at, rows)

    monkeypatch.setattr(Counted, "put", put)
    assert walk("float32", Again(), steps=0) == []
    assert walk("float32", Tapes(), steps=0)


def test_canary_a_block_that_asks_the_device() -> None:
    """The CPU's attention reads the count: a tape, as a device, refuses to capture that."""
    ours = engine("float32", Tapes())
    ours.verify(ODD[:2])
    assert ours.graphs is not None and NOT_CAPTURED in ours.graphs.refused[2]


def test_logits_stay_as_they_were_when_the_next_block_comes() -> None:
    assert kept_logits()


def kept_logits() -> bool:
    ours = engine("float32", Again())
    first = ours.verify(ODD[:2])
    before = first.tolist()
    ours.verify(ODD[4:6])
    return first.tolist() == before


def test_canary_logits_that_are_not_the_callers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "clone", lambda self: self)
    assert not kept_logits()
