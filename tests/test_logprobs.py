"""Log probabilities in OpenAI's shapes: bytes of half characters, offsets, what the client sees.

Method: a small made-up vocabulary with halves of a character; expected values by hand. The bundled
tokenizer's tokens put their text together again at the offsets that are given.
"""

from __future__ import annotations

import codecs
import json
import math

import numpy as np
import pytest
from openai.types.chat.chat_completion import ChoiceLogprobs
from openai.types.completion_choice import Logprobs

from engine.chat.tokenizer import Tokenizer
from engine.scored import Score
from serve.logprobs import LEAST, TextLogprobs, chat_logprobs, seen

WORDS = [b"a", b" bc", "é".encode()[:1], "é".encode()[1:], b"d", b"a"]


def bytes_of(token: int) -> bytes:
    return WORDS[token]


def scores(*tokens: int) -> list[Score]:
    return [Score(token, -0.5 * token, ((0, 0.0), (1, -0.5))) for token in tokens]


def test_chat_logprobs_are_the_sdks() -> None:
    found = ChoiceLogprobs.model_validate(chat_logprobs(scores(1, 2), bytes_of), strict=True)
    assert found.content is not None and found.refusal is None
    first, second = found.content
    assert (first.token, first.logprob, first.bytes) == (" bc", -0.5, [32, 98, 99])
    assert [(top.token, top.logprob) for top in first.top_logprobs] == [("a", 0.0), (" bc", -0.5)]
    assert (second.token, second.bytes) == ("�", [0xC3])


def test_completion_logprobs_are_the_sdks() -> None:
    whole = TextLogprobs(bytes_of, offset=10)
    found = Logprobs.model_validate(whole.of(scores(0, 1, 2)), strict=True)
    assert found.tokens == ["a", " bc", "bytes:\\xc3"] and found.text_offset == [10, 11, 14]
    assert found.token_logprobs == [0.0, -0.5, -1.0]
    assert found.top_logprobs == [
        {"a": 0.0, " bc": -0.5},
        {"a": 0.0, " bc": -0.5},
        {"a": 0.0, " bc": -0.5, "bytes:\\xc3": -1.0},
    ]
    # The next call goes on: the other half of the character has no place of its own.
    more = whole.of(scores(3, 4))
    assert more["text_offset"] == [14, 15] and more["tokens"] == ["bytes:\\xa9", "d"]


def test_of_two_tokens_of_one_text_the_likelier_counts() -> None:
    found = TextLogprobs(bytes_of).of([Score(5, -3.0, ((0, -0.1),))])
    assert found["top_logprobs"] == [{"a": -0.1}] and found["token_logprobs"] == [-3.0]


def test_what_is_impossible_has_a_number() -> None:
    score = [Score(0, -math.inf, ((1, -math.inf),))]
    for found in (chat_logprobs(score, bytes_of), TextLogprobs(bytes_of).of(score)):
        assert json.dumps(found, allow_nan=False).count(str(LEAST)) >= 2


TEXT = "Grüße, 世界 😀!\n\tdef f(x): return x"


def pieces(made: TextLogprobs, tokenizer: Tokenizer, offset: int) -> list[tuple[str, str]]:
    """(a token's name, the text from where it begins to where the next one does)."""
    ids = tokenizer.encode(TEXT, specials=False).tolist()
    found = made.of([Score(token, -1.0) for token in ids])
    starts = [start - offset for start in found["text_offset"]]
    stops = [*starts[1:], len(TEXT)]
    cut = [TEXT[start:stop] for start, stop in zip(starts, stops, strict=True)]
    return list(zip(found["tokens"], cut, strict=True))


def right(named: list[tuple[str, str]]) -> bool:
    """Whether each token stands where its text is."""
    return all(name == piece for name, piece in named if not name.startswith("bytes:"))


@pytest.mark.parametrize("offset", [0, 7])
def test_offsets_are_where_the_tokens_stand(offset: int) -> None:
    tokenizer = Tokenizer()
    made = TextLogprobs(lambda token: tokenizer.text(np.array([token])), offset)
    named = pieces(made, tokenizer, offset)
    assert right(named) and "".join(piece for _, piece in named) == TEXT
    assert any(name.startswith("bytes:") for name, _ in named)


def test_the_client_sees_no_score_of_what_is_hidden_or_past_the_end() -> None:
    of = scores(0, 1, 2, 3, 4, 0)
    assert [s.token for s in seen(of, [(1, 2)])] == [0, 3, 4, 0]
    assert [s.token for s in seen(of, [(1, 2)], 2, 5)] == [3, 4]
    assert [s.token for s in seen(of, stop=9)] == [0, 1, 2, 3, 4, 0]
    assert seen(of, [(0, 9)]) == []


def test_canary_offsets_by_bytes_are_seen() -> None:
    """A character of two bytes is one place in the text."""
    tokenizer = Tokenizer()
    made = TextLogprobs(lambda token: tokenizer.text(np.array([token])))
    made._decoder = codecs.getincrementaldecoder("latin-1")()
    assert not right(pieces(made, tokenizer, 0))
