"""The hybrid's promise: resumed at a grid line it computes a cold prefill's bits.

Goal: logits, every section and every row, float32 and bfloat16, after rows were overwritten and
copied back, in buffers of another size at other addresses, with NaN wherever nothing may be read.
Method: one cold prefill leaves copies at each grid line; another engine, or the same one after it
served a longer prompt, is put back to a line and forwards the rest. Equality is of bytes, both at
the line and at the end. Each canary plants one fault in what is put back, and the comparison at the
end must then fail.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
import torch

from cache.types import Ids
from engine.config import HybridConfig
from engine.hybrid import Hybrid
from engine.layers.decoder import Decoder
from engine.weights import random_weights

SHAPES = {
    "float32": HybridConfig.tiny(full_attention_interval=2),
    "bfloat16": HybridConfig.tiny(full_attention_interval=2, dtype="bfloat16"),
    "narrow": HybridConfig.replay(vocab=499),
    # Heads of the form for wide ones, and no draft layer: the last layer forwards one row.
    "wide": HybridConfig.tiny(key_dim=48, value_dim=64, draft=False),
    "wide in bfloat16": HybridConfig.tiny(key_dim=48, value_dim=64, draft=False, dtype="bfloat16"),
}
CASES = [
    ("float32", 64),
    ("bfloat16", 64),
    ("float32", 16),
    ("bfloat16", 16),
    ("float32", 192),
    ("bfloat16", 192),
    ("narrow", 1024),
    ("wide", 192),
    ("wide in bfloat16", 192),
]
"""Shape and grid."""
FEWER = [("float32", 64), ("bfloat16", 64), ("narrow", 1024)]
LINES = 4


@dataclass
class Saved:
    """What a cache would hold of a prompt at a line: sections, and the rows below it."""

    sections: list[torch.Tensor]
    rows: list[torch.Tensor]

    def clone(self) -> Saved:
        """A copy to spoil."""
        return Saved([t.clone() for t in self.sections], [t.clone() for t in self.rows])


@dataclass
class Cold:
    """A cold prefill: the copies at its lines (0 first) and what it ends with."""

    ids: Ids
    lines: list[Saved]
    end: Saved
    logits: torch.Tensor


@cache
def decoder(shape: str) -> Decoder:
    """Weights, made once."""
    return Decoder(random_weights(SHAPES[shape], 7))


def engine(shape: str, grid: int, window: int = 0) -> Hybrid:
    """An empty engine with room for every prompt used here."""
    return Hybrid(decoder(shape), grid=grid, window=window or 6 * grid + 64)


def ids_of(count: int, seed: int) -> Ids:
    """Random token ids."""
    return np.random.default_rng(seed).integers(0, 499, count).astype(np.int32)


def save(of: Hybrid) -> Saved:
    """Copies of everything at the engine's length."""
    state = of.cache_state()
    rows = [view.rows(0, of.length).clone() for view in state.views]
    return Saved([section.tensor.clone() for section in state.sections], rows)


def feed(of: Hybrid, ids: Ids, start: int) -> torch.Tensor:
    """Prefill ids[start:], cut at the grid lines."""
    lines = range((start // of.grid + 1) * of.grid, len(ids), of.grid)
    for a, b in itertools.pairwise([start, *lines, len(ids)]):
        logits = of.prefill(ids[a:b])
    return logits


@cache
def cold(shape: str, grid: int, seed: int = 0) -> Cold:
    """A prompt of LINES lines and a bit, prefilled from nothing."""
    of, ids = engine(shape, grid), ids_of(LINES * grid + grid // 3 + 1, seed)
    lines = [save(of)]
    for line in range(grid, LINES * grid + 1, grid):
        of.prefill(ids[line - grid : line])
        lines.append(save(of))
    logits = feed(of, ids, LINES * grid)
    return Cold(ids, lines, save(of), logits)


def put_back(of: Hybrid, saved: Saved) -> None:
    """Write sections and rows into the engine's buffers, and NaN into every other row."""
    state = of.cache_state()
    for section, tensor in zip(state.sections, saved.sections, strict=True):
        section.tensor.copy_(tensor)
    for view, rows in zip(state.views, saved.rows, strict=True):
        count = rows.shape[view.axis]
        view.tensor.fill_(torch.nan)
        view.rows(0, count).copy_(rows)


def resumed(of: Hybrid, saved: Saved, ids: Ids, line: int) -> Cold:
    """Put `saved` back, resume at `line`, forward the rest of `ids`."""
    put_back(of, saved)
    of.resume_at(line)
    at_line = save(of)
    logits = feed(of, ids, line)
    return Cold(ids, [at_line], save(of), logits)


def equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """The same bytes, so that NaN equals itself and -0 differs from 0."""
    return a.shape == b.shape and torch.equal(
        a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)
    )


def differences(got: Cold, want: Cold) -> list[str]:
    """What is not equal bit for bit at the end: of logits, sections and views, by their place."""
    logits = [] if equal(got.logits, want.logits) else ["logits"]
    return logits + unlike(got.end, want.end)


def unlike(got: Saved, want: Saved) -> list[str]:
    """Sections and views that are not equal bit for bit, by their place."""
    names = []
    for kind in ("sections", "rows"):
        both = zip(getattr(got, kind), getattr(want, kind), strict=True)
        names += [f"{kind} {at}" for at, (a, b) in enumerate(both) if not equal(a, b)]
    return names


@pytest.mark.parametrize("shape, grid", CASES)
@pytest.mark.parametrize("line", range(LINES + 1))
def test_resume_is_cold_after_rows_were_overwritten_and_came_back(
    shape: str, grid: int, line: int
) -> None:
    want = cold(shape, grid)
    of = engine(shape, grid)
    feed(of, ids_of(5 * grid + 3, seed=1), 0)
    got = resumed(of, want.lines[line], want.ids, line * grid)
    assert unlike(got.lines[0], want.lines[line]) == []
    assert differences(got, want) == []


@pytest.mark.parametrize("shape, grid", CASES)
def test_resume_with_rows_left_in_place(shape: str, grid: int) -> None:
    """Only the sections are copied back: another prompt went on from line 2 meanwhile."""
    want = cold(shape, grid)
    of = engine(shape, grid)
    feed(of, want.ids, 0)
    of.resume_at(2 * grid)
    for section, tensor in zip(of.cache_state().sections, want.lines[2].sections, strict=True):
        section.tensor.copy_(tensor)
    feed(of, np.concatenate([want.ids[: 2 * grid], ids_of(3 * grid, seed=1)]), 2 * grid)
    for section, tensor in zip(of.cache_state().sections, want.lines[2].sections, strict=True):
        section.tensor.copy_(tensor)
    of.resume_at(2 * grid)
    logits = feed(of, want.ids, 2 * grid)
    assert differences(Cold(want.ids, [], save(of), logits), want) == []


@pytest.mark.parametrize("shape, grid", CASES)
@pytest.mark.parametrize("extra", [0, 1, 37])
def test_another_window_and_other_addresses(shape: str, grid: int, extra: int) -> None:
    """The window ends right behind the prompt, or a little later; a twin lies elsewhere."""
    want = cold(shape, grid)
    first = engine(shape, grid)
    twin = first.twin(len(want.ids) + extra)
    for section, other in zip(
        first.cache_state().sections, twin.cache_state().sections, strict=True
    ):
        assert section.tensor.data_ptr() != other.tensor.data_ptr()
    got = resumed(twin, want.lines[3], want.ids, 3 * grid)
    assert differences(got, want) == []


@pytest.mark.parametrize("shape, grid", CASES)
def test_cold_twice_and_a_longer_prompt_first(shape: str, grid: int) -> None:
    want = cold(shape, grid)
    of = engine(shape, grid)
    feed(of, ids_of(5 * grid + 9, seed=2), 0)
    of.resume_at(0)
    logits = feed(of, want.ids, 0)
    assert differences(Cold(want.ids, [], save(of), logits), want) == []


@pytest.mark.parametrize("shape, grid", CASES[:4])
def test_a_line_reached_by_blocks_is_not_the_grids_line(shape: str, grid: int) -> None:
    """Why rows that a verify block wrote are tainted: their bits are not a prefill's."""
    want = cold(shape, grid)
    of = engine(shape, grid)
    put_back(of, want.lines[1])
    of.resume_at(grid)
    for at in range(grid, 2 * grid, 4):
        of.verify(want.ids[at : min(at + 4, 2 * grid)])
        of.accept(min(4, 2 * grid - at))
    of.settle()
    assert of.length == 2 * grid
    assert not all(map(equal, save(of).sections, want.lines[2].sections))
    for got, line in zip(save(of).sections, want.lines[2].sections, strict=True):
        close = 1e-4 if shape == "float32" else 1.0
        torch.testing.assert_close(got, line, atol=close, rtol=0.0)


@pytest.mark.parametrize("shape, grid", [case for case in CASES if case[1] >= 64])
def test_resume_inside_a_chunk_gives_other_bits(shape: str, grid: int) -> None:
    """RP7: no resume line is finer than the grid.

    A chunk cut in two goes through products of other row counts and other key lengths, and its
    inner chunks start elsewhere: the same numbers come out rounded otherwise. The state put back is
    exactly the one that was there; only where the cut lies differs.
    """
    want = cold(shape, grid)
    middle = 3 * grid + grid // 2 + 1
    of = engine(shape, grid)
    put_back(of, want.lines[3])
    of.resume_at(3 * grid)
    of.prefill(want.ids[3 * grid : middle])
    halfway = save(of)
    other = engine(shape, grid)
    got = resumed(other, halfway, want.ids, middle)
    assert "sections 0" in differences(got, want)


@pytest.mark.parametrize("shape, grid", CASES)
def test_the_end_of_a_generation_comes_back_bit_for_bit(shape: str, grid: int) -> None:
    """An end anchor holds no grid bits, but what follows it must not depend on where it lies."""
    want = cold(shape, grid)
    of = engine(shape, grid)
    feed(of, want.ids, 0)
    answer = ids_of(11, seed=3)
    for at, size in ((0, 4), (4, 1), (5, 6)):
        of.verify(answer[at : at + size])
        of.accept(size)
    of.settle()
    end, length = save(of), of.length
    follow = np.concatenate([want.ids, answer, ids_of(20, seed=4)])
    logits = feed(of, follow, length)
    twin = of.twin(len(follow) + 5)
    got = resumed(twin, end, follow, length)
    assert differences(got, Cold(follow, [], save(of), logits)) == []


# canaries: one fault each, in what is put back at line 3

Plant = Callable[[Saved, Cold, Cold, int], None]
"""Spoils a saved line 3, given the cold prefill it is from, another prompt's, and the grid."""


def one_bit_of_the_state(saved: Saved, own: Cold, other: Cold, grid: int) -> None:
    """One element of gdn.S is off by a 128th."""
    flip(saved.sections[0], byte=2)


def flip(state: torch.Tensor, byte: int) -> None:
    """Turn the lowest bit of one byte of a float32 in the middle of `state`."""
    flat = state.view(-1).view(torch.uint8)
    flat[len(flat) // 8 * 4 + byte] ^= 1


def sections_of_the_line_before(saved: Saved, own: Cold, other: Cold, grid: int) -> None:
    """Restored one line too early."""
    saved.sections = own.lines[2].sections


def state_of_the_line_before(saved: Saved, own: Cold, other: Cold, grid: int) -> None:
    """gdn.S alone."""
    saved.sections[0] = own.lines[2].sections[0]


def tail_of_the_line_before(saved: Saved, own: Cold, other: Cold, grid: int) -> None:
    """gdn.conv alone: it only touches the first three tokens."""
    saved.sections[1] = own.lines[2].sections[1]


def hidden_of_the_line_before(saved: Saved, own: Cold, other: Cold, grid: int) -> None:
    """draft.h alone: it only touches the draft layer's next row."""
    saved.sections[2] = own.lines[2].sections[2]


def rows_shifted_by_one(saved: Saved, own: Cold, other: Cold, grid: int) -> None:
    """Every row is its neighbour's."""
    saved.rows = [rows.roll(1, dims=-2) for rows in saved.rows]


def one_row_of_the_other_prompt(saved: Saved, own: Cold, other: Cold, grid: int) -> None:
    """A row that did not come back when its neighbours did."""
    saved.rows[0][..., grid + 5, :] = other.lines[3].rows[0][..., grid + 5, :]


def one_draft_row_of_the_other_prompt(saved: Saved, own: Cold, other: Cold, grid: int) -> None:
    """Nothing but the draft layer's own rows can show it."""
    saved.rows[3][..., grid + 5, :] = other.lines[3].rows[3][..., grid + 5, :]


def another_prompts_sections(saved: Saved, own: Cold, other: Cold, grid: int) -> None:
    """Two conversations mixed."""
    saved.sections = other.lines[3].sections


PLANTS: tuple[Plant, ...] = (
    one_bit_of_the_state,
    sections_of_the_line_before,
    state_of_the_line_before,
    tail_of_the_line_before,
    hidden_of_the_line_before,
    rows_shifted_by_one,
    one_row_of_the_other_prompt,
    one_draft_row_of_the_other_prompt,
    another_prompts_sections,
)


@pytest.mark.parametrize("shape, grid", FEWER)
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_canary_is_seen(shape: str, grid: int, plant: Plant) -> None:
    own, other = cold(shape, grid), cold(shape, grid, 9)
    saved = own.lines[3].clone()
    plant(saved, own, other, grid)
    got = resumed(engine(shape, grid), saved, own.ids, 3 * grid)
    assert differences(got, own) != []


@pytest.mark.parametrize("shape, grid", FEWER)
def test_canary_lowest_bit_of_the_state_is_seen_at_the_line(shape: str, grid: int) -> None:
    """Rounding can swallow that bit on the way to the end, so that a gate must compare S itself."""
    want = cold(shape, grid)
    saved = want.lines[3].clone()
    flip(saved.sections[0], byte=0)
    got = resumed(engine(shape, grid), saved, want.ids, 3 * grid)
    assert unlike(got.lines[0], want.lines[3]) == ["sections 0"]
