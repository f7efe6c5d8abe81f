"""A tool call's JSON arguments as the parameters a model writes, also when cut or broken."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

_DECODER = json.JSONDecoder(strict=False)
_ESCAPE_MAX = len("\\ud83d\\ude0")
"""Characters of the longest escape that can stand unfinished at the end of a cut string."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """Arguments in reading order: whole parameters, then what was cut off or could not be read."""

    whole: tuple[tuple[str, str], ...] = ()
    """(name, value) with strings as they are and other values as compact JSON."""
    cut_name: str | None = None
    """Name of the parameter in which the text ends; its value so far is `rest`."""
    rest: str = ""
    """Value of the cut parameter; with no name, text that is no JSON object."""
    complete: bool = True
    """The text was a JSON object to its end."""


def value_text(value: Any) -> str:
    """A parameter's value as a model writes it: strings raw, other values as compact JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def parameters(arguments: str | Mapping[str, Any], *, as_written: bool = False) -> Parameters:
    """Read arguments as a client or a recording gives them; any text is taken.

    An empty text counts as no arguments. Numbers come out as Python writes them (1e5 as 100000.0);
    `as_written`, what is no string stays the text it was, and so does a name given twice.
    """
    if not isinstance(arguments, str):
        return Parameters(tuple((key, value_text(value)) for key, value in arguments.items()))
    if not arguments.strip():
        return Parameters()
    try:
        value = _DECODER.decode(arguments)
        if not isinstance(value, dict):
            return Parameters(rest=arguments, complete=False)
        if as_written:
            return Parameters(tuple(_members(arguments)))
        return Parameters(tuple((key, value_text(item)) for key, item in value.items()))
    except (ValueError, RecursionError):
        return _partial(arguments)


def _members(text: str) -> Iterator[tuple[str, str]]:
    """The members of a whole object, with strings as they are and other values as their text."""
    at = _skip(text, text.index("{") + 1)
    while not text.startswith("}", at):
        name, at = _DECODER.raw_decode(text, at)
        at = _skip(text, _skip(text, at) + 1)
        value, stop = _DECODER.raw_decode(text, at)
        yield name, value if isinstance(value, str) else text[at:stop]
        at = _skip(text, stop)
        at = _skip(text, at + text.startswith(",", at))


def canonical(arguments: str) -> str | None:
    """A text that is equal for equal values, however they are written; None when that is unclear.

    The order of keys, spaces, escapes and the form of a number don't count; types, every digit and
    a zero's sign do. Unclear is what is no JSON object, has a key twice, or holds a constant that
    JSON lacks.
    """
    try:
        value = _EXACT.decode(arguments if arguments.strip() else "{}")
        return _canonical(value) if isinstance(value, dict) else None
    except (ValueError, RecursionError, ArithmeticError):
        return None


def _canonical(value: Any) -> str:
    if isinstance(value, dict):
        members = (f"{json.dumps(key)}:{_canonical(value[key])}" for key in sorted(value))
        return "{" + ",".join(members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_canonical, value)) + "]"
    if isinstance(value, Decimal):
        sign, digits, exponent = value.as_tuple()
        if not isinstance(exponent, int):
            raise ValueError("too large for a number")
        text = "".join(map(str, digits)).rstrip("0")
        return f"{'-' * sign}{text or 0}e{exponent + len(digits) - len(text) if text else 0}"
    return json.dumps(value)


def _once(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys are there once."""
    whole = dict(members)
    if len(whole) != len(members):
        raise ValueError("a key is there twice")
    return whole


def _no_constant(name: str) -> Any:
    raise ValueError(f"JSON has no {name}")


_EXACT = json.JSONDecoder(
    strict=False,
    parse_float=Decimal,
    parse_int=Decimal,
    parse_constant=_no_constant,
    object_pairs_hook=_once,
)
"""Numbers to the last digit."""


def _partial(text: str) -> Parameters:
    """The members of an object that breaks off or goes wrong, as far as they can be read."""
    at = _skip(text, 0)
    if not text.startswith("{", at):
        return Parameters(rest=text, complete=False)
    whole: list[tuple[str, str]] = []
    at += 1
    while True:
        at = _skip(text, at)
        if text.startswith(",", at):
            at = _skip(text, at + 1)
        try:
            name, at = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            break  # no further name: what there is of one belongs to no parameter yet
        at = _skip(text, at)
        if not isinstance(name, str) or not text.startswith(":", at):
            break
        at = _skip(text, at + 1)
        try:
            value, stop = _DECODER.raw_decode(text, at)
            whole.append((name, value_text(value)))
        except (ValueError, RecursionError):
            return Parameters(tuple(whole), name, _partial_value(text[at:]), complete=False)
        at = stop
    return Parameters(tuple(whole), complete=False)


def _partial_value(text: str) -> str:
    """What was written of a value that breaks off."""
    if text.startswith('"'):
        for dropped in range(_ESCAPE_MAX + 1):
            try:
                value, _ = _DECODER.raw_decode(text[: len(text) - dropped] + '"')
            except ValueError:
                continue
            return str(value)
    return text


def _skip(text: str, at: int) -> int:
    """The next position that holds no JSON whitespace."""
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at
