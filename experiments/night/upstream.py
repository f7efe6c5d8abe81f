"""The scripted upstream: an OpenAI-compatible server that answers by the plan

It sends the scripted model's answers at the night's pace: a silence for the prefill, then
reasoning, text and tool calls. `/night/...` is the drivers' side door.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from experiments.night.model import Message, Reply, ScriptedModel
from experiments.night.plan import make_night
from experiments.night.script import Step
from experiments.night.words import CHARS_A_TOKEN

MODEL = "qwen-local"
DECODE_TOKENS_S = 50.0
PREFILL_TOKENS_S = 1500.0
FIRST_TOKEN_S = 0.4
"""The pace, in real seconds; the night's factor divides them."""


class Upstream:
    """Serves one part of a night, `factor` times as fast as it would really go."""

    def __init__(self, model: ScriptedModel, part: str, factor: float) -> None:
        self.model, self.part, self.factor = model, part, factor
        self._count = 0
        self._prompts: dict[str, str] = {}
        self._events: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._open: Counter[str] = Counter()
        self._quiet_since_s: dict[str, float] = defaultdict(time.monotonic)

    def _wait_s(self, conversation: str, messages: list[Message]) -> float:
        """Seconds of silence before the first token: what is new since the last prompt is read."""
        text = json.dumps(messages, ensure_ascii=False)
        before = self._prompts.get(conversation, "")
        self._prompts[conversation] = text
        new = (len(text) - common_prefix(before, text)) / CHARS_A_TOKEN
        return (FIRST_TOKEN_S + new / PREFILL_TOKENS_S) / self.factor

    def _mark(self, reply: Reply) -> str:
        """The recorder's mark: what a scrubber needs to put real time back."""
        mark = {
            "label": reply.label,
            "part": self.part,
            "factor": self.factor,
            "think_s": reply.think_s,
            "decode_tokens_s": DECODE_TOKENS_S,
        }
        return json.dumps(mark)

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        raw = await request.body()
        body, headers = json.loads(raw), request.headers
        session = headers.get("x-session-id")
        client = "page" if session is None else "opencode"
        reply = self.model.answer(body, session)
        conversation = session or headers.get("x-openwebui-chat-id", "page")
        if reply.turn is None:
            # A side request shares nothing with the conversation.
            conversation += "/" + reply.label
        wait_s = self._wait_s(conversation, body["messages"])
        self._count += 1
        base = {"id": f"chatcmpl-{self._count:06d}", "created": int(time.time()), "model": MODEL}
        tokens = len(raw) // CHARS_A_TOKEN
        usage = {
            "prompt_tokens": tokens,
            "completion_tokens": reply.step.tokens,
            "total_tokens": tokens + reply.step.tokens,
        }
        mark = {"x-moorage-mark": self._mark(reply)}
        if body.get("stream"):
            include = (body.get("stream_options") or {}).get("include_usage")
            frames = self._stream(reply, base, usage if include else None, wait_s, client)
            return StreamingResponse(frames, media_type="text/event-stream", headers=mark)
        with self._opened(client):
            await asyncio.sleep(wait_s + reply.step.tokens / DECODE_TOKENS_S / self.factor)
        return JSONResponse({**base, **whole(reply.step), "usage": usage}, headers=mark)

    @contextmanager
    def _opened(self, client: str) -> Iterator[None]:
        """Counts a request as open while it is answered."""
        self._open[client] += 1
        try:
            yield
        finally:
            self._open[client] -= 1
            self._quiet_since_s[client] = time.monotonic()

    async def _stream(
        self,
        reply: Reply,
        base: dict[str, Any],
        usage: dict[str, int] | None,
        wait_s: float,
        client: str,
    ) -> AsyncIterator[bytes]:
        chunk = {**base, "object": "chat.completion.chunk"}

        def frame(delta: dict[str, Any], finish: str | None = None) -> bytes:
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            return event({**chunk, "choices": [choice]})

        with self._opened(client):
            await asyncio.sleep(wait_s)
            due_s = time.monotonic()
            yield frame({"role": "assistant", "content": ""})
            sent: Counter[str] = Counter()
            for part, delta, chars in deltas(reply.step, random.Random(reply.label)):
                yield frame(delta)
                sent[part] += chars
                due_s += chars / CHARS_A_TOKEN / DECODE_TOKENS_S / self.factor
                if reply.cut_at and sent[reply.cut_at[0]] >= reply.cut_at[1] * CHARS_A_TOKEN:
                    assert reply.turn
                    self._events[f"cut/{reply.turn.label}"].set()
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            yield frame({}, "tool_calls" if reply.step.calls else "stop")
            if usage is not None:
                yield event({**chunk, "choices": [], "usage": usage})
            yield b"data: [DONE]\n\n"
            if reply.turn and reply.last:
                self._events[f"end/{reply.turn.label}/{reply.take}"].set()

    async def models(self, _: Request) -> Response:
        """GET /v1/models."""
        model = {"id": MODEL, "object": "model", "created": 1790000000, "owned_by": "night"}
        return JSONResponse({"object": "list", "data": [model]})

    async def embeddings(self, request: Request) -> Response:
        """POST /v1/embeddings: any vector does, an attached text has few pieces."""
        texts = (await request.json())["input"]
        data = [
            {"object": "embedding", "index": number, "embedding": vector(text)}
            for number, text in enumerate(texts if isinstance(texts, list) else [texts])
        ]
        usage = {"prompt_tokens": 1, "total_tokens": 1}
        return JSONResponse({"object": "list", "data": data, "model": MODEL, "usage": usage})

    async def wait(self, request: Request) -> Response:
        """GET /night/wait?for=end/TURN/TAKE or cut/TURN: answers when that has happened."""
        name, limit_s = request.query_params["for"], float(request.query_params["limit_s"])
        try:
            await asyncio.wait_for(self._events[name].wait(), limit_s)
        except TimeoutError:
            return JSONResponse({"timeout": name}, 504)
        return JSONResponse({"happened": name})

    async def state(self, request: Request) -> Response:
        """GET /night/state?client=C: its open requests, and seconds since the last one ended."""
        client = request.query_params["client"]
        quiet_s = time.monotonic() - self._quiet_since_s[client]
        return JSONResponse({"open": self._open[client], "quiet_s": quiet_s})

    def app(self) -> Starlette:
        """The ASGI application."""
        return Starlette(
            routes=[
                Route("/v1/chat/completions", self.chat, methods=["POST"]),
                Route("/v1/models", self.models),
                Route("/v1/embeddings", self.embeddings, methods=["POST"]),
                Route("/night/wait", self.wait),
                Route("/night/state", self.state),
            ]
        )


def common_prefix(one: str, other: str) -> int:
    """Length of the longest common prefix."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def event(value: dict[str, Any]) -> bytes:
    """One frame of a stream."""
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def whole(step: Step) -> dict[str, Any]:
    """A reply that is not streamed."""
    message: dict[str, Any] = {"role": "assistant", "content": step.content}
    if step.reasoning:
        message["reasoning_content"] = step.reasoning
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {"object": "chat.completion", "choices": [choice]}


def deltas(step: Step, rng: random.Random) -> Iterator[tuple[str, dict[str, Any], int]]:
    """(part, delta, characters) of a streamed answer, in pieces of some tokens."""
    for part, name, text in (
        ("reasoning", "reasoning_content", step.reasoning),
        ("content", "content", step.content),
    ):
        for piece in pieces(text, rng):
            yield part, {name: piece}, len(piece)
    for index, call in enumerate(step.calls):
        function = {"name": call.name, "arguments": ""}
        head = {"index": index, "id": call.id, "type": "function", "function": function}
        yield "tool", {"tool_calls": [head]}, 20
        for piece in pieces(call.arguments, rng):
            delta = {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}
            yield "tool", delta, len(piece)


def vector(text: str) -> list[float]:
    """A made-up embedding."""
    rng = random.Random(text)
    return [rng.random() for _ in range(32)]


def pieces(text: str, rng: random.Random) -> list[str]:
    """The text in pieces of a few tokens: whole words, as tokenizers mostly cut."""
    words = re.findall(r"\s*\S+|\s+$", text)
    found = []
    while words:
        count = rng.randrange(1, 5)
        found.append("".join(words[:count]))
        words = words[count:]
    return found


def main() -> None:
    """Serves one part of the night."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--part", required=True)
    parser.add_argument("--root", required=True, help="where the night's folders lie")
    parser.add_argument("--factor", type=float, required=True)
    parser.add_argument("--port", type=int, required=True)
    given = parser.parse_args()
    upstream = Upstream(ScriptedModel(make_night(), given.root), given.part, given.factor)
    uvicorn.run(upstream.app(), port=given.port, access_log=False, log_level="warning")


if __name__ == "__main__":
    main()
