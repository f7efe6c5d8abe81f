"""Streamed answers: what the openai SDK makes of the frames, and what is in each of them.

Method: the SDK itself reads the frames in pieces of any size; what it joins is compared with what
was said. Hypothesis draws deltas for up to three choices at once, with characters that clients
break lines at; a frame builder that leaves those as they are must be seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sdk import HEAD, SAID, USAGE, client, data_of, stream

from serve import answers
from serve.answers import DONE, ChatFrames, TextFrames, comment, error_frame
from serve.chat.deltas import (
    CallArguments,
    CallBegins,
    Content,
    Delta,
    Reasoning,
    Whole,
    WholeCall,
    whole,
)
from serve.errors import no_room


def streamed(body: bytes) -> list[Any]:
    """A streamed chat answer's chunks as the SDK has them."""
    with client(body) as sdk:
        return list(sdk.chat.completions.create(model="m", messages=[], stream=True))


def test_frames_come_in_the_order_that_clients_expect() -> None:
    frames = data_of(stream(SAID, include_usage=True))
    assert all(frame["object"] == "chat.completion.chunk" for frame in frames)
    *said, usage = frames
    assert [frame["choices"][0]["delta"] for frame in said] == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "Hm, "},
        {"reasoning_content": "let me see."},
        {"content": "I look. "},
        {
            "tool_calls": [
                {
                    "index": 0,
                    "id": "call_a",
                    "type": "function",
                    "function": {"name": "grep", "arguments": ""},
                }
            ]
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"pattern":'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '"x"}'}}]},
        {
            "tool_calls": [
                {
                    "index": 1,
                    "id": "call_b",
                    "type": "function",
                    "function": {"name": "read", "arguments": ""},
                }
            ]
        },
        {"tool_calls": [{"index": 1, "function": {"arguments": "{}"}}]},
        {},
    ]
    reasons = [frame["choices"][0]["finish_reason"] for frame in said]
    assert reasons == [None] * (len(said) - 1) + ["tool_calls"]
    assert all(frame["usage"] is None for frame in said)
    assert usage["choices"] == [] and usage["usage"] == USAGE
    assert stream(SAID, include_usage=True).endswith(b"data: [DONE]\n\n")


def test_without_usage_no_frame_has_any() -> None:
    body = stream(SAID)
    assert body.endswith(DONE) and all("usage" not in frame for frame in data_of(body))
    assert all(frame["choices"] for frame in data_of(body))


def test_a_streamed_text_is_the_sdks() -> None:
    frames = TextFrames(HEAD, include_usage=True)
    body = frames.said(0, "on") + frames.said(1, "tw") + frames.said(0, "e", {"tokens": ["e"]})
    body += frames.finished(1, "length") + frames.finished(0, "stop") + frames.end(USAGE)
    with client(body) as sdk:
        found = list(sdk.completions.create(model="m", prompt="x", stream=True))
    *said, usage = found
    assert [(c.choices[0].index, c.choices[0].text, c.choices[0].finish_reason) for c in said] == [
        (0, "on", None),
        (1, "tw", None),
        (0, "e", None),
        (1, "", "length"),
        (0, "", "stop"),
    ]
    assert usage.choices == [] and usage.usage is not None and usage.usage.prompt_tokens == 5
    assert said[2].choices[0].logprobs is not None


def test_scores_go_with_pieces_or_alone() -> None:
    frames = ChatFrames(HEAD, include_usage=False)
    scores = {"content": [{"token": "x", "logprob": -0.5, "bytes": [120], "top_logprobs": []}]}
    body = frames.first(0) + frames.said(0, Content("x"), scores) + frames.scored(0, scores)
    first, said, alone, end = streamed(body + frames.finished(0, "stop", scores) + DONE)
    assert first.choices[0].logprobs is None
    for chunk in (said, alone, end):
        assert chunk.choices[0].logprobs.content[0].logprob == -0.5
    assert alone.choices[0].delta.content is None


def test_an_error_in_a_stream_is_raised_and_a_comment_is_passed_over() -> None:
    frames = ChatFrames(HEAD, include_usage=False)
    kept = comment("reading 1 of\n2 \r\ndata: x") + frames.first(0) + comment("")
    assert len(streamed(kept + DONE)) == 1
    with pytest.raises(openai.APIError, match="no room") as error:
        streamed(kept + error_frame(no_room("no room", 3)))
    assert error.value.code == "no_room"
    assert comment("a\n\nb") == b": a b\n\n"


# any text, any number of choices

TEXT = st.text(
    st.one_of(st.characters(), st.sampled_from('\r\n\x85\u2028\u2029\x0b\x1c"\\é😀')), max_size=8
)
ARGUMENTS = st.builds(CallArguments, st.just(0), TEXT)


@st.composite
def choices(draw: st.DrawFn) -> list[Delta]:
    said: list[Delta] = draw(
        st.lists(st.one_of(st.builds(Reasoning, TEXT), st.builds(Content, TEXT)), max_size=4)
    )
    if draw(st.booleans()):
        said.append(CallBegins(0, "call_1", draw(TEXT)))
        said += draw(st.lists(ARGUMENTS, max_size=3))
    return said


def as_clients_join(chunks: Sequence[Any], index: int) -> Whole:
    """What a client makes of the chunks of one choice."""
    reasoning, content, call = "", "", ["", "", ""]
    for chunk in chunks:
        for choice in chunk.choices:
            if choice.index != index:
                continue
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            content += choice.delta.content or ""
            for part in choice.delta.tool_calls or ():
                call[0] += part.id or ""
                call[1] += part.function.name or ""
                call[2] += part.function.arguments or ""
    return Whole(reasoning, content, (WholeCall(*call),) if call[0] else ())


@given(st.lists(choices(), min_size=1, max_size=3), st.integers(1, 40), st.randoms())
@settings(max_examples=settings().max_examples // 2)
def test_a_stream_says_what_the_whole_answer_says(
    said: list[list[Delta]], size: int, random: Any
) -> None:
    frames = ChatFrames(HEAD, include_usage=True)
    rows = [
        [frames.first(at), *(frames.said(at, d) for d in row), frames.finished(at, "stop")]
        for at, row in enumerate(said)
    ]
    body = b""
    while any(rows):
        body += random.choice([row for row in rows if row]).pop(0)
    body += frames.end(USAGE)
    with client(body, size=size) as sdk:
        found = list(sdk.chat.completions.create(model="m", messages=[], stream=True))
    assert [as_clients_join(found, at) for at in range(len(said))] == [whole(row) for row in said]
    assert found[-1].usage.total_tokens == 12


def lines_are_frames(body: bytes) -> bool:
    """Whether a client that breaks lines wherever Python does still reads every frame."""
    lines = [line for line in body.decode().splitlines() if line]
    return all(line.startswith(("data: {", "data: [DONE]")) for line in lines)


HARD = "a\x85b\u2028c\u2029d\r\ne\x1cf\x0bg"


def test_a_frame_is_one_line_for_every_client() -> None:
    body = stream([Content(HARD)])
    assert lines_are_frames(body)
    assert data_of(body)[1]["choices"][0]["delta"] == {"content": HARD}
    # Half a character has no bytes of its own.
    assert data_of(stream([Content("x\ud800y")]))[1]["choices"][0]["delta"] == {"content": "x?y"}


def test_canary_line_ends_that_are_left_in_a_frame_are_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answers, "LINE_ENDS", {})
    assert not lines_are_frames(stream([Content(HARD)]))
