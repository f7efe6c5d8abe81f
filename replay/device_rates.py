"""How fast a device prefills and decodes, at a few sizes, with graphs and without"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from engine.config import HybridConfig
from engine.device import moved
from engine.graphs import Again, Captures, captures_for
from engine.hybrid import Hybrid
from engine.layers.decoder import Decoder
from engine.weights import random_weights
from replay.device_compare import Stopwatch
from replay.gate_case import drawn

BLOCKS = (1, 4, 8)
"""Tokens of a verify block."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The model, and what it reads."""

    config: HybridConfig
    grid: int
    prompts: tuple[int, ...]
    """Lengths in the order in which they are reached: each goes on from the one before."""
    blocks: int
    """That are timed."""


def shape_of(device: torch.device) -> Shape:
    """Half a billion parameters of the 27B's heads on a device; a tiny model elsewhere."""
    if device.type != "cuda":
        return Shape(HybridConfig.tiny(), 64, (64, 256), 4)
    config = HybridConfig.tiny(
        vocab=32_768,
        hidden=2_048,
        layers=8,
        q_heads=12,
        kv_heads=2,
        head_dim=256,
        key_heads=16,
        value_heads=32,
        key_dim=128,
        value_dim=128,
        intermediate=6_144,
        dtype="bfloat16",
    )
    return Shape(config, 1_024, (4_096, 32_768), 32)


@dataclass(frozen=True, slots=True)
class Rate:
    """Tokens a second of one kind of work after so many rows."""

    what: str
    rows: int
    tokens_s: float
    graph_ratio: float | None = None
    """Of blocks: over those without a graph."""


def rates(
    device: torch.device,
    seed: int,
    watch: Stopwatch,
    more: Callable[[], bool] = lambda: True,
    shape: Shape | None = None,
) -> Iterator[Rate]:
    """Every rate; ends early where `more`, asked before each prompt, says that time is short."""
    shape = shape or shape_of(device)
    decoder = Decoder(moved(random_weights(shape.config, seed), device))
    window = shape.prompts[-1] + 2 * sum(BLOCKS) * (shape.blocks + 2)
    captures: Captures = captures_for(device) or Again()
    captured = Hybrid(decoder, grid=shape.grid, window=window, graphs=captures)
    plain = Hybrid(decoder, grid=shape.grid, window=window, graphs=False)
    # What compiles and what is found out once is no rate.
    _read(captured, 0, shape.grid, seed)
    captured.resume_at(0)
    line = 0
    for prompt in shape.prompts:
        if not more():
            return
        begun_s = watch.done()
        _read(captured, line, prompt, seed)
        yield Rate("prefill", prompt, (prompt - line) / (watch.done() - begun_s))
        sections = [section.tensor.clone() for section in captured.cache_state().sections]
        both = zip(captured.cache_state().views, plain.cache_state().views, strict=True)
        for ours, theirs in both:
            theirs.rows(line, prompt).copy_(ours.rows(line, prompt))
        line = prompt
        _at(plain, sections, line)
        for n in BLOCKS:
            with_s, without_s = (
                _decode(of, n, shape.blocks, seed, watch) for of in (captured, plain)
            )
            yield Rate(f"blocks of {n}", prompt, n / with_s, without_s / with_s)
        # What the blocks wrote is behind the line.
        _at(captured, sections, line)


def _read(of: Hybrid, start: int, stop: int, seed: int) -> None:
    ids = drawn(stop, seed, of.vocab)
    for line in range(start, stop, of.grid):
        of.prefill(ids[line : min(line + of.grid, stop)])


def _decode(of: Hybrid, n: int, blocks: int, seed: int, watch: Stopwatch) -> float:
    """Seconds of a block that is taken whole."""
    ids = drawn(n, seed + n, of.vocab)

    def forward(count: int) -> None:
        for _ in range(count):
            of.verify(ids)
            of.accept(n)

    forward(2)
    begun_s = watch.done()
    forward(blocks)
    return (watch.done() - begun_s) / blocks


def _at(of: Hybrid, sections: Sequence[torch.Tensor], line: int) -> None:
    """Go on from copies of the sections at a line."""
    for section, tensor in zip(of.cache_state().sections, sections, strict=True):
        section.tensor.copy_(tensor)
    of.resume_at(line)
