"""A text completion's body: its prompts in every shape, and what is refused of the older fields.

Method: tables of bodies with what comes of them, or which field is named.
"""

from __future__ import annotations

from typing import Any

import pytest

from serve.errors import ApiError
from serve.wire_completion import ANSWER_TOKENS, CompletionBody, Text
from serve.wish import Defaults, Wish

DEFAULTS = Defaults(vocab=100, seed=1)


def wish(**fields: Any) -> Wish:
    return CompletionBody.of({"prompt": "x", **fields}).wish(DEFAULTS)


@pytest.mark.parametrize(
    ("prompt", "found"),
    [
        ("one", ("one",)),
        (["one", "two"], ("one", "two")),
        ([1, 2, 99], ((1, 2, 99),)),
        ([[1], [2, 3]], ((1,), (2, 3))),
    ],
)
def test_prompts_of_every_shape(prompt: Any, found: tuple[Text, ...]) -> None:
    assert CompletionBody.of({"prompt": prompt}).prompts(100) == found


EMPTY: list[Any] = [None, "", [], [""], [[]]]
MIXED: list[Any] = [["a", 1], [1, "a"], [True], [1.0], [[1], "a"], [[[1]]], 3, {"a": 1}]
BEYOND: list[Any] = [[100], [-1], [10**400], ["a"] * 9]


@pytest.mark.parametrize("prompt", [*EMPTY, *MIXED, *BEYOND], ids=lambda value: str(value)[:20])
def test_prompts_that_are_none(prompt: Any) -> None:
    with pytest.raises(ApiError) as error:
        wish(prompt=prompt)
    assert (error.value.status, error.value.param) == (400, "prompt")
    assert len(error.value.message) < 300


def test_a_missing_prompt_and_too_many_answers() -> None:
    with pytest.raises(ApiError, match="prompt is missing"):
        CompletionBody.of({})
    assert wish(prompt=["a", "b"], n=4).n == 4
    with pytest.raises(ApiError, match="more than 8"):
        wish(prompt=["a", "b", "c"], n=3)


def test_what_is_asked_of_the_answer() -> None:
    assert wish().answer_max == ANSWER_TOKENS and wish(max_tokens=3).answer_max == 3
    assert wish().logprobs is None and wish(logprobs=0).logprobs == 0
    assert wish(logprobs=5).logprobs == 5
    assert wish(echo=True).echo and not wish(echo=False).echo
    assert wish(best_of=1) == wish(suffix="") == wish() and wish(n=2, best_of=2).n == 2


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 0}, "best_of"),
        ({"echo": True, "logprobs": 1}, "echo"),
        ({"echo": 1}, "echo"),
        ({"logprobs": 6}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
    ids=str,
)
def test_what_is_not_done_is_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as error:
        wish(**fields)
    assert (error.value.status, error.value.param) == (400, param)


def test_canary_prompts_that_nobody_reads_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """An id past the vocabulary would be an index out of the embedding's bounds."""
    with pytest.raises(ApiError):
        wish(prompt=[100])
    monkeypatch.setattr(CompletionBody, "prompts", lambda body, vocab: ())
    assert wish(prompt=[100]) == wish()
