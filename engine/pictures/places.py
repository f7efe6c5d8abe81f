"""Where the pictures of a prompt stand among its rows, and which positions those rows take"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cache.types import Ids
from engine.pictures.picture import Picture

Positions = npt.NDArray[np.int64]
"""Positions in time, height and width of n rows, shape (n, 3)."""


@dataclass(frozen=True, slots=True)
class Place:
    """A picture and its rows [start, stop) of a prompt."""

    start: int
    stop: int
    picture: Picture

    @property
    def shortening(self) -> int:
        """How much further rows go than positions: text goes on one after the largest of them."""
        t, h, w = self.picture.grid
        merge = self.picture.merge
        return self.picture.rows - max(t, h // merge, w // merge)

    def positions(self) -> Positions:
        """Of its rows, counted from the position of the first: (t, h, w) in merged patches."""
        t, h, w = self.picture.grid
        merge = self.picture.merge
        shape = t, h // merge, w // merge
        return np.stack([axis.reshape(-1) for axis in np.indices(shape)], axis=1)


def places(ids: Ids, pictures: Sequence[Picture]) -> tuple[Place, ...]:
    """Each run of negative ids is the next picture, whose key ids it must hold.

    Text stands between two pictures. Anything else is an error of whoever made the prompt.
    """
    negative = np.concatenate([[False], ids < 0, [False]])
    edges = np.flatnonzero(negative[1:] != negative[:-1]).tolist()
    runs = list(zip(edges[::2], edges[1::2], strict=True))
    assert len(runs) == len(pictures), f"{len(runs)} runs of key ids, {len(pictures)} pictures"
    found = []
    for (start, stop), picture in zip(runs, pictures, strict=True):
        assert np.array_equal(ids[start:stop], picture.ids), f"rows {start} on are another picture"
        found.append(Place(start, stop, picture))
    return tuple(found)
