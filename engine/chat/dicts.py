"""Messages in the form that published chat templates expect: OpenAI's, arguments as objects"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from engine.chat.messages import Call, ChatError, Message, Show
from engine.chat.sealed import START, STOP, Seals

_REASONING = ("thinking", "reasoning_content")
"""Names that templates know reasoning by."""


def dicts(messages: Sequence[Message], seals: Seals, *, images: bool) -> list[dict[str, Any]]:
    """The messages, with their texts sealed.

    System messages that come first are one: most templates know no more. Its text has START and
    STOP in it, behind its first and before its last character.
    """
    start = 0
    while start < len(messages) and messages[start].role == "system":
        start += 1
    out: list[dict[str, Any]] = []
    if start:
        heads = "\n\n".join(message.content for message in messages[:start])
        if any(message.images for message in messages[:start]):
            raise ChatError("a system message has an image")
        out.append({"role": "system", "content": _placed(heads, seals)})
    for message in messages[start:]:
        one: dict[str, Any] = {"role": message.role, "content": _content(message, seals, images)}
        if message.reasoning:
            one |= dict.fromkeys(_REASONING, seals.text(message.reasoning))
        if message.calls:
            one["tool_calls"] = [_call(call, seals) for call in message.calls]
        out.append(one)
    return out


def _placed(text: str, seals: Seals) -> str:
    """A system text with its two places."""
    inner = text.strip()
    if not inner:
        return text
    start = text.index(inner) + 1
    stop = max(start, text.index(inner) + len(inner) - 1)
    parts = (text[:start], START, text[start:stop], STOP, text[stop:])
    return "".join(p if p in (START, STOP) else seals.text(p) for p in parts)


def _content(message: Message, seals: Seals, images: bool) -> str | list[dict[str, Any]]:
    """A text; with images it is parts."""
    if not message.images:
        return "".join(seals.text(text) for text in message.contents if isinstance(text, str))
    if not images:
        raise ChatError("this model reads no images")
    return [
        {"type": "image"} if isinstance(part, Show) else {"type": "text", "text": seals.text(part)}
        for part in message.contents
    ]


def _call(call: Call, seals: Seals) -> dict[str, Any]:
    """A call; of arguments that are no object what can be read of them."""
    try:
        arguments = json.loads(call.arguments or "{}", strict=False)
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        view = call.view()
        arguments = dict(view.parameters)
        if view.cut_name is not None:
            arguments[view.cut_name] = view.rest
        elif view.rest:
            arguments["arguments"] = view.rest
    function = {"name": seals.text(call.name), "arguments": seals.value(arguments)}
    return {"type": "function", "function": function} | (
        {"id": seals.text(call.id)} if call.id else {}
    )
