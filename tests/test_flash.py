"""The flash engine behind the Model port (engine.flash.engine, with its decoder, streams and mtp).

Goal: prefill on any grid, verify blocks with any acceptance, settling, trimming and drafting leave
the state that forwarding the committed tokens one by one leaves. Method: a second engine that takes
the plain way; where only the order of two calls differs, bits. The formulas themselves are held by
the oracle (test_oracle_flash). Bounds are absolute, on values of order one.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flashed import Saved, engine, feed, ids_of, put_back, save, unlike

from cache.types import Cost, Ids
from engine.decode import decode
from engine.flash.config import FlashConfig
from engine.flash.decoder import FlashDecoder
from engine.flash.engine import Flash
from engine.flash.mtp import Mtp
from engine.flash.state import FlashState
from engine.flash.streams import Branch, stream_sum
from engine.flash.weights import random_weights
from engine.flash.workspace import Workspace
from engine.layers.draft import under
from engine.layers.rope import Rope
from engine.sampling import Greedy

ROOT = Path(__file__).resolve().parent.parent
LOGITS, MEMORY = 1e-4, 4e-4


def ones(of: Flash, ids: Ids) -> torch.Tensor:
    """Forward `ids` by blocks of one token; their logits."""
    logits = [torch.empty(0, of.vocab)]
    for at in range(len(ids)):
        logits.append(of.verify(ids[at : at + 1]))
        of.accept(1)
    return torch.cat(logits)


def near(got: torch.Tensor, want: torch.Tensor, bound: float) -> None:
    """Element by element within `bound`."""
    torch.testing.assert_close(got.double(), want.double(), atol=bound, rtol=0.0)


def near_all(got: Saved, want: Saved) -> None:
    """Sections and rows."""
    for a, b in ((got.sections, want.sections), (got.rows, want.rows)):
        for name, tensor in a.items():
            near(tensor, b[name], MEMORY)


@cache
def one_by_one(shape: str, count: int) -> tuple[Saved, torch.Tensor]:
    """The state after `ids_of(count)`, a token a block, and all logits."""
    of = engine(shape)
    logits = ones(of, ids_of(count))
    of.settle()
    return save(of), logits


# prefill


@pytest.mark.parametrize("shape", ["tiny", "wide", "bare"])
@pytest.mark.parametrize("grid", [7, 64, 128])
def test_prefill_on_any_grid_is_one_by_one(shape: str, grid: int) -> None:
    state, logits = one_by_one(shape, 150)
    of = engine(shape, grid, 200)
    near(feed(of, ids_of(150)), logits[-1], LOGITS)
    near_all(save(of), state)


def test_bfloat16_follows_float32_loosely() -> None:
    """Eight bits a step, and a block here and there that is chosen in place of its equal: a wrong
    formula is off by the logits' own size, 1.
    """
    config = FlashConfig.tiny(dtype="bfloat16")
    ids = ids_of(150)
    logits = [feed(Flash.random(c, 3, grid=64, window=200), ids).float() for c in (config, TINY)]
    assert (logits[0] - logits[1]).abs().mean() < 0.1 < logits[1].abs().mean()


TINY = FlashConfig.tiny()


@pytest.mark.parametrize(
    "planted",
    [{"top_blocks": 99}, {"block_rows": 16}, {"ngram_rows": 1_000}, {"rope_theta": 1e4}],
)
def test_canary_another_model_over_the_same_weights_is_seen(planted: dict[str, Any]) -> None:
    """The blocks that are left out, their size, the n-grams and the positions all show."""
    ids, weights = ids_of(150), random_weights(TINY, 3)
    read_as = replace(weights, config=FlashConfig.tiny(**planted))
    found = [
        feed(Flash(FlashDecoder(each), grid=64, window=200), ids) for each in (weights, read_as)
    ]
    assert (found[0] - found[1]).abs().max() > 100 * LOGITS


# verify blocks


def test_block_logits_are_those_of_single_steps() -> None:
    ids = ids_of(75)
    of, plain = engine(), engine()
    for each in (of, plain):
        feed(each, ids[:70])
    near(of.verify(ids[70:]), ones(plain, ids[70:]), LOGITS)


@pytest.mark.parametrize("size, kept", [(1, 1), (2, 1), (4, 0), (4, 3), (5, 5), (9, 2), (30, 13)])
def test_partial_acceptance_is_step_by_step(size: int, kept: int) -> None:
    ids, junk = ids_of(90), ids_of(30, seed=1)
    of, plain = engine(), engine()
    for each in (of, plain):
        feed(each, ids[:70])
    of.verify(np.concatenate([ids[70 : 70 + kept], junk])[:size])
    of.accept(kept)
    assert (of.length, of.pending) == (70 + kept, kept)
    follow = ids[70 + kept : 75 + kept]
    ones(plain, ids[70 : 70 + kept])
    near(of.verify(follow), ones(plain, follow), LOGITS)
    of.accept(5)
    for each in (of, plain):
        each.settle()
    near_all(save(of), save(plain))


def test_verify_changes_no_section_and_only_rows_past_length() -> None:
    of = engine()
    feed(of, ids_of(70))
    before = save(of)
    of.verify(ids_of(5, seed=1))
    assert of.length == 70 and unlike(save(of), before) == []


def test_pending_folded_or_settled_first_gives_the_same_bits() -> None:
    ids = ids_of(80)
    engines = engine(), engine()
    for of in engines:
        feed(of, ids[:70])
        of.verify(ids[70:75])
        of.accept(3)
    engines[1].settle()
    assert engines[0].pending == 3 and engines[1].pending == 0
    logits = [of.verify(ids[73:77]) for of in engines]
    assert torch.equal(*logits)
    for of in engines:
        of.accept(2)
        of.settle()
    assert unlike(*map(save, engines)) == []


def test_prefill_lands_a_pending_commit_first() -> None:
    ids = ids_of(90)
    engines = engine(), engine()
    for of in engines:
        feed(of, ids[:70])
        of.verify(ids[70:74])
        of.accept(4)
    engines[1].settle()
    assert torch.equal(*[feed(of, ids[74:]) for of in engines])
    assert unlike(*map(save, engines)) == []


@pytest.mark.parametrize("kept", [0, 1, 2, 4])
def test_trim_is_never_having_accepted_the_rest(kept: int) -> None:
    ids = ids_of(80)
    engines = engine(), engine()
    for of, count in zip(engines, (4, kept), strict=True):
        feed(of, ids[:70])
        of.verify(ids[70:75])
        of.accept(count)
    assert engines[0].trim_pending(70 + kept) and engines[0].length == 70 + kept
    assert engines[0].draft(7, 3) == engines[1].draft(7, 3)
    for of in engines:
        of.settle()
    assert unlike(*map(save, engines)) == []


def test_trim_says_no_when_the_sections_are_past_it() -> None:
    of = engine()
    feed(of, ids_of(70))
    of.verify(ids_of(4, seed=1))
    of.accept(3)
    assert not of.trim_pending(69) and of.pending == 3
    of.settle()
    assert not of.trim_pending(72) and of.length == 73


# canaries: what a commit must fold in

FOLDED = ("context", "ple_tail", "last", "tail", "all_heads")


@pytest.mark.parametrize("part", FOLDED)
def test_canary_a_commit_that_leaves_a_section_behind(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each by name: the state's tensor does not move when the block is absorbed."""

    def absorb(self: Flash, count: int) -> None:
        kept = getattr(self._state, part).clone()
        absorb_all(self, count)
        getattr(self._state, part).copy_(kept)

    absorb_all = Flash._absorb
    monkeypatch.setattr(Flash, "_absorb", absorb)
    with pytest.raises(AssertionError):
        check_absorbed()


def check_absorbed() -> None:
    ids = ids_of(90)
    of, plain = engine(), engine()
    for each, count in ((of, 70), (plain, 74)):
        feed(each, ids[:count])
    of.verify(ids[70:74])
    of.accept(4)
    of.settle()
    near_all(save(of), save(plain))


def test_a_commit_leaves_no_section_behind() -> None:
    check_absorbed()


# speculation


@cache
def plain_text() -> tuple[Ids, list[int]]:
    """A prompt, and 40 tokens of greedy decoding without any draft."""
    prompt, of = ids_of(130, seed=5), engine()
    text = [int(feed(of, prompt).argmax())]
    while len(text) < 40:
        text.append(int(ones(of, np.array(text[-1:], np.int32))[0].argmax()))
    return prompt, text


def text_of(of: Flash, logits: torch.Tensor, drafts: int, count: int = 40) -> list[int]:
    """Greedy decoding with the engine's own drafts."""
    rounds = decode(of, logits, Greedy(drafts), count, frozenset())
    return [token for new in rounds for token in new]


@pytest.mark.parametrize("drafts", [0, 1, 3, 5])
def test_own_drafts_write_what_no_speculation_writes(drafts: int) -> None:
    prompt, text = plain_text()
    of = engine()
    assert text_of(of, feed(of, prompt), drafts) == text


@pytest.mark.parametrize("script", [[3, 0, None, 3, None, 2, 0, 1], [None, 3, None, 0, 3, 3]])
def test_scripted_drafts_write_what_no_speculation_writes(script: list[int | None]) -> None:
    """A round that accepts some, then one without drafts, then one that refuses all."""
    prompt, text = plain_text()
    of = engine()
    written = [int(feed(of, prompt).argmax())]
    assert written == text[:1]
    for accepts in script:
        right = accepts or 0
        guesses = text[len(written) : len(written) + right]
        if accepts is not None:
            wrong = (text[len(written) + right] + 1) % of.vocab
            guesses = [*guesses, *[wrong] * (3 - right)]
        best = of.verify(np.array([written[-1], *guesses], np.int32)).argmax(-1).tolist()
        assert best[: right + 1] == text[len(written) : len(written) + right + 1]
        of.accept(1 + right)
        written += best[: right + 1]
    fresh = engine()
    feed(fresh, prompt)
    ones(fresh, np.array(written[:-1], np.int32))
    for each in (of, fresh):
        each.settle()
    near_all(save(of), save(fresh))


@pytest.mark.parametrize("drafts", [1, 3])
@pytest.mark.parametrize("beside", [-1, 0, 1])
def test_speculation_before_and_after_a_resume_writes_the_cold_text(
    drafts: int, beside: int
) -> None:
    """The drafter picks up at the row before the line, and its own drafts leave nothing behind."""
    first, shared = ids_of(150, seed=5), 128 + beside
    second = np.concatenate([first[:shared], ids_of(40, seed=6)])
    of, fresh = engine(), engine()
    lines: dict[int, Saved] = {}
    for line in (64, 128):
        of.prefill(first[line - 64 : line])
        lines[line] = save(of)
    text_of(of, of.prefill(first[128:]), drafts)
    line = shared // 64 * 64
    for section in of.cache_state().sections:
        section.tensor.copy_(lines[line].sections[section.name])
    of.resume_at(line)
    again, cold = feed(of, second[line:]), feed(fresh, second)
    assert torch.equal(again, cold) and unlike(save(of), save(fresh)) == []
    assert text_of(of, again, drafts, 20) == text_of(fresh, cold, 0, 20)


def test_drafts_are_the_layers_own_step_by_step() -> None:
    """Fed with its own streams, each guess the next token."""
    of, ids = engine(), ids_of(100)
    feed(of, ids)
    rows = Rope(4, 1e7, 200, torch.float32)
    mtp, state = of.decoder.mtp, of._state
    assert isinstance(mtp, Mtp) and state.mtp_rows is not None
    streams, token, want = state.last.unsqueeze(1), 9, []
    for at in range(100, 105):
        embedded = of.decoder.embed(torch.tensor([token]))
        turn = rows.rows(at, at + 1)
        streams, hidden = mtp.step(embedded, streams, at, state.mtp_rows, turn)
        token = int(of.decoder.logits(hidden)[0].argmax())
        want.append(token)
    assert of.draft(9, 5) == want


def test_drafting_changes_nothing_that_is_committed_and_stops_at_the_window() -> None:
    of = engine(window=80)
    feed(of, ids_of(70))
    of.verify(ids_of(6, seed=1))
    of.accept(4)
    before = save(of)
    assert len(of.draft(5, 20)) == 80 - 74
    assert unlike(save(of), before) == []
    assert engine("bare").draft(5, 3) == []


def test_drafts_over_a_pending_commit_are_those_over_a_settled_one() -> None:
    """They go on from the last row that was accepted, not from the block's last."""
    engines = engine(), engine()
    for of in engines:
        feed(of, ids_of(70))
        of.verify(ids_of(6, seed=1))
        of.accept(3)
    engines[1].settle()
    assert engines[0].pending == 3
    assert engines[0].draft(9, 5) == engines[1].draft(9, 5)


def test_drafts_after_a_resume_are_those_before_it() -> None:
    of, twin = engine(), engine(window=300)
    feed(of, ids_of(128))
    feed(twin, ids_of(200, seed=4))
    put_back(twin, save(of))
    twin.resume_at(128)
    assert of.draft(9, 5) == twin.draft(9, 5)


# streams


def test_a_branch_reads_mixes_and_writes() -> None:
    tensors = random_weights(FlashConfig.tiny(streams=3), 3).tensors
    w = under(tensors, "model.layers.0.")
    of = Branch(w, "input_layernorm", "mixer_streams", 1e-6)
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(3, 5, 48, generator=generator), torch.randn(5, 48, generator=generator)
    normed, mixed = of.read(x)
    read, mix, write = (w[f"mixer_streams.{name}"] for name in ("read", "mix", "write"))
    r = (read[:, None, None] * x).sum(0)
    want = (1 + w["input_layernorm.weight"]) * r / (r**2).mean(-1, keepdim=True).sqrt()
    near(normed, want, 1e-5)
    near(of.alone(x), want, 1e-5)
    want = torch.einsum("jm,mnh->jnh", mix, x) + write[:, None, None] * y
    near(of.write(mixed, y), want, 1e-5)
    near(stream_sum(read[None], x)[0], r, 1e-6)


# the Model port


def test_state_has_a_section_for_each_net_and_views_of_every_axis() -> None:
    state = FlashState(FlashConfig.tiny(dtype="bfloat16"), 300, "cpu").cache
    sections = {s.name: (tuple(s.tensor.shape), s.tensor.dtype) for s in state.sections}
    views = {v.name: (tuple(v.tensor.shape), v.axis) for v in state.views}
    channels, dtype = 2 * 2 * 12 + 4 * 20, torch.bfloat16
    assert sections == {
        **{f"gdn.S.{n}": ((4, 12, 20), torch.float32) for n in range(3)},
        **{f"gdn.conv.{n}": ((channels, 3), dtype) for n in range(3)},
        "ple.conv": ((40, 3), dtype),
        "ple.context": ((2,), torch.int64),
        "mtp.last": ((2, 48), dtype),
    }
    assert views == {
        "K": ((1, 2, 300, 16), 2),
        "V": ((1, 2, 300, 16), 2),
        "index.K": ((1, 300, 14), 1),
        "mtp.K": ((2, 300, 16), 1),
        "mtp.V": ((2, 300, 16), 1),
        "mtp.index.K": ((300, 14), 0),
    }
    assert all(section.tensor.is_contiguous() for section in state.sections)
    bare = engine("bare").cache_state()
    assert not any("mtp" in part.name for part in (*bare.sections, *bare.views))


def test_the_large_shape_has_the_seeds_figures() -> None:
    """On meta tensors, which take no memory."""
    state = FlashState(FlashConfig.large(), 4_096, "meta").cache
    assert len(state.sections) == 75
    assert sum(section.tensor.nbytes for section in state.sections) == 115_662_864
    assert sum(view.tensor.nbytes for view in state.views) == 4_096 * 29_952


def test_resume_at_zero_is_an_empty_engine() -> None:
    ids = ids_of(100)
    of, fresh = engine(), engine()
    feed(of, ids_of(200, seed=4))
    of.verify(ids[:3])
    of.accept(2)
    of.resume_at(0)
    assert (of.length, of.pending) == (0, 0)
    assert torch.equal(feed(of, ids), feed(fresh, ids)) and unlike(save(of), save(fresh)) == []


def test_a_twin_shares_weights_and_table_and_nothing_else() -> None:
    of = engine()
    feed(of, ids_of(100))
    before = save(of)
    twin = of.twin(256)
    assert (twin.window, twin.length, twin.grid) == (256, 0, 64)
    assert twin.decoder is of.decoder
    feed(twin, ids_of(150, seed=8))
    assert unlike(save(of), before) == []


def test_cost_is_the_real_bytes_or_what_was_given() -> None:
    of = engine()
    state, cost = of.cache_state(), of.cost()
    assert cost.row_bytes == 4 * 2 * (2 * 2 * 16 + 14)
    assert cost.row_bytes * of.window == sum(v.tensor.nbytes for v in state.views)
    assert cost.anchor_bytes == sum(s.tensor.nbytes for s in state.sections)
    board = Cost(row_bytes=29_952, anchor_bytes=115_662_864)
    given = Flash.random(TINY, 3, grid=64, window=512, cost=board)
    assert given.cost() is board and given.twin(64).cost() is board


def test_workspace_has_a_floor_a_slope_and_a_cap() -> None:
    """The slope is that of a context whose blocks are all chosen; later only scores grow."""
    config, grid, window = FlashConfig.large(), 4_096, 262_144
    whole = Workspace.of(config, grid, window)
    cost = Cost(29_952, 115_662_864, whole.floor_bytes, whole.row_bytes, whole.cap_bytes)
    used = [cost.workspace_bytes(n) for n in (0, 1_024, 2_240, 65_536, window)]
    assert used[0] == whole.floor_bytes and used == sorted(used)
    assert used[1] - used[0] == 1_024 * whole.row_bytes
    assert used[-1] == whole.cap_bytes < used[0] + window * whole.row_bytes
    # A larger window has more scores, and no more rows gathered.
    more = Workspace.of(config, grid, 2 * window)
    assert more.floor_bytes == whole.floor_bytes and more.row_bytes == whole.row_bytes
    assert whole.cap_bytes < more.cap_bytes < 1.1 * whole.cap_bytes
    assert 1 << 30 < whole.floor_bytes < whole.cap_bytes < 4 << 30


@pytest.mark.parametrize("shape, grid, count", [("narrow", 512, 1_024), ("tiny", 256, 512)])
def test_workspace_is_not_less_than_what_a_chunk_takes(shape: str, grid: int, count: int) -> None:
    """Peak of what torch allocates in the last chunk, as its profiler counts it."""
    of, ids = engine(shape, grid, count), ids_of(count)
    feed(of, ids[: count - grid])
    held = peak_bytes(lambda: of.prefill(ids[count - grid :]))
    cost = of.cost()
    assert held <= cost.workspace_bytes(count) < 12 * held


def peak_bytes(run: Callable[[], object]) -> int:
    """The most bytes that were allocated at once beside those before."""
    with torch.profiler.profile(profile_memory=True) as profile:
        run()
    found = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    level = most = 0
    for event in sorted(found, key=lambda event: event.start_ns()):
        level += event.nbytes()
        most = max(most, level)
    return most


def test_without_block_logits_only_the_logits_are_missing() -> None:
    ids, of = ids_of(80), engine()
    mute = Flash(of.decoder, grid=64, window=512, block_logits=False)
    assert torch.equal(feed(mute, ids[:70]), feed(of, ids[:70]))
    assert of.verify(ids[70:75]).shape == (5, 499) and mute.verify(ids[70:75]).shape == (0, 499)
    for each in (mute, of):
        each.accept(4)
        each.settle()
    assert unlike(save(mute), save(of)) == []
    assert mute.twin(64).verify(ids[:1]).shape == (0, 499)


def test_manifest_lists_every_file_of_the_package() -> None:
    """test_identity holds the whole list."""
    found: set[str] = set()
    todo = ["engine/flash/engine.py"]
    while todo:
        path = todo.pop()
        if path in found:
            continue
        found.add(path)
        for node in ast.walk(ast.parse((ROOT / path).read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("engine.flash"):
                assert node.module
                todo.append(f"{node.module.replace('.', '/')}.py")
    files = set(engine().manifest().files)
    assert {name for name in files if name.startswith("engine/flash/")} == found


def test_manifest_tells_models_apart_and_not_windows() -> None:
    manifest = engine().manifest()
    assert manifest == engine(window=1_000).manifest()
    others = [
        engine(grid=128),
        Flash.random(FlashConfig.tiny(top_blocks=3), 7, grid=64, window=512),
        Flash.random(FlashConfig.tiny(), 4, grid=64, window=512),
        engine("bfloat16"),
    ]
    assert all(other.manifest() != manifest for other in others)
    assert manifest.weights.startswith("random seed=7 table=") and manifest.grid == 64
