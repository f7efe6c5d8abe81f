"""Which of a conversation's images are left out: the oldest, in steps of half the cap

An image costs rows at every turn. Over the cap the oldest go, and a fixed text stands where each
was. Leaving out one at each new image would move the place where the prompt parts from the rows
that were read before at every turn; in steps of half the cap it moves once a step, and from there
on the prompts begin alike again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cap:
    """How much of a prompt may be images. ValueError names the setting that can't be."""

    images: int = 16
    rows: int = 32_768

    def __post_init__(self) -> None:
        for name in ("images", "rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be positive, not {getattr(self, name)}")


def left_out(rows: Sequence[int], cap: Cap) -> int:
    """How many of the oldest images, of so many rows each, are left out.

    Found by going through the conversation as it grew, so that a longer one leaves out all that it
    left out before. The newest image always stays.
    """
    gone = held = 0
    for count, size in enumerate(rows, 1):
        held += size
        if count - gone <= cap.images and held <= cap.rows:
            continue
        images, room = cap.images - max(1, cap.images // 2), cap.rows - cap.rows // 2
        # The step's own room is for those to come: the image that went over the cap is one of them.
        while gone < count - 1 and (count - 1 - gone > images or held - size > room):
            held -= rows[gone]
            gone += 1
        while gone < count - 1 and held > cap.rows:
            held -= rows[gone]
            gone += 1
    return gone
