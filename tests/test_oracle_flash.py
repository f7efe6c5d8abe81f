"""The flash model against the oracle, layer by layer and whole, and faults the oracle must see.

Goal: engine.flash computes what docs/flash.md says: blocks and their ties, n-gram keys, streams,
per-layer embeddings, the MTP layer, and with them all logits, sections, rows and pooled keys,
through chunks, pieces of them, verified blocks and a resume. Method: engine.oracle in JAX float64,
token by token, written from that page (engine.oracle.sparse, engine.oracle.streams,
engine.oracle.per_layer, engine.oracle.flash_layer); the bound is derived in oracled.bound. Where
float32 might choose another block, the oracle's margin says so. Canaries plant a wrong sign or
order in the torch layers, one at a time: each must end up at least a hundred bounds away.
"""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flash_faults import FAULTS, Plant, block_tie
from oracled import COUNT, GRID, after, bound, gaps, ids_of, resumed, walk, worst

from engine.flash import indexer, ple
from engine.flash.config import FlashConfig
from engine.flash.decoder import FlashDecoder
from engine.flash.engine import Flash
from engine.flash.ple import PerLayer
from engine.flash.rows import SparseRows
from engine.flash.sparse_attention import SparseAttention
from engine.flash.streams import Branch
from engine.flash.weights import FlashWeights, MemoryTable, random_weights
from engine.layers.draft import under
from engine.layers.rope import Rope
from engine.oracle import per_layer, sparse, streams
from engine.oracle.attention import Turn
from engine.oracle.flash import FlashOracle
from engine.oracle.sparse import IndexedRows
from engine.oracle.wide import back, jitted, wide, wide_all

PLAIN = FlashConfig.tiny()
OTHER = FlashConfig.tiny(
    tie_embeddings=False,
    streams=3,
    ngram=4,
    block_rows=16,
    top_blocks=3,
    ple_kernel=3,
    rotary_fraction=0.5,
    draft=False,
)
BOUND = bound(layers=6)
"""A per-layer embedding is half a layer's sums more."""


@cache
def weights(config: FlashConfig) -> FlashWeights:
    return random_weights(config, 3)


def engine(config: FlashConfig) -> Flash:
    return Flash(FlashDecoder(weights(config)), grid=GRID, window=256)


@cache
def wanted(config: FlashConfig) -> tuple[FlashOracle, torch.Tensor]:
    """The oracle after all ids, and their logits."""
    of = weights(config)
    assert isinstance(of.table, MemoryTable)
    oracle = FlashOracle(config, of.tensors, of.table.tensor)
    return oracle, oracle.read(ids_of().tolist())


def far(config: FlashConfig) -> dict[str, float]:
    """How far the engine's logits, sections, rows and pooled keys are off after a walk."""
    (oracle, logits), of = wanted(config), engine(config)
    found = after(of, ids_of(), logits, oracle.state())
    means = oracle.pooled()
    got = {f"pooled.{n}": keys for n, keys in enumerate(pooled_of(of, len(means[0])))}
    return found | gaps(got, {f"pooled.{n}": keys for n, keys in enumerate(means)})


def pooled_of(of: Flash, whole: int) -> list[torch.Tensor]:
    """The engine's pooled keys of its first blocks, the MTP layer's last."""
    mtp = of._state.mtp_rows
    return [one.pooled[:whole] for one in (*of._state.rows, *([mtp] if mtp else []))]


# the whole model


@pytest.mark.parametrize("config", [PLAIN, OTHER], ids=["plain", "other"])
def test_all_ways_through_the_engine(config: FlashConfig) -> None:
    found = far(config)
    assert found.pop("ple.context") == 0
    assert worst(found) < BOUND
    # Blocks were left out, and none because of float32.
    assert (config.top_blocks + 3) * config.block_rows < COUNT
    assert wanted(config)[0].margin > BOUND / 10


def test_drafts() -> None:
    of, oracle = engine(PLAIN), wanted(PLAIN)[0]
    walk(of, ids_of())
    guesses = oracle.draft(7, 12)
    assert of.pending and of.draft(7, 12) == guesses
    of.settle()
    assert of.draft(7, 12) == guesses
    assert len(set(guesses)) > 3


def test_a_resume() -> None:
    of = engine(PLAIN)
    got = resumed(engine(PLAIN), of, ids_of(), 2 * GRID)
    oracle, logits = wanted(PLAIN)
    assert float((got.double() - logits[-1]).abs().max()) < BOUND
    means = oracle.pooled()
    for mine, theirs in zip(pooled_of(of, len(means[0])), means, strict=True):
        assert float((mine.double() - theirs).abs().max()) < BOUND


# its layers


@pytest.mark.parametrize("longest", [2, 3, 5])
def test_ngram_keys_are_pythons_own(longest: int) -> None:
    ids = [0, 498, 0, 0, 2**31 - 3, 17, 2**31 - 2, 5]
    tokens = torch.tensor([0] * (longest - 1) + [token + 1 for token in ids])
    got = ple.ngram_keys(tokens, longest, 1_009)
    want = [per_layer.ngram_keys(ids[: at + 1], longest, 1_009) for at in range(len(ids))]
    assert got.tolist() == want


@jitted("top")
def _chosen(scores: Any, own: Any, *, top: int) -> Any:
    return sparse.chosen(scores, own, top)


@pytest.mark.parametrize("top", [1, 2, 5])
def test_blocks_with_many_equal_scores(top: int) -> None:
    generator = torch.Generator().manual_seed(top)
    for own in range(12):
        scores = torch.randint(-1, 2, (12,), generator=generator).float()
        scores[scores == 0] *= torch.tensor([-1.0, 1.0])[own % 2]
        between = scores[1 : max(own - 1, 1)]
        which, filled = indexer.chosen(between[None], torch.tensor([own]), top)
        want = back(_chosen(wide(scores), np.int32(own), top=top)).nonzero().flatten().tolist()
        assert sorted(set(which[filled].tolist())) == want


@jitted()
def _branched(w: Any, x: Any) -> Any:
    names = "mlp_streams", "post_attention_layernorm"
    return streams.branch(w, *names, x, lambda read: (jnp.tanh(read), None), PLAIN.rms_eps)[0]


def test_streams_take_in_a_branch() -> None:
    tensors = under(weights(PLAIN).tensors, "model.layers.1.")
    x, w = draw(2, 9, PLAIN.hidden), wide_all(tensors)
    branch = Branch(tensors, "post_attention_layernorm", "mlp_streams", PLAIN.rms_eps)
    read, mixed = branch.read(x)
    want = [back(_branched(w, wide(x[:, at]))) for at in range(9)]
    close(branch.write(mixed, read.tanh()), torch.stack(want, dim=1))


@jitted()
def _sparse(w: Any, x: Any, rows: Any) -> Any:
    turn = Turn(PLAIN.rotary_dim, PLAIN.rope_theta, (0, 0, 0))
    how = {"block_rows": PLAIN.block_rows, "top_blocks": PLAIN.top_blocks, "eps": PLAIN.rms_eps}
    return sparse.sparse_attention(w, x, rows, turn=turn, **how)[:2]


def test_sparse_attention_in_pieces() -> None:
    tensors, window = under(weights(PLAIN).tensors, "model.layers.3.self_attn."), 128
    layer, w = SparseAttention(PLAIN, tensors), wide_all(tensors)
    shape = PLAIN.kv_heads, window, PLAIN.head_dim
    own = SparseRows(
        torch.zeros(shape), torch.zeros(shape), torch.zeros(window, 14), PLAIN.block_rows
    )
    rope = Rope(PLAIN.rotary_dim, PLAIN.rope_theta, window, torch.float32)
    x, cuts = draw(120, PLAIN.hidden), [0, 37, 64, 65, 69, 120]
    got = [layer(x[a:b], a, own, rope.rows(a, b)) for a, b in itertools.pairwise(cuts)]
    none = np.zeros(shape)
    kept, want = IndexedRows(none, none, np.zeros((window, 14)), np.int32(0)), []
    for row in x:
        out, kept = _sparse(w, wide(row), kept)
        want.append(back(out))
    close(torch.cat(got), torch.stack(want))
    for mine, theirs in zip((own.keys, own.values, own.index), kept[:3], strict=True):
        close(mine, back(theirs))


def test_per_layer_embeddings_in_pieces() -> None:
    of = weights(OTHER)
    tensors, ids = under(of.tensors, "model.ple."), ids_of(20).tolist()
    layer, w, kernel = PerLayer(OTHER, tensors, of.table), wide_all(tensors), OTHER.ple_kernel
    context = torch.zeros(OTHER.ngram - 1, dtype=torch.int64)
    tail, moved = torch.zeros(OTHER.ple_channels, kernel - 1), None
    moved, got, want = tail.double().numpy(), [], []
    for a, b in itertools.pairwise([0, 1, 2, 9, 20]):
        mixed, tokens, joined = layer(torch.tensor(ids[a:b]), context, tail)
        context, tail = tokens[b - a :], joined[b - a :].t()
        got.append(mixed)
    assert isinstance(of.table, MemoryTable)
    for at, token in enumerate(ids):
        keys = per_layer.ngram_keys(ids[: at + 1], OTHER.ngram, OTHER.ngram_rows)
        found = of.table.tensor[keys].double().numpy()
        made, moved = per_layer.embedded(w, np.int32(token), found, moved)
        want.append(back(made))
    close(torch.cat(got), torch.stack(want))
    close(tail, back(moved))


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    """Normal noise."""
    return torch.empty(shape).normal_(generator=torch.Generator().manual_seed(seed))


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    """Within the bound of one layer."""
    torch.testing.assert_close(got.double(), want, atol=bound(1), rtol=0.0)


# planted faults


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_canary_a_wrong_sign_or_order(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert worst(far(PLAIN)) > 100 * BOUND


def test_canary_the_higher_of_equal_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    block_tie(monkeypatch)
    with pytest.raises(AssertionError):
        test_blocks_with_many_equal_scores(2)
    assert far(PLAIN)["logits"] > 10 * BOUND
