"""The images of a trace: their rows among the runs, and pictures of as many rows"""

from __future__ import annotations

from itertools import chain
from math import isqrt

from cache.keys import key_ids
from cache.types import Ids
from engine.pictures.picture import Picture
from replay.trace import FRESH, Image, Request, Run


class Images:
    """The images of a trace's requests; equal digests are one image."""

    def __init__(self) -> None:
        self._numbers: dict[Image, int] = {}
        self._ids: list[Ids] = []

    def runs(self, request: Request) -> list[Run]:
        """A request's runs in order, prompt and output, with its images' rows as runs of their own.

        The `src` of such a run is below FRESH, and `ids` has its rows.
        """
        if not request.images:
            return [*request.prompt, *request.output]
        out: list[Run] = []
        at, left = 0, list(reversed(request.images))
        for run in chain(request.prompt, request.output):
            start, stop = at, at + run.length
            while start < stop:
                image = left[-1] if left else None
                end = stop if image is None else min(stop, image.offset)
                if end > start:
                    out.append(_part(run, start - at, end - start))
                elif image is not None:
                    end = min(stop, image.offset + image.rows)
                    if start == image.offset:
                        out.append(Run(self._src(image), 0, image.rows))
                    if end == image.offset + image.rows:
                        left.pop()
                start = end
            at = stop
        return out

    def ids(self, src: int) -> Ids:
        """The key ids of the image that a run of this `src` stands for."""
        return self._ids[FRESH - 1 - src]

    def _src(self, image: Image) -> int:
        known = image._replace(offset=0)
        if known not in self._numbers:
            self._numbers[known] = len(self._ids)
            self._ids.append(key_ids(bytes.fromhex(image.digest), image.rows))
        return FRESH - 1 - self._numbers[known]


def _part(run: Run, skip: int, length: int) -> Run:
    """A stretch of a run; all tokens of a fresh one are alike."""
    return Run(run.src, run.offset if run.src == FRESH else run.offset + skip, length)


def picture_of(image: Image) -> Picture:
    """A picture of an image's digest and rows, as near to a square as its rows allow.

    It has no patches, since a trace has no pixels.
    """
    high = next(n for n in range(isqrt(image.rows), 0, -1) if image.rows % n == 0)
    return Picture(bytes.fromhex(image.digest), (1, 2 * high, 2 * image.rows // high))
