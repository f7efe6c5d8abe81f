"""How a model's state lies in the tier's files, and what the files weigh under a budget.

Method: on every kind of model, whole files through files in memory into an empty engine, compared
with the engine they came from; sizes against the layouts that are really written.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from support import GRID, MODELS, VOCAB, engine, tokens

from cache.disk.shapes import (
    ANCHOR,
    PACKAGE_CHARS,
    PACKAGES,
    ROWS,
    Shapes,
    fill_chunk,
    has_ids,
    put_chunk,
)
from cache.format import Header, tensors_of, unsealed
from cache.ports import PAGE
from cache.types import Cost
from engine.witness import Witness
from sim.files import SimFiles

WORST = "\U0001f4a1" * (2 * PACKAGE_CHARS)
"""A name whose every character takes twelve bytes of JSON."""


@pytest.mark.parametrize("model", MODELS)
def test_rows_and_sections_come_back_as_they_went(model: str) -> None:
    of, into = engine(model), engine(model)
    shapes, ids = Shapes(of, "f"), tokens(3 * GRID)
    for start in range(0, len(ids), GRID):
        of.prefill(ids[start : start + GRID])
    into.prefill(tokens(GRID, 9))
    files, state, other = SimFiles(), of.cache_state(), into.cache_state()
    slot = files.buffer(shapes.slot_bytes(ROWS, 3))
    slot[:] = b"\xff" * len(slot)  # What another file left there.
    layout = shapes.chunk(77, 2 * GRID)
    fill_chunk(layout.tensors(slot), ids, state, GRID, 2 * GRID)
    image = layout.seal(slot)
    header = Header.parse(image)
    assert isinstance(header, Header) and unsealed(header, image, layout) == ""
    tensors = tensors_of(header, image, layout)
    assert has_ids(tensors, ids, GRID, 2 * GRID)
    for at in (GRID, 2 * GRID - 1):
        changed = ids.copy()
        changed[at] = (changed[at] + 1) % VOCAB
        assert not has_ids(tensors, changed, GRID, 2 * GRID)
    put_chunk(tensors, other, GRID, 2 * GRID)
    for view, mine in zip(state.views, other.views, strict=True):
        assert torch.equal(view.rows(GRID, 2 * GRID), mine.rows(GRID, 2 * GRID)), view.name
        below = torch.equal(view.rows(0, GRID), mine.rows(0, GRID))
        assert not below or view.name == "way", "only these rows are written"
    wanted = {"fingerprint": "f", "hash": f"{77:016x}", "grid": GRID}
    assert header.meta == wanted | {"start": GRID, "stop": 2 * GRID}


@pytest.mark.parametrize("model", MODELS)
def test_a_slot_holds_any_file(model: str) -> None:
    shapes = Shapes(engine(model), "f" * 64)
    for chunks in (1, 2, 63, 64, 500):
        names = [(1 << 64) - 1] * chunks
        layout = shapes.anchor(names[0], chunks * GRID, names, [WORST] * 40)
        assert layout.nbytes <= shapes.slot_bytes(ANCHOR, chunks)
        buffer = SimFiles().buffer(shapes.slot_bytes(ANCHOR, chunks))
        for tensor in layout.tensors(buffer):
            tensor.zero_()
        assert isinstance(Header.parse(layout.seal(buffer)), Header)
    assert shapes.chunk((1 << 64) - 1, 500 * GRID).nbytes <= shapes.slot_bytes(ROWS, 500)


def test_an_anchor_names_the_last_packages_in_short() -> None:
    shapes = Shapes(engine("witness"), "f")
    names = [f"package {n} {'x' * n * 10}" for n in range(20)]
    meta = shapes.anchor(1, 2 * GRID, [2, 1], names).header.meta
    assert meta["packages"] == [name[:PACKAGE_CHARS] for name in names[-PACKAGES:]]
    assert meta["chunks"] == [f"{2:016x}", f"{1:016x}"] and meta["line"] == 2 * GRID
    assert json.loads(json.dumps(meta)) == meta


@pytest.mark.parametrize("model", MODELS)
def test_a_file_weighs_what_it_takes(model: str) -> None:
    """Where costs are real bytes, a file's weight is its size."""
    of = engine(model)
    shapes, state, cost = Shapes(of, "f"), of.cache_state(), of.cost()
    real = sum(view.rows(0, GRID).nbytes for view in state.views)
    sections = sum(section.tensor.nbytes for section in state.sections)
    for chunks in (1, 40, 400):
        nbytes = shapes.anchor(0, chunks * GRID, [0] * chunks).nbytes
        expected = nbytes + cost.anchor_bytes - sections
        assert shapes.bytes_of(ANCHOR, chunks) == expected == shapes.weight(ANCHOR, nbytes)
    chunk = shapes.chunk(5, 9 * GRID).nbytes
    assert shapes.bytes_of(ROWS) == chunk + GRID * cost.row_bytes - real > 0
    assert chunk % PAGE == 0 and chunk >= real


def test_a_simulated_boards_rows_count_as_large_as_they_are() -> None:
    small = Shapes(engine("witness"), "f")
    board = Shapes(Witness(GRID, 512, cost=Cost(row_bytes=100_000, anchor_bytes=7_000_000)), "f")
    own = engine("witness").cost()
    more = GRID * (100_000 - own.row_bytes)
    assert board.bytes_of(ROWS) - small.bytes_of(ROWS) == more
    assert board.weight(ROWS, 8_192) - small.weight(ROWS, 8_192) == more
    more = 7_000_000 - own.anchor_bytes
    assert board.bytes_of(ANCHOR, 3) - small.bytes_of(ANCHOR, 3) == more
    # The files themselves are as small as what really moves.
    assert board.slot_bytes(ROWS, 8) == small.slot_bytes(ROWS, 8)
    tiny = Shapes(Witness(GRID, 512, cost=Cost(row_bytes=0, anchor_bytes=0)), "f")
    assert tiny.weight(ROWS, 0) == 0 and tiny.bytes_of(ROWS) > 0


def test_asking_for_a_layout_touches_no_row() -> None:
    of = engine("witness")
    of.prefill(tokens(GRID))
    before = [view.tensor.clone() for view in of.cache_state().views]
    shapes = Shapes(of, "f")
    shapes.chunk(1, GRID), shapes.anchor(1, GRID, [1]), shapes.slot_bytes(ANCHOR, 8)
    after = [view.tensor for view in of.cache_state().views]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert np.array_equal(of.cache_state().views[0].tensor.numpy(), before[0].numpy())
