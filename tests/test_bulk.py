"""A model of a board's sizes: its bytes are the board's, wherever they lie.

Goal: rows and sections weigh what the board's do, for any board; the 27B's lie by head as its own;
whatever changes a byte changes a sum, and wiping leaves nothing.
Method: hypothesis draws boards; sums against zlib over the bytes in the same order. Covers
replay.bulk.
"""

from __future__ import annotations

import zlib

import torch
from hypothesis import given
from hypothesis import strategies as st

from cache.types import Cost
from replay.bulk import Bulk, random_ids
from sim.profile import load


@given(st.integers(1, 4_000), st.integers(1, 200_000), st.integers(1, 5))
def test_rows_and_sections_weigh_what_the_boards_do(row: int, anchor: int, rows: int) -> None:
    state = Bulk(1, rows, Cost(row, anchor), 0).cache_state()
    assert sum(view.rows(0, 1).nbytes for view in state.views) == row
    assert all(view.tensor.shape[view.axis] == rows for view in state.views)
    assert sum(section.tensor.nbytes for section in state.sections) == anchor
    assert all(s.tensor.is_contiguous() for s in state.sections)


def test_the_27b_lies_by_head() -> None:
    cost = load("spark-27b").cost
    state = Bulk(4, 4, cost, 0).cache_state()
    heads = {view.name: view.tensor.shape[0] for view in state.views}
    # 16 layers of 4 heads; of the drafters' 40,960 bytes as much is K as V.
    assert heads == {"K": 64, "V": 64, "draft.K": 40, "draft.V": 40}
    states, tails = (section.tensor for section in state.sections)
    assert states.shape == (48 * 48, 128, 128) and states.dtype is torch.float32
    assert tails.nbytes == 48 * 10_240 * 3 * 2


def test_sums_are_of_the_rows_asked_for_and_see_every_byte() -> None:
    bulk = Bulk(4, 12, Cost(5_000, 200_000), 3)
    state, before = bulk.cache_state(), bulk.sums(8)
    naive = []
    for tensor in (*(v.rows(0, 8) for v in state.views), *(s.tensor for s in state.sections)):
        naive.append(zlib.crc32(tensor.contiguous().view(torch.uint8).numpy().tobytes()))
    assert before == naive
    for number, view in enumerate(state.views):
        view.rows(8, 12).zero_()
        assert bulk.sums(8) == before
        flat = view.rows(7, 8).view(torch.uint8)
        flat[(0,) * flat.dim()] ^= 1
        assert [a != b for a, b in zip(bulk.sums(8), before, strict=True)].index(True) == number
        flat[(0,) * flat.dim()] ^= 1
    bulk.wipe()
    assert not set(bulk.sums(8)) & set(before)
    assert Bulk(4, 12, Cost(5_000, 200_000), 3).sums(8) == before
    assert Bulk(4, 12, Cost(5_000, 200_000), 4).sums(8) != before


def test_numbers_are_gaussian_and_no_two_stretches_are_alike() -> None:
    bulk = Bulk(4, 4_000, Cost(5_120, 200_000), 3)
    bulk.fill_numbers(3)
    state = bulk.cache_state()
    for tensor in (*(view.tensor for view in state.views), state.sections[0].tensor):
        numbers = tensor.float().view(-1)
        assert abs(float(numbers.mean())) < 0.02 and abs(float(numbers.std()) - 1) < 0.02
    rows = {
        bytes(view.rows(n, n + 1).contiguous().view(torch.uint8).numpy())
        for view in state.views
        for n in range(0, 4_000, 100)
    }
    assert len(rows) == 40 * len(state.views)
    before = bulk.sums(8)
    bulk.fill_numbers(3)
    assert bulk.sums(8) == before


def test_it_keeps_the_ports_promises() -> None:
    bulk = Bulk(4, 8, Cost(700, 900), 0)
    bulk.resume_at(4)
    bulk.settle()
    assert bulk.length == 4 and bulk.trim_pending(4) and not bulk.trim_pending(3)
    with bulk.device_calls():
        assert bulk.manifest().grid == 4
    assert len(random_ids(9, 1)) == 9 and (random_ids(9, 1) != random_ids(9, 2)).any()
