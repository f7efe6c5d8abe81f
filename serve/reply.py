"""A chat server's reply, read from its bytes: reasoning, content and tool calls in order"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from serve.sse import Events

BODY_BYTES_MAX = 64 << 20
"""A JSON reply longer than this is passed on but not read."""


def parse_json(text: str | bytes) -> Any:
    """The JSON value of `text`, or None: a recording takes whatever comes."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _first_choice(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = answer.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict) and choice.get("index", 0) == 0:
            return choice
    return {}


class Reply:
    """Collects one reply; `feed` takes the body in any pieces, `as_json` is what gets recorded.

    Only choice 0 is read. Reasoning is taken from `reasoning_content` or `reasoning`; a text
    completion's `text` counts as content. Nothing a server sends makes it raise.
    """

    def __init__(self) -> None:
        self.status: int | None = None
        self.aborted = False
        self.error: Any = None
        self.parts: list[list[str]] = []
        self.finish_reason: str | None = None
        self.usage: dict[str, Any] | None = None
        self.frames = self.unreadable = 0
        self._events: Events | None = None
        self._body: bytearray | None = None
        self._calls: dict[int, list[str]] = {}

    def start(self, status: int, content_type: str, content_encoding: str = "") -> None:
        """The head has come; a compressed body or one of another type will not be read."""
        self.status = status
        kind = content_type.partition(";")[0].strip().lower()
        if content_encoding.strip().lower() not in ("", "identity"):
            return
        if kind == "text/event-stream":
            self._events = Events()
        elif kind == "application/json" or kind.endswith("+json"):
            self._body = bytearray()

    def feed(self, piece: bytes) -> None:
        """The next bytes of the body."""
        if self._events is not None:
            for data in self._events.feed(piece):
                self._frame(data)
        elif self._body is not None:
            self._body += piece
            if len(self._body) > BODY_BYTES_MAX:
                self._body = None

    def close(self) -> None:
        """The body has ended, or nobody waits for the rest of it."""
        if self._events is not None:
            # A reply that was cut ends in half a frame, which is no frame.
            for data in self._events.close() if not self.aborted else ():
                self._frame(data)
            self._events = None
        elif self._body is not None:
            answer, self._body = _mapping(parse_json(bytes(self._body))), None
            self._answer(answer, _mapping(_first_choice(answer).get("message")))

    def as_json(self) -> dict[str, Any]:
        """The `reply` of a recorded exchange; `error` and `unreadable` only where there is any."""
        reply: dict[str, Any] = {
            "status": self.status,
            "parts": self.parts,
            "finish_reason": self.finish_reason,
            "usage": self.usage,
            "aborted": self.aborted,
            "frames": self.frames,
        }
        if self.error is not None:
            reply["error"] = self.error
        if self.unreadable:
            reply["unreadable"] = self.unreadable
        return reply

    def _frame(self, data: str) -> None:
        self.frames += 1
        if data.strip() == "[DONE]":
            return
        chunk = parse_json(data)
        if not isinstance(chunk, dict):
            self.unreadable += 1
            return
        self._answer(chunk, _mapping(_first_choice(chunk).get("delta")))

    def _answer(self, answer: Mapping[str, Any], message: Mapping[str, Any]) -> None:
        choice = _first_choice(answer)
        reasoning = _text(message.get("reasoning_content")) or _text(message.get("reasoning"))
        self._say("reasoning", reasoning)
        self._say("content", _text(message.get("content")) or _text(choice.get("text")))
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            self._call(_mapping(call))
        self.finish_reason = _text(choice.get("finish_reason")) or self.finish_reason
        if isinstance(answer.get("usage"), dict):
            self.usage = answer["usage"]
        if answer.get("error") is not None:
            self.error = answer["error"]

    def _say(self, kind: str, text: str) -> None:
        if not text:
            return
        if self.parts and self.parts[-1][0] == kind:
            self.parts[-1][1] += text
        else:
            self.parts.append([kind, text])

    def _call(self, call: Mapping[str, Any]) -> None:
        function = _mapping(call.get("function"))
        ident, name = _text(call.get("id")), _text(function.get("name"))
        index = call.get("index")
        if not isinstance(index, int):
            # A whole call, as in a reply that is not streamed: it is never continued.
            index = -1 - len(self._calls)
        part = self._calls.get(index)
        if part is None:
            part = self._calls[index] = ["tool", "", "", ""]
            self.parts.append(part)
        part[1] = part[1] or ident
        part[2] = part[2] or name
        arguments = function.get("arguments")
        if isinstance(arguments, dict):
            # Some servers hand a call's arguments over as an object; the wire text is not known.
            part[3] += json.dumps(arguments)
        else:
            part[3] += _text(arguments)
