"""A device's gates: a resume is a cold prefill, a graph an eager block, copies harm no capture"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from cache.host import ThreadJobs
from engine.config import HybridConfig
from engine.device import moved
from engine.graphs import SIZES_MAX, Again, Captures, captures_for
from engine.hybrid import Hybrid
from engine.knobs import Knobs
from engine.layers.decoder import Decoder
from engine.weights import random_weights
from replay import disk_gate, memory_gate, spill_gate
from replay.device_compare import worst
from replay.gate_case import Case, drawn

KINDS = (("float32", "model"), ("bfloat16", "model"), ("bfloat16", "e4m3"))
"""Dtypes, and how rows of keys and values are kept."""
GRID = 64
LINES = 3
"""Grid chunks before the blocks that are looked at."""
STEPS = 40
"""Blocks of one walk."""
STEP_BOUND = {"float32": 1e-3, "bfloat16": 0.25}
"""Between logits of a block and of its tokens one by one: sums in another order, on values of order
one, through a model of random weights."""
BOARD = (("grid", str(GRID)), ("row_bytes", "4100"), ("anchor_bytes", "200000"))
Gate = Callable[[], str]


def gates(device: torch.device, folder: Path, seed: int) -> Iterator[tuple[str, Gate]]:
    """Every gate by name, none of them run yet; the quick ones first."""
    for dtype, kv in KINDS:
        named = dtype if kv == "model" else f"{dtype}, {kv}"
        weights = moved(random_weights(HybridConfig.tiny(dtype=dtype, kv=kv), seed), device)
        decoder = Decoder(weights)
        yield f"graph is eager, {named}", lambda of=decoder: graph_gate(of, seed)
        yield f"block is its tokens, {named}", lambda of=decoder: block_gate(of, seed)
    yield "captures beside copies", lambda of=decoder: capture_gate(of, seed)
    for dtype, kv in KINDS:
        named = dtype if kv == "model" else f"{dtype}, {kv}"
        case = Case(
            "random", "spark-27b", BOARD, seed, Knobs(dtype=dtype, kv=kv, device=str(device))
        )
        yield f"memory, {named}", lambda case=case: memory(case)
    yield "disk", lambda: disk_gate.gate(folder / "disk", case)
    yield "spill", lambda: spill_gate.gate(folder / "spill", case)


def memory(case: Case) -> str:
    """Every way back to a conversation that memory has, beside a cold prefill."""
    return next((f"{one.what}: {one.why}" for one in memory_gate.resumes(case) if one.why), "")


def graph_gate(decoder: Decoder, seed: int, captures: Captures | None = None) -> str:
    """Two engines, one with graphs, on the same walk over blocks of every size; what differs."""
    captures = captures or captures_for(decoder.device) or Again()
    eager, ours = (_engine(decoder, graphs) for graphs in (False, captures))
    draw = np.random.default_rng(seed)
    for of in (eager, ours):
        _read(of, seed)
    for step in range(STEPS):
        n = step % SIZES_MAX + 1
        ids, count = drawn(n, seed + step, eager.vocab), int(draw.integers(0, n + 1))
        logits = [of.verify(ids) for of in (eager, ours)]
        settles = step % 5 == 4
        for of in (eager, ours):
            of.accept(count)
            if settles:
                of.settle()
        for what in (*(["logits"] if not same(*logits) else []), *unlike(eager, ours)):
            return f"block {step} of {n}: {what} differ"
    if ours.graphs is None or ours.graphs.refused:
        refused = {} if ours.graphs is None else ours.graphs.refused
        return f"no graph was captured: {next(iter(refused.values()), 'there are none')}"
    made = ours.graphs.replays
    return "" if made == STEPS else f"graphs made {made} of {STEPS} blocks"


def block_gate(decoder: Decoder, seed: int) -> str:
    """Logits of blocks beside those of their tokens one by one, and of the same block again."""
    of, other = _engine(decoder, True), _engine(decoder, True)
    for engine in (of, other):
        _read(engine, seed)
    bound, apart = STEP_BOUND[decoder.config.dtype], [0.0]
    for n in (1, 3, SIZES_MAX, SIZES_MAX + 2):
        ids = drawn(n, seed + n, of.vocab)
        block = of.verify(ids)
        if not same(block, of.verify(ids)):
            return f"a block of {n} again: logits differ"
        of.accept(n)
        for at in range(n):
            one = other.verify(ids[at : at + 1])[0]
            other.accept(1)
            apart.append(float((block[at].double() - one.double()).abs().max()))
    far = worst(apart)
    return "" if far <= bound else f"logits are {far:.3g} apart, more than {bound:.3g}"


def capture_gate(decoder: Decoder, seed: int, rounds: int = 3) -> str:
    """Graphs are captured while another thread copies rows to the host under the lock."""
    jobs, done, copies = ThreadJobs(), list[bool](), [0]
    busy = _engine(decoder, False)
    _read(busy, seed)

    def copier() -> Iterator[None]:
        while not done:
            with busy.device_calls():
                for view in busy.cache_state().views:
                    view.rows(0, GRID).cpu()
            copies[0] += 1
            yield

    jobs.start("copier", copier())
    try:
        for number in range(rounds):
            why = graph_gate(decoder, seed + number)
            if why:
                return f"round {number}: {why}"
    finally:
        done.append(True)
        jobs.close()
    return "" if copies[0] else "nothing was copied meanwhile"


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bit for bit."""
    return torch.equal(*(x.contiguous().view(torch.uint8) for x in (a, b)))


def unlike(one: Hybrid, other: Hybrid) -> list[str]:
    """Sections, and rows below the length, that differ in a bit."""
    ours, theirs = one.cache_state(), other.cache_state()
    sections = zip(ours.sections, theirs.sections, strict=True)
    views = zip(ours.views, theirs.views, strict=True)
    bad = [a.name for a, b in sections if not same(a.tensor, b.tensor)]
    return bad + [a.name for a, b in views if not same(*(x.rows(0, one.length) for x in (a, b)))]


def _engine(decoder: Decoder, graphs: Captures | bool) -> Hybrid:
    window = (LINES + 1) * GRID + STEPS * SIZES_MAX
    return Hybrid(decoder, grid=GRID, window=window, graphs=graphs)


def _read(of: Hybrid, seed: int) -> None:
    """A prompt of a few chunks."""
    ids = drawn(LINES * GRID + GRID // 3, seed, of.vocab)
    for line in range(0, len(ids), GRID):
        of.prefill(ids[line : line + GRID])
