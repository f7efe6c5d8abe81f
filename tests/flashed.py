"""What the tests of the flash model share: engines, prefill, and copies of their state by name."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from cache.types import Ids
from engine.flash.config import FlashConfig
from engine.flash.decoder import FlashDecoder
from engine.flash.engine import Flash
from engine.flash.weights import random_weights

SHAPES = {
    "tiny": FlashConfig.tiny(),
    "float32": FlashConfig.tiny(layers=8),
    "bfloat16": FlashConfig.tiny(dtype="bfloat16"),
    "narrow": FlashConfig.replay(vocab=499),
    "wide": FlashConfig.tiny(streams=3, ngram=4, block_rows=16, top_blocks=3, ple_kernel=3),
    "bare": FlashConfig.tiny(draft=False, tie_embeddings=False),
}


@dataclass
class Saved:
    """What a cache would hold at a line: sections, and the rows of views below it, by name."""

    sections: dict[str, torch.Tensor]
    rows: dict[str, torch.Tensor]
    axes: dict[str, int]

    def clone(self) -> Saved:
        """A copy to spoil."""
        both = ({name: t.clone() for name, t in s.items()} for s in (self.sections, self.rows))
        return Saved(*both, self.axes)


@dataclass
class Cold:
    """A prefill: the copies at its lines (0 first), what it ends with, and its last logits."""

    ids: Ids
    lines: list[Saved]
    end: Saved
    logits: torch.Tensor


def ids_of(count: int, seed: int = 0) -> Ids:
    """Random token ids of a vocabulary of 499."""
    return np.random.default_rng(seed).integers(0, 499, count).astype(np.int32)


@cache
def decoder(shape: str) -> FlashDecoder:
    """Weights, made once."""
    return FlashDecoder(random_weights(SHAPES[shape], 7))


def engine(shape: str = "tiny", grid: int = 64, window: int = 0) -> Flash:
    """An empty engine with room for five chunks and a bit."""
    return Flash(decoder(shape), grid=grid, window=window or 5 * grid + 64)


def feed(of: Flash, ids: Ids) -> torch.Tensor:
    """Prefill `ids` from the engine's length on, cut at the grid lines; the last logits."""
    start, end = of.length, of.length + len(ids)
    lines = range((start // of.grid + 1) * of.grid, end, of.grid)
    for a, b in itertools.pairwise([start, *lines, end]):
        logits = of.prefill(ids[a - start : b - start])
    return logits


def save(of: Flash) -> Saved:
    """Copies of everything at the engine's length."""
    state = of.cache_state()
    return Saved(
        {section.name: section.tensor.clone() for section in state.sections},
        {view.name: view.rows(0, of.length).clone() for view in state.views},
        {view.name: view.axis for view in state.views},
    )


def put_back(of: Flash, saved: Saved) -> None:
    """Write sections and rows into the engine's buffers, and NaN into every other row and into
    everything that is derived.
    """
    state = of.cache_state()
    for section in state.sections:
        section.tensor.copy_(saved.sections[section.name])
    for view in state.views:
        rows = saved.rows[view.name]
        view.tensor.fill_(torch.nan)
        view.rows(0, rows.shape[view.axis]).copy_(rows)
    for layer in derived(of):
        layer.fill_(torch.nan)


def derived(of: Flash) -> list[torch.Tensor]:
    """The pooled keys of every layer, the MTP layer's last."""
    mtp = of._state.mtp_rows
    return [rows.pooled for rows in (*of._state.rows, *([mtp] if mtp else []))]


def cold(shape: str, grid: int, seed: int = 0, lines: int = 3) -> Cold:
    """A prompt of so many lines and a bit, prefilled from nothing."""
    of, ids = engine(shape, grid), ids_of(lines * grid + grid // 3 + 1, seed)
    saved = [save(of)]
    for line in range(grid, lines * grid + 1, grid):
        of.prefill(ids[line - grid : line])
        saved.append(save(of))
    logits = feed(of, ids[lines * grid :])
    return Cold(ids, saved, save(of), logits)


def resumed(of: Flash, saved: Saved, ids: Ids, line: int) -> Cold:
    """Put `saved` back, resume at row `line`, forward the rest of `ids`."""
    put_back(of, saved)
    of.resume_at(line)
    at_line = save(of)
    logits = feed(of, ids[line:])
    return Cold(ids, [at_line], save(of), logits)


def equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """The same bytes, so that NaN equals itself and -0 differs from 0."""
    return a.shape == b.shape and torch.equal(
        a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)
    )


def unlike(got: Saved, want: Saved) -> list[str]:
    """Names of sections and views that are not equal bit for bit."""
    both = {**got.sections, **got.rows}, {**want.sections, **want.rows}
    assert both[0].keys() == both[1].keys()
    return [name for name, tensor in both[0].items() if not equal(tensor, both[1][name])]


def differences(got: Cold, want: Cold) -> list[str]:
    """What is not equal bit for bit at the end."""
    logits = [] if equal(got.logits, want.logits) else ["logits"]
    return logits + unlike(got.end, want.end)
