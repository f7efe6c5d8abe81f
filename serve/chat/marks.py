"""An answer's tokens as text and marks; only a token is a mark where the vocabulary has it"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from engine.chat.dialect import CALL, CALL_END, THINK, THINK_END
from engine.chat.tokenizer import SPECIAL, Tokenizer
from serve.chat.detokenizer import Detokenizer
from serve.chat.seeker import Seeker

MARKS = (THINK, THINK_END, CALL, CALL_END)


@dataclass(frozen=True, slots=True)
class Mark:
    """A mark of the format, or another token that stands for structure."""

    text: str


class Marked:
    """Text and marks of one answer, in order, a token at a time.

    A text that only looks like a mark is text. A mark that the vocabulary has no token for is
    found in the text.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._text = Detokenizer(tokenizer)
        self._seeker = Seeker([mark for mark in MARKS if mark not in tokenizer.ids])
        self._names = {id: name for name, id in tokenizer.ids.items()}

    def feed(self, id: int) -> Iterator[str | Mark]:
        """What the token makes whole."""
        if id in self._names:
            yield from self.end()
            yield Mark(self._names[id])
        elif not 0 <= id < self._tokenizer.vocab or self._tokenizer.classes[id] == SPECIAL:
            yield from self.end()  # nothing that has a text
        else:
            yield from self._sought(self._text.text(id))

    def end(self) -> Iterator[str]:
        """What is held back, when nothing more comes to complete it."""
        for piece in (*self._sought(self._text.end()), self._seeker.end()):
            if piece:
                yield piece if isinstance(piece, str) else piece.text

    def _sought(self, text: str) -> Iterator[str | Mark]:
        while text:
            before, mark, text = self._seeker.feed(text)
            if before:
                yield before
            if mark is not None:
                yield Mark(mark)
