"""Answers as OpenAI's clients read them: whole JSON objects, and frames of a stream

Nothing here waits or decides: who serves a request says what was written, why it ended and what it
used, and gets the bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from serve.chat.deltas import CallArguments, CallBegins, Content, Delta, Reasoning, Whole
from serve.errors import ApiError

DONE = b"data: [DONE]\n\n"
"""The last frame of a stream that came to its end."""

Usage = Mapping[str, Any]
Logprobs = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Head:
    """What every object of one answer begins with."""

    id: str
    created_s: int
    model: str

    def object(self, kind: str, choices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """An object of this answer."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created_s,
            "model": self.model,
            "choices": list(choices),
        }


@dataclass(frozen=True, slots=True)
class ChatChoice:
    """One choice of a chat answer, as it ended."""

    whole: Whole
    finish: str
    """stop, length or tool_calls."""
    logprobs: Logprobs | None = None


@dataclass(frozen=True, slots=True)
class TextChoice:
    """One choice of a text completion, as it ended."""

    text: str
    finish: str
    """stop or length."""
    logprobs: Logprobs | None = None


def chat_answer(head: Head, choices: Sequence[ChatChoice], usage: Usage) -> dict[str, Any]:
    """A chat answer that is not streamed."""
    found = [
        {
            "index": index,
            "message": message_of(choice.whole),
            "logprobs": choice.logprobs,
            "finish_reason": choice.finish,
        }
        for index, choice in enumerate(choices)
    ]
    return {**head.object("chat.completion", found), "usage": dict(usage)}


def message_of(whole: Whole) -> dict[str, Any]:
    """An answer as a message. Its content is null when there are tool calls and no word beside."""
    message: dict[str, Any] = {"role": "assistant", "content": whole.content, "refusal": None}
    if whole.reasoning:
        message["reasoning_content"] = whole.reasoning
    if whole.calls:
        message["content"] = whole.content or None
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in whole.calls
        ]
    return message


def text_answer(head: Head, choices: Sequence[TextChoice], usage: Usage) -> dict[str, Any]:
    """A text completion that is not streamed."""
    found = [
        {
            "index": index,
            "text": choice.text,
            "logprobs": choice.logprobs,
            "finish_reason": choice.finish,
        }
        for index, choice in enumerate(choices)
    ]
    return {**head.object("text_completion", found), "usage": dict(usage)}


class Frames:
    """The frames that a stream of either kind has; who asked for usage sees in each that it comes.

    A choice's frames are in order: its first, what is said, its end. Those of other choices may
    stand between them. The usage follows when all have ended, then `DONE`.
    """

    kind: str

    def __init__(self, head: Head, *, include_usage: bool) -> None:
        self._head = head
        self._include_usage = include_usage

    def end(self, usage: Usage) -> bytes:
        """What is left when every choice has ended: the usage, if it is wanted, and `DONE`."""
        if not self._include_usage:
            return DONE
        return frame({**self._head.object(self.kind, ()), "usage": dict(usage)}) + DONE

    def _frame(self, choice: Mapping[str, Any]) -> bytes:
        chunk = self._head.object(self.kind, [choice])
        return frame({**chunk, "usage": None} if self._include_usage else chunk)


class ChatFrames(Frames):
    """The frames of a streamed chat answer."""

    kind = "chat.completion.chunk"

    def first(self, choice: int) -> bytes:
        """The first frame of a choice: whose message it is."""
        return self._said(choice, {"role": "assistant", "content": ""})

    def said(self, choice: int, delta: Delta, logprobs: Logprobs | None = None) -> bytes:
        """A piece of the answer, with the log probabilities of the tokens since the last one."""
        return self._said(choice, delta_of(delta), logprobs)

    def scored(self, choice: int, logprobs: Logprobs) -> bytes:
        """Log probabilities of tokens that brought no piece of their own."""
        return self._said(choice, {}, logprobs)

    def finished(self, choice: int, finish: str, logprobs: Logprobs | None = None) -> bytes:
        """The last frame of a choice: why it ended."""
        return self._said(choice, {}, logprobs, finish)

    def _said(
        self,
        choice: int,
        delta: Mapping[str, Any],
        logprobs: Logprobs | None = None,
        finish: str | None = None,
    ) -> bytes:
        said = {"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return self._frame(said)


def delta_of(delta: Delta) -> dict[str, Any]:
    """A piece of an answer as a frame has it: a call's name comes once, then its arguments."""
    match delta:
        case Reasoning(text):
            return {"reasoning_content": text}
        case Content(text):
            return {"content": text}
        case CallBegins(index, id, name):
            function = {"name": name, "arguments": ""}
            call = {"index": index, "id": id, "type": "function", "function": function}
            return {"tool_calls": [call]}
        case CallArguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}


class TextFrames(Frames):
    """The frames of a streamed text completion."""

    kind = "text_completion"

    def said(self, choice: int, text: str, logprobs: Logprobs | None = None) -> bytes:
        """A piece of the text."""
        return self._said(choice, text, logprobs, None)

    def finished(self, choice: int, finish: str, logprobs: Logprobs | None = None) -> bytes:
        """The last frame of a choice: why it ended."""
        return self._said(choice, "", logprobs, finish)

    def _said(self, choice: int, text: str, logprobs: Logprobs | None, finish: str | None) -> bytes:
        said = {"index": choice, "text": text, "logprobs": logprobs, "finish_reason": finish}
        return self._frame(said)


def error_frame(error: ApiError) -> bytes:
    """The last frame of a stream that failed; no `DONE` follows, since it isn't."""
    return frame(error.body())


def comment(text: str) -> bytes:
    """A line that clients pass over, and that keeps their connection alive."""
    return f": {' '.join(text.split())}\n\n".encode("utf-8", "replace")


def frame(value: Mapping[str, Any]) -> bytes:
    """An event whose data is a JSON object."""
    return b"data: " + encoded(value) + b"\n\n"


LINE_ENDS = {"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"}
"""What some clients end lines at, though no event stream does; JSON has other ways to write it."""


def encoded(value: Mapping[str, Any]) -> bytes:
    """A JSON object on one line, in UTF-8."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character, escape in LINE_ENDS.items():
        text = text.replace(character, escape)
    # Half a surrogate pair, which a request may carry, is no character.
    return text.encode("utf-8", "replace")


def finish_of(stopped: bool, calls: int) -> str:
    """Why a chat answer ended: it called tools, it came to its end, or there was no more room."""
    if not stopped:
        return "length"
    return "tool_calls" if calls else "stop"
