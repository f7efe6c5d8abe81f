"""Every conversation that comes back from the drive is what it was, bit for bit, on every model.

Method: turns through the real engine and caches with files in memory that keep direct I/O's rules;
every prompt is held to its gate. State is compared as bytes: all rows, every anchor, the end. A
restart is a new engine of the same weights over the same files. The canaries plant one fault each.
Also covers cache.spill.buffers, cache.spill.config, cache.spill.entry, cache.spill.manifest,
cache.spill.names, cache.spill.offers, cache.spill.pipeline, cache.spill.reader, cache.spill.saver,
cache.spill.shapes, cache.spill.spilled, cache.spill.unserved, cache.spill.values,
cache.spill.writer, cache.source, cache.planned and cache.loading.
"""

from __future__ import annotations

import pytest
import torch
from homes import Home
from support import GRID, MODELS


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are the same bytes."""
    return a.shape == b.shape and bool((a.view(torch.uint8) == b.view(torch.uint8)).all())


@pytest.mark.parametrize("model", MODELS)
def test_a_planned_stop_and_a_new_process_keep_every_bit(model: str) -> None:
    home, twin = Home(model), Home(model)
    for one in (home, twin):
        one.turn("a", more=300)
        one.turn("a")
    before = home.state()
    line = home.restarts()
    after = home.state()
    assert line == home.on.stack.resident.account.valid
    assert {name.split(".")[0] for name in after} == {"row", "anchor", "end"}
    assert all(same(before[name], after[name]) for name in after)
    newest = [n for n in before if n.startswith("anchor") and int(n.split(".")[1]) % GRID == 0]
    kept = {name for name in after if name.startswith("anchor")}
    assert kept == set(sorted(newest, key=lambda n: int(n.split(".")[1]))[-len(kept) :])
    row, other = home.turn("a"), twin.turn("a")
    assert (row.source, row.cached, row.gate) == (other.source, other.cached, other.gate)
    assert row.source == "end"
    left, right = home.state(), twin.state()
    assert all(same(left[name], right[name]) for name in left if name in right)


@pytest.mark.parametrize("model", MODELS)
def test_evicted_read_back_and_evicted_again_it_keeps_its_end(model: str) -> None:
    home = Home(model)
    home.turn("a", more=300)
    for _ in range(3):
        assert home.turn("b", more=100).source in ("cold", "spill.end")
        row = home.turn("a")
        assert (row.source, row.gate) == ("spill.end", "greedy")
        assert row.prompt - row.cached <= 71
    assert not home.of_kind("fail") and not home.of_kind("damage")
