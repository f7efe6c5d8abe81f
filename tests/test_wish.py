"""A wish: what of it is derived, and what none can say.

Method: the choices' seeds are compared over many seeds; impossible wishes are tried one by one.
"""

from __future__ import annotations

import pytest

from engine.sampling import Sampling
from serve.wish import CHOICES_MAX, Wish, seed_of


def test_the_first_choice_has_the_requests_seed_and_no_two_the_same() -> None:
    seeds = [0, 1, 2, -5, 2**63 - 1, -(2**63)]
    all_of = [seed_of(seed, choice) for seed in seeds for choice in range(CHOICES_MAX)]
    assert len(set(all_of)) == len(all_of)
    assert all(-(2**63) <= seed < 2**63 for seed in all_of)
    assert [seed_of(seed, 0) for seed in seeds] == seeds
    assert seed_of(7, 3) == seed_of(7, 3)


def test_a_choices_sampling_differs_in_its_seed_only() -> None:
    wish = Wish(n=2, sampling=Sampling(0.7, 0.9, 40, seed=11, min_p=0.1))
    assert wish.sampling_of(0) == wish.sampling
    other = wish.sampling_of(1)
    assert other.seed != 11 and (other.temperature, other.top_p, other.min_p) == (0.7, 0.9, 0.1)
    assert not wish.greedy and Wish().greedy


def test_who_must_call() -> None:
    assert Wish(tool_choice="required").must_call
    assert Wish(tool_choice="none", tool_named=True).must_call
    assert not Wish(tool_choice="none").must_call and not Wish().must_call


@pytest.mark.parametrize("wrong", [{"n": 0}, {"n": 9}, {"answer_max": 0}, {"thinking_max": -1}])
def test_impossible_wishes_are_asserted(wrong: dict[str, int]) -> None:
    with pytest.raises(AssertionError):
        Wish(**wrong)  # type: ignore[arg-type]
