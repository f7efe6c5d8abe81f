"""What a tool's parameters may be, from its JSON schema, and a parameter's text as JSON"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Types = frozenset[str]
"""JSON types that a parameter may have; empty when that is not known."""

_STRING = frozenset({"string"})
_DEPTH_MAX = 8
_WORDS = {"true": "true", "false": "false", "none": "null", "null": "null"}


def schemas_of(tools: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The `parameters` schema of each tool of a request, by the tool's name."""
    out: dict[str, Mapping[str, Any]] = {}
    for tool in tools:
        function = tool.get("function")
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            schema = function.get("parameters")
            out[function["name"]] = schema if isinstance(schema, Mapping) else {}
    return out


def types(schema: Mapping[str, Any] | None, name: str) -> Types:
    """The types that a tool's schema gives its parameter."""
    properties = (schema or {}).get("properties")
    if not isinstance(properties, Mapping):
        return frozenset()
    return _types(properties.get(name), schema or {}, 0)


def _types(schema: Any, root: Mapping[str, Any], depth: int) -> Types:
    if not isinstance(schema, Mapping) or depth > _DEPTH_MAX:
        return frozenset()
    kinds = schema.get("type")
    if isinstance(kinds, str):
        return frozenset({kinds})
    if isinstance(kinds, list):
        return frozenset(kind for kind in kinds if isinstance(kind, str))
    if isinstance(reference := schema.get("$ref"), str):
        return _types(_referred(reference, root), root, depth + 1)
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list):
        return frozenset(_type(value) for value in values)
    for key in ("anyOf", "oneOf"):
        if isinstance(options := schema.get(key), list):
            each = [_types(option, root, depth + 1) for option in options]
            return frozenset().union(*each) if all(each) else frozenset()
    return frozenset()


def _referred(reference: str, root: Any) -> Any:
    """What `#/$defs/Name` stands for in the tool's own schema."""
    if not reference.startswith("#/"):
        return None
    for part in reference[2:].split("/"):
        root = root.get(part) if isinstance(root, Mapping) else None
    return root


def _type(value: Any) -> str:
    """The JSON type of a value."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "string"
    if isinstance(value, int | float):
        return "number"
    if value is None:
        return "null"
    return "array" if isinstance(value, list) else "object"


def surely_string(text: str, kinds: Types) -> bool:
    """Whether a value that begins like this is a string, whatever comes."""
    if kinds == _STRING:
        return True
    start = text.lstrip(" \t\r\n")
    if not start or start[0] in "{[-0123456789":
        return False
    words = _WORDS if kinds and "string" not in kinds else ("true", "false", "null")
    return not any(word.startswith(start.rstrip().lower()) for word in words)


def value_json(text: str, kinds: Types) -> str:
    """A parameter's text as JSON: as it is where it is JSON of an allowed type, else a string.

    A model writes strings raw, so that JSON in quotes is a string with its quotes. Python's words
    for true, false and null are taken where no string may stand.
    """
    if kinds == _STRING:
        return string_json(text)
    stripped = text.strip(" \t\r\n")
    if kinds and "string" not in kinds:
        stripped = _WORDS.get(stripped.lower(), stripped)
    try:
        kind = _type(json.loads(stripped, parse_constant=_no_constant))
    except (ValueError, RecursionError):
        return string_json(text)
    if kind == "string" or (kind not in _widened(kinds) and "string" in kinds):
        return string_json(text)
    return stripped


def _widened(kinds: Types) -> Types:
    """With what a type's values look like: every integer is a number."""
    return kinds | {"number"} if "integer" in kinds else kinds


def _no_constant(name: str) -> Any:
    raise ValueError(f"JSON has no {name}")


def string_json(text: str) -> str:
    """A text as a JSON string."""
    return json.dumps(text, ensure_ascii=False)


def escaped(text: str) -> str:
    """A piece of a JSON string, without its quotes."""
    return string_json(text)[1:-1]
