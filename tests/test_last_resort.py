"""Goal: whatever a route does, a client gets a response in OpenAI's shape, with safe headers and
without a traceback; the log has the traceback once.

Method: a FastAPI application whose routes fail in every way, behind `serve.doors.hang`, on a real
socket. Canary: without the last resort the same failure answers in another shape.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.responses import JSONResponse, StreamingResponse
from sockets import served

from serve.doors import hang, rules_of
from serve.errors import no_room
from serve.last_resort import SAFE_HEADERS, LastResort


def fails() -> None:
    raise RuntimeError("a secret of the inside")


def application() -> FastAPI:
    app = FastAPI()
    app.get("/fails")(fails)

    @app.get("/refused")
    def refused() -> None:
        raise no_room("Come again.", 7)

    @app.get("/cut")
    def cut() -> StreamingResponse:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"half"
            fails()

        return StreamingResponse(pieces())

    @app.get("/ok")
    def ok() -> JSONResponse:
        own = {
            "Cache-Control": "public",
            "X-Frame-Options": "ALLOW",
            "Content-Security-Policy": "x",
        }
        return JSONResponse({}, headers=own)

    return app


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    app = application()
    hang(app, rules_of("127.0.0.1"), lambda: 1_000)
    with served(app) as at:
        yield at


def test_a_failure_is_an_error_object_with_the_id_of_its_traceback(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    reply = httpx.get(f"{url}/fails")
    error = reply.json()["error"]
    assert (reply.status_code, error["type"], error["code"]) == (
        500,
        "server_error",
        "internal_error",
    )
    assert set(error) == {"message", "type", "param", "code"}
    assert "secret" not in reply.text and "Traceback" not in reply.text
    (record,) = [r for r in caplog.records if r.levelno >= logging.ERROR]
    assert record.exc_info is not None and str(record.exc_info[1]) == "a secret of the inside"
    assert record.args is not None and record.args[0] in error["message"]  # type: ignore[index]


def test_canary_without_it_a_failure_has_another_shape() -> None:
    with served(application()) as bare:
        reply = httpx.get(f"{bare}/fails")
        assert reply.status_code == 500 and reply.text == "Internal Server Error"


def test_a_refusal_that_nobody_took_keeps_its_status(url: str) -> None:
    reply = httpx.get(f"{url}/refused")
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "7")
    assert reply.json()["error"]["code"] == "no_room"


def test_a_response_that_has_begun_is_cut_and_the_next_is_served(url: str) -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.get(f"{url}/cut")
    assert httpx.get(f"{url}/ok").status_code == 200


@pytest.mark.parametrize("path", ["/ok", "/fails", "/refused", "/nowhere", "/openapi.json"])
def test_every_response_has_the_safe_headers(url: str, path: str) -> None:
    got = httpx.get(url + path).headers
    for name, value in SAFE_HEADERS:
        values = got.get_list(name.decode())
        assert values.count(value.decode()) == 1, name
        assert len(values) == 1 or name == b"content-security-policy"


def test_a_websocket_is_turned_away() -> None:
    told: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        told.append(message)

    async def reached(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("it came through")

    asyncio.run(LastResort(reached)({"type": "websocket"}, receive, send))
    assert told == [{"type": "websocket.close", "code": 1003}]


def test_a_response_that_nobody_takes_is_one_line_of_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        raise ValueError("the connection is closed")

    scope = {"type": "http", "method": "GET", "path": "/ok", "headers": [], "query_string": b""}
    asyncio.run(LastResort(JSONResponse({}))(scope, receive, send))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING and record.exc_info is None
