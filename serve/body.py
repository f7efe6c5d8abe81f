"""A request's body: read up to a cap and no further, then as JSON or not at all"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve.errors import bad_request, too_large
from serve.last_resort import refuse

BODY_BYTES_MAX = 32 << 20
"""A long conversation is a megabyte or two; pictures come inside it."""
DEPTH_MAX = 200
"""How deep a body may be nested: tools' schemas are, a few dozen levels at the most. What reads
the parsed body may go down it by calling itself."""


class BodyCap:
    """Reads every request's body before the application is called, unless it is too long.

    A body that says so beforehand is not read at all; one that grows past the cap is let go at
    once, and what still comes of it falls to the floor in the protocol below. A client that leaves
    in the middle of its body has asked nothing.
    """

    def __init__(self, app: ASGIApp, limit_bytes: Callable[[], int] | None = None) -> None:
        """`limit_bytes` is asked at every request."""
        self._app, self._limit_bytes = app, limit_bytes or (lambda: BODY_BYTES_MAX)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = self._limit_bytes()
        said = dict(scope["headers"]).get(b"content-length", b"")
        # So many digits are no length that anybody counts to.
        if len(said) > 18 or (said.isdigit() and int(said) > limit):
            await refuse(too_large(limit), scope, receive, send)
            return
        pieces: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            piece = message.get("body", b"")
            size += len(piece)
            if size > limit:
                pieces.clear()
                await refuse(too_large(limit), scope, receive, send)
                return
            pieces.append(piece)
            if not message.get("more_body", False):
                break
        body: list[Message] = [{"type": "http.request", "body": b"".join(pieces)}]
        pieces.clear()

        async def again() -> Message:
            return body.pop() if body else await receive()

        await self._app(scope, again, send)


def read_json(body: bytes) -> object:
    """The JSON value of a body. Raises ApiError (400) that says where it stops being one."""
    try:
        # A mark in front of UTF-8 is no part of JSON, and some tools can't help writing it.
        text = body.removeprefix(b"\xef\xbb\xbf").decode()
    except UnicodeDecodeError as error:
        raise bad_request(f"The body is not valid UTF-8: byte {error.start}.") from None
    if not text.strip():
        raise bad_request("The body is empty; a JSON object is wanted.")
    try:
        value: object = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise bad_request(f"The body is not valid JSON: {error.msg}, {where}.") from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:  # a whole number of thousands of digits, or one of the below
        raise bad_request(f"The body is not valid JSON: {error}.") from None
    _shallow(value)
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:20]} is too large a number")
    return number


def _shallow(value: object) -> None:
    """Raises ApiError for what is nested too deep; level by level, without calling itself."""
    level = [value]
    for _ in range(DEPTH_MAX + 1):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise _too_deep()


def _too_deep() -> Exception:
    return bad_request(f"The body is nested too deep: more than {DEPTH_MAX} levels.")
