"""The third architecture behind the Model port, and its arithmetic in JAX (engine.log_sparse).

Goal: prefill on any grid, verify blocks with any acceptance, settling and trimming leave the state
that a token at a time leaves; a resume at a grid line has a cold prefill's bits, in buffers of any
window with junk wherever nothing may be read; one bit anywhere shows; JAX reads torch's own memory.
Method: the formulas written out in numpy, token by token; a second engine that takes the plain way,
compared in bits where only the order of calls differs. Each canary plants one fault.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from cache.types import CacheState, Cost, Ids
from engine import log_sparse, third
from engine.log_sparse import CHANNELS, DISTANCES, HEADS, KEY, KEY_SCALE, VALUE, random_weights
from engine.third import BLOCK, Third
from engine.xla import quickly

GRID, WINDOW, VOCAB, SEED = 16, 256, 499, 3
CLOSE = 2e-4
"""On values of order one: float32 sections, and keys that round to the next of 2**14 steps."""


def ids_of(count: int, seed: int = 0) -> Ids:
    """Random token ids."""
    return np.random.default_rng(seed).integers(0, VOCAB, count).astype(np.int32)


def empty(grid: int = GRID, window: int = WINDOW, seed: int = SEED) -> Third:
    """An engine without a token."""
    return Third(grid, window, seed=seed)


def feed(of: Third, ids: Ids) -> torch.Tensor:
    """Prefill `ids` from the engine's length, cut at the grid lines."""
    start, end = of.length, of.length + len(ids)
    cuts = [start, *range((start // of.grid + 1) * of.grid, end, of.grid), end]
    for a, b in itertools.pairwise(cuts):
        logits = of.prefill(ids[a - start : b - start])
    return logits


def ones(of: Third, ids: Ids) -> torch.Tensor:
    """Forward `ids` by blocks of one token; their logits."""
    logits = [torch.empty(0, of.vocab)]
    for at in range(len(ids)):
        logits.append(of.verify(ids[at : at + 1]))
        of.accept(1)
    return torch.cat(logits)


def copied(of: Third) -> dict[str, torch.Tensor]:
    """Clones of all sections and all rows below `length`."""
    state = of.cache_state()
    found = {section.name: section.tensor.clone() for section in state.sections}
    return found | {view.name: view.rows(0, of.length).clone() for view in state.views}


def unlike(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> list[str]:
    """Names of what differs in a bit."""
    return [name for name in want if not torch.equal(got[name], want[name])]


def near(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> None:
    """Everything within CLOSE; keys within a step, bytes the same."""
    for name, tensor in want.items():
        scale = KEY_SCALE if name == "wide" else 1.0
        close(got[name].double() / scale, tensor.double() / scale)


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    """Within CLOSE."""
    torch.testing.assert_close(got.double(), want.double(), atol=CLOSE, rtol=0.0)


# the formulas, a token at a time


def softplus(x: np.ndarray) -> np.ndarray:
    return np.log1p(np.exp(x))


@cache
def reference(count: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """State after `ids_of(count)` as `copied` has it, and the logits of every token."""
    w = {name: np.asarray(part) for name, part in random_weights(SEED, VOCAB)._asdict().items()}
    ids = [0, 0, *ids_of(count).tolist()]
    s, wide, flat, deep = np.zeros((2, CHANNELS)), [], [], ([], [])
    logits = []
    for t in range(count):
        x = sum(w["taps"][tap, ids[t + 2 - tap]].astype(float) for tap in range(3))

        def advance(layer: int, of: np.ndarray) -> None:
            decay, into = of @ w["drive"][layer, 0], of @ w["drive"][layer, 1]
            s[layer] = np.exp(-softplus(decay)) * s[layer] + np.tanh(into)

        advance(0, x)
        made = np.concatenate([x, s[0]]) @ w["row"]
        query, key, value = np.split(made, [HEADS * KEY, 2 * HEADS * KEY])
        wide.append(np.round(np.tanh(key.reshape(HEADS, KEY)) * KEY_SCALE))
        flat.append(np.round(255 / (1 + np.exp(-(x @ w["gate"])))))
        deep[0].append(value)
        seen = [t, *(t - d for d in DISTANCES if d <= t)]
        scores = np.array(
            [
                (query.reshape(HEADS, KEY) * wide[p] / KEY_SCALE).sum(1)
                + np.log(0.5 + flat[p] / 255)
                for p in seen
            ]
        )
        weight = np.exp(scores) / np.exp(scores).sum(0)
        read = (weight.T @ np.array([deep[0][p] for p in seen])).reshape(-1)
        advance(1, read)
        deep[1].append(np.concatenate([read, s[1]]) @ w["deep"])
        again = (weight.T @ np.array([deep[1][p] for p in seen])).reshape(-1)
        logits.append(np.concatenate([s[0], s[1], again]) @ w["head"])
    last = [[ids[at] >> shift & 255 for shift in (0, 8, 16)] for at in (-2, -1)]
    state = {
        "sum": torch.from_numpy(s),
        "last": torch.tensor(last),
        "wide": torch.from_numpy(np.array(wide)).permute(1, 0, 2),
        "flat": torch.from_numpy(np.array(flat)),
        "deep": torch.from_numpy(np.array(deep)).permute(0, 2, 1)[:, None],
    }
    return state, torch.from_numpy(np.array(logits))


@pytest.mark.parametrize("grid", [16, 100])
def test_prefill_on_any_grid_is_the_formulas(grid: int) -> None:
    of = empty(grid)
    state, logits = reference(150)
    close(feed(of, ids_of(150)), logits[-1])
    near(copied(of), state)


def test_blocks_of_any_length_are_single_steps_and_the_formulas() -> None:
    ids = ids_of(150)
    state, logits = reference(150)
    of, plain = empty(), empty()
    for engine in (of, plain):
        feed(engine, ids[:70])
    for size, stop in ((4, 74), (BLOCK, 82), (1, 83), (2 * BLOCK + 3, 102), (48, 150)):
        close(of.verify(ids[stop - size : stop]), logits[stop - size : stop])
        of.accept(size)
    close(ones(plain, ids[70:]), logits[70:])
    for engine in (of, plain):
        engine.settle()
        near(copied(engine), state)
    assert unlike(copied(of), copied(plain)) == [], "each step rounds as if it were a call"


# verify blocks


@pytest.mark.parametrize("size, kept", [(1, 1), (4, 0), (4, 3), (5, 5), (19, 2), (19, 17)])
def test_partial_acceptance_is_step_by_step(size: int, kept: int) -> None:
    ids, junk = ids_of(130), ids_of(19, seed=1)
    of, plain = empty(), empty()
    for engine in (of, plain):
        feed(engine, ids[:70])
    of.verify(np.concatenate([ids[70 : 70 + kept], junk])[:size])
    of.accept(kept)
    assert (of.length, of.pending) == (70 + kept, kept)
    follow = ids[70 + kept : 74 + kept]
    ones(plain, ids[70 : 70 + kept])
    close(of.verify(follow), ones(plain, follow))
    of.accept(4)
    for engine in (of, plain):
        engine.settle()
    assert unlike(copied(of), copied(plain)) == []


def test_verify_changes_no_section_and_only_rows_past_length() -> None:
    of = empty()
    feed(of, ids_of(70))
    before = copied(of)
    of.verify(ids_of(5, seed=1))
    assert of.length == 70 and unlike(copied(of), before) == []


def test_pending_folded_or_settled_or_prefilled_over_gives_the_same_bits() -> None:
    ids = ids_of(90)
    folded, settled = empty(), empty()
    for of in (folded, settled):
        feed(of, ids[:70])
        of.verify(ids[70:75])
        of.accept(3)
    settled.settle()
    assert (folded.pending, settled.pending) == (3, 0)
    assert torch.equal(*(of.verify(ids[73:77]) for of in (folded, settled)))
    for of in (folded, settled):
        of.accept(2)
    settled.settle()
    assert torch.equal(*(feed(of, ids[75:]) for of in (folded, settled)))
    assert unlike(copied(folded), copied(settled)) == []


@pytest.mark.parametrize("kept", [0, 1, 4])
def test_trim_is_never_having_accepted_the_rest(kept: int) -> None:
    ids = ids_of(80)
    trimmed, plain = empty(), empty()
    for of, count in ((trimmed, 4), (plain, kept)):
        feed(of, ids[:70])
        of.verify(ids[70:75])
        of.accept(count)
    assert not trimmed.trim_pending(69) and trimmed.pending == 4
    assert trimmed.trim_pending(70 + kept) and trimmed.length == 70 + kept
    for of in (trimmed, plain):
        of.settle()
    assert unlike(copied(trimmed), copied(plain)) == []
    assert not trimmed.trim_pending(69)


def test_a_block_has_other_bits_than_a_chunk_of_the_same_tokens() -> None:
    ids = ids_of(5 * GRID)
    of, cold = empty(), empty()
    feed(cold, ids)
    feed(of, ids[: 4 * GRID])
    for at in range(4 * GRID, 5 * GRID, 4):
        of.verify(ids[at : at + 4])
        of.accept(4)
    of.settle()
    near(copied(of), copied(cold))
    assert "deep" in unlike(copied(of), copied(cold))


# resumes


def put_back(into: CacheState, saved: dict[str, torch.Tensor], length: int) -> None:
    """Write a state back, with junk wherever nothing may be read."""
    for section in into.sections:
        section.tensor.copy_(saved[section.name])
    for view in into.views:
        view.tensor.fill_(torch.nan if view.tensor.is_floating_point() else 77)
        view.rows(0, length).copy_(saved[view.name])


@cache
def cold() -> tuple[list[dict[str, torch.Tensor]], dict[str, torch.Tensor], torch.Tensor]:
    """Of a prompt of five chunks and a bit: its lines, its end and its logits."""
    of, ids = empty(), ids_of(5 * GRID + 7)
    lines = [copied(of)]
    for line in range(GRID, 5 * GRID + 1, GRID):
        of.prefill(ids[line - GRID : line])
        lines.append(copied(of))
    logits = of.prefill(ids[5 * GRID :])
    return lines, copied(of), logits


def resumed(
    saved: dict[str, torch.Tensor], line: int, window: int = WINDOW
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """The end and the logits of a prefill that goes on at a line."""
    of = empty(window=window)
    feed(of, ids_of(90, seed=5))
    of.verify(ids_of(4, seed=6))
    of.accept(3)
    put_back(of.cache_state(), saved, line)
    of.resume_at(line)
    logits = feed(of, ids_of(5 * GRID + 7)[line:])
    return copied(of), logits


@pytest.mark.parametrize("line", range(0, 5 * GRID + 1, GRID))
@pytest.mark.parametrize("window", [WINDOW, 5 * GRID + 20, 1_000])
def test_a_resume_at_a_line_is_a_cold_prefill(line: int, window: int) -> None:
    lines, end, logits = cold()
    got, now = resumed(lines[line // GRID], line, window)
    assert unlike(got, end) == [] and torch.equal(now, logits)


def test_resume_at_zero_empties_the_sections() -> None:
    of = empty()
    feed(of, ids_of(100, seed=4))
    of.verify(ids_of(3))
    of.accept(2)
    of.resume_at(0)
    assert (of.length, of.pending) == (0, 0)
    logits = feed(of, ids_of(5 * GRID + 7))
    assert unlike(copied(of), cold()[1]) == [] and torch.equal(logits, cold()[2])


@pytest.mark.parametrize("cut", [1, 5, 15])
def test_a_resume_inside_a_chunk_has_other_bits(cut: int) -> None:
    """The state that is put back is the one that was there; where the cut lies differs."""
    ids, line = ids_of(5 * GRID + 7), 4 * GRID
    of = empty()
    feed(of, ids[:line])
    of.prefill(ids[line : line + cut])
    of.prefill(ids[line + cut : line + GRID])
    logits = of.prefill(ids[line + GRID :])
    _, end, whole = cold()
    assert "deep" in unlike(copied(of), end)
    near(copied(of), end)
    close(logits, whole)


def test_what_a_piece_is_padded_with_changes_no_bit() -> None:
    """Its rows are those that the whole chunk gives, and a row depends on no later token."""
    lines, end, _ = cold()
    of = empty()
    feed(of, ids_of(2 * GRID + 5))
    rows = {view.name: view.axis for view in of.cache_state().views}
    got = copied(of)
    for name, axis in rows.items():
        assert torch.equal(got[name], lines[3][name].narrow(axis, 0, 2 * GRID + 5))
    assert end.keys() == got.keys()


SPOILT = {"sum": 0, "last": 0, "wide": 0, "flat": 0, "deep": 5}
"""Which byte's lowest bit: what float64 values lose in a sum of 19 is below that."""


@pytest.mark.parametrize("name", SPOILT)
def test_one_bit_anywhere_shows_in_what_follows(name: str) -> None:
    """Any number of the sections, and any of the rows that the last token reads."""
    lines, end, logits = cold()
    line, size = 4 * GRID, len(ids_of(5 * GRID + 7))
    axes = {view.name: view.axis for view in empty().cache_state().views}
    read = [size - 1 - d for d in DISTANCES if 0 <= size - 1 - d < line]
    assert read == [54, 22]
    for at, where in enumerate(np.ndindex(*lines[4][name].shape)):
        if name in axes and where[axes[name]] not in read:
            continue
        spoilt = lines[4][name].clone(memory_format=torch.contiguous_format)
        spoilt.view(-1).view(torch.uint8)[at * spoilt.element_size() + SPOILT[name]] ^= 1
        got, now = resumed(lines[4] | {name: spoilt}, line)
        after = {key: got[key].narrow(axis, line, size - line) for key, axis in axes.items()}
        wanted = {key: end[key].narrow(axis, line, size - line) for key, axis in axes.items()}
        assert unlike(after, wanted) or not torch.equal(now, logits), (name, where)


# canaries


def test_canary_a_section_of_the_line_before() -> None:
    lines, end, _ = cold()
    for name in ("sum", "last"):
        got, _ = resumed(lines[4] | {name: lines[3][name]}, 4 * GRID)
        assert "deep" in unlike(got, end)


@pytest.mark.parametrize("name, axis", [("wide", 1), ("flat", 0), ("deep", 3)])
def test_canary_rows_one_off(name: str, axis: int) -> None:
    lines, end, logits = cold()
    got, now = resumed(lines[4] | {name: lines[4][name].roll(1, axis)}, 4 * GRID)
    assert not torch.equal(now, logits)
    new = {key: got[key].narrow(axis, 4 * GRID, GRID + 7) for key, axis in (("deep", 3),)}
    assert unlike(new, {"deep": end["deep"].narrow(3, 4 * GRID, GRID + 7)})


@pytest.mark.parametrize("stale", range(5))
def test_canary_buffers_that_jax_has_copies_of(stale: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy made when the engine was built never hears of what is put back."""
    made, shared = iter(range(1_000)), third._shared

    def apart(tensor: torch.Tensor) -> jax.Array:
        return shared(tensor.clone() if next(made) == stale else tensor)

    monkeypatch.setattr(third, "_shared", apart)
    lines, end, logits = cold()
    got, now = resumed(lines[4], 4 * GRID)
    assert unlike(got, end) or not torch.equal(now, logits)


def test_canary_a_copy_is_no_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax.dlpack, "from_dlpack", lambda tensor, copy: jnp.array(tensor.numpy()))
    with pytest.raises(AssertionError, match="a copy"):
        empty()


def test_canary_a_block_computed_as_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_sparse, "one_by_one", log_sparse.at_once)
    # Another function, so that JAX traces it anew.
    fresh = jax.jit(lambda *given: log_sparse.block.__wrapped__(*given), compiler_options=quickly())
    monkeypatch.setattr(third, "block", fresh)
    with pytest.raises(AssertionError):
        test_blocks_of_any_length_are_single_steps_and_the_formulas()


# what engines share, and the Model port's values


def test_state_has_the_published_names_and_shapes() -> None:
    state = empty().cache_state()
    sections = {s.name: (tuple(s.tensor.shape), s.tensor.dtype) for s in state.sections}
    views = {v.name: (tuple(v.tensor.shape), v.tensor.dtype, v.axis) for v in state.views}
    assert sections == {"sum": ((2, 5), torch.float32), "last": ((2, 3), torch.uint8)}
    assert views == {
        "wide": ((3, WINDOW, 2), torch.int16, 1),
        "flat": ((WINDOW,), torch.uint8, 0),
        "deep": ((2, 1, VALUE, WINDOW), torch.float64, 3),
    }


def test_engines_of_all_windows_share_what_was_compiled() -> None:
    feed(empty(), ids_of(20))
    empty().verify(ids_of(3))
    before = log_sparse.chunk._cache_size(), log_sparse.block._cache_size()
    for of in (empty(window=200), empty(seed=4), empty().twin(333)):
        feed(of, ids_of(40))
        of.verify(ids_of(12))
    assert before == (log_sparse.chunk._cache_size(), log_sparse.block._cache_size())


def test_64_bits_stay_between_this_engines_walls() -> None:
    # Whatever else this process has set for all of it, as sim.drive_fit does.
    with jax.enable_x64(False):
        feed(empty(), ids_of(20))
        assert jnp.zeros(3).dtype == jnp.float32 and jnp.arange(3).dtype == jnp.int32


def test_a_twin_shares_weights_and_nothing_else() -> None:
    of = empty()
    feed(of, ids_of(100))
    before, twin = copied(of), of.twin(200)
    assert (twin.window, twin.length, twin.grid) == (200, 0, GRID)
    assert twin._weights is of._weights
    feed(twin, ids_of(150, seed=8))
    assert unlike(copied(of), before) == []


def test_key_ids_are_ids_and_no_two_alike_are_the_same() -> None:
    """By 24 bits of them: rows tell pictures apart by nine key ids."""
    ends = []
    for key in (-1, -2, -3, 5, 5 + (1 << 16), 5 + (1 << 23)):
        of = empty()
        feed(of, np.array([7, key, 9], np.int32))
        ends.append(copied(of))
    assert all(unlike(a, b) for a, b in itertools.combinations(ends, 2))


def test_cost_is_the_real_bytes_or_what_was_given() -> None:
    of = empty()
    state, cost = of.cache_state(), of.cost()
    assert cost.row_bytes == 12 + 1 + 64 and cost.anchor_bytes == 40 + 6
    assert cost.row_bytes * WINDOW == sum(view.tensor.nbytes for view in state.views)
    assert cost.anchor_bytes == sum(section.tensor.nbytes for section in state.sections)
    assert cost.workspace_bytes(1_000) > GRID * 8
    board = Cost(row_bytes=106_496, anchor_bytes=153_900_000)
    given = Third(GRID, WINDOW, cost=board)
    assert given.cost() is board and given.twin(64).cost() is board


def test_without_block_logits_only_the_logits_are_missing() -> None:
    ids = ids_of(80)
    mute, of = Third(GRID, WINDOW, seed=SEED, block_logits=False), empty()
    assert torch.equal(feed(mute, ids[:70]), feed(of, ids[:70]))
    assert of.verify(ids[70:75]).shape == (5, VOCAB)
    assert mute.verify(ids[70:75]).shape == (0, VOCAB)
    for engine in (mute, of):
        engine.accept(4)
        engine.settle()
    assert unlike(copied(mute), copied(of)) == []
    assert mute.twin(64).verify(ids[:1]).shape == (0, VOCAB)


def test_manifest_tells_models_apart_and_not_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    assert empty().manifest().machine["third probe"] == empty().manifest().machine["third probe"]
    monkeypatch.setattr(third, "_probe", lambda *of: "the same")
    manifest = empty().manifest()
    assert manifest == empty(window=100).manifest()
    others: list[Callable[[], Third]] = [
        lambda: empty(grid=7),
        lambda: empty(seed=4),
        lambda: Third(GRID, WINDOW, seed=SEED, vocab=500),
    ]
    assert all(other().manifest() != manifest for other in others)
    assert manifest.weights == f"random seed={SEED}" and manifest.grid == GRID
    assert manifest.libraries["jax"] == jax.__version__ and manifest.libraries["numpy"]
    assert manifest.machine["threads"] == str(torch.get_num_threads())
