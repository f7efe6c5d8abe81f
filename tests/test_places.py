"""Where pictures stand in a prompt, and the positions of their rows.

Goal: the i-th run of key ids is the i-th picture or it is an error, and positions are those of the
family: (t, h, w) from the picture's start, text one after the largest. Method: a loop over merged
patches as the naive twin; every way a prompt and its pictures can disagree.
"""

from __future__ import annotations

import numpy as np
import pytest

from cache.types import Ids
from engine.pictures.picture import Picture
from engine.pictures.places import Place, places

ONE, OTHER = Picture(b"1" * 32, (1, 6, 8)), Picture(b"2" * 32, (1, 10, 6))
TEXT = np.array([5, 6, 7], np.int32)


def joined(*parts: Ids) -> Ids:
    return np.concatenate(parts)


def test_each_run_is_the_next_picture() -> None:
    ids = joined(TEXT, ONE.ids, TEXT, OTHER.ids, TEXT, ONE.ids)
    found = places(ids, [ONE, OTHER, ONE])
    assert [(place.start, place.stop) for place in found] == [(3, 15), (18, 33), (36, 48)]
    assert [place.picture for place in found] == [ONE, OTHER, ONE]
    assert places(TEXT, []) == () and places(TEXT[:0], []) == ()


@pytest.mark.parametrize(
    "ids, pictures",
    [
        (joined(TEXT, ONE.ids), []),
        (TEXT, [ONE]),
        (joined(ONE.ids, TEXT, OTHER.ids), [OTHER, ONE]),
        (joined(TEXT, ONE.ids), [Picture(b"3" * 32, ONE.grid)]),
        (joined(ONE.ids, OTHER.ids), [ONE, OTHER]),
        (joined(ONE.ids[:-1], TEXT), [ONE]),
        (joined(TEXT, ONE.ids, ONE.ids[:1]), [ONE]),
    ],
    ids=[
        "none given",
        "none there",
        "order",
        "digest",
        "no text between",
        "a row short",
        "a row long",
    ],
)
def test_a_prompt_that_is_not_its_pictures(ids: Ids, pictures: list[Picture]) -> None:
    with pytest.raises(AssertionError):
        places(ids, pictures)


@pytest.mark.parametrize("grid", [(1, 6, 8), (1, 2, 18), (3, 4, 6), (20, 2, 2)])
def test_positions_are_the_loops(grid: tuple[int, int, int]) -> None:
    picture = Picture(b"1" * 32, grid)
    t, h, w = grid[0], grid[1] // 2, grid[2] // 2
    wanted = [[a, b, c] for a in range(t) for b in range(h) for c in range(w)]
    place = Place(3, 3 + picture.rows, picture)
    assert place.positions().tolist() == wanted
    assert picture.rows - place.shortening == max(max(at) for at in wanted) + 1
