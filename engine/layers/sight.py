"""What a sequence sees: pictures as embedded rows, and the positions of rows after them"""

from __future__ import annotations

import numpy as np
import torch

from engine.layers.rope import Angles, Rope
from engine.layers.vision import Tower
from engine.pictures.encoded import Encoded
from engine.pictures.places import Place


class Sight:
    """Of one sequence, over a tower that sequences share.

    Text stands at the position of its row less `shift`: a picture takes more rows than positions,
    and `shift` counts that of the pictures read to their end. It is a recurrent fact, as the states
    are, and comes back with them; so a line inside a picture still has the shift before it.
    """

    def __init__(self, tower: Tower, rope: Rope) -> None:
        self.shift = torch.zeros(1, dtype=torch.int64, device=rope.device)
        self._tower, self._rope = tower, rope
        self._places: tuple[Place, ...] = ()
        self._seen: dict[int, torch.Tensor] = {}
        """What the tower made of the pictures that a chunk has begun, by their first row."""

    def look(self, places: tuple[Place, ...], line: int) -> None:
        """These are the prompt's pictures; those that end above `line` must have patches."""
        self.forget()
        ahead = tuple(place for place in places if place.stop > line)
        assert all(place.picture.patches is not None for place in ahead), "no patches"
        self._places = ahead

    def forget(self) -> None:
        """Another sequence, or none."""
        self._places = ()
        self._seen.clear()

    def between(self, start: int, stop: int) -> list[Place]:
        """The pictures that have some of the rows [start, stop)."""
        return [place for place in self._places if place.start < stop and place.stop > start]

    def embed(self, rows: torch.Tensor, start: int, encoded: Encoded) -> None:
        """Write what the tower makes of pictures over embedded rows from `start` on [n, hidden]."""
        stop = start + len(rows)
        for place in self.between(start, stop):
            if place.start not in self._seen:
                self._seen[place.start] = encoded.rows(place.picture, self._tower)
            low, high = max(start, place.start), min(stop, place.stop)
            made = self._seen[place.start][low - place.start : high - place.start]
            rows[low - start : high - start] = made

    def angles(self, start: int, stop: int) -> Angles:
        """Of rows [start, stop), after all rows before them were read."""
        shift, pictures = int(self.shift), self.between(start, stop)
        if not pictures:
            return self._rope.rows(start - shift, stop - shift)
        positions = np.repeat(np.arange(start - shift, stop - shift)[:, None], 3, axis=1)
        for place in pictures:
            low, high = max(start, place.start), min(stop, place.stop)
            own = place.positions()[low - place.start : high - place.start]
            positions[low - start : high - start] = place.start - shift + own
            positions[high - start :] -= place.shortening
            shift += place.shortening
        return self._rope.at(torch.from_numpy(positions).to(self._rope.device))

    def passed(self, start: int, stop: int) -> None:
        """Rows [start, stop) were read: pictures that end among them count from here on."""
        for place in self.between(start, stop):
            if place.stop <= stop:
                self.shift += place.shortening
                self._seen.pop(place.start, None)
