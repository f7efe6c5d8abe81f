"""The OpenAPI document's schemas of bodies that are read by hand"""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic import BaseModel


@cache
def body_of(model: type[BaseModel]) -> dict[str, Any]:
    """What a route's description says of its body; every caller gets the same, not to be changed.

    Pydantic takes some 20 ms for a chat's, and three routes read one.
    """
    return _body(_inlined(model.model_json_schema(mode="validation")))


def _body(schema: dict[str, Any]) -> dict[str, Any]:
    content = {"application/json": {"schema": schema}}
    return {"requestBody": {"required": True, "content": content}}


ANY_OBJECT = _body({"type": "object"})
"""Of a body whose fields are told by a route of their own."""


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with its definitions where they are used; none refers to itself."""
    definitions = schema.pop("$defs", {})

    def inline(value: Any) -> Any:
        if isinstance(value, list):
            return [inline(item) for item in value]
        if not isinstance(value, dict):
            return value
        if "$ref" in value:
            return inline(definitions[value["$ref"].rpartition("/")[2]])
        return {key: inline(item) for key, item in value.items()}

    return inline(schema)
