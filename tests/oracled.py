"""What tests of the oracle share: one walk through an engine's calls, and how far it ends up."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from cache.types import Ids
from engine.adapter import Engine

GRID, COUNT = 64, 150
UNIT = 2.0**-24
"""What rounding to float32 adds to a number of order one."""
State = Mapping[str, torch.Tensor]


def bound(layers: int, terms: int = 80, size: float = 4.0) -> float:
    """How far float32 may end up from float64, on values of up to `size`.

    A sum of so many terms rounds once a term, by 2^-24 of its size. A value goes through four sums
    a layer (into and out of the mixer, into and out of the MLP) and the head's, each of which takes
    the errors before it over as they are: the weights keep a value's size. Scores, decays and
    rotary angles (a float32 product, off by 2^-24 of up to 150) add less than the sums' worst case,
    in which every rounding goes the same way: 2 to 20 % of the bound is seen.
    """
    return (4 * layers + 1) * terms * size * UNIT


def ids_of(count: int = COUNT, seed: int = 0) -> Ids:
    """Random token ids."""
    return np.random.default_rng(seed).integers(0, 499, count).astype(np.int32)


def walk(engine: Engine, ids: Ids) -> dict[int, torch.Tensor]:
    """Logits of rows, of all that are given, after all ways through an engine.

    Whole chunks, pieces of them, blocks of which all, some or no tokens are kept, folded into the
    next block, settled, or landed by a prefill. The last block stays pending.
    """
    assert len(ids) == COUNT and engine.grid == GRID and engine.length == 0
    found: dict[int, torch.Tensor] = {}
    for stop in (64, 100):
        found[stop - 1] = engine.prefill(ids[engine.length : stop])
    found |= block(engine, ids, kept=3, refused=2)
    found |= block(engine, ids, kept=4, refused=0)
    engine.settle()
    found |= block(engine, ids, kept=0, refused=3)
    for stop in (128, 140):
        found[stop - 1] = engine.prefill(ids[engine.length : stop])
    found |= block(engine, ids, kept=5, refused=1)
    found[147] = engine.prefill(ids[145:148])
    return found | block(engine, ids, kept=2, refused=2)


def block(engine: Engine, ids: Ids, kept: int, refused: int) -> dict[int, torch.Tensor]:
    """Verify the next of `ids` with wrong ones behind them, and accept the right ones."""
    start = engine.length
    wrong = (ids[:refused] + 1) % 499
    logits = engine.verify(np.concatenate([ids[start : start + kept], wrong]))
    engine.accept(kept)
    return {start + at: logits[at] for at in range(kept)}


def copied(engine: Engine) -> dict[str, torch.Tensor]:
    """Sections, and views' rows below `length`, float64; codes of eight bits times their scale."""
    state = engine.cache_state()
    rows = {view.name: view.rows(0, engine.length) for view in state.views}
    found = {section.name: section.tensor.double() for section in state.sections}
    for name, tensor in rows.items():
        if not name.endswith(".scale"):
            scale = rows.get(f"{name}.scale")
            found[name] = tensor.double() * (1.0 if scale is None else scale.double().unsqueeze(-1))
    return found


def gaps(got: Mapping[str, torch.Tensor], want: State) -> dict[str, float]:
    """How far each is off at most; what is no number is infinitely far."""
    assert got.keys() == want.keys()
    far = {}
    for name, tensor in got.items():
        assert tensor.shape == want[name].shape, name
        off = (tensor.double() - want[name].double()).abs()
        far[name] = float(off.nan_to_num(torch.inf, torch.inf).max())
    return far


def after(engine: Engine, ids: Ids, logits: torch.Tensor, state: State) -> dict[str, float]:
    """The gaps of logits, sections and rows after a walk; logits [n, vocab] and state wanted."""
    found = walk(engine, ids)
    engine.settle()
    rows = sorted(found)
    got = {"logits": torch.stack([found[row] for row in rows]), **copied(engine)}
    return gaps(got, {"logits": logits[rows], **state})


def resumed(engine: Engine, other: Engine, ids: Ids, line: int) -> torch.Tensor:
    """Logits of the last of `ids` by `other`, from the sections and rows of `engine` at `line`.

    Whatever `other` held before is junk.
    """
    for start in range(0, line, GRID):
        engine.prefill(ids[start : start + GRID])
    for part in itertools.chain(other.cache_state().sections, other.cache_state().views):
        part.tensor.fill_(7)
    for mine, theirs in zip(
        engine.cache_state().sections, other.cache_state().sections, strict=True
    ):
        theirs.tensor.copy_(mine.tensor)
    for rows, into in zip(engine.cache_state().views, other.cache_state().views, strict=True):
        into.rows(0, line).copy_(rows.rows(0, line))
    other.resume_at(line)
    for start in range(line, len(ids), GRID):
        logits = other.prefill(ids[start : start + GRID])
    return logits


def worst(far: Mapping[str, float], among: Sequence[str] = ()) -> float:
    """The largest of the gaps, or of those named."""
    return max(far[name] for name in among or far)
