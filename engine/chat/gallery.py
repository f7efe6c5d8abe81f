"""The gallery: images that clients send as URLs, decoded once and kept while there is room

A client sends every image of a conversation again at every turn, as the same URL. What it shows is
remembered by the URL's digest, and its patches under a budget by their own.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import replace

from engine.chat.messages import Show
from engine.pictures.decode import Limits, Refused, from_url
from engine.pictures.patches import PatchConfig, read
from engine.pictures.picture import Picture

BUDGET_BYTES = 256 << 20
"""Default bound on the patches that are kept: 65 pictures of the largest size."""
URLS = 1 << 16
"""URLs whose picture's digest, or refusal, is remembered; some 300 bytes each."""


class Gallery:
    """What images are. One for all requests of a server, or for all files of a replay."""

    def __init__(
        self,
        limits: Limits | None = None,
        patches: PatchConfig | None = None,
        budget_bytes: int = BUDGET_BYTES,
        urls: int = URLS,
    ) -> None:
        """`limits` say what is refused, `patches` how pictures are cut."""
        assert budget_bytes >= 0 and urls > 0
        self._limits, self._config = limits or Limits(), patches or PatchConfig()
        self._budget_bytes, self._urls = budget_bytes, urls
        self._told: OrderedDict[bytes, Picture | Refused] = OrderedDict()
        """By the SHA-256 of the URL, without patches."""
        self._kept: OrderedDict[bytes, Picture] = OrderedDict()
        """With patches, by the picture's digest."""
        self.held_bytes = 0
        """Bytes of the patches that are kept."""
        self.decoded = 0
        """Images that were decoded, or refused."""

    def see(self, url: str) -> Show | Refused:
        """The image at a `data:` URL, or why it can't be read."""
        key = hashlib.sha256(url.encode("utf-8", "surrogatepass")).digest()
        told = self._told.get(key)
        if told is None:
            found = self._decode(url)
            told = replace(found, patches=None) if isinstance(found, Picture) else found
            self._told[key] = told
            if len(self._told) > self._urls:
                self._told.popitem(last=False)
        self._told.move_to_end(key)
        return told if isinstance(told, Refused) else Show(told.digest, told, url)

    def picture(self, image: Show) -> Picture:
        """The image with its patches, decoded again if they were let go."""
        kept = self._kept.get(image.digest)
        if kept is not None:
            self._kept.move_to_end(image.digest)
            return kept
        found = self._decode(image.url)
        assert isinstance(found, Picture) and found.digest == image.digest, "an image changed"
        return found

    def kept(self, digest: bytes) -> Picture | None:
        """The picture of this digest with its patches, if they were not let go."""
        return self._kept.get(digest)

    def _decode(self, url: str) -> Picture | Refused:
        """The picture, kept for whoever wants its patches."""
        self.decoded += 1
        data = from_url(url, self._limits)
        found = data if isinstance(data, Refused) else read(data, self._limits, self._config)
        if isinstance(found, Picture) and found.digest not in self._kept:
            self._keep(found)
        return found

    def _keep(self, picture: Picture) -> None:
        """Keep patches, and let go of those used longest ago."""
        self._kept[picture.digest] = picture
        self.held_bytes += _nbytes(picture)
        while self.held_bytes > self._budget_bytes:
            self.held_bytes -= _nbytes(self._kept.popitem(last=False)[1])


def _nbytes(picture: Picture) -> int:
    assert picture.patches is not None
    return picture.patches.nbytes
