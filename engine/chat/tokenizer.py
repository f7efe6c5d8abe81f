"""Byte-level BPE tokenizer of our own: text to token ids and back, byte for byte."""

from __future__ import annotations

import hashlib
from functools import cached_property
from importlib.resources import files

import numpy as np
import numpy.typing as npt
import tokenizers

from cache.types import Ids

SPECIALS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<|vision_start|>",
    "<|image_pad|>",
    "<|vision_end|>",
)
"""Tokens that stand for structure; they are the last of the vocabulary, in this order."""

TEXT, WHITESPACE, SPECIAL = 0, 1, 2
"""Classes of a token, with the numbers the trace format gives them."""


class Tokenizer:
    """The bundled tokenizer; `file` is another of the same format (tokenizers' JSON).

    Holds no state that a call changes. Text is not normalised: `decode(encode(text))` is `text`
    (lone surrogates, which no UTF-8 has, become U+FFFD).
    """

    def __init__(self, file: bytes | None = None) -> None:
        data = file or files("engine.chat").joinpath("tokenizer.json").read_bytes()
        self.sha256 = hashlib.sha256(data).hexdigest()
        """Digest of the tokenizer file: equal digests give equal ids."""
        self._template = tokenizers.Tokenizer.from_buffer(data)
        # A second one, because what happens to special-token text is a setting of the whole object.
        self._content = tokenizers.Tokenizer.from_buffer(data)
        self._content.encode_special_tokens = True
        self.vocab: int = self._template.get_vocab_size()
        """Number of ids."""
        self.name = f"moorage-bpe-{self.vocab}"
        found = {name: self._template.token_to_id(name) for name in SPECIALS}
        self.ids = {name: id for name, id in found.items() if id is not None}
        """Special token to id."""
        assert len(self.ids) == len(SPECIALS), "the file lacks a special token"

    def encode(self, text: str, *, specials: bool) -> Ids:
        """Ids of `text`, int32, shape (n,).

        With `specials` a special token's text becomes that token: for template text only. Without,
        it is encoded like any other text, so that content can't forge structure.
        """
        tokenizer = self._template if specials else self._content
        try:
            encoding = tokenizer.encode_batch_fast([text], add_special_tokens=False)[0]
        except TypeError:  # a lone surrogate: JSON can carry one, UTF-8 can't
            whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            encoding = tokenizer.encode_batch_fast([whole], add_special_tokens=False)[0]
        return np.array(encoding.ids, dtype=np.int32)

    def decode(self, ids: Ids) -> str:
        """Text of `ids`, special tokens as their names; bytes that are no UTF-8 become U+FFFD."""
        return self.text(ids).decode("utf-8", "replace")

    def text(self, ids: Ids) -> bytes:
        """The bytes of tokens, one after another. Key ids have none."""
        assert not len(ids) or ids.min() >= 0, "the rows of a picture hold no text"
        table = self._bytes
        return b"".join([table[i] for i in ids.tolist()])

    def blank(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """Which tokens are nothing but whitespace, shape (n,)."""
        return np.equal(self.kinds(ids), WHITESPACE)

    def structure(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """Which tokens stand for structure, shape (n,)."""
        return np.equal(self.kinds(ids), SPECIAL)

    def kinds(self, ids: Ids) -> npt.NDArray[np.uint8]:
        """Class of each of `ids`, shape (n,); a picture's rows (negative) are structure."""
        return np.where(ids < 0, np.uint8(SPECIAL), self.classes[np.maximum(ids, 0)])

    @cached_property
    def classes(self) -> npt.NDArray[np.uint8]:
        """Class of every id (TEXT, WHITESPACE, SPECIAL), uint8, shape (vocab,)."""
        blank = [_is_blank(piece) for piece in self._bytes]
        classes = np.where(blank, WHITESPACE, TEXT).astype(np.uint8)
        classes[list(self.ids.values())] = SPECIAL
        classes.flags.writeable = False
        return classes

    @cached_property
    def _bytes(self) -> list[bytes]:
        table = {character: byte for byte, character in enumerate(byte_alphabet())}
        special = set(self.ids.values())
        return [
            token.encode() if id in special else bytes(table[character] for character in token)
            for id in range(self.vocab)
            if (token := self._template.id_to_token(id)) is not None
        ]


def _is_blank(piece: bytes) -> bool:
    """Whether bytes are whitespace; a part of a character is not."""
    try:
        return piece.decode().isspace()
    except UnicodeDecodeError:
        return False


def byte_alphabet() -> str:
    """The character that stands for each byte in the file, by byte.

    Byte-level vocabularies write printable Latin-1 bytes as themselves and the others, in order,
    as the characters from U+0100 on, so that a token is printable and has no blank.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = (byte for byte in range(256) if byte not in printable)
    moved = {byte: chr(0x100 + i) for i, byte in enumerate(rest)}
    return "".join(moved.get(byte, chr(byte)) for byte in range(256))
