"""The flash model's promise: resumed at a grid line it computes a cold prefill's bits.

Goal: logits, every section and every row, after rows were overwritten and copied back, in buffers
of another size at other addresses, with NaN wherever nothing may be read and in all that must be
rebuilt (engine.flash.rows, engine.flash.state). Method: one cold prefill leaves copies at each grid
line; another engine, or the same one after it served a longer prompt, is put back to a line and
forwards the rest. Equality is of bytes, at the line and at the end. Each canary plants one fault,
and the comparison at the end must fail.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch
from flashed import (
    SHAPES,
    Cold,
    Saved,
    derived,
    differences,
    engine,
    equal,
    feed,
    ids_of,
    put_back,
    resumed,
    save,
    unlike,
)
from flashed import cold as prefilled

from engine.flash.rows import SparseRows
from engine.flash.state import FlashState

CASES = [
    ("float32", 64),
    ("bfloat16", 64),
    ("float32", 16),
    ("bfloat16", 20),
    ("wide", 72),
    ("bare", 64),
    ("narrow", 320),
]
"""Shape and grid. On a grid of 20 or 72 blocks of the sparse attention reach over its lines."""
FEWER = [("float32", 64), ("bfloat16", 64), ("narrow", 320)]
LINES = 3


@cache
def cold(shape: str, grid: int, seed: int = 0) -> Cold:
    """Prefilled once."""
    return prefilled(shape, grid, seed, LINES)


@pytest.mark.parametrize("shape, grid", CASES)
@pytest.mark.parametrize("line", range(LINES + 1))
def test_resume_is_cold_after_rows_were_overwritten_and_came_back(
    shape: str, grid: int, line: int
) -> None:
    want = cold(shape, grid)
    of = engine(shape, grid)
    feed(of, ids_of(4 * grid + 3, seed=1))
    got = resumed(of, want.lines[line], want.ids, line * grid)
    assert unlike(got.lines[0], want.lines[line]) == []
    assert differences(got, want) == []


@pytest.mark.parametrize("shape, grid", CASES)
def test_resume_with_rows_left_in_place(shape: str, grid: int) -> None:
    """Only the sections are copied back: another prompt went on from line 2 meanwhile."""
    want = cold(shape, grid)
    of = engine(shape, grid)
    feed(of, want.ids)
    for ids in (np.concatenate([want.ids[: 2 * grid], ids_of(2 * grid, seed=1)]), want.ids):
        for section in of.cache_state().sections:
            section.tensor.copy_(want.lines[2].sections[section.name])
        of.resume_at(2 * grid)
        logits = feed(of, ids[2 * grid :])
    assert differences(Cold(want.ids, [], save(of), logits), want) == []


@pytest.mark.parametrize("shape, grid", CASES)
@pytest.mark.parametrize("extra", [0, 37])
def test_another_window_and_other_addresses(shape: str, grid: int, extra: int) -> None:
    """The window ends right behind the prompt, or a little later; a twin lies elsewhere."""
    want = cold(shape, grid)
    first = engine(shape, grid)
    twin = first.twin(len(want.ids) + extra)
    both = zip(first.cache_state().sections, twin.cache_state().sections, strict=True)
    assert all(a.tensor.data_ptr() != b.tensor.data_ptr() for a, b in both)
    got = resumed(twin, want.lines[2], want.ids, 2 * grid)
    assert differences(got, want) == []


@pytest.mark.parametrize("shape, grid", CASES)
def test_cold_twice_and_a_longer_prompt_first(shape: str, grid: int) -> None:
    want = cold(shape, grid)
    of = engine(shape, grid)
    feed(of, ids_of(4 * grid + 9, seed=2))
    of.resume_at(0)
    logits = feed(of, want.ids)
    assert differences(Cold(want.ids, [], save(of), logits), want) == []


@pytest.mark.parametrize("shape, grid", CASES)
@pytest.mark.parametrize("line", [1, 2])
def test_pooled_keys_come_back_as_they_were_advanced(shape: str, grid: int, line: int) -> None:
    """A block at a time, as chunks and blocks of tokens went by, or all at once."""
    want, of, other = cold(shape, grid), engine(shape, grid), engine(shape, grid)
    length = line * grid + 9
    feed(of, want.ids[: line * grid])
    for at in range(line * grid, length):
        # Two more than are kept: blocks that refused tokens fill are pooled again.
        of.verify(np.append(want.ids[at : at + 1], ids_of(2, at)).astype(np.int32))
        of.accept(1)
    of.settle()
    put_back(other, save(of))
    other.resume_at(length)
    blocks = length // SHAPES[shape].block_rows
    assert blocks, "nothing is pooled"
    for a, b in zip(derived(of), derived(other), strict=True):
        assert equal(a[:blocks], b[:blocks])


@pytest.mark.parametrize("shape, grid", CASES[:4])
def test_a_line_reached_by_blocks_is_not_the_grids_line(shape: str, grid: int) -> None:
    """Why rows that a verify block wrote are tainted: their bits are not a prefill's."""
    want = cold(shape, grid)
    of = engine(shape, grid)
    put_back(of, want.lines[1])
    of.resume_at(grid)
    for at in range(grid, 2 * grid, 4):
        of.verify(want.ids[at : at + 4])
        of.accept(4)
    of.settle()
    assert of.length == 2 * grid
    assert unlike(save(of), want.lines[2]) != []
    if shape == "float32":
        for name, tensor in save(of).sections.items():
            close = want.lines[2].sections[name]
            torch.testing.assert_close(tensor, close, atol=2e-4, rtol=0.0)


@pytest.mark.parametrize("shape, grid", [case for case in CASES if case[1] >= 64])
def test_resume_inside_a_chunk_gives_other_bits(shape: str, grid: int) -> None:
    """No resume line is finer than the grid, although the state put back is exactly the one that
    was there.
    """
    want = cold(shape, grid)
    middle = 2 * grid + grid // 2 + 1
    of = engine(shape, grid)
    put_back(of, want.lines[2])
    of.resume_at(2 * grid)
    of.prefill(want.ids[2 * grid : middle])
    got = resumed(engine(shape, grid), save(of), want.ids, middle)
    assert "gdn.S.0" in differences(got, want)


@pytest.mark.parametrize("shape, grid", CASES)
def test_the_end_of_a_generation_comes_back_bit_for_bit(shape: str, grid: int) -> None:
    """An end anchor holds no grid bits, but what follows it must not depend on where it lies."""
    want = cold(shape, grid)
    of = engine(shape, grid)
    feed(of, want.ids)
    answer = ids_of(11, seed=3)
    for at, size in ((0, 4), (4, 1), (5, 6)):
        of.verify(answer[at : at + size])
        of.accept(size)
    of.settle()
    end, length = save(of), of.length
    follow = np.concatenate([want.ids, answer, ids_of(20, seed=4)])
    drafts = of.draft(5, 4)
    logits = feed(of, follow[length:])
    twin = of.twin(len(follow) + 5)
    put_back(twin, end)
    twin.resume_at(length)
    assert twin.draft(5, 4) == drafts
    got = resumed(twin, end, follow, length)
    assert differences(got, Cold(follow, [], save(of), logits)) == []


# canaries: one fault each, in what is put back at line 3

Plant = Callable[[Saved, Cold, Cold, int], None]
"""Spoils a saved line 3, given the cold prefill it is from, another prompt's, and the grid."""


def one_bit_of_a_state(saved: Saved, own: Cold, other: Cold, grid: int) -> None:
    """One element of the second net's state is off by a 128th."""
    flat = saved.sections["gdn.S.1"].view(-1).view(torch.uint8)
    flat[len(flat) // 8 * 4 + 2] ^= 1


def sections_of_the_line_before(saved: Saved, own: Cold, other: Cold, grid: int) -> None:
    """Restored one line too early."""
    saved.sections = own.lines[2].sections


def another_prompts_sections(saved: Saved, own: Cold, other: Cold, grid: int) -> None:
    """Two conversations mixed."""
    saved.sections = other.lines[3].sections


def rows_shifted_by_one(saved: Saved, own: Cold, other: Cold, grid: int) -> None:
    """Every row is its neighbour's."""
    saved.rows = {name: rows.roll(1, saved.axes[name]) for name, rows in saved.rows.items()}


def section_of_the_line_before(name: str) -> Plant:
    """This section alone."""

    def plant(saved: Saved, own: Cold, other: Cold, grid: int) -> None:
        saved.sections[name] = own.lines[2].sections[name]

    plant.__name__ = name
    return plant


def row_of_the_other_prompt(name: str) -> Plant:
    """A row that did not come back when its neighbours did, in the newest block but one: every
    later query of the first half block sees it, and the index later.
    """

    def plant(saved: Saved, own: Cold, other: Cold, grid: int) -> None:
        axis = saved.axes[name]
        row = other.lines[3].rows[name].select(axis, 3 * grid - 5)
        saved.rows[name].select(axis, 3 * grid - 5).copy_(row)

    plant.__name__ = name
    return plant


SECTIONS = ("gdn.S.0", "gdn.conv.0", "ple.conv", "ple.context", "mtp.last")
VIEWS = ("K", "V", "index.K", "mtp.K", "mtp.V", "mtp.index.K")
PLANTS: tuple[Plant, ...] = (
    one_bit_of_a_state,
    sections_of_the_line_before,
    another_prompts_sections,
    rows_shifted_by_one,
    *map(section_of_the_line_before, SECTIONS),
    *map(row_of_the_other_prompt, VIEWS),
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
def test_canary_pooled_keys_that_are_not_rebuilt(
    shape: str, grid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another prompt's are left in place; everything that the caches copy came back."""
    want, of = cold(shape, grid), engine(shape, grid)
    feed(of, ids_of(4 * grid, seed=1))
    left = [pooled.clone() for pooled in derived(of)]
    monkeypatch.setattr(FlashState, "rebuild", lambda self, length: None)
    put_back(of, want.lines[3])
    for now, was in zip(derived(of), left, strict=True):
        now.copy_(was)
    of.resume_at(3 * grid)
    logits = feed(of, want.ids[3 * grid :])
    found = differences(Cold(want.ids, [], save(of), logits), want)
    assert "logits" in found and "gdn.S.0" not in found, "nets below the attention know nothing"


def test_canary_blocks_that_are_pooled_only_when_they_are_new(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What refused tokens left in a pooled key stays there."""

    def once(self: SparseRows, start: int, stop: int) -> None:
        size, done = self.block, int(self.pooled.abs().sum(1).gt(0).sum())
        pool(self, max(start, done * size), stop)

    pool = SparseRows.pool
    monkeypatch.setattr(SparseRows, "pool", once)
    with pytest.raises(AssertionError):
        test_pooled_keys_come_back_as_they_were_advanced("float32", 64, 2)
