"""Goal: a text that goes on is the tokens' own text, whole and streamed alike, and ends where a
stop string begins.

Method: serve.chat.plain on random tokens against decoding them at once, at every split; POST
/v1/completions (serve.completion_route) over the small random model, streamed beside whole. The
canary forgets what was held back.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from served import DIALECT, Served, serving

from serve.chat.deltas import Content
from serve.chat.plain import Plain

TOKENIZER = DIALECT.tokenizer
TEXT_IDS = sorted(set(range(TOKENIZER.vocab)) - set(TOKENIZER.ids.values()))


def told(ids: list[int], cuts: list[int], stop: tuple[str, ...] = ()) -> tuple[str, int | None]:
    """What is said of tokens that come in pieces, and where it stopped."""
    plain = Plain(TOKENIZER, stop)
    out = []
    for start, end in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        out += plain.wrote(ids[start:end])
    out += plain.end()
    assert all(isinstance(delta, Content) for delta in out)
    return "".join(delta.text for delta in out if isinstance(delta, Content)), plain.stopped_at


def naive(ids: list[int], stop: tuple[str, ...]) -> str:
    """All of it at once, up to the stop string that is complete first."""
    for size in range(1, len(ids) + 1):
        text = TOKENIZER.decode(np.array(ids[:size], np.int32))
        found = [(text.index(s) + len(s), text.index(s)) for s in stop if s in text]
        if found:
            return text[: min(found)[1]]
    return TOKENIZER.decode(np.array(ids, np.int32))


@given(st.data())
def test_any_split_says_the_same_text(data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.sampled_from(TEXT_IDS), max_size=30))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=4)))
    text = TOKENIZER.decode(np.array(ids, np.int32))
    assert told(ids, cuts) == (text, None)
    at = data.draw(st.integers(0, max(0, len(text) - 1)))
    stop = tuple(s for s in (text[at : at + 3], "never said") if s and "\ufffd" not in s)
    said, stopped = told(ids, cuts, stop)
    if "\ufffd" not in text:
        assert said == naive(ids, stop)
        assert (stopped is None) == (said == text and not any(s in text for s in stop))


def test_structure_is_no_text() -> None:
    inside = [*TOKENIZER.encode("a", specials=False), TOKENIZER.ids["<think>"]]
    assert told([int(id) for id in inside] * 2, [1]) == ("aa", None)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as one:
        yield one


def whole(served: Served, **body: Any) -> dict[str, Any]:
    with served.client() as client:
        answer = client.post("/v1/completions", json={"max_tokens": 12, **body})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def streamed(served: Served, **body: Any) -> list[dict[str, Any]]:
    """The choices of every frame."""
    sent = {"max_tokens": 12, "stream": True, **body}
    with served.client() as client, client.stream("POST", "/v1/completions", json=sent) as answer:
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    return [choice for line in lines[:-1] for choice in json.loads(line)["choices"]]


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "def f(x):"},
        {"prompt": "def f(x):", "echo": True},
        {"prompt": ["one", "and two"], "n": 2, "temperature": 1.0, "seed": 5},
        {"prompt": [5, 6, 7, 8], "logprobs": 2},
    ],
)
def test_a_stream_says_what_the_whole_says(served: Served, body: dict[str, Any]) -> None:
    choices = whole(served, **body)["choices"]
    frames = streamed(served, **body)
    for choice in choices:
        own = [frame for frame in frames if frame["index"] == choice["index"]]
        assert "".join(frame["text"] for frame in own) == choice["text"]
        assert own[-1]["finish_reason"] == choice["finish_reason"] == "length"
        if choice["logprobs"] is not None:
            parts = [frame["logprobs"] for frame in own if frame["logprobs"]]
            for name in ("tokens", "token_logprobs", "text_offset"):
                assert [x for part in parts for x in part[name]] == choice["logprobs"][name]
    assert len(choices) == (4 if "n" in body else 1)


def test_a_stop_string_ends_it_and_is_not_said(served: Served) -> None:
    text = whole(served, prompt="def f(x):", max_tokens=30)["choices"][0]["text"]
    stop = text[10:14]
    choice = whole(served, prompt="def f(x):", max_tokens=30, stop=stop)["choices"][0]
    assert choice["text"] == text[: text.index(stop)] and choice["finish_reason"] == "stop"
    frames = streamed(served, prompt="def f(x):", max_tokens=30, stop=stop)
    assert "".join(frame["text"] for frame in frames) == choice["text"]


def test_several_prompts_are_counted_once_each(served: Served) -> None:
    usage = whole(served, prompt=[[5, 6, 7], [8, 9]], n=2, temperature=1.0, seed=1)["usage"]
    assert usage["prompt_tokens"] == 5 and usage["completion_tokens"] == 4 * 12


def test_canary_what_is_held_back_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plain, "end", lambda self: [])
    ids = [int(id) for id in TOKENIZER.encode("this is th", specials=False)]
    assert told(ids, [], ("the",)) != ("this is th", None)
