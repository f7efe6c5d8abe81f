"""Raw lines of three recorders in one shape: a request and what was delivered of its reply"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from engine.chat.messages import Call, Piece, Reply, Say
from replay.fields import Fields
from replay.open import Malformed

OWN_FORMAT = "moorage.raw"
OWN_VERSION = 1
RIG_FRAME_CHARACTERS = 24
"""Text in a frame of the opencode rig's slow scripts, the only ones that a client can leave: of
552 characters of content it had sent in 23 frames, all came back."""
_THINK, _THINK_END = "<think>", "</think>"


NOTHING = Reply((), "none")
"""The reply of a request whose reply was not written down."""


@dataclass(frozen=True, slots=True)
class Wire:
    """One exchange as a recorder wrote it."""

    line: int
    t_s: float
    t_end_s: float
    path: str
    headers: tuple[tuple[str, str], ...]
    body: Any
    reply: Reply = NOTHING
    usage: dict[str, Any] | None = None
    delivered: int | None = None
    status: int | None = 200
    mark: dict[str, Any] | None = None


def own(line: int, row: Fields) -> Wire:
    """A line of moorage's recorder. Its reply holds what was delivered. Raises Malformed."""
    if row.text("format") != OWN_FORMAT:
        raise Malformed(f"'format' is not {OWN_FORMAT!r}: {row.text('format')!r}")
    if row.whole("version") != OWN_VERSION:
        raise Malformed(f"version {row.values['version']} is not known; this reads {OWN_VERSION}")
    reply = Fields.of(row.get("reply"), "'reply'")
    aborted = reply.values.get("aborted") is True
    pieces = _pieces(reply.items("parts"))
    return Wire(
        line=line,
        t_s=row.finite("t"),
        t_end_s=row.finite("t_end"),
        path=row.text("path"),
        headers=_headers(row),
        body=row.values.get("body"),
        reply=_reply(pieces, reply.text("finish_reason", "none"), aborted),
        usage=reply.object("usage") or None,
        delivered=sum(map(_length, pieces)) if aborted else None,
        status=reply.whole_or("status", None),
        mark=row.object("mark") or None,
    )


def opencode_rig(line: int, row: Fields) -> Wire:
    """A line of the opencode rig, whose replies are whole scripts. Raises Malformed."""
    request = Wire(
        line=line,
        t_s=row.finite("t"),
        t_end_s=row.finite_or("t_end", row.finite("t")),
        path=row.text("path"),
        headers=_headers(row),
        body=row.values.get("body"),
    )
    if not row.has("reply"):
        return request
    reply = Fields.of(row.get("reply"), "'reply'")
    pieces = _pieces(reply.items("parts"))
    aborted = bool(reply.values.get("aborted"))
    if aborted:
        pieces = _framed(pieces, reply.whole("frames_sent"))
    return replace(
        request,
        reply=_reply(pieces, reply.text("finish_reason", "none"), aborted),
        usage=reply.object("usage") or None,
        delivered=sum(map(_length, pieces)) if aborted else None,
        status=reply.whole_or("status", 200),
    )


class OpenWebUiRig:
    """The Open WebUI rig's file: a request, its reply and marks of the driver are lines apart."""

    def __init__(self) -> None:
        self._open: dict[int, Wire] = {}
        self._start_s: float | None = None

    def feed(self, line: int, row: Fields) -> Iterator[Wire]:
        """The exchange that a line completes, if it does. Raises Malformed."""
        kind = row.text("kind")
        if kind == "request":
            self._open[row.whole("n")] = self._request(line, row)
        elif kind == "reply":
            request = self._open.pop(row.whole("n"), None)
            if request is None:
                raise Malformed(f"a reply to request {row.whole('n')}, which is not open")
            yield self._answered(request, row)

    def unanswered(self) -> Iterator[Wire]:
        """Requests without a reply line: other paths, or the recording ended."""
        yield from self._open.values()

    def _request(self, line: int, row: Fields) -> Wire:
        if self._start_s is None:  # the rig's clock runs from its start; its dates are in seconds
            self._start_s = _wall_s(row.text("wall")) - row.finite("t")
        t_s = self._start_s + row.finite("t")
        return Wire(line, t_s, t_s, row.text("path"), _headers(row), row.values.get("body"))

    def _answered(self, request: Wire, row: Fields) -> Wire:
        pieces: list[Piece] = [
            Say("reasoning", row.text("reasoning", "")),
            Say("content", row.text("content", "")),
        ]
        aborted = bool(row.values.get("aborted"))
        if row.has("tool"):
            pieces.append(_openai_call(row.object("tool")))
        if aborted:  # the rig counts content, which comes after all of the reasoning
            pieces[1:] = [Say("content", row.text("sent_before_abort", ""))]
        pieces = [piece for piece in pieces if isinstance(piece, Call) or piece.text]
        finish = "tool_calls" if row.has("tool") else "stop"
        return replace(
            request,
            t_end_s=(self._start_s or 0.0) + row.finite("t"),
            reply=_reply(tuple(pieces), finish, aborted),
            usage=row.object("usage") or None,
            delivered=sum(map(_length, pieces)) if aborted else None,
        )


def _headers(row: Fields) -> tuple[tuple[str, str], ...]:
    headers = []
    for pair in row.items("headers"):
        if not isinstance(pair, list) or len(pair) != 2:
            raise Malformed("a header is not [name, value]")
        headers.append((str(pair[0]), str(pair[1])))
    return tuple(headers)


def _pieces(parts: list[Any]) -> tuple[Piece, ...]:
    """Parts as they were sent: ["reasoning" | "content", text] or ["tool", id, name, arguments]."""
    pieces: list[Piece] = []
    for part in parts:
        if not isinstance(part, list) or not part or not all(isinstance(p, str) for p in part):
            raise Malformed("a part of the reply is not a list of texts")
        if part[0] == "tool" and len(part) == 4:
            pieces.append(Call(part[2], part[3], part[1]))
        elif part[0] == "content" and len(part) == 2:
            pieces.append(Say("content", part[1]))
        elif part[0] == "reasoning" and len(part) == 2:
            pieces.append(Say("reasoning", part[1]))
        else:
            raise Malformed(f"a part of the reply is of the unknown kind {part[0]!r}")
    return tuple(pieces)


def _reply(pieces: tuple[Piece, ...], finish: str, aborted: bool) -> Reply:
    """A reply, with the thought that a server left in its content told apart.

    What the chat template writes around a thought is no part of it.
    """
    first = pieces[0] if pieces else None
    if isinstance(first, Say) and first.kind == "content":
        text = first.text.lstrip()
        if text.startswith(_THINK):
            thought, closed, content = text.removeprefix(_THINK).partition(_THINK_END)
            thought = thought.removeprefix("\n")
            thought = thought.removesuffix("\n") if closed else thought
            parted = (Say("reasoning", thought), Say("content", content.removeprefix("\n\n")))
            pieces = (*(piece for piece in parted if piece.text), *pieces[1:])
    return Reply(pieces, finish, aborted)


def _framed(pieces: tuple[Piece, ...], frames: int) -> tuple[Piece, ...]:
    """What the first frames carry: one opens the stream, and one opens each call."""
    left = (frames - 1) * RIG_FRAME_CHARACTERS
    out: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, Call):
            left -= RIG_FRAME_CHARACTERS
        if left < 0 or (left == 0 and isinstance(piece, Say)):
            break
        if isinstance(piece, Call):
            out.append(replace(piece, arguments=piece.arguments[:left]))
        else:
            out.append(Say(piece.kind, piece.text[:left]))
        left -= -(-_length(piece) // RIG_FRAME_CHARACTERS) * RIG_FRAME_CHARACTERS
    return tuple(out)


def _length(piece: Piece) -> int:
    return len(piece.arguments if isinstance(piece, Call) else piece.text)


def _openai_call(call: dict[str, Any]) -> Call:
    function = Fields.of(call.get("function"), "'function'")
    return Call(function.text("name"), function.text("arguments", ""), str(call.get("id") or ""))


def _wall_s(text: str) -> float:
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise Malformed(f"'wall' is not a time: {text!r}") from None
