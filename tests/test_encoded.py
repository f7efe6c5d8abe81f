"""The tower's output by digest.

Goal: engine.pictures.encoded encodes a picture once, stays under its budget, gives back the least
recently used first, and never answers for another picture. Method: a list as the naive twin under
hypothesis; an entry of another grid under the same digest by hand.
"""

from __future__ import annotations

import hashlib

import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.pictures.encoded import Encoded
from engine.pictures.picture import Picture

HIDDEN = 4


def picture(number: int) -> Picture:
    return Picture(hashlib.sha256(bytes([number])).digest(), (1, 6, 6 + 2 * (number % 3)))


def tower(of: Picture) -> torch.Tensor:
    return torch.full((of.rows, HIDDEN), float(of.digest[0]))


def size(of: Picture) -> int:
    return 4 * HIDDEN * of.rows


ACTIONS = st.lists(st.one_of(st.integers(0, 9), st.just(-1)), max_size=60)


@given(ACTIONS, st.integers(0, 1_200))
def test_is_the_naive_list(actions: list[int], budget: int) -> None:
    cache, held = Encoded(budget), list[int]()
    hits = misses = 0
    for number in actions:
        if number < 0:
            sizes = [size(picture(at)) for at in held]
            given_back = cache.release(200)
            count = next((n for n in range(len(held) + 1) if sum(sizes[:n]) >= 200), len(held))
            assert given_back == sum(sizes[:count])
            held = held[count:]
            continue
        of = picture(number)
        assert torch.equal(cache.rows(of, tower), tower(of))
        if number in held:
            hits += 1
            held.remove(number)
            held.append(number)
        else:
            misses += 1
            if size(of) <= budget:
                held.append(number)
                while sum(size(picture(at)) for at in held) > budget:
                    held.pop(0)
        assert cache.held_bytes() == sum(size(picture(at)) for at in held) <= budget
        assert (cache.hits, cache.misses, len(cache)) == (hits, misses, len(held))


def test_another_grid_under_the_same_digest_is_encoded_again() -> None:
    cache = Encoded()
    one, other = Picture(b"x" * 32, (1, 6, 8)), Picture(b"x" * 32, (1, 8, 6))
    cache.rows(one, tower)
    cache.rows(other, tower)
    assert (cache.hits, cache.misses, len(cache)) == (0, 2, 1)
    assert cache.held_bytes() == size(other)


def test_a_board_counts_its_own_bytes_and_is_asked_first() -> None:
    asked: list[tuple[str, int]] = []
    answers = [True, False]

    def grow(name: str, nbytes: int) -> bool:
        asked.append((name, nbytes))
        return answers.pop(0)

    cache = Encoded(10**6, row_bytes=1_000)
    cache.grow = grow
    one, two = picture(1), picture(2)
    cache.rows(one, tower)
    cache.rows(two, tower)
    assert asked == [("encoded", 1_000 * one.rows), ("encoded", 1_000 * two.rows)]
    assert len(cache) == 1 and cache.held_bytes() == 1_000 * one.rows
    assert cache.release(1) == 1_000 * one.rows and cache.held_bytes() == 0
