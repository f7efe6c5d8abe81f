"""The hybrid engine behind the Model port.

Goal: prefill on any grid, verify blocks with any acceptance, settling, trimming and drafting leave
the state that forwarding the committed tokens one by one leaves. Method: the float64 reference, and
a second engine that takes the plain way; where only the order of two calls differs, bits. What a
block keeps for later (engine.layers.block) is absorbed in any part.
Bounds are absolute, on values of order one: a few times the largest error seen over 8 layers.
"""

from __future__ import annotations

import ast
import itertools
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from cache.types import CacheState, Cost, Ids
from engine.config import HybridConfig
from engine.decode import decode
from engine.hybrid import Hybrid
from engine.layers.decoder import Decoder
from engine.oracle.hybrid import Oracle
from engine.sampling import Greedy
from engine.weights import random_weights

ROOT = Path(__file__).resolve().parent.parent
CONFIG = HybridConfig.tiny()
LOGITS, MEMORY = 5e-5, 2e-4


def ids_of(count: int, seed: int = 0, vocab: int = CONFIG.vocab) -> Ids:
    """Random token ids."""
    return np.random.default_rng(seed).integers(0, vocab, count).astype(np.int32)


def hybrid(config: HybridConfig = CONFIG, grid: int = 64, window: int = 512) -> Hybrid:
    """An empty engine, always with the same weights for a config."""
    return Hybrid.random(config, 3, grid=grid, window=window)


def feed(engine: Hybrid, ids: Ids) -> torch.Tensor:
    """Prefill `ids` from the engine's length, cut at the grid lines."""
    start, end = engine.length, engine.length + len(ids)
    cuts = [start, *range((start // engine.grid + 1) * engine.grid, end, engine.grid), end]
    for a, b in itertools.pairwise(cuts):
        logits = engine.prefill(ids[a - start : b - start])
    return logits


def ones(engine: Hybrid, ids: Ids) -> torch.Tensor:
    """Forward `ids` by blocks of one token; their logits."""
    logits = [torch.empty(0, engine.vocab)]
    for at in range(len(ids)):
        logits.append(engine.verify(ids[at : at + 1]))
        engine.accept(1)
    return torch.cat(logits)


def copied(engine: Hybrid) -> list[torch.Tensor]:
    """Clones of all sections and all rows below `length`."""
    state = engine.cache_state()
    rows = [view.rows(0, engine.length).clone() for view in state.views]
    return [section.tensor.clone() for section in state.sections] + rows


def near(got: list[torch.Tensor], want: list[torch.Tensor], bound: float = MEMORY) -> None:
    """Element by element within `bound`."""
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a.double(), b.double(), atol=bound, rtol=0.0)


def same_bits(got: list[torch.Tensor], want: list[torch.Tensor]) -> bool:
    """Whether every element is equal."""
    return all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


# prefill against the reference


@cache
def reference(config: HybridConfig, count: int) -> tuple[Oracle, torch.Tensor]:
    """The float64 model after `ids_of(count)`, and all their logits."""
    oracle = Oracle(config, random_weights(config, 3).tensors)
    return oracle, oracle.read(ids_of(count).tolist())


def memory_of(oracle: Oracle) -> list[torch.Tensor]:
    """In the order of `copied`."""
    return list(oracle.state().values())


@pytest.mark.parametrize("grid", [7, 16, 64, 128])
def test_prefill_on_any_grid_is_the_reference(grid: int) -> None:
    ids = ids_of(150)
    oracle, logits = reference(CONFIG, len(ids))
    engine = hybrid(grid=grid)
    near([feed(engine, ids)], [logits[-1]], LOGITS)
    near(copied(engine), memory_of(oracle))


@pytest.mark.parametrize(
    "changes",
    [
        {"layers": 8, "tie_embeddings": False},
        {"draft": False},
        {"full_attention_interval": 2, "q_heads": 3, "kv_heads": 1, "value_heads": 2},
        {"layers": 5, "conv_kernel": 3, "rotary_fraction": 1.0},
    ],
)
def test_other_shapes_are_the_reference(changes: dict[str, int | float | bool]) -> None:
    config = HybridConfig.tiny(**changes)
    ids = ids_of(100)
    oracle, logits = reference(config, len(ids))
    engine = hybrid(config)
    near([feed(engine, ids)], [logits[-1]], LOGITS)
    near(copied(engine), memory_of(oracle))


def test_bfloat16_follows_the_reference_loosely() -> None:
    """Eight bits a step over four layers: a wrong formula is off by the logits' own size, 1."""
    config = HybridConfig.tiny(dtype="bfloat16")
    ids = ids_of(100)
    oracle, logits = reference(config, len(ids))
    engine = hybrid(config)
    near([feed(engine, ids)], [logits[-1]], 0.15)
    near(copied(engine), memory_of(oracle), 0.25)


# verify blocks


def test_block_logits_are_those_of_single_steps_and_of_the_reference() -> None:
    ids = ids_of(75)
    engine, plain = hybrid(), hybrid()
    for of in (engine, plain):
        feed(of, ids[:70])
    block = engine.verify(ids[70:])
    _, logits = reference(CONFIG, len(ids))
    near([block], [logits[70:]], LOGITS)
    near([block], [ones(plain, ids[70:])], LOGITS)


@pytest.mark.parametrize("size, kept", [(1, 1), (2, 1), (4, 0), (4, 3), (5, 5), (9, 2)])
def test_partial_acceptance_is_step_by_step(size: int, kept: int) -> None:
    ids, junk = ids_of(80), ids_of(9, seed=1)
    engine, plain = hybrid(), hybrid()
    for of in (engine, plain):
        feed(of, ids[:70])
    block = np.concatenate([ids[70 : 70 + kept], junk])[:size]
    engine.verify(block)
    engine.accept(kept)
    assert (engine.length, engine.pending) == (70 + kept, kept)
    follow = ids[70 + kept : 74 + kept]
    ones(plain, ids[70 : 70 + kept])
    near([engine.verify(follow)], [ones(plain, follow)], LOGITS)
    engine.accept(4)
    for of in (engine, plain):
        of.settle()
    near(copied(engine), copied(plain))


def test_verify_changes_no_section_and_only_rows_past_length() -> None:
    engine = hybrid()
    feed(engine, ids_of(70))
    before = copied(engine)
    engine.verify(ids_of(5, seed=1))
    assert engine.length == 70 and same_bits(copied(engine), before)


def test_pending_folded_or_settled_first_gives_the_same_bits() -> None:
    ids = ids_of(80)
    engines = hybrid(), hybrid()
    for engine in engines:
        feed(engine, ids[:70])
        engine.verify(ids[70:75])
        engine.accept(3)
    engines[1].settle()
    assert engines[0].pending == 3 and engines[1].pending == 0
    logits = [engine.verify(ids[73:77]) for engine in engines]
    assert torch.equal(*logits)
    for engine in engines:
        engine.accept(2)
        engine.settle()
    assert same_bits(copied(engines[0]), copied(engines[1]))


def test_prefill_lands_a_pending_commit_first() -> None:
    ids = ids_of(90)
    engines = hybrid(), hybrid()
    for engine in engines:
        feed(engine, ids[:70])
        engine.verify(ids[70:74])
        engine.accept(4)
    engines[1].settle()
    assert torch.equal(*[feed(engine, ids[74:]) for engine in engines])
    assert same_bits(copied(engines[0]), copied(engines[1]))


@pytest.mark.parametrize("kept", [0, 1, 2, 4])
def test_trim_is_never_having_accepted_the_rest(kept: int) -> None:
    ids = ids_of(80)
    engines = hybrid(), hybrid()
    for engine, count in zip(engines, (4, kept), strict=True):
        feed(engine, ids[:70])
        engine.verify(ids[70:75])
        engine.accept(count)
    assert engines[0].trim_pending(70 + kept) and engines[0].length == 70 + kept
    assert engines[0].draft(7, 3) == engines[1].draft(7, 3)
    for engine in engines:
        engine.settle()
    assert same_bits(copied(engines[0]), copied(engines[1]))


def test_trim_says_no_when_the_sections_are_past_it() -> None:
    engine = hybrid()
    feed(engine, ids_of(70))
    engine.verify(ids_of(4, seed=1))
    engine.accept(3)
    before = copied(engine)
    assert not engine.trim_pending(69) and engine.pending == 3
    engine.settle()
    assert not engine.trim_pending(72) and engine.length == 73
    assert not same_bits(copied(engine)[:3], before[:3])


# speculation

SCRIPTS = [
    [3, 0, None, 0, 3, None, 2, 0, 0, 1],
    [None, None, 3, None, 0, 0, 3, 3],
    [0, 0, 0, None, 1, None, 2],
]
"""Rounds: so many drafts accepted, or a round that has none."""


@cache
def plain_text() -> tuple[Ids, list[int]]:
    """A prompt, and 60 tokens of greedy decoding without any draft."""
    prompt, engine = ids_of(130, seed=5), hybrid()
    text = [int(feed(engine, prompt).argmax())]
    while len(text) < 60:
        text.append(int(ones(engine, np.array(text[-1:], np.int32))[0].argmax()))
    return prompt, text


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("drafts", [1, 2, 3, 4])
def test_scripted_drafts_write_what_no_speculation_writes(
    drafts: int, script: list[int | None]
) -> None:
    """A round that accepts some, then one without drafts, then one that refuses all."""
    prompt, text = plain_text()
    engine = hybrid()
    written = [int(feed(engine, prompt).argmax())]
    assert written == text[:1]
    for accepts in script:
        right = min(accepts or 0, drafts)
        guesses = text[len(written) : len(written) + right]
        if accepts is not None:
            wrong = (text[len(written) + right] + 1) % CONFIG.vocab
            guesses = [*guesses, *[wrong] * (drafts - right)]
        logits = engine.verify(np.array([written[-1], *guesses], np.int32))
        best = logits.argmax(-1).tolist()
        assert best[: right + 1] == text[len(written) : len(written) + right + 1]
        engine.accept(1 + right)
        written += best[: right + 1]
    fresh = hybrid()
    feed(fresh, prompt)
    ones(fresh, np.array(written[:-1], np.int32))
    for of in (engine, fresh):
        of.settle()
    near(copied(engine), copied(fresh))


@pytest.mark.parametrize("drafts", [1, 2, 3, 4])
@pytest.mark.parametrize("beside", [-1, 0, 1])
def test_speculation_before_and_after_a_resume_writes_the_cold_text(
    drafts: int, beside: int
) -> None:
    """A drafter that steps back a row must not take the sections along, and the other way round."""
    first, shared = ids_of(150, seed=5), 128 + beside
    second = np.concatenate([first[:shared], ids_of(40, seed=6)])
    engine, fresh = hybrid(), hybrid()
    lines: dict[int, list[torch.Tensor]] = {}
    for line in (64, 128):
        engine.prefill(first[line - 64 : line])
        lines[line] = [section.tensor.clone() for section in engine.cache_state().sections]
    text_of(engine, engine.prefill(first[128:]), drafts)
    line = shared // 64 * 64
    for section, saved in zip(engine.cache_state().sections, lines[line], strict=True):
        section.tensor.copy_(saved)
    engine.resume_at(line)
    resumed, cold = feed(engine, second[line:]), feed(fresh, second)
    assert torch.equal(resumed, cold)
    assert text_of(engine, resumed, drafts) == text_of(fresh, cold, 0)


def text_of(engine: Hybrid, logits: torch.Tensor, drafts: int) -> list[int]:
    """30 tokens of greedy decoding with the engine's own drafts."""
    rounds = decode(engine, logits, Greedy(drafts), 30, frozenset())
    return [token for new in rounds for token in new]


def test_drafts_are_the_references() -> None:
    ids = ids_of(140)
    oracle, logits = reference(CONFIG, len(ids))
    engine = hybrid()
    feed(engine, ids[:100])
    engine.verify(ids[100:105])
    engine.accept(5)
    engine.verify(ids[105:140])
    engine.accept(35)
    token = int(logits[-1].argmax())
    assert engine.draft(token, 4) == oracle.draft(token, 4)


def test_drafting_changes_nothing_that_is_committed_and_stops_at_the_window() -> None:
    engine = hybrid(window=80)
    feed(engine, ids_of(70))
    engine.verify(ids_of(6, seed=1))
    engine.accept(4)
    before = copied(engine)
    assert len(engine.draft(5, 20)) == 80 - 74
    assert same_bits(copied(engine), before)
    assert hybrid(HybridConfig.tiny(draft=False)).draft(5, 3) == []


def test_drafts_after_a_resume_are_those_before_it() -> None:
    """`draft.h` and the draft layer's rows are all that the draft layer needs back."""
    ids = ids_of(128)
    engine, other = hybrid(), hybrid(window=300)
    feed(engine, ids)
    state, back = engine.cache_state(), other.cache_state()
    feed(other, ids_of(200, seed=4))
    put_back(state, back, 128)
    other.resume_at(128)
    assert engine.draft(9, 5) == other.draft(9, 5)


def put_back(state: CacheState, into: CacheState, length: int) -> None:
    """Copy sections and the rows below `length`."""
    for section, target in zip(state.sections, into.sections, strict=True):
        target.tensor.copy_(section.tensor)
    for view, rows in zip(state.views, into.views, strict=True):
        rows.rows(0, length).copy_(view.rows(0, length))


# the Model port


def test_state_has_the_published_names_and_shapes() -> None:
    state = hybrid(HybridConfig.tiny(dtype="bfloat16", layers=8)).cache_state()
    sections = {s.name: (tuple(s.tensor.shape), s.tensor.dtype) for s in state.sections}
    views = {v.name: (tuple(v.tensor.shape), v.axis) for v in state.views}
    channels = 2 * 2 * 12 + 4 * 20
    assert sections == {
        "gdn.S": ((6, 4, 12, 20), torch.float32),
        "gdn.conv": ((6, channels, 3), torch.bfloat16),
        "draft.h": ((48,), torch.bfloat16),
    }
    assert views == {
        "K": ((2, 2, 512, 16), 2),
        "V": ((2, 2, 512, 16), 2),
        "draft.K": ((1, 2, 512, 16), 2),
        "draft.V": ((1, 2, 512, 16), 2),
    }
    bare = hybrid(HybridConfig.tiny(draft=False)).cache_state()
    assert [s.name for s in bare.sections] == ["gdn.S", "gdn.conv"]
    assert [v.name for v in bare.views] == ["K", "V"]


def test_resume_at_zero_is_an_empty_engine() -> None:
    ids = ids_of(100)
    engine, fresh = hybrid(), hybrid()
    feed(engine, ids_of(200, seed=4))
    engine.verify(ids[:3])
    engine.accept(2)
    engine.resume_at(0)
    assert (engine.length, engine.pending) == (0, 0)
    assert torch.equal(feed(engine, ids), feed(fresh, ids))
    assert same_bits(copied(engine), copied(fresh))


def test_a_twin_shares_weights_and_nothing_else() -> None:
    ids = ids_of(100)
    engine = hybrid()
    feed(engine, ids)
    before = copied(engine)
    twin = engine.twin(256)
    assert (twin.window, twin.length, twin.grid) == (256, 0, 64)
    assert twin.decoder is engine.decoder
    feed(twin, ids_of(150, seed=8))
    assert same_bits(copied(engine), before)


def test_cost_is_the_real_bytes_or_what_was_given() -> None:
    engine = hybrid()
    state, cost = engine.cache_state(), engine.cost()
    assert cost.row_bytes == 4 * (2 * 2 * 16 + 2 * 2 * 16)
    assert cost.row_bytes * engine.window == sum(v.tensor.nbytes for v in state.views)
    assert cost.anchor_bytes == sum(s.tensor.nbytes for s in state.sections)
    assert cost.workspace_bytes(1000) > 0
    board = Cost(row_bytes=106_496, anchor_bytes=153_900_000)
    given = Hybrid.random(CONFIG, 3, grid=64, window=512, cost=board)
    assert given.cost() is board and given.twin(64).cost() is board


def test_without_block_logits_only_the_logits_are_missing() -> None:
    ids = ids_of(80)
    decoder = Decoder(random_weights(CONFIG, 3))
    mute = Hybrid(decoder, grid=64, window=512, block_logits=False)
    engine = hybrid()
    assert torch.equal(feed(mute, ids[:70]), feed(engine, ids[:70]))
    assert engine.verify(ids[70:75]).shape == (5, CONFIG.vocab)
    assert mute.verify(ids[70:75]).shape == (0, CONFIG.vocab)
    for of in (mute, engine):
        of.accept(4)
        of.settle()
    assert same_bits(copied(mute), copied(engine))
    assert mute.twin(64).verify(ids[:1]).shape == (0, CONFIG.vocab)


def test_manifest_lists_every_file_that_computes_rows() -> None:
    """All of engine/ that the engine imports, but for what reports the machine or takes a lock, and
    what a device computes with: that is listed there."""
    found: set[str] = set()
    todo = ["engine/hybrid.py"]
    while todo:
        path = todo.pop()
        if path in found:
            continue
        found.add(path)
        for node in ast.walk(ast.parse((ROOT / path).read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("engine"):
                module = (node.module or "").replace(".", "/")
                names = [f"{module}.py", *(f"{module}/{alias.name}.py" for alias in node.names)]
                todo += [name for name in names if (ROOT / name).exists()]
    others = {"engine/machine.py", "engine/capture.py", "engine/bad.py", "engine/device.py"}
    others |= {path for path in found if path.startswith("engine/kernels/")}
    assert set(hybrid().manifest().files) == found - others


def test_manifest_tells_models_apart_and_not_windows() -> None:
    manifest = hybrid().manifest()
    assert manifest == hybrid(window=1000).manifest()
    others = [
        hybrid(grid=128),
        hybrid(HybridConfig.tiny(rope_theta=1e6)),
        hybrid(HybridConfig.tiny(dtype="bfloat16")),
        Hybrid.random(CONFIG, 4, grid=64, window=512),
    ]
    assert all(other.manifest() != manifest for other in others)
    assert manifest.weights == "random seed=3" and manifest.grid == 64
    assert manifest.libraries["torch"] == torch.__version__
