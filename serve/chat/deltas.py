"""What a chat client is sent of an answer, piece by piece: reasoning, content, tool calls"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of the thought."""

    text: str


@dataclass(frozen=True, slots=True)
class Content:
    """More of the text."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegins:
    """A tool call, as soon as its name is known; calls are numbered from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of a call's arguments: joined, the pieces are its JSON text."""

    index: int
    text: str


Delta = Reasoning | Content | CallBegins | CallArguments


@dataclass(frozen=True, slots=True)
class WholeCall:
    """A tool call with all of its arguments."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Whole:
    """An answer as one message: what is said in pieces is joined, as clients do it."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[WholeCall, ...] = ()


def joined(deltas: Iterable[Delta]) -> list[Delta]:
    """The deltas with neighbours that go on with one another made one; empty ones are left out."""
    out: list[Delta] = []
    for delta in deltas:
        last = out[-1] if out else None
        match last, delta:
            case Reasoning(before), Reasoning(text):
                out[-1] = Reasoning(before + text)
            case Content(before), Content(text):
                out[-1] = Content(before + text)
            case CallArguments(index, before), CallArguments(same, text) if index == same:
                out[-1] = CallArguments(index, before + text)
            case _, CallBegins():
                out.append(delta)
            case _ if delta.text:
                out.append(delta)
    return out


def whole(deltas: Iterable[Delta]) -> Whole:
    """All of an answer's deltas as one message."""
    reasoning: list[str] = []
    content: list[str] = []
    begun: list[CallBegins] = []
    arguments: dict[int, list[str]] = {}
    for delta in deltas:
        match delta:
            case Reasoning(text):
                reasoning.append(text)
            case Content(text):
                content.append(text)
            case CallBegins(index):
                begun.append(delta)
                arguments[index] = []
            case CallArguments(index, text):
                arguments[index].append(text)
    calls = (WholeCall(call.id, call.name, "".join(arguments[call.index])) for call in begun)
    return Whole("".join(reasoning), "".join(content), tuple(calls))
