"""Rows in e4m3 come back through every tier as a cold prefill writes them, scales and all.

Goal: logits, sections, codes and scales, of a model with two draft layers, in float32 and bfloat16;
and every query reads rows as they lie in the buffers, those of its own block too. Method: parted
prompts through the real turn, one tier at a time, held to a cold prefill bit for bit; chunks and
blocks forwarded again over rows that are in place already. Each canary plants a fault in the scales
or in what a block reads, and must show in logits and sections alone, without a look at the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
from support import GRID, VOCAB, box, joined, serve, spill, tier, tokens, verifier

from cache.types import Gate, Ids
from engine.config import HybridConfig
from engine.hybrid import Hybrid
from engine.layers.decoder import Decoder
from engine.layers.kv import Kv
from engine.turn import Box
from engine.weights import random_weights
from replay.verify import Verdict
from sim.files import SimFiles

SHAPES = {
    "float32": HybridConfig.tiny(kv="e4m3", draft_layers=2),
    "bfloat16": HybridConfig.tiny(kv="e4m3", draft_layers=2, dtype="bfloat16"),
}
PROMPT, OTHER = tokens(5 * GRID + 20, 1), tokens(9 * GRID + 5, 2)
LINE = 4 * GRID
PARTED = joined(PROMPT[: LINE + 7], tokens(90, 3))


@cache
def decoder(shape: str) -> Decoder:
    """Weights, made once."""
    return Decoder(random_weights(SHAPES[shape], 1))


def engine(shape: str, window: int = 1_024) -> Hybrid:
    """An empty one."""
    return Hybrid(decoder(shape), grid=GRID, window=window)


# through the tiers


def resident(shape: str) -> Box:
    """The prompt's own rows are in place."""
    on = box(engine(shape))
    serve(on, PROMPT, tokens(9, 4), session="a")
    return on


def park(shape: str) -> Box:
    """Another conversation took the rows in place."""
    on = box(engine(shape), park_rows=4_000)
    serve(on, PROMPT, tokens(9, 4), session="a")
    serve(on, OTHER, tokens(9, 5), session="b")
    return on


def store(shape: str) -> Box:
    """A snapshot at the prompt's last line is all there is."""
    of = engine(shape)
    room = 4_000 * of.cost().row_bytes + 64 * of.cost().anchor_bytes
    on = box(of, store_bytes=room)
    serve(on, PROMPT[: LINE + 20], tokens(9, 4), session="a")
    serve(on, OTHER, tokens(9, 5), kind="title")
    return on


def disk(shape: str) -> Box:
    """Another process, with the files of the first."""
    files, of = SimFiles(), engine(shape)
    first = tier(files, of)
    on = box(of, disk=first)
    serve(on, PROMPT, tokens(9, 4), session="a")
    first.keeper.jobs.drain()
    on.stack.leave()
    first.keeper.jobs.drain()
    first.close()
    of = engine(shape)
    return box(of, disk=tier(files, of))


def spilled(shape: str) -> Box:
    """Another process, with what the first put aside on its drive."""
    files, of = SimFiles(), engine(shape)
    first = spill(files, of)
    on = box(of, spill=first)
    serve(on, PROMPT, tokens(9, 4), session="a")
    serve(on, OTHER, tokens(9, 5), session="b")
    first.close()
    of = engine(shape)
    return box(of, spill=spill(files, of))


TIERS: dict[str, Callable[[str], Box]] = {
    "grid": resident,
    "park.grid": park,
    "store.grid": store,
    "disk.grid": disk,
    "spill.grid": spilled,
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("source", TIERS)
def test_a_parted_prompt_is_a_cold_prefills_bits(source: str, shape: str) -> None:
    on = TIERS[source](shape)
    row, verdict = serve(on, PARTED, tokens(5, 6), check=verifier(on.engine), session="a")
    assert (row.source, row.cached, row.gate) == (source, LINE, "bits")
    assert verdict is not None and verdict.gate is Gate.BITS
    assert verdict.ok, verdict


@pytest.mark.parametrize("shape", SHAPES)
def test_the_end_of_an_answer_comes_back_from_the_pool_and_the_drive(shape: str) -> None:
    """Codes and scales that blocks wrote, byte for byte."""
    for make, source in ((park, "park.end"), (spilled, "spill.end")):
        on, twin = make(shape), engine(shape)
        prefill(twin, PROMPT)
        follow = joined(PROMPT, tokens(9, 4), tokens(30, 7))
        row, verdict = serve(on, follow, tokens(5, 6), check=verifier(on.engine), session="a")
        assert row.source == source and verdict is not None and verdict.gate is Gate.GREEDY
        rows = len(PROMPT) // GRID * GRID
        pairs = zip(on.engine.cache_state().views, twin.cache_state().views, strict=True)
        assert all(same(a.rows(0, rows), b.rows(0, rows)) for a, b in pairs)


# what a query reads


def prefill(of: Hybrid, ids: Ids) -> torch.Tensor:
    """From the engine's length, grid by grid."""
    for start in range(of.length, len(ids), GRID):
        logits = of.prefill(ids[start : start + GRID])
    return logits


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """The same bytes."""
    a, b = a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)
    return torch.equal(a, b)


def in_place(shape: str, patch: pytest.MonkeyPatch, *, block: bool) -> bool:
    """Whether one more chunk, or a verified block, says the same over rows already in place."""
    of, ids = engine(shape), PROMPT[: 2 * GRID]
    prefill(of, ids[:GRID])
    sections = [section.tensor.clone() for section in of.cache_state().sections]
    forward, more = (of.verify, ids[GRID : GRID + 5]) if block else (of.prefill, ids[GRID:])
    logits = forward(more)
    for section, tensor in zip(of.cache_state().sections, sections, strict=True):
        section.tensor.copy_(tensor)
    of.resume_at(GRID)
    patch.undo()
    patch.setattr(Kv, "write", lambda self, start, k, v: None)
    again = forward(more)
    patch.undo()
    return same(logits, again)


def before_quantised(patch: pytest.MonkeyPatch) -> None:
    """A block's queries read its own rows as they were computed."""
    write, read = Kv.write, Kv.read
    own: dict[int, tuple[int, torch.Tensor, torch.Tensor]] = {}

    def kept(self: Kv, start: int, k: torch.Tensor, v: torch.Tensor) -> None:
        own[id(self)] = start, k.transpose(0, 1), v.transpose(0, 1)
        write(self, start, k, v)

    def mixed(self: Kv, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        start, k, v = own[id(self)]
        keys, values = read(self, stop)
        return torch.cat((keys[:, :start], k), 1), torch.cat((values[:, :start], v), 1)

    patch.setattr(Kv, "write", kept)
    patch.setattr(Kv, "read", mixed)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("block", [False, True])
def test_a_query_reads_its_own_block_as_it_lies_in_the_buffers(
    shape: str, block: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert in_place(shape, monkeypatch, block=block)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("block", [False, True])
def test_canary_a_row_attended_before_it_was_quantised(
    shape: str, block: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_quantised(monkeypatch)
    assert not in_place(shape, monkeypatch, block=block)


# canaries: one fault in what comes back at a line, told by logits and sections

Plant = Callable[[Hybrid, Hybrid], None]
"""Spoils rows below LINE in place, given an engine with another prompt's."""


def scales(of: Hybrid, name: str = "") -> list[torch.Tensor]:
    """Of rows below the line."""
    views = of.cache_state().views
    return [v.rows(0, LINE) for v in views if v.name.endswith(".scale") and name in v.name]


def one_row_off(of: Hybrid, other: Hybrid) -> None:
    """Every scale is its neighbour's."""
    for scale in scales(of):
        scale.copy_(scale.roll(1, -1))


def one_scale_one_row_off(of: Hybrid, other: Hybrid) -> None:
    """One row of the values, which stands just below the line."""
    scale = next(s for v, s in named(of) if v == "V.scale")
    scale[..., LINE - 2] = scale[..., LINE - 3]


def not_restored(of: Hybrid, other: Hybrid) -> None:
    """Codes came back, and scales are what the buffers held before: another prompt's."""
    for scale, strange in zip(scales(of), scales(other), strict=True):
        scale.copy_(strange)


def never_written(of: Hybrid, other: Hybrid) -> None:
    """Scales of an empty buffer."""
    for scale in scales(of):
        scale.zero_()


def codes_not_restored(of: Hybrid, other: Hybrid) -> None:
    """The other way round."""
    views, strange = of.cache_state().views, other.cache_state().views
    for view, from_view in zip(views, strange, strict=True):
        if not view.name.endswith(".scale"):
            view.rows(0, LINE).copy_(from_view.rows(0, LINE))


def named(of: Hybrid) -> list[tuple[str, torch.Tensor]]:
    """Rows below the line by their view's name."""
    return [(view.name, view.rows(0, LINE)) for view in of.cache_state().views]


PLANTS = (one_row_off, one_scale_one_row_off, not_restored, never_written, codes_not_restored)


def blind(of: Hybrid, logits: torch.Tensor, cold: Hybrid, wanted: torch.Tensor) -> bool:
    """Whether logits and sections are equal; what a client could tell apart."""
    pairs = zip(of.cache_state().sections, cold.cache_state().sections, strict=True)
    return same(logits, wanted) and all(same(a.tensor, b.tensor) for a, b in pairs)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("plant", [None, *PLANTS], ids=lambda p: p.__name__ if p else "none")
def test_canary_is_seen_without_a_look_at_the_rows(shape: str, plant: Plant | None) -> None:
    of, cold, other = engine(shape), engine(shape, 640), engine(shape, 704)
    wanted = prefill(cold, PARTED)
    prefill(other, OTHER[: 6 * GRID])
    prefill(of, PROMPT[:LINE])
    if plant is not None:
        plant(of, other)
    assert blind(of, prefill(of, PARTED), cold, wanted) == (plant is None)


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_canary_turns_the_bit_gate_red(plant: Plant) -> None:
    on, other = resident("float32"), engine("float32")
    prefill(other, OTHER[: 6 * GRID])
    assert isinstance(on.engine, Hybrid)
    plant(on.engine, other)
    verdict: Verdict | None = serve(on, PARTED, tokens(5, 6), check=verifier(on.engine))[1]
    assert verdict is not None and verdict.gate is Gate.BITS and not verdict.ok


def test_canary_a_scale_of_a_draft_layer_moves_its_guesses() -> None:
    """Nothing but the drafts can show it: neither logits nor sections hang on those rows."""
    of, other = engine("float32"), engine("float32")
    for one in (of, other):
        prefill(one, PROMPT[: 2 * GRID])
    for scale in scales(of, "draft."):
        scale.mul_(4)
    starts = range(0, VOCAB, 50)
    assert [of.draft(at, 3) for at in starts] != [other.draft(at, 3) for at in starts]
