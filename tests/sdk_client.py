"""The openai SDK as a client of a served house: answers as values to compare."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
from served import MODEL, Served

from serve.script import Script

LIST = {
    "type": "function",
    "function": {
        "name": "list_files",
        "description": "List a folder.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
    },
}
WRITE = {
    "type": "function",
    "function": {
        "name": "write_file",
        "description": "Write a file.",
        "parameters": {
            "type": "object",
            "properties": {
                "path": {"type": "string"},
                "text": {"type": "string"},
                "lines": {"type": "integer"},
                "tags": {"type": "array", "items": {"type": "string"}},
            },
        },
    },
}
TOOLS = [LIST, WRITE]


def sdk(served: Served, key: str = "none", retries: int = 0, **more: Any) -> openai.OpenAI:
    """The SDK, pointed at a server."""
    return openai.OpenAI(
        api_key=key, base_url=f"{served.url}/v1", max_retries=retries, timeout=60.0, **more
    )


def script_of(folder: Path, rules: list[dict[str, Any]]) -> Script:
    """A script by way of its file."""
    path = folder / "script.json"
    path.write_text(json.dumps(rules))
    return Script.load(path)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@dataclass(slots=True)
class Heard:
    """What a client has of an answer at its end."""

    reasoning: str = ""
    content: str = ""
    calls: list[tuple[str, str, str]] = field(default_factory=list)
    """(id, name, arguments)."""
    finish: str = ""
    usage: Any = None
    pieces: int = 0
    """Frames that brought some of it."""
    argument_pieces: int = 0

    @property
    def said(self) -> tuple[Any, ...]:
        """All but ids and counts."""
        return self.reasoning, self.content, [call[1:] for call in self.calls], self.finish

    @property
    def message(self) -> dict[str, Any]:
        """As the client sends it back."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.calls:
            message["tool_calls"] = [
                {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
                for id, name, arguments in self.calls
            ]
        return message


def whole(client: openai.OpenAI, messages: list[Any], **more: Any) -> Heard:
    """An answer that comes at once."""
    answer = client.chat.completions.create(model=MODEL, messages=messages, **more)
    return of_choice(answer.choices[0], answer.usage)


def of_choice(choice: Any, usage: Any) -> Heard:
    """One choice of a whole answer."""
    message = choice.message
    calls = [(c.id, c.function.name, c.function.arguments) for c in message.tool_calls or ()]
    reasoning = getattr(message, "reasoning_content", None) or ""
    return Heard(reasoning, message.content or "", calls, choice.finish_reason, usage)


def streamed(client: openai.OpenAI, messages: list[Any], **more: Any) -> Heard:
    """An answer put together from its pieces, as agents do it."""
    more.setdefault("stream_options", {"include_usage": True})
    stream = client.chat.completions.create(model=MODEL, messages=messages, stream=True, **more)
    return gathered(stream)


def gathered(stream: Iterable[Any]) -> Heard:
    """What a stream's frames come to."""
    heard, calls = Heard(), dict[int, list[str]]()
    for chunk in stream:
        if chunk.usage is not None:
            heard.usage = chunk.usage
        for choice in chunk.choices:
            delta, begun = choice.delta, heard.pieces
            reasoning = getattr(delta, "reasoning_content", None) or ""
            heard.reasoning += reasoning
            heard.content += delta.content or ""
            heard.pieces += bool(reasoning or delta.content)
            for call in delta.tool_calls or ():
                if call.id:
                    assert call.index not in calls, "a call began twice"
                    calls[call.index] = [call.id, call.function.name, ""]
                calls[call.index][2] += call.function.arguments or ""
                heard.argument_pieces += bool(call.function.arguments)
                heard.pieces = begun + 1
            heard.finish = choice.finish_reason or heard.finish
    heard.calls = [tuple(calls[index]) for index in sorted(calls)]  # type: ignore[misc]
    return heard


def tandem(usage: Any) -> dict[str, Any]:
    """What the server says beside OpenAI's counts, where it holds together; asserts that it does.

    Parts add up to the prompt as it was sent and what was put in; what was cached and what was read
    again are the prompt as it was served.
    """
    parts, cache = usage.tandem["parts"], usage.tandem["cache"]
    sent = parts["system"] + parts["tools"] + parts["history"] + parts["images"]
    assert sent == usage.prompt_tokens, parts
    assert cache["cached"] + cache["reread"] == usage.prompt_tokens + parts["injected"], usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    cached = usage.prompt_tokens_details.cached_tokens
    assert cached == max(0, usage.prompt_tokens - cache["reread"])
    return {**cache, "parts": parts}
