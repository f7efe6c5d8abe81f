"""Per-layer embeddings (engine.flash.ple): keys of n-grams, the context, the convolution's tail.

Goal: a key is docs/flash.md's integer, whatever pieces a sequence is read in; the embeddings of
pieces are those of the whole. Method: keys in Python's own integers, over token ids up to the
largest vocabulary; pieces against the whole, bit for bit where only integers are concerned.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from engine.flash import ple
from engine.flash.config import FlashConfig
from engine.flash.ple import PerLayer, PleBranch, ngram_keys
from engine.flash.table import MemoryTable
from engine.flash.weights import random_weights
from engine.layers.draft import under


def key_of(tokens: list[int], rows: int) -> int:
    """Of one n-gram of token ids, -1 for one before the sequence."""
    x = len(tokens)
    for token in tokens:
        x = ((x + token + 1) * 1_000_003) % (2**31 - 1)
    return x % rows


def ids_of(count: int, vocab: int = 248_320) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(0, vocab, count))


@pytest.mark.parametrize("longest", [2, 3, 5])
@pytest.mark.parametrize("rows", [1_009, 1 << 24, 2**31 - 1])
def test_keys_are_pythons_integers(longest: int, rows: int) -> None:
    ids = ids_of(40)
    ids[3:6] = 248_319
    padded = torch.cat((torch.zeros(longest - 1, dtype=torch.int64), ids + 1))
    text = [-1] * (longest - 1) + ids.tolist()
    want = [
        [key_of(text[at + longest - order : at + longest], rows) for order in range(2, longest + 1)]
        for at in range(40)
    ]
    assert ngram_keys(padded, longest, rows).tolist() == want


def test_canary_a_token_too_many_or_in_another_order_is_another_key() -> None:
    assert key_of([1, 2], 1 << 24) != key_of([2, 1], 1 << 24)
    assert len({key_of([-1, 5], 1 << 24), key_of([5], 1 << 24), key_of([-1, -1, 5], 1 << 24)}) == 3


def test_keys_spread_over_the_table() -> None:
    """Neighbouring ids among them: 20,000 pairs in 1,000 rows leave no row empty or crowded."""
    left, right = torch.meshgrid(torch.arange(100), torch.arange(200), indexing="ij")
    tokens = torch.stack((left.flatten(), right.flatten()), 1)
    keys = [key_of(pair, 1_000) for pair in tokens.tolist()]
    counts = Counter(keys)
    assert len(counts) == 1_000 and max(counts.values()) < 60


CONFIG = FlashConfig.tiny()
WEIGHTS = random_weights(CONFIG, 3)
TENSORS = under(WEIGHTS.tensors, "model.ple.")


def start() -> tuple[torch.Tensor, torch.Tensor]:
    """Context and tail of the empty sequence."""
    return torch.zeros(2, dtype=torch.int64), torch.zeros(40, 3)


def pieces(cuts: list[int], ids: torch.Tensor) -> torch.Tensor:
    """Embeddings of ids, read in pieces that end at `cuts`."""
    of, (context, tail), made, at = PerLayer(CONFIG, TENSORS, WEIGHTS.table), start(), [], 0
    for stop in cuts:
        out, tokens, joined = of(ids[at:stop], context, tail)
        context, tail = tokens[stop - at :], joined[stop - at :].t()
        made.append(out)
        at = stop
    return torch.cat(made)


def test_pieces_are_the_whole() -> None:
    ids = ids_of(30, 499)
    want = pieces([30], ids)
    for cuts in ([1, 2, 3, 30], [16, 30], list(range(1, 31))):
        torch.testing.assert_close(pieces(cuts, ids), want, atol=2e-6, rtol=0.0)


def test_embeddings_are_the_formula() -> None:
    ids = ids_of(12, 499)
    assert isinstance(WEIGHTS.table, MemoryTable)
    w = {name: tensor.double() for name, tensor in TENSORS.items()}
    text, u = [-1, -1, *ids.tolist()], []
    for at, token in enumerate(ids.tolist()):
        keys = [key_of(text[at + 3 - order : at + 3], 1_009) for order in (2, 3)]
        z = torch.cat([WEIGHTS.table.tensor[key].double() for key in keys])
        u.append(w["embed_tokens.weight"][token] + w["ngram_proj.weight"] @ z)
    padded = torch.cat((torch.zeros(3, 40).double(), torch.stack(u)))
    taps = w["conv1d.weight"][:, 0].t()
    want = torch.stack([F.silu((padded[at : at + 4] * taps).sum(0)) for at in range(12)])
    torch.testing.assert_close(pieces([12], ids).double(), want, atol=2e-6, rtol=0.0)


def test_canary_a_context_that_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows after a cut know what was before it, and the convolution three more."""
    ids, want = ids_of(30, 499), pieces([30], ids_of(30, 499))
    keys = ngram_keys

    def lost(tokens: torch.Tensor, longest: int, rows: int) -> torch.Tensor:
        return keys(torch.cat((torch.zeros(2, dtype=torch.int64), tokens[2:])), longest, rows)

    monkeypatch.setattr(ple, "ngram_keys", lost)
    apart = (pieces([10, 30], ids) - want).abs().amax(1) > 1e-4
    assert apart[10:15].all() and not apart[:10].any() and not apart[15:].any()


def test_a_branch_is_gated_by_its_input() -> None:
    tensors = under(WEIGHTS.tensors, "model.layers.1.ple.")
    x, embedded = torch.randn(5, 48, generator=torch.Generator().manual_seed(1)), torch.ones(5, 10)
    gate, up = tensors["gate_proj.weight"], tensors["up_proj.weight"]
    want = (F.silu(x @ gate.t()) * embedded) @ up.t()
    torch.testing.assert_close(PleBranch(tensors)(x, embedded), want, atol=2e-6, rtol=0.0)
