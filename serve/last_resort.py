"""The last resort around all routes: safe headers on every response, and no traceback in any"""

from __future__ import annotations

import logging
import secrets

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve.errors import ApiError, failed

SAFE_HEADERS = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
)
"""On every response. Answers are somebody's conversation: no cache between may keep them, no
other site may put them into its page."""
_OURS = frozenset(name for name, _ in SAFE_HEADERS) - {b"content-security-policy"}
"""What a route says of these does not count. Of two security policies a browser obeys both."""

_log = logging.getLogger(__name__)


async def refuse(error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request with an error in OpenAI's shape."""
    await JSONResponse(error.body(), error.status, error.headers)(scope, receive, send)


class LastResort:
    """The outermost middleware.

    What nobody caught is logged once, with an id that the client is told, and answered with 500.
    When the response has begun already it is cut, so that it can't be taken for a whole one.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            # There are none here, and a browser asks no leave before it opens one.
            await receive()
            await send({"type": "websocket.close", "code": 1003})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = unsent = False

        async def safely(message: Message) -> None:
            nonlocal begun, unsent
            if message["type"] == "http.response.start":
                begun = True
                kept = [pair for pair in message.get("headers", ()) if pair[0].lower() not in _OURS]
                message = {**message, "headers": [*kept, *SAFE_HEADERS]}
            try:
                await send(message)
            except Exception as error:
                # A body that is no HTTP: the server below has answered, and closes.
                _log.warning("a response could not be sent: %s", error)
                unsent = True
                raise

        try:
            await self._app(scope, receive, safely)
        except ApiError as error:
            if not begun:
                await refuse(error, scope, receive, safely)
        except Exception as error:
            if unsent:
                return
            id = secrets.token_hex(6)
            _log.error("failure %s: %s %s", id, scope["method"], scope["path"], exc_info=error)
            if not begun:
                told = failed(f"The server failed on this request; its log says how, under {id}.")
                await refuse(told, scope, receive, safely)
