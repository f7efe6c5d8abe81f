"""Token ids to text as they come: a character is held back until all of its bytes are there"""

from __future__ import annotations

import codecs

from engine.chat.tokenizer import Tokenizer


class Detokenizer:
    """The text of one sequence, a token at a time. Bytes that are no UTF-8 become U+FFFD."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._bytes = codecs.getincrementaldecoder("utf-8")("replace")

    def text(self, id: int) -> str:
        """The characters that the token completes."""
        return self._bytes.decode(self._tokenizer.piece(id))

    def end(self) -> str:
        """What is held back, when nothing more comes to complete it."""
        text = self._bytes.decode(b"", final=True)
        self._bytes.reset()
        return text
