"""Tokens that a random model had better not write: no text, or structure where none belongs"""

from __future__ import annotations

from functools import lru_cache

from engine.chat.dialect import Dialect
from engine.chat.tokenizer import Tokenizer


def silent(dialect: Dialect) -> list[int]:
    """Tokens that are part of a character, or structure other than an answer's end.

    What a client is sent comes back as the same tokens only when it is text.
    """
    tokenizer = dialect.tokenizer
    structure = set(tokenizer.ids.values()) - dialect.stop_ids
    return sorted(structure | _no_text(tokenizer))


@lru_cache(maxsize=4)
def _no_text(tokenizer: Tokenizer) -> frozenset[int]:
    """Tokens that are not text on their own: a pass over the vocabulary, once a tokenizer."""
    return frozenset(id for id in range(tokenizer.vocab) if not _is_text(tokenizer, id))


def _is_text(tokenizer: Tokenizer, id: int) -> bool:
    try:
        return bool(tokenizer.piece(id).decode())
    except UnicodeDecodeError:
        return False
