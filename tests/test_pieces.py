"""Goal: a trace's tokens are told apart by their text as they are by their ids.

Method: ids of every class, random and at the classes' edges; the text is cut again into pieces of
equal length, which must be as many as there are ids, and blank exactly where the ids are. The
bundled tokenizer is held to the same questions.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.types import Ids
from engine.chat.tokenizer import Tokenizer
from replay.pieces import SPECIALS_END, WHITESPACE_END, TracePieces

VOCAB = 248_320
PIECES = TracePieces()


def as_ids(numbers: list[int]) -> Ids:
    return np.array(numbers, np.int32)


def test_every_token_has_a_text_of_its_own() -> None:
    ids = np.arange(SPECIALS_END, VOCAB, dtype=np.int32)
    text = PIECES.text(ids)
    size = len(text) // len(ids)
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    assert len(set(pieces)) == len(ids)
    blank = np.array([not piece.strip() for piece in pieces])
    assert np.array_equal(blank, ids < WHITESPACE_END) and np.array_equal(blank, PIECES.blank(ids))


@given(st.lists(st.integers(SPECIALS_END, VOCAB - 1)), st.lists(st.integers(SPECIALS_END, 999)))
def test_texts_join_as_their_ids_do(first: list[int], second: list[int]) -> None:
    whole = PIECES.text(as_ids(first + second))
    assert whole == PIECES.text(as_ids(first)) + PIECES.text(as_ids(second))


@given(st.lists(st.sampled_from((0, 1, 63, 64, 255, 256, VOCAB - 1))))
def test_a_class_is_a_range_of_ids(numbers: list[int]) -> None:
    ids = as_ids(numbers)
    assert PIECES.structure(ids).tolist() == [n < 64 for n in numbers]
    assert PIECES.blank(ids).tolist() == [64 <= n < 256 for n in numbers]


@given(st.text())
def test_the_tokenizer_answers_alike(text: str) -> None:
    tokenizer = TOKENIZER
    ids = tokenizer.encode(text, specials=False)
    assert tokenizer.text(ids).decode("utf-8", "replace") == tokenizer.decode(ids)
    assert not tokenizer.structure(ids).any()
    for id, blank in zip(ids, tokenizer.blank(ids), strict=True):
        assert not blank or tokenizer.decode(np.array([id])).isspace()


TOKENIZER = Tokenizer()


def test_a_pictures_rows_are_structure_and_have_no_text() -> None:
    """Also those whose numbers, counted from the vocabulary's end, would be blanks or text."""
    for pieces in (PIECES, TOKENIZER):
        ids = as_ids([-1, -12, -13, -1_000, -VOCAB, -(1 << 31), 300])
        assert pieces.structure(ids).tolist() == [True] * 6 + [False]
        assert not pieces.blank(ids).any()
        with pytest.raises(AssertionError, match="no text"):
            pieces.text(ids[:1])
        assert pieces.text(ids[:0]) == b""
