"""The images of a trace's lines, checked against the runs that copy them"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain

from cache.keys import KEY_ROWS
from replay.fields import Fields, shown, spans
from replay.open import Malformed
from replay.trace import Image, Request, Run

_DIGEST = re.compile("[0-9a-f]{64}")


class ImageLines:
    """The images of the requests read so far."""

    def __init__(self) -> None:
        self._images: dict[int, tuple[Image, ...]] = {}
        self._rows: dict[str, int] = {}
        """Rows of each digest."""

    def add(self, request: Request) -> None:
        """A request was read."""
        if request.images:
            self._images[request.number] = request.images
            self._rows |= {image.digest: image.rows for image in request.images}

    def of(self, row: Fields, prompt: Sequence[Run], output: Sequence[Run]) -> tuple[Image, ...]:
        """The images of a line with these runs. Raises Malformed."""
        asked = sum(run.length for run in prompt)
        entries = spans(row, "images", asked, ("offset", "rows", "digest"))
        images = tuple(Image(*entry) for entry in entries)
        end, sizes = -1, dict[str, int]()
        for image in images:
            if image.offset == end:
                raise Malformed(f"no token stands between the images at {end}")
            self._check(image, sizes)
            end = image.offset + image.rows
        self._check_copies(frozenset(images), prompt, output)
        told, rows = row.object("parts").get("images", 0), sum(image.rows for image in images)
        if images and row.has("parts") and told != rows:
            raise Malformed(f"the images have {rows} rows, their part {shown(told)}")
        return images

    def _check(self, image: Image, sizes: dict[str, int]) -> None:
        """Whether its rows can be told by its digest; `sizes` has those of this line's images."""
        if not isinstance(image.digest, str) or not _DIGEST.fullmatch(image.digest):
            raise Malformed(f"an image's digest is not 64 hex digits: {shown(image.digest)}")
        if image.rows < KEY_ROWS:
            raise Malformed(f"an image of {image.rows} rows; one has at least {KEY_ROWS}")
        rows = self._rows.get(image.digest) or sizes.setdefault(image.digest, image.rows)
        if rows != image.rows:
            raise Malformed(f"an image of {image.rows} rows had {rows} before")

    def _check_copies(
        self, images: frozenset[Image], prompt: Sequence[Run], output: Sequence[Run]
    ) -> None:
        """Rows of an image stay an image's when they are copied."""
        at = 0
        for run in chain(prompt, output):
            for image in self._images.get(run.src, ()):
                if (
                    image.offset < run.offset + run.length
                    and run.offset < image.offset + image.rows
                ):
                    copied = image._replace(offset=at + image.offset - run.offset)
                    if copied not in images:
                        raise Malformed(
                            f"a run copies the image at {image.offset} of request {run.src}, "
                            f"but 'images' has none at {copied.offset}"
                        )
            at += run.length
