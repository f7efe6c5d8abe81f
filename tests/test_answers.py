"""Whole answers: what the openai SDK makes of them, and where content is null.

Method: the SDK itself reads the bytes, through a transport that hands them over in pieces; its
objects are compared with what was said. A message that leaves its calls out must be seen.
"""

from __future__ import annotations

from typing import Any

import pytest
from sdk import HEAD, SAID, USAGE, client

from serve import answers
from serve.answers import ChatChoice, TextChoice, chat_answer, encoded, finish_of, text_answer
from serve.chat.deltas import Whole, WholeCall, whole


def asked(body: bytes, kind: str = "application/json") -> Any:
    """A chat answer as the SDK has it."""
    with client(body, kind) as sdk:
        return sdk.chat.completions.create(model="m", messages=[])


def test_a_whole_answer_is_the_sdks() -> None:
    choices = [
        ChatChoice(whole(SAID), "tool_calls"),
        ChatChoice(Whole(content="Hello"), "stop", {"content": [], "refusal": None}),
    ]
    found = asked(encoded(chat_answer(HEAD, choices, USAGE)))
    assert (found.id, found.object, found.created, found.model) == (
        *("chatcmpl-1", "chat.completion", 1_700_000_000, "m"),
    )
    first, second = found.choices
    assert (first.index, first.finish_reason, first.message.content) == (
        *(0, "tool_calls", "I look. "),
    )
    assert first.message.reasoning_content == "Hm, let me see."
    calls = [
        (c.id, c.type, c.function.name, c.function.arguments) for c in first.message.tool_calls
    ]
    assert calls == [
        ("call_a", "function", "grep", '{"pattern":"x"}'),
        ("call_b", "function", "read", "{}"),
    ]
    assert (second.index, second.message.content, second.finish_reason) == (1, "Hello", "stop")
    assert second.message.tool_calls is None and second.logprobs.content == []
    assert found.usage.prompt_tokens_details.cached_tokens == 3


def test_content_is_null_beside_calls_only() -> None:
    call = WholeCall("call_a", "grep", "{}")
    made = [Whole(calls=(call,)), Whole(content="", reasoning="Hm"), Whole(content="x")]
    found = chat_answer(HEAD, [ChatChoice(each, "stop") for each in made], USAGE)
    messages = [choice["message"] for choice in found["choices"]]
    assert [message["content"] for message in messages] == [None, "", "x"]
    assert ["tool_calls" in message for message in messages] == [True, False, False]
    assert ["reasoning_content" in message for message in messages] == [False, True, False]


def test_a_whole_text_is_the_sdks() -> None:
    choices = [TextChoice("one", "stop"), TextChoice("two", "length")]
    with client(encoded(text_answer(HEAD, choices, USAGE)), "application/json") as sdk:
        found = sdk.completions.create(model="m", prompt="x")
    assert found.object == "text_completion"
    assert [(c.index, c.text, c.finish_reason) for c in found.choices] == [
        (0, "one", "stop"),
        (1, "two", "length"),
    ]
    assert found.usage is not None and found.usage.total_tokens == 12


def test_why_an_answer_ended() -> None:
    assert finish_of(stopped=True, calls=0) == "stop"
    assert finish_of(stopped=True, calls=2) == "tool_calls"
    assert finish_of(stopped=False, calls=2) == "length"


def test_canary_a_message_without_its_calls_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    said = [ChatChoice(whole(SAID), "tool_calls")]
    assert asked(encoded(chat_answer(HEAD, said, USAGE))).choices[0].message.tool_calls
    bare = {"role": "assistant", "content": None}
    monkeypatch.setattr(answers, "message_of", lambda whole: bare)
    assert not asked(encoded(chat_answer(HEAD, said, USAGE))).choices[0].message.tool_calls
