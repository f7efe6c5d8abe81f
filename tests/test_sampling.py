"""Sampling: drafts change how fast tokens come, not their distribution.

Method: exact probabilities against counts of many seeded draws; masks against naive sorting.
"""

import pytest
import torch

from engine.sampling import Greedy, Sampled, Sampling

LOGITS = torch.tensor([2.0, 1.0, 0.0, 1.5, -1.0, 0.5])


def test_greedy_accepts_what_it_would_have_written() -> None:
    logits = torch.zeros(4, 6)
    for row, best in enumerate((3, 1, 4, 2)):
        logits[row, best] = 1.0
    greedy = Greedy()
    assert greedy.judge(logits, [3, 1, 4]) == (3, 2)
    assert greedy.judge(logits, [3, 2, 4]) == (1, 1)
    assert greedy.judge(logits, [0, 1, 4]) == (0, 3)
    assert greedy.judge(logits[:1], []) == (0, 3)


@pytest.mark.parametrize("guess", [0, 2, 4])
def test_one_draft_leaves_the_distribution_alone(guess: int) -> None:
    rule = Sampled(Sampling(temperature=1.0, seed=1))
    p = rule.probabilities(LOGITS)
    counts, draws = torch.zeros(6), 20_000
    block = LOGITS.repeat(2, 1)
    for _ in range(draws):
        accepted, following = rule.judge(block, [guess])
        counts[guess if accepted else following] += 1
    # Four standard deviations of a count.
    assert ((counts / draws - p).abs() < 4 * (p * (1 - p) / draws).sqrt()).all()


def test_a_refused_draft_is_never_drawn_in_its_place() -> None:
    rule = Sampled(Sampling(temperature=1.0, seed=2))
    block = LOGITS.repeat(2, 1)
    for _ in range(500):
        accepted, following = rule.judge(block, [3])
        assert accepted or following != 3


def test_a_seed_repeats_and_another_differs() -> None:
    def draw(seed: int) -> list[int]:
        rule = Sampled(Sampling(temperature=1.0, seed=seed))
        return [rule.first(LOGITS) for _ in range(30)]

    assert draw(5) == draw(5) != draw(6)


def test_top_k_and_top_p_keep_what_they_say() -> None:
    p = Sampled(Sampling(temperature=1.0, top_k=2)).probabilities(LOGITS)
    assert p.nonzero().flatten().tolist() == [0, 3]
    full = torch.softmax(LOGITS, dim=-1)
    p = Sampled(Sampling(temperature=1.0, top_p=0.6)).probabilities(LOGITS)
    # 0.45 + 0.27 crosses 0.6 with the second token, which stays.
    assert p.nonzero().flatten().tolist() == [0, 3]
    assert torch.allclose(p[[0, 3]], full[[0, 3]] / full[[0, 3]].sum())
    p = Sampled(Sampling(temperature=1.0, top_p=1e-6)).probabilities(LOGITS)
    assert p.tolist() == [1, 0, 0, 0, 0, 0]


def test_a_certain_token_is_always_accepted() -> None:
    rule = Sampled(Sampling(temperature=1.0, top_p=1e-6, seed=3))
    for _ in range(200):
        assert rule.judge(LOGITS.repeat(2, 1), [0]) == (1, 0)


def test_low_temperature_is_nearly_greedy() -> None:
    rule = Sampled(Sampling(temperature=0.01, seed=4))
    assert {rule.first(LOGITS) for _ in range(200)} == {0}


def test_min_p_keeps_what_is_likely_enough() -> None:
    full = torch.softmax(LOGITS, dim=-1)
    for min_p in (0.05, 0.3, 0.6, 1.0):
        p = Sampled(Sampling(temperature=1.0, min_p=min_p)).probabilities(LOGITS)
        kept = full >= min_p * full.max()
        assert torch.equal(p > 0, kept)
        assert torch.allclose(p[kept], full[kept] / full[kept].sum())


def test_a_top_p_too_small_for_float32_keeps_the_likeliest() -> None:
    p = Sampled(Sampling(temperature=1.0, top_p=1e-300)).probabilities(LOGITS)
    assert p.tolist() == [1, 0, 0, 0, 0, 0]


def test_a_seed_gives_the_same_tokens_whatever_is_drafted() -> None:
    def written(guesses: list[list[int]]) -> list[int]:
        rule, answer = Sampled(Sampling(temperature=1.0, seed=9)), []
        for drafts in guesses:
            accepted, following = rule.judge(LOGITS.repeat(1 + len(drafts), 1), drafts)
            answer += [*drafts[:accepted], following]
        return answer[:60]

    plain = written([[]] * 60)
    for guess in ([0], [0, 0, 0], [3, 1], [5]):
        assert written([guess] * 60) == plain


def test_canary_a_judge_that_draws_twice_for_a_token_is_seen() -> None:
    """Speculative rejection as it is often written: right on average, and no seed repeats."""
    rule, plain = (Sampled(Sampling(temperature=1.0, seed=9)) for _ in range(2))
    tokens = [plain.first(LOGITS) for _ in range(60)]
    answer = []
    for _ in range(60):
        p = rule.probabilities(LOGITS)
        if float(torch.rand((), generator=rule._generator)) < float(p[0]):
            answer.append(0)
        else:
            p[0] = 0.0
            answer.append(rule._draw(p))
    assert answer != tokens
