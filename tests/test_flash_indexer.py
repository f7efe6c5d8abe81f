"""Which blocks a query attends (engine.flash.indexer), and what is pooled (engine.flash.rows).

Goal: pooled keys are the same bits however many blocks are made at once, and from their own rows
alone; the choice is docs/flash.md's, ties, signs and the first rows included. Method: the choice
query by query in plain Python, on scores full of ties; pooled keys against a float64 mean. Each
canary breaks one rule and the comparison must see it.
"""

from __future__ import annotations

import pytest
import torch

from engine.flash import indexer
from engine.flash.indexer import chosen, order_keys, pooled, scores
from engine.flash.rows import SparseRows, padded


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.empty(shape).normal_(generator=torch.Generator().manual_seed(seed))


def plain_choice(of: list[float], own: int, count: int) -> set[int]:
    """Of one query; `of` are the scores of the blocks from 1 on."""
    candidates = range(1, own - 1)
    best = sorted(candidates, key=lambda block: (-of[block - 1], block))[:count]
    return {*best, own, max(own - 1, 0), 0}


def picked(of: torch.Tensor, own: torch.Tensor, count: int) -> list[set[int]]:
    """What `chosen` says, query by query; no block may be there twice."""
    found = []
    for blocks, filled in zip(*chosen(of, own, count), strict=True):
        taken = blocks[filled].tolist()
        assert len(taken) == len(set(taken))
        best = blocks[3:][filled[3:]].tolist()
        assert best == sorted(best)
        found.append(set(taken))
    return found


def tied(n: int, blocks: int) -> torch.Tensor:
    """Scores of both signs, most of them equal to some other, zeros of both signs among them."""
    found = noise(n, blocks).mul_(2.0).round_().mul_(0.5)
    found[::3] *= 0.0
    return found


@pytest.mark.parametrize("count", [1, 2, 5, 40])
def test_the_choice_is_the_plain_one(count: int) -> None:
    of, own = tied(60, 28), torch.arange(60) // 2
    queries = zip(of.tolist(), own.tolist(), strict=True)
    want = [plain_choice(row, block, count) for row, block in queries]
    assert picked(of, own, count) == want
    assert len(want[-1]) == 3 + min(count, 27)


def test_equal_scores_give_the_lower_blocks() -> None:
    for of in (torch.zeros(1, 20), -torch.ones(1, 20), torch.tensor([[0.0, -0.0] * 10])):
        assert picked(of, torch.tensor([22]), 3) == [{0, 1, 2, 3, 21, 22}]


def test_canary_the_order_must_know_signs_and_ties(monkeypatch: pytest.MonkeyPatch) -> None:
    def bits(of: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
        return (of.view(torch.int32).long() << 32) - blocks

    def higher(of: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
        return order_keys(of, -blocks)

    for plant in (bits, higher):
        monkeypatch.setattr(indexer, "order_keys", plant)
        with pytest.raises(AssertionError):
            test_the_choice_is_the_plain_one(5)


def test_order_keys_are_in_the_order_of_the_scores() -> None:
    tiny = torch.finfo(torch.float32).tiny
    of = torch.tensor([[-torch.inf, -3.5, -tiny, 0.0, tiny, 1e-3, 7.0, torch.inf]])
    keys = order_keys(of, torch.zeros(8, dtype=torch.int64))
    assert (keys.diff() > 0).all()


def test_scores_are_a_weighted_sum_over_heads_above_zero() -> None:
    q, w, blocks = noise(5, 3, 14), noise(5, 3, seed=1), noise(9, 14, seed=2)
    products = torch.einsum("nhd,cd->nhc", q.double(), blocks.double()).relu()
    want = torch.einsum("nhc,nh->nc", products, w.double()) / 14**0.5
    torch.testing.assert_close(scores(q, w, blocks).double(), want, atol=1e-6, rtol=0.0)
    assert (want < 0).any(), "weights of both signs"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1, 2, 8, 64])
def test_pooled_keys_are_means_and_the_same_bits_one_by_one(size: int, dtype: torch.dtype) -> None:
    keys = noise(11 * size, 14).to(dtype)
    found = pooled(keys, size)
    want = keys.double().view(11, size, 14).mean(1)
    torch.testing.assert_close(found.double(), want, atol=1e-6, rtol=0.0)
    for at in range(11):
        assert torch.equal(pooled(keys[at * size : (at + 1) * size], size)[0], found[at])
    assert found.dtype == torch.float32


def rows(window: int = 72, block: int = 8) -> SparseRows:
    return SparseRows(noise(2, window, 4), noise(2, window, 4), torch.zeros(window, 6), block)


def test_only_whole_blocks_are_pooled_and_from_the_row_that_is_written_on() -> None:
    of, keys = rows(), noise(64, 6)
    side = noise(64, 2, 4)
    of.write(0, side[:20], side[:20], keys[:20])
    assert torch.equal(of.pooled[:2], pooled(keys[:16], 8)) and not of.pooled[2:].any()
    of.write(20, side[20:33], side[20:33], keys[20:33] + 1.0)
    # Those were refused: the same rows come again.
    of.write(21, side[21:40], side[21:40], keys[21:40])
    of.index[20] = keys[20]
    of.write(20, side[20:40], side[20:40], keys[20:40])
    assert torch.equal(of.pooled[:5], pooled(keys[:40], 8))
    assert torch.equal(of.keys[:, :40], side[:40].transpose(0, 1))


def test_blocks_are_taken_whole_and_unseen_rows_of_the_first_place_are_zeros() -> None:
    of, side = rows(), noise(45, 2, 4)
    for buffer in (of.keys, of.values):
        buffer.fill_(torch.nan)
    of.write(0, side, side + 1.0, noise(45, 6))
    blocks = torch.tensor([[5, 4, 0], [2, 1, 0]])
    seen = torch.ones(2, 3, 8, dtype=torch.bool)
    seen[0, 0, 5:] = False
    k, v = of.take(blocks, seen, of.room(3, 3))
    assert k.shape == v.shape == (2, 2, 24, 4)
    want = torch.cat((side[40:45], torch.zeros(3, 2, 4), side[32:40], side[:8]))
    assert torch.equal(k[0], want.transpose(0, 1))
    assert torch.equal(
        v[1], torch.cat([side[8 * n : 8 * n + 8] for n in (2, 1, 0)]).transpose(0, 1) + 1.0
    )


def test_buffers_of_a_window_are_whole_blocks() -> None:
    assert [padded(window, 8) for window in (1, 8, 9, 300)] == [8, 8, 16, 304]
