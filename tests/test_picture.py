"""A picture's rows and key ids.

Goal: the rows of a prompt that a grid takes, and ids that hang on the digest alone.
Method: by hand.
"""

from __future__ import annotations

import pytest
import torch

from cache.keys import key_ids
from engine.pictures.picture import Picture


def test_rows_and_ids() -> None:
    picture = Picture(b"x" * 32, (1, 6, 8), torch.zeros(48, 3))
    assert picture.rows == 12 and picture.ids.tolist() == key_ids(b"x" * 32, 12).tolist()
    assert Picture(b"x" * 32, (1, 6, 8)).ids.tolist() == picture.ids.tolist()
    assert "patches" not in repr(picture)
    assert Picture(b"x" * 32, (2, 6, 6), merge=1).rows == 72


@pytest.mark.parametrize(
    "grid, merge, count",
    [((1, 4, 8), 2, None), ((1, 7, 8), 2, None), ((0, 8, 8), 2, None), ((1, 6, 8), 2, 47)],
    ids=["few rows", "odd", "no time", "patches"],
)
def test_what_does_not_fit_is_an_error(
    grid: tuple[int, int, int], merge: int, count: int | None
) -> None:
    with pytest.raises(AssertionError):
        Picture(b"x" * 32, grid, None if count is None else torch.zeros(count, 3), merge)
