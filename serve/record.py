"""The recorder: a proxy that passes chat traffic through and writes it down, an exchange a line"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Mount
from starlette.types import Receive, Scope, Send

from engine.bad import BadInput
from serve.reply import Reply, parse_json
from serve.tape import FORMAT, VERSION, Tape, public_headers

MARK_HEADER = b"x-moorage-mark"
"""A reply header with which an upstream labels the exchange; its JSON value becomes `mark`."""

CONNECT_TIMEOUT_S = 10.0
SHUTDOWN_GRACE_S = 2

Headers = list[tuple[bytes, bytes]]

_HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer "
    b"transfer-encoding upgrade".split()
)
"""Headers between two neighbours only (RFC 9110, section 7.6.1)."""
_OWN = frozenset((b"host", b"accept-encoding", b"content-length", b"expect"))
"""Request headers the proxy writes itself: it has read the whole body and must read the reply."""


def passed_on(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Headers without the hop-by-hop ones and those that `Connection` names as such."""
    pairs = [(name.lower(), value) for name, value in headers]
    named = b",".join(value for name, value in pairs if name == b"connection").lower()
    dropped = _HOP_BY_HOP | {name.strip() for name in named.split(b",")}
    return [(name, value) for name, value in pairs if name not in dropped]


async def read_body(receive: Receive) -> bytes | None:
    """The whole request body; None when the client left while it sent it."""
    pieces = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        pieces.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(pieces)


async def hung_up(receive: Receive) -> None:
    """Returns when the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


class Recorder:
    """The ASGI application behind `recorder`: one call is one exchange.

    Requests go on with their method, path, query, headers and body; only `Host`, hop-by-hop
    headers and `Accept-Encoding` (set to `identity`, or the reply could not be read) differ.
    Replies come back byte for byte as they arrive.
    """

    def __init__(
        self, upstream: httpx.URL, tape: Tape, client: httpx.AsyncClient, clock: Callable[[], float]
    ) -> None:
        self._upstream, self._tape, self._client, self._clock = upstream, tape, client, clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1003})
            return
        start_s = self._clock()
        body = await read_body(receive)
        if body is None:
            return
        exchange: dict[str, Any] = {"format": FORMAT, "version": VERSION, "t": round(start_s, 4)}
        reply = Reply()
        pump = asyncio.ensure_future(self._pump(scope, body, send, reply, exchange))
        gone = asyncio.ensure_future(hung_up(receive))
        # Until the pump says that the whole reply went out, the exchange counts as cut.
        reply.aborted = True
        try:
            await asyncio.wait({pump, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if reply.aborted:
                pump.cancel()
            gone.cancel()
            reply.close()
            self._write(scope, body, reply, exchange)
            await asyncio.gather(pump, gone, return_exceptions=True)
        if not pump.cancelled():
            pump.result()

    async def _pump(
        self, scope: Scope, body: bytes, send: Send, reply: Reply, exchange: dict[str, Any]
    ) -> None:
        """Sends the request on and the reply back; sets `reply.aborted` False at its end."""
        head_sent = False
        try:
            response = await self._client.send(self._request(scope, body), stream=True)
            try:
                self._start(response, reply, exchange)
                head = {"type": "http.response.start", "status": response.status_code}
                await send({**head, "headers": passed_on(response.headers.raw)})
                head_sent = True
                async for piece in response.aiter_raw():
                    reply.feed(piece)
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            finally:
                # On a hang-up this closes the connection, and the upstream stops its work.
                await response.aclose()
            reply.aborted = False
            exchange["t_end"] = round(self._clock(), 4)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except httpx.RequestError as error:
            reply.aborted = False
            what = f"{type(error).__name__}: {error}".rstrip(": ")
            reply.error = {"message": what, "type": "upstream_error"}
            if not head_sent:
                reply.status = 502
                await self._refuse(scope, send, what)
            # Else: return without an end, and the server cuts the connection, so that the client
            # can't take the piece for a whole reply.

    def _start(self, response: httpx.Response, reply: Reply, exchange: dict[str, Any]) -> None:
        headers = response.headers
        encoding = headers.get("content-encoding", "")
        reply.start(response.status_code, headers.get("content-type", ""), encoding)
        mark = parse_json(dict(passed_on(headers.raw)).get(MARK_HEADER, b"null"))
        if mark is not None:
            exchange["mark"] = mark

    def _request(self, scope: Scope, body: bytes) -> httpx.Request:
        query = scope["query_string"]
        target = scope["raw_path"] + (b"?" + query if query else b"")
        url = self._upstream.copy_with(raw_path=self._upstream.raw_path.rstrip(b"/") + target)
        headers = [pair for pair in passed_on(scope["headers"]) if pair[0] not in _OWN]
        headers.append((b"accept-encoding", b"identity"))
        return httpx.Request(scope["method"], url, headers=headers, content=body)

    async def _refuse(self, scope: Scope, send: Send, what: str) -> None:
        message = f"the upstream {self._upstream} did not answer: {what}"
        error = {"message": message, "type": "upstream_error", "param": None, "code": "bad_gateway"}
        await JSONResponse({"error": error}, 502)(scope, _nothing, send)

    def _write(self, scope: Scope, body: bytes, reply: Reply, exchange: dict[str, Any]) -> None:
        parsed = parse_json(body)
        exchange.setdefault("t_end", round(self._clock(), 4))
        # The query is not recorded: it may hold a key.
        exchange |= {"method": scope["method"], "path": scope["path"]}
        exchange |= {"headers": public_headers(scope["headers"]), "body": parsed}
        if parsed is None and body:
            exchange["body_bytes"] = len(body)
        self._tape.append(exchange | {"reply": reply.as_json()})


async def _nothing() -> dict[str, Any]:
    return {"type": "http.disconnect"}


def upstream_url(text: str) -> httpx.URL:
    """The upstream's root. A trailing `/v1` is cut: it is in every path a client asks for.

    Raises BadInput for what is no http(s) address.
    """
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise BadInput(text, None, f"not an address: {error}") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise BadInput(text, None, "the upstream must be an http:// or https:// address")
    return url.copy_with(path=url.path.rstrip("/").removesuffix("/v1") or "/", query=None)


def recorder(upstream: str, out: Path, clock: Callable[[], float] = time.time) -> Starlette:
    """The recording proxy as an ASGI application; `clock` gives seconds since the epoch.

    Raises BadInput for a bad address or a file that can't be written.
    """
    url = upstream_url(upstream)
    try:
        tape = Tape(out)
    except OSError as error:
        raise BadInput(str(out), None, error.strerror or str(error)) from error
    # No read time-out: a long prefill is silent for minutes. No proxy from the environment: the
    # upstream is where it was said to be.
    client = httpx.AsyncClient(
        timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=32),
        trust_env=False,
    )

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with client:
            yield
        tape.close()

    return Starlette(routes=[Mount("/", Recorder(url, tape, client, clock))], lifespan=lifespan)


def record(upstream: str, out: Path, host: str = "127.0.0.1", port: int = 8001) -> None:
    """Serves the recording proxy until it is interrupted. Raises BadInput as `recorder` does."""
    config = uvicorn.Config(
        recorder(upstream, out),
        host=host,
        port=port,
        ws="none",
        access_log=False,
        log_level="warning",
        # The upstream's own headers go back, with nothing added to them.
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=SHUTDOWN_GRACE_S,
    )
    # uvicorn raises the interrupt again once everything is written and closed.
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run()
