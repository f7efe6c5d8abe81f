"""Byte-level BPE tokenizer of our own: text to token ids and back, byte for byte."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable
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
"""Tokens that stand for structure; of the bundled vocabulary they are the last, in this order."""

TEXT, WHITESPACE, SPECIAL = 0, 1, 2
"""Classes of a token, with the numbers the trace format gives them."""


class Tokenizer:
    """The bundled tokenizer; `file` is another byte-level one of that format (tokenizers' JSON).

    Holds no state that a call changes. The bundled one does not normalise text:
    `decode(encode(text))` is `text` (lone surrogates, which no UTF-8 has, become U+FFFD).
    """

    def __init__(
        self,
        file: bytes | None = None,
        *,
        structure: Iterable[str] = (),
        vocab: int = 0,
        name: str = "moorage-bpe",
    ) -> None:
        """Structure are those of SPECIALS and of `structure` that are added tokens of the file, and
        all that it calls special. A model may have more ids than its file, up to `vocab`; they have
        no text.
        """
        data = file or files("engine.chat").joinpath("tokenizer.json").read_bytes()
        self._template = tokenizers.Tokenizer.from_buffer(data)
        self._added = self._template.get_added_tokens_decoder()
        added = {token.content: id for id, token in sorted(self._added.items())}
        special = [t.content for _, t in sorted(self._added.items()) if t.special]
        self.ids = {n: added[n] for n in [*SPECIALS, *structure, *special] if n in added}
        """Special token to id."""
        # A second one, because what happens to special-token text is a setting of the whole object.
        plain = set(self.ids) - set(special)
        content = _with_specials(data, plain) if plain else data
        self._content = tokenizers.Tokenizer.from_buffer(content)
        self._content.encode_special_tokens = True
        self.sha256 = hashlib.sha256(content).hexdigest()
        """Digest of the tokenizer file: equal digests give equal ids."""
        last = max(self._template.get_vocab().values(), default=-1)
        self.vocab: int = max(last + 1, vocab)
        """Number of ids."""
        self.name = f"{name}-{self.vocab}"

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

    def piece(self, id: int) -> bytes:
        """The bytes of one token."""
        return self._bytes[id]

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
    def strips(self) -> dict[str, tuple[bool, bool]]:
        """Special tokens that take the blanks before and behind them, as (before, behind)."""
        each = {token.content: (token.lstrip, token.rstrip) for token in self._added.values()}
        return {name: each[name] for name in self.ids if any(each[name])}

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
        out = [b""] * self.vocab
        for token, id in self._template.get_vocab().items():
            if id in self._added:
                out[id] = self._added[id].content.encode()
            else:
                out[id] = bytes(table[character] for character in token)
        return out


def _with_specials(data: bytes, names: Collection[str]) -> bytes:
    """The file with more of its added tokens called special, so that content may not hold them."""
    file = json.loads(data)
    for token in file["added_tokens"]:
        token["special"] = token["special"] or token["content"] in names
    return json.dumps(file, ensure_ascii=False).encode()


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
