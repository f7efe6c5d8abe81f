"""The openai SDK as a client of bytes that a test has made, and an answer's frames."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import openai

from serve.answers import ChatFrames, Head
from serve.chat.deltas import CallArguments, CallBegins, Content, Delta, Reasoning
from serve.sse import Events

HEAD = Head("chatcmpl-1", 1_700_000_000, "m")
USAGE = {
    "prompt_tokens": 5,
    "completion_tokens": 7,
    "total_tokens": 12,
    "prompt_tokens_details": {"cached_tokens": 3},
}
SAID: list[Delta] = [
    Reasoning("Hm, "),
    Reasoning("let me see."),
    Content("I look. "),
    CallBegins(0, "call_a", "grep"),
    CallArguments(0, '{"pattern":'),
    CallArguments(0, '"x"}'),
    CallBegins(1, "call_b", "read"),
    CallArguments(1, "{}"),
]


class Pieces(httpx.SyncByteStream):
    """A body that comes in pieces."""

    def __init__(self, body: bytes, size: int) -> None:
        self._body, self._size = body, size

    def __iter__(self) -> Iterator[bytes]:
        for at in range(0, len(self._body), self._size):
            yield self._body[at : at + self._size]


def client(body: bytes, kind: str = "text/event-stream", size: int = 11) -> openai.OpenAI:
    """The SDK, to which a server answers so."""

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-type": kind}, stream=Pieces(body, size))

    http = httpx.Client(transport=httpx.MockTransport(answer))
    return openai.OpenAI(api_key="k", base_url="http://t/v1", http_client=http, max_retries=0)


def stream(said: Sequence[Delta], *, include_usage: bool = False) -> bytes:
    """The frames of an answer of one choice."""
    frames = ChatFrames(HEAD, include_usage=include_usage)
    parts = [frames.first(0), *(frames.said(0, delta) for delta in said)]
    return b"".join([*parts, frames.finished(0, "tool_calls"), frames.end(USAGE)])


def data_of(body: bytes) -> list[Any]:
    """The JSON of a stream's frames."""
    events = Events()
    return [json.loads(data) for data in events.feed(body) if data != "[DONE]"]
