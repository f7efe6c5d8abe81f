"""Chat messages as pieces in the order they are written, from the shapes clients send."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from engine.chat.arguments import Parameters, canonical, parameters, value_text
from engine.pictures.decode import Refused
from engine.pictures.picture import Picture

FINISHED = frozenset({"stop", "tool_calls", "function_call", "content_filter"})
"""Finish reasons after which the model has written its end token; `length` is none."""

Role = Literal["system", "user", "assistant", "tool"]
ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
"""Roles that clients use, and what each is rendered as."""
REASONING_KEYS = ("reasoning_content", "reasoning")
"""Fields in which clients send earlier reasoning back; the first that holds text counts."""


class ChatError(ValueError):
    """A request that can't be rendered; the text says which message and why."""


@dataclass(frozen=True, slots=True)
class Say:
    """A stretch of reasoning or of content."""

    kind: Literal["reasoning", "content"]
    text: str


@dataclass(frozen=True, slots=True)
class CallView:
    """A tool call the way the template writes it."""

    parameters: tuple[tuple[str, str], ...]
    cut_name: str | None
    rest: str
    closed: bool


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call; `arguments` is its JSON text as it was sent."""

    name: str
    arguments: str
    id: str = ""
    cut: bool = False
    """The answer ended inside this call."""
    as_written: bool = False
    """Its arguments are the model's own text, and not what a client made of it."""
    kind: Literal["call"] = "call"

    @property
    def value(self) -> tuple[str, str] | None:
        """Equal for calls that say the same; None when that can't be told."""
        arguments = None if self.cut else canonical(self.arguments)
        return (self.name, arguments) if arguments is not None else None

    def view(self) -> CallView:
        """Parameters in order; a call that was not cut is closed, whatever its arguments are."""
        read: Parameters = parameters(self.arguments, as_written=self.as_written)
        if self.cut and not read.complete:
            return CallView(read.whole, read.cut_name, read.rest, closed=False)
        if read.cut_name is not None:
            whole = (*read.whole, (read.cut_name, read.rest))
            return CallView(whole, None, "", closed=True)
        return CallView(read.whole, None, read.rest, closed=True)


@dataclass(frozen=True, slots=True)
class Show:
    """An image. Two that show the same pixels are equal, whatever they were sent as."""

    digest: bytes
    picture: Picture = field(compare=False, repr=False)
    """Without its patches: whoever wants them has the url."""
    url: str = field(compare=False, repr=False)
    kind: Literal["image"] = "image"


Piece = Say | Call | Show

See = Callable[[str], Show | Refused]
"""What the image at a url is, or why it is none."""


def blind(url: str) -> Refused:
    """Refuses every image."""
    return Refused("images are not read here")


@dataclass(frozen=True, slots=True)
class Message:
    """One message; an assistant's pieces may hold calls, other roles' are content and images."""

    role: Role
    pieces: tuple[Piece, ...]
    open: bool = False
    """An assistant message that is continued instead of closed; only a last one can be."""

    @property
    def contents(self) -> tuple[str | Show, ...]:
        """The content texts and the images, in order."""
        return tuple(
            p if isinstance(p, Show) else p.text
            for p in self.pieces
            if isinstance(p, Show) or (isinstance(p, Say) and p.kind == "content")
        )

    @property
    def content(self) -> str:
        """All content that is text."""
        return "".join(text for text in self.contents if isinstance(text, str))

    @property
    def images(self) -> tuple[Show, ...]:
        """The images, in order."""
        return tuple(p for p in self.pieces if isinstance(p, Show))

    @property
    def reasoning(self) -> str:
        """All reasoning."""
        return "".join(p.text for p in self.pieces if isinstance(p, Say) and p.kind == "reasoning")

    @property
    def calls(self) -> tuple[Call, ...]:
        """The tool calls, in order."""
        return tuple(p for p in self.pieces if isinstance(p, Call))


@dataclass(frozen=True, slots=True)
class Reply:
    """What a model answered, in the order it wrote it; a cut reply holds what was delivered."""

    pieces: tuple[Piece, ...]
    finish: str = "stop"
    """The finish reason it ended with, or would have."""
    aborted: bool = False
    """The client hung up before the end."""

    @property
    def ended(self) -> bool:
        """Whether the model wrote its end token."""
        return not self.aborted and self.finish in FINISHED

    @property
    def message(self) -> Message:
        """The reply as a message: neighbours of one kind joined, what is empty left out.

        Open unless it ended; a call that stands last in an open one was cut.
        """
        pieces = merged(self.pieces)
        if not self.ended and pieces and isinstance(pieces[-1], Call):
            pieces = (*pieces[:-1], replace(pieces[-1], cut=True))
        return Message("assistant", pieces, open=not self.ended)


def merged(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    """Neighbouring texts of one kind joined, empty texts left out."""
    out: list[Piece] = []
    for piece in pieces:
        last = out[-1] if out else None
        if not isinstance(piece, Say):
            out.append(piece)
        elif isinstance(last, Say) and last.kind == piece.kind:
            out[-1] = Say(piece.kind, last.text + piece.text)
        elif piece.text:
            out.append(piece)
    return tuple(out)


def messages_of(messages: Any, see: See = blind) -> tuple[Message, ...]:
    """The `messages` of a chat completion request; raises ChatError.

    Content is a string, nothing, or a list of parts, texts and images, which stay apart: a part
    that comes and goes must not change how its neighbours tokenise. `see` reads the images.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise ChatError("messages are missing or empty")
    return tuple(_message(message, number, see) for number, message in enumerate(messages))


def tools_of(tools: Any) -> tuple[Mapping[str, Any], ...]:
    """The `tools` of a request, in order; raises ChatError."""
    if tools is None:
        return ()
    if not isinstance(tools, list) or not all(isinstance(tool, Mapping) for tool in tools):
        raise ChatError("tools are not a list of objects")
    try:
        for tool in tools:
            value_text(tool)
    except RecursionError:
        raise ChatError("a tool's description is nested too deep") from None
    return tuple(tools)


def _message(message: Any, number: int, see: See) -> Message:
    if not isinstance(message, Mapping):
        raise ChatError(f"message {number} is not an object")
    role = ROLES.get(str(message.get("role")))
    if role is None:
        raise ChatError(f"message {number} has the unknown role {str(message.get('role'))!r}")
    pieces: list[Piece] = []
    if role == "assistant":
        texts = (message.get(key) for key in REASONING_KEYS)
        reasoning = next((text for text in texts if isinstance(text, str) and text), "")
        pieces.append(Say("reasoning", reasoning))
    pieces += _contents(message.get("content"), number, see)
    if role == "assistant":
        pieces += _calls(message.get("tool_calls"), number)
    return Message(role, tuple(p for p in pieces if not isinstance(p, Say) or p.text))


def _contents(content: Any, number: int, see: See) -> list[Say | Show]:
    """A message's texts and images, a part each."""
    if content is None or isinstance(content, str):
        return [Say("content", content or "")]
    if not isinstance(content, list):
        raise ChatError(f"message {number} has content that is neither text nor parts")
    return [_part(part, f"message {number}, part {at}", see) for at, part in enumerate(content)]


def _part(part: Any, where: str, see: See) -> Say | Show:
    """A part of a message's content; an image's url comes in an object or by itself."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return Say("content", part["text"])
    if kind != "image_url":
        raise ChatError(f"{where} is of the unknown type {str(kind)!r}")
    given = part.get("image_url")
    url = given.get("url") if isinstance(given, Mapping) else given
    if not isinstance(url, str):
        raise ChatError(f"{where} is an image without a url")
    shown = see(url)
    if isinstance(shown, Refused):
        raise ChatError(f"{where}: {shown.why}")
    return shown


def _calls(calls: Any, number: int) -> list[Call]:
    """An assistant message's tool calls."""
    out = []
    for call in calls or ():
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise ChatError(f"message {number} has a tool call without a function name")
        arguments = function.get("arguments") or ""
        if not isinstance(arguments, str):
            raise ChatError(f"message {number} has tool arguments that are no text")
        out.append(Call(function["name"], arguments, str(call.get("id") or "")))
    return out
