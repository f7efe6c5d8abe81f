"""Errors as OpenAI's clients read them: a status and one JSON object

A request that can't be served is an `ApiError`; whoever raises it says what to change. `code` is
what programs ask for, `param` the field at fault.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

INVALID = "invalid_request_error"
MESSAGE_CHARACTERS_MAX = 2_000
"""A message quotes what was sent; more of it helps nobody."""


class ApiError(Exception):
    """A request that is refused, or failed."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = INVALID,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        assert 400 <= status <= 599
        # A lone surrogate, which JSON can carry into a request, has no UTF-8 to go out in.
        whole = message.encode("utf-8", "replace").decode()
        self.message = whole[:MESSAGE_CHARACTERS_MAX]
        super().__init__(self.message)
        self.status = status
        self.type = type
        self.code = code
        self.param = param
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The JSON object of the answer; also the frame that ends a stream which failed."""
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """What was sent makes no sense: 400."""
    return ApiError(400, message, code=code, param=param)


def unsupported(message: str, param: str) -> ApiError:
    """It makes sense, and is not done here: 400."""
    return ApiError(400, message, code="unsupported_parameter", param=param)


def context_length_exceeded(prompt: int, window: int, param: str = "messages") -> ApiError:
    """The prompt has no room in the window; clients compact when they read this code."""
    return ApiError(
        400,
        f"This model's maximum context length is {window} tokens. However, your {param} "
        f"resulted in {prompt} tokens, which leaves no room for an answer. Please shorten the "
        f"{param}.",
        code="context_length_exceeded",
        param=param,
    )


def unauthorized(
    message: str = "Give the server's token: Authorization: Bearer TOKEN.",
) -> ApiError:
    """No token, or a wrong one: 401."""
    return ApiError(
        401, message, code="invalid_api_key", headers={"WWW-Authenticate": 'Bearer realm="moorage"'}
    )


def forbidden(message: str) -> ApiError:
    """Asked from where it must not be asked: 403."""
    return ApiError(403, message, type="permission_error", code="forbidden")


def not_found(message: str, code: str | None = None, param: str | None = None) -> ApiError:
    """No such route, model or thing: 404."""
    return ApiError(404, message, code=code, param=param)


def model_not_found(model: str) -> ApiError:
    """The model that was asked for is not served: 404."""
    return not_found(f"The model {shown(model)} does not exist.", "model_not_found", "model")


def not_allowed(method: str, path: str) -> ApiError:
    """The route has no such method: 405."""
    return ApiError(405, f"{method} is not allowed on {path}.", code="method_not_allowed")


def busy(message: str, retry_after_s: float = 1.0) -> ApiError:
    """The engine is at work, and this does not wait for it: 409."""
    return ApiError(
        409, message, type="conflict_error", code="busy", headers=retry_after(retry_after_s)
    )


def too_large(limit_bytes: int) -> ApiError:
    """The body is longer than one may be: 413."""
    return ApiError(
        413,
        f"The body is longer than {limit_bytes} bytes, the most that is read.",
        code="request_too_large",
    )


def no_room(message: str, retry_after_s: float) -> ApiError:
    """There is no memory for it now: 503, and when to come again."""
    return ApiError(
        503,
        message,
        type="server_error",
        code="no_room",
        headers=retry_after(retry_after_s),
    )


def stopping(retry_after_s: float = 5.0) -> ApiError:
    """The server is about to stop, or not ready yet: 503."""
    return ApiError(
        503,
        "The server is stopping.",
        type="server_error",
        code="stopping",
        headers=retry_after(retry_after_s),
    )


def failed(message: str = "The server failed on this request; its log says how.") -> ApiError:
    """Our fault: 500."""
    return ApiError(500, message, type="server_error", code="internal_error")


def retry_after(seconds: float) -> dict[str, str]:
    """When to come again, in whole seconds, at least one."""
    return {"Retry-After": str(max(1, math.ceil(seconds)))}


def shown(value: Any, characters: int = 80) -> str:
    """A value as a message quotes it: short, on one line."""
    # A huge whole number has no decimal text that Python will make.
    if isinstance(value, int) and value.bit_length() > 256:
        return "a huge number"
    try:
        text = repr(value)
    except RecursionError:
        return "something nested too deep"
    return text if len(text) <= characters else text[: characters - 3] + "..."
