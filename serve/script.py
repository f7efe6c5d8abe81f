"""A script: given answers in place of the model's own, for tests and demos with real clients

The file is a JSON list of rules, or one rule a line. The first rule that matches a request answers
it; when none does, a fixed sentence. What a request is answered hangs on the request alone: asked
again, after a restart or from another slot, it gets the same tokens.

    [{"when": {"kind": "turn", "last_user": "list the files", "step": 1},
      "say": [["reasoning", "I should look."], ["tool", "bash", {"command": "ls"}]]},
     {"when": {"last_user": "list the files", "last_role": "tool"},
      "say": [["content", "There are three."]], "tokens_s": 20},
     {"say": [["content", "What do you mean?"]]}]

`when` may have any of these, and all that it has must hold; a rule without it matches everything.

    kind, client      what the request is for and who sent it, as the journal names them; or a list
    last_user         a regular expression, searched in the last message of the user
    system            the same, in the system messages
    last_result       the same, in the last message, which must be a tool's
    has_tools         whether the request brings tools
    last_role         the last message's: user, tool, assistant or system; or a list
    turn              1 for a request without an answer in it, 2 with one, and so on
    step              the same, counted from the last message of the user: a loop of tools has many

`say` is what the model writes, in order. `finish` is `stop`, or `length` for an answer that is cut
where it ends. `tokens_s` is the pace, in tokens a second; without one it is as fast as it can be.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.bad import BadInput
from engine.chat.clients import Identity
from engine.chat.messages import ROLES, Call, Message, Piece, Reply, Say
from serve.choice import ACCEPTED, DRAFTS

NOTHING = "The script has no answer to this."
"""What is said to a request that no rule matches."""
ROUND_TOKENS = sum(ACCEPTED**accepted for accepted in range(DRAFTS + 1))
"""Tokens that a round writes on the average."""

_RULE = frozenset({"when", "say", "finish", "tokens_s"})
_REGEXES = ("last_user", "system", "last_result")
_NAMES = ("kind", "client", "last_role")
_COUNTS = ("turn", "step")
_WHEN = frozenset({*_REGEXES, *_NAMES, *_COUNTS, "has_tools"})
_TOOL_NAME = re.compile(r"[^<>\s]+")


class _Wrong(ValueError):
    """What is wrong with a rule."""


@dataclass(frozen=True, slots=True)
class Said:
    """What the script says to a request."""

    reply: Reply
    tokens_s: float | None = None
    rule: int | None = None
    """The number of the rule that matched, from 1."""

    @property
    def round_s(self) -> float:
        """Seconds from one round of the answer to the next."""
        return ROUND_TOKENS / self.tokens_s if self.tokens_s is not None else 0.0


@dataclass(frozen=True, slots=True)
class _Request:
    """What rules ask of a request, by the names they have for it."""

    names: Mapping[str, str]
    texts: Mapping[str, str | None]
    counts: Mapping[str, int]
    has_tools: bool


@dataclass(frozen=True, slots=True)
class When:
    """What must hold of a request; what is not given holds of every one."""

    names: Mapping[str, frozenset[str]]
    texts: Mapping[str, re.Pattern[str]]
    counts: Mapping[str, int]
    has_tools: bool | None = None

    def holds(self, request: _Request) -> bool:
        """Whether all of it holds of a request."""
        if self.has_tools not in (None, request.has_tools):
            return False
        if any(request.names[name] not in wanted for name, wanted in self.names.items()):
            return False
        if any(request.counts[name] != wanted for name, wanted in self.counts.items()):
            return False
        found = ((request.texts[name], pattern) for name, pattern in self.texts.items())
        return all(text is not None and pattern.search(text) for text, pattern in found)


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: what it says, and when."""

    when: When
    reply: Reply
    tokens_s: float | None = None


class Script:
    """The rules of a file, in order."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = tuple(rules)

    @classmethod
    def load(cls, path: Path) -> Script:
        """The script in a file. Raises BadInput, which names the rule and what is wrong with it."""
        source = str(path)
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise BadInput(source, None, error.strerror or str(error)) from error
        except UnicodeDecodeError as error:
            raise BadInput(source, None, f"not UTF-8: byte {error.start}") from None
        rules = []
        for number, (line, value) in enumerate(_values(source, text), start=1):
            try:
                rules.append(_rule(value))
            except _Wrong as wrong:
                raise BadInput(source, line, f"rule {number}: {wrong}") from None
        if not rules:
            raise BadInput(source, None, "the script has no rules")
        return cls(rules)

    def answer(self, who: Identity, messages: Sequence[Message], tools: Sequence[Any] = ()) -> Said:
        """What is said to a request."""
        request = _request(who, messages, tools)
        for number, rule in enumerate(self.rules, start=1):
            if rule.when.holds(request):
                return Said(rule.reply, rule.tokens_s, number)
        return Said(Reply((Say("content", NOTHING),), "stop"))


def _request(who: Identity, messages: Sequence[Message], tools: Sequence[Any]) -> _Request:
    asked = max((i for i, m in enumerate(messages) if m.role == "user"), default=None)
    answers = [place for place, message in enumerate(messages) if message.role == "assistant"]
    last = messages[-1] if messages else None
    since = [place for place in answers if asked is None or place > asked]
    return _Request(
        names={
            "kind": who.kind,
            "client": who.client,
            "last_role": last.role if last is not None else "",
        },
        texts={
            "last_user": messages[asked].content if asked is not None else None,
            "system": "\n".join(m.content for m in messages if m.role == "system"),
            "last_result": last.content if last is not None and last.role == "tool" else None,
        },
        counts={"turn": len(answers) + 1, "step": len(since) + 1},
        has_tools=bool(tools),
    )


def _values(source: str, text: str) -> list[tuple[int | None, Any]]:
    """The values of a file that are to be rules, with their lines where each has one. Raises
    BadInput.
    """
    if text.lstrip().startswith("["):
        return [(None, value) for value in _parsed(source, text, None)]
    lines = enumerate(text.splitlines(), start=1)
    return [(line, _parsed(source, one, line)) for line, one in lines if one.strip()]


def _parsed(source: str, text: str, line: int | None) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"{error.msg}, column {error.colno}"
        raise BadInput(source, line or error.lineno, f"not JSON: {where}") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(source, line, f"not JSON that can be read: {error}") from None


def _rule(value: Any) -> Rule:
    """Raises _Wrong."""
    rule = _object(value, "the rule", _RULE)
    when = _when(_object(rule.get("when", {}), "'when'", _WHEN))
    finish = rule.get("finish", "stop")
    if finish not in ("stop", "length"):
        raise _Wrong(f"'finish' is neither 'stop' nor 'length': {finish!r}")
    if not isinstance(rule.get("say"), list):
        raise _Wrong("'say' is not a list of what is said")
    pieces = tuple(_piece(part, place) for place, part in enumerate(rule["say"], start=1))
    if finish == "stop" and any(isinstance(piece, Call) for piece in pieces):
        finish = "tool_calls"
    if not pieces and finish == "length":
        raise _Wrong("an answer that is cut says something")
    pace = rule.get("tokens_s")
    if pace is not None and (type(pace) not in (int, float) or not 0 < pace < math.inf):
        raise _Wrong(f"'tokens_s' is not a number above 0: {pace!r}")
    return Rule(when, Reply(pieces, finish), pace)


def _when(when: Mapping[str, Any]) -> When:
    """Raises _Wrong."""
    names, texts, counts = {}, {}, {}
    for name in _NAMES:
        if name in when:
            given = when[name] if isinstance(when[name], list) else [when[name]]
            if not all(isinstance(one, str) for one in given):
                raise _Wrong(f"'{name}' is neither text nor a list of texts")
            if name == "last_role" and not set(given) <= set(ROLES.values()):
                raise _Wrong(f"'{name}' is none of {', '.join(sorted(set(ROLES.values())))}")
            names[name] = frozenset(given)
    for name in _REGEXES:
        if name in when:
            try:
                texts[name] = re.compile(when[name])
            except (re.error, TypeError, RecursionError, OverflowError) as error:
                raise _Wrong(f"'{name}' is not a regular expression: {error}") from None
    for name in _COUNTS:
        if name in when:
            if type(when[name]) is not int or when[name] < 1:
                raise _Wrong(f"'{name}' is not a whole number from 1: {when[name]!r}")
            counts[name] = when[name]
    has_tools = when.get("has_tools")
    if has_tools is not None and not isinstance(has_tools, bool):
        raise _Wrong(f"'has_tools' is neither true nor false: {has_tools!r}")
    return When(names, texts, counts, has_tools)


def _piece(part: Any, place: int) -> Piece:
    """Raises _Wrong."""
    where = f"part {place} of 'say'"
    match part:
        case ["reasoning" | "content" as kind, str() as text]:
            return Say(kind, text)
        case ["tool", str() as name, dict() as arguments]:
            if not _TOOL_NAME.fullmatch(name):
                raise _Wrong(f"{where}: no name of a tool: {name!r}")
            return Call(name, json.dumps(arguments, ensure_ascii=False, separators=(",", ":")))
    raise _Wrong(f'{where} is none of ["reasoning", text], ["content", text], ["tool", name, {{}}]')


def _object(value: Any, what: str, known: frozenset[str]) -> Mapping[str, Any]:
    """An object of no other keys. Raises _Wrong."""
    if not isinstance(value, dict):
        raise _Wrong(f"{what} is not an object")
    unknown = sorted(set(value) - known)
    if unknown:
        raise _Wrong(f"{what} has the unknown key {unknown[0]!r}; known are {_listed(known)}")
    return value


def _listed(names: frozenset[str]) -> str:
    return ", ".join(sorted(names))
