"""A rendered text as token ids, piece by piece, with the token at each of its characters"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from cache.types import Ids
from engine.chat.messages import ChatError, Show
from engine.chat.rendered import Shown
from engine.chat.sealed import Seals
from engine.chat.tokenizer import Tokenizer

PAD = "<|image_pad|>"
"""Stands where an image's rows are."""


@dataclass(slots=True)
class Placed:
    """The ids of a rendered text."""

    tokenizer: Tokenizer
    seals: Seals
    pieces: list[tuple[str, Ids, int]] = field(default_factory=list)
    """Text, ids, and how many bytes at the text's beginning a special token took."""
    characters: list[int] = field(default_factory=list)
    """Where each piece starts in the text."""
    tokens: list[int] = field(default_factory=list)
    """And in the ids."""
    shown: list[Shown] = field(default_factory=list)
    size: int = 0

    def add(self, text: str, ids: Ids, start: int, taken: int = 0) -> None:
        """One more piece, whose text starts at a character."""
        self.pieces.append((text, ids, taken))
        self.characters.append(start)
        self.tokens.append(self.size)
        self.size += len(ids)

    @property
    def ids(self) -> Ids:
        """All of them."""
        return np.concatenate([np.empty(0, np.int32), *(ids for _, ids, _ in self.pieces)])

    def token(self, character: int) -> int:
        """Tokens that end at or before a character of the text."""
        at = bisect_right(self.characters, character) - 1
        if at < 0:
            return 0
        (text, ids, taken), start = self.pieces[at], self.characters[at]
        if character == start or not len(ids):
            return self.tokens[at]
        before = self.seals.opened(text[: character - start]).encode("utf-8", "replace")
        sizes = [len(self.tokenizer.piece(id)) for id in ids.tolist()]
        inside = int(np.searchsorted(np.cumsum(sizes), max(0, len(before) - taken), side="right"))
        return self.tokens[at] + inside


class Encoder:
    """Rendered texts to ids; the last texts' ids are kept, so that a conversation that grew costs
    its new part."""

    def __init__(self, tokenizer: Tokenizer, seals: Seals, cache_bytes: int) -> None:
        self._tokenizer, self._seals = tokenizer, seals
        self._kept: OrderedDict[str, Ids] = OrderedDict()
        self._cache_bytes = cache_bytes
        self.kept_bytes = 0
        self._strips = tokenizer.strips

    def encode(self, rendered: str, images: Sequence[Show] = ()) -> Placed:
        """The ids; raises ChatError when the template doesn't show these images."""
        out, at, number = Placed(self._tokenizer, self._seals), 0, 0
        pieces = list(self._seals.pieces(rendered))
        for index, (text, special) in enumerate(pieces):
            if special and text == PAD and images:
                if number < len(images):
                    out.shown.append(Shown(out.size, images[number]))
                    out.add(text, images[number].picture.ids, at)
                number += 1
            elif special:
                out.add(text, np.array([self._tokenizer.ids[text]], np.int32), at)
            else:
                opened = self._seals.opened(text)
                start, stop = self._stripped(opened, pieces, index)
                out.add(text, self._content(opened[start:stop]), at, len(opened[:start].encode()))
            at += len(text)
        if number != len(images):
            raise ChatError(f"the chat template shows {number} of {len(images)} images")
        return out

    def _stripped(
        self, text: str, pieces: Sequence[tuple[str, bool]], index: int
    ) -> tuple[int, int]:
        """What is left of a text when the special tokens beside it took the blanks they take."""
        before = pieces[index - 1][0] if index else ""
        after = pieces[index + 1][0] if index + 1 < len(pieces) else ""
        start = len(text) - len(text.lstrip()) if self._strips.get(before, (0, 0))[1] else 0
        stop = len(text.rstrip()) if self._strips.get(after, (0, 0))[0] else len(text)
        return start, max(start, stop)

    def _content(self, text: str) -> Ids:
        """Ids of what stands between special tokens."""
        ids = self._kept.get(text)
        if ids is not None:
            self._kept.move_to_end(text)
            return ids
        ids = self._kept[text] = self._tokenizer.encode(text, specials=False)
        self.kept_bytes += _cost_bytes(text, ids)
        while self.kept_bytes > self._cache_bytes:
            self.kept_bytes -= _cost_bytes(*self._kept.popitem(last=False))
        return ids


def _cost_bytes(text: str, ids: Ids) -> int:
    """What keeping a text's ids costs, within a small factor."""
    return 2 * len(text) + ids.nbytes + 200
