"""Goal: no body hurts: what is too long is refused without being held, what is no JSON says where.

Method: `serve.body`'s cap behind real sockets, with bodies whose length is told, not told, wrong,
or that never come; the memory of 50 MB bodies is counted by tracemalloc. `read_json` is held to
Python's own reader on random JSON, and to 400 on everything else, random bytes included.
"""

from __future__ import annotations

import json
import socket
import tracemalloc
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sockets import served, until

from serve.body import DEPTH_MAX, BodyCap, read_json
from serve.errors import ApiError

CAP = 100_000
BIG = 50_000_000


class Echo:
    """Answers with the length of the body; notes what it was called with."""

    def __init__(self) -> None:
        self.called: list[int] = []
        self.gone = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        assert message["type"] == "http.request" and not message.get("more_body", False)
        self.called.append(len(message["body"]))
        head = [(b"content-type", b"text/plain")]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": str(len(message["body"])).encode()})
        assert (await receive())["type"] == "http.disconnect"
        self.gone += 1


@pytest.fixture(scope="module")
def echo() -> Echo:
    return Echo()


@pytest.fixture(scope="module")
def url(echo: Echo) -> Iterator[str]:
    with served(BodyCap(echo, lambda: CAP), lifespan="off") as at:
        yield at


def chunks(size: int) -> Iterator[bytes]:
    """A body whose length is not told."""
    for start in range(0, size, 65_536):
        yield b"x" * min(65_536, size - start)


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize(("size", "fits"), [(0, True), (CAP, True), (CAP + 1, False)])
def test_the_cap_is_the_last_length_that_is_read(
    url: str, echo: Echo, told: bool, size: int, fits: bool
) -> None:
    before = len(echo.called)
    with httpx.Client() as client:
        reply = client.post(url, content=b"x" * size if told else chunks(size))
        if fits:
            assert (reply.status_code, reply.text) == (200, str(size))
        else:
            error = reply.json()["error"]
            assert (reply.status_code, error["code"]) == (413, "request_too_large")
            assert str(CAP) in error["message"]
        assert len(echo.called) - before == fits
        assert client.post(url, content=b"next").text == "4"


@pytest.mark.parametrize("told", [True, False])
def test_fifty_megabytes_are_never_held(url: str, told: bool) -> None:
    headers = {"content-length": str(BIG)} if told else {}
    tracemalloc.start()
    try:
        with httpx.Client(timeout=30) as client:
            reply = client.post(url, content=chunks(BIG), headers=headers)
            assert reply.status_code == 413
            peak = tracemalloc.get_traced_memory()[1]
            assert client.post(url, content=b"next").text == "4"
    finally:
        tracemalloc.stop()
    assert peak < 8_000_000, "somewhere it was gathered"


def test_canary_a_cap_that_is_never_reached_holds_all_of_it(echo: Echo) -> None:
    with served(BodyCap(echo, lambda: 2 * BIG), lifespan="off") as at:
        tracemalloc.start()
        try:
            assert httpx.post(at, content=chunks(BIG), timeout=30).text == str(BIG)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak > BIG


def raw(url: str, request: bytes) -> bytes:
    """What comes back for bytes, until the server closes."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as sock:
        sock.sendall(request)
        got = b""
        while piece := sock.recv(65_536):
            got += piece
            if b"request_too_large" in got:
                break
    return got


@pytest.mark.parametrize("length", [b"50000000", b"9" * 30])
def test_a_length_that_is_told_is_refused_before_anything_comes(url: str, length: bytes) -> None:
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + length + b"\r\n\r\n"
    assert raw(url, head).startswith((b"HTTP/1.1 413", b"HTTP/1.1 400"))


def test_who_leaves_in_the_middle_of_his_body_has_asked_nothing(url: str, echo: Echo) -> None:
    before = len(echo.called)
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as sock:
        sock.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nhalf")
    assert httpx.post(url, content=b"next").text == "4"
    until(lambda: echo.gone == len(echo.called))
    assert echo.called[before:] == [4]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_json_is_read_as_python_reads_it(value: object) -> None:
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False)):
        body = text.encode("utf-8", "surrogatepass")
        try:
            body.decode()
        except UnicodeDecodeError:
            continue
        assert read_json(body) == json.loads(text)


@given(st.binary(max_size=60) | st.text('[]{}",:0e9-NaIfity', max_size=30).map(str.encode))
def test_whatever_comes_it_is_read_or_refused(body: bytes) -> None:
    try:
        read_json(body)
    except ApiError as error:
        assert error.status == 400 and error.body()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b'{"a": 1', "line 1, column"),
        (b'{"a":\n1,}', "line 2, column"),
        (b'{"a": "\xff"}', "UTF-8: byte 7"),
        (b'{"a": "\xed\xa0\xbd"}', "UTF-8: byte 7"),
        (b"[NaN]", "NaN"),
        (b"[-Infinity]", "Infinity"),
        (b"[1e999]", "1e999 is too large"),
        (b"[" + b"9" * 5_000 + b"]", "4300 digits"),
        (b"[" * 100_000, "too deep"),
        (b"[" * 100_000 + b"]" * 100_000, "too deep"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "too deep"),
        (b"[" * (DEPTH_MAX + 2) + b"]" * (DEPTH_MAX + 2), "too deep"),
    ],
    ids=range(14),
)
def test_what_is_no_json_says_why(body: bytes, says: str) -> None:
    with pytest.raises(ApiError, match=says) as refused:
        read_json(body)
    assert refused.value.status == 400 and "\n" not in refused.value.message


def test_what_is_just_not_too_deep_is_read() -> None:
    assert read_json(b"[" * DEPTH_MAX + b"]" * DEPTH_MAX)
    assert read_json(b'\xef\xbb\xbf{"a": "\\ud83d"}') == {"a": "\ud83d"}
