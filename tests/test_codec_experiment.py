"""The experiment on the codec: both ways give the bytes back, and planes are the smaller ones.

Covers experiments.codec.

Method: at a small size, where ratios are what they are at the full one and rates are only there; a
way that gives other bytes back stops it, and rows of two-byte noise are the canary of the ratio.
"""

from __future__ import annotations

import time

import pytest
import torch

from cache.workers import ThreadWorkers
from experiments import codec
from experiments.figure import Figure
from experiments.registry import find
from sim.profile import load

SMALL = codec.Size(numbers=1 << 18, tokens=512, heads=3, state_tokens=256, rounds=1)


@pytest.fixture(scope="module")
def figures() -> dict[str, Figure]:
    return {figure.key: figure for figure in codec.run(load("spark-27b"), SMALL)}


def test_planes_are_smaller_than_whole_rows(figures: dict[str, Figure]) -> None:
    for kind in ("gauss", "rows", "state"):
        assert figures[f"{kind}.ratio"].ours > 1.05 * figures[f"{kind}.whole_ratio"].ours
    assert 1.45 < figures["gauss.ratio"].ours < 1.55
    assert 1.25 < figures["gauss.whole_ratio"].ours < 1.33
    assert all(figure.ours > 0 for figure in figures.values())


def test_the_seeds_entry_is_held_against_the_rows(figures: dict[str, Figure]) -> None:
    entry, off = figures["entry_gb"], figures["rows.off"]
    assert entry.seed == 3.04 and entry.ours == pytest.approx(5.2 / figures["rows.ratio"].ours)
    assert off.seed == pytest.approx(41.5, abs=0.1)
    assert off.ours == pytest.approx(100 * (1 - entry.ours / 5.2))


def test_the_registry_knows_it() -> None:
    assert find("codec").about == codec.ABOUT


def test_the_kinds_are_what_they_are_called() -> None:
    kinds = codec.kinds_of(SMALL)
    assert [rows[0].dtype for rows in kinds.values()] == [
        torch.bfloat16,
        torch.bfloat16,
        torch.float32,
    ]
    assert len(kinds["rows"]) == 2 and all(one.any(-1).all() for one in kinds["rows"])
    assert kinds["state"][0].count_nonzero() > 0.9 * kinds["state"][0].numel()


def test_canary_noise_is_no_smaller_in_planes() -> None:
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(-(2**15), 2**15, (1 << 17,), dtype=torch.int16, generator=generator)
    planes, whole = codec.timed([noise], 1, 1, time.process_time)
    assert planes.ratio == 1.0 and whole.ratio == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("way", [codec.Planes, codec.Whole])
def test_canary_a_way_that_loses_a_bit_is_seen(way: type[codec.Planes] | type[codec.Whole]) -> None:
    workers = ThreadWorkers(1)
    rows = torch.randn(1 << 14, generator=torch.Generator().manual_seed(0))
    one = way([rows], workers)
    one.pack()
    assert 0 < one.arrive() < rows.nbytes
    one.unpack()
    assert one.same()
    rows.view(torch.int32)[77] ^= 1
    assert not one.same()
    workers.close()
