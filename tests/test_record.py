"""Goal: the recording proxy changes nothing that passes, and writes down all of it.

Method: real servers on loopback sockets. The upstream is a small ASGI application that sends what a
test tells it to and notes what it got; clients are httpx or bare sockets. The lines in the file are
compared with what was sent.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from sockets import WAIT_S, served, until

from engine.bad import BadInput
from serve import tape as tape_module
from serve.record import passed_on, recorder, upstream_url

SSE = [(b"content-type", b"text/event-stream")]
JSON = [(b"content-type", b"application/json")]


@dataclass
class Upstream:
    """Sends `head` and `pieces`, then ends, hangs or breaks as `then` says; notes its requests."""

    head: list[tuple[bytes, bytes]] = field(default_factory=lambda: list(SSE))
    status: int = 200
    pieces: list[bytes] = field(default_factory=list)
    then: str = "end"
    before_head_s: float = 0.0
    seen: list[dict[str, Any]] = field(default_factory=list)
    left: threading.Event = field(default_factory=threading.Event)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message["body"]
            if not message["more_body"]:
                break
        self.seen.append({**scope, "body": body})
        watch = asyncio.ensure_future(self._watch(receive))
        for _ in range(int(self.before_head_s / 0.01)):
            await asyncio.sleep(0.01)
            if self.left.is_set():
                return
        await send({"type": "http.response.start", "status": self.status, "headers": self.head})
        for piece in self.pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            await asyncio.sleep(0.002)
        if self.then == "hang":
            await watch
        elif self.then == "end":
            watch.cancel()
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _watch(self, receive: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.left.set()


def lines(path: Path, count: int) -> list[dict[str, Any]]:
    """The recorded exchanges, once there are `count`: a line is written after the last byte."""
    until(lambda: path.read_bytes().count(b"\n") >= count)
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(found) == count
    return found


@contextmanager
def proxied(upstream: Upstream, out: Path) -> Iterator[str]:
    with served(upstream, "off") as origin, served(recorder(origin + "/v1", out)) as proxy:
        yield proxy


def sse(*frames: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(frame).encode() + b"\n\n" for frame in frames)


def delta(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": None}]}


BODY = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "é 漢 🙂"}]}


def test_a_stream_passes_byte_for_byte_and_is_recorded(tmp_path: Path) -> None:
    stream = b": hello\r\n\r\n" + sse(delta(reasoning_content="Hm"), delta(content="été 🙂"))
    stream += b"data: {odd\n\n" + sse({"choices": [], "usage": {"prompt_tokens": 9}})
    stream += b"data: [DONE]\n\n"
    upstream = Upstream(pieces=[stream[i : i + 7] for i in range(0, len(stream), 7)])
    out = tmp_path / "raw.jsonl"
    before = time.time()
    with proxied(upstream, out) as proxy:
        reply = httpx.post(f"{proxy}/v1/chat/completions?key=k", json=BODY, headers={"X-A": "1"})
        (line,) = lines(out, 1)
    assert reply.content == stream
    assert reply.headers["content-type"] == "text/event-stream"
    assert line["format"] == "moorage.raw" and line["version"] == 1
    assert before - 0.01 <= line["t"] < line["t_end"] <= time.time() + 0.01
    assert (line["method"], line["path"], line["body"]) == ("POST", "/v1/chat/completions", BODY)
    assert ["x-a", "1"] in line["headers"]
    assert line["reply"] == {
        "status": 200,
        "parts": [["reasoning", "Hm"], ["content", "été 🙂"]],
        "finish_reason": None,
        "usage": {"prompt_tokens": 9},
        "aborted": False,
        "frames": 5,
        "unreadable": 1,
    }
    assert "mark" not in line
    assert stat.S_IMODE(out.stat().st_mode) == 0o600


def test_the_upstream_gets_the_request_as_it_was(tmp_path: Path) -> None:
    upstream = Upstream(head=list(JSON), pieces=[b"{}"])
    headers = {
        "Authorization": "Bearer secret-1",
        "X-Api-Key": "secret-2",
        "Cookie": "secret-3",
        "x-session-id": "ses_1",
        "Connection": "keep-alive, x-only-here",
        "X-Only-Here": "1",
        "Accept-Encoding": "gzip, br",
    }
    content = b'{ "model" : "m",\n "x": 10.0 }'
    with proxied(upstream, tmp_path / "raw.jsonl") as proxy:
        httpx.request("PUT", f"{proxy}/a%2Fb//c?x=%20&y", content=content, headers=headers)
        recorded = lines(tmp_path / "raw.jsonl", 1)
    (seen,) = upstream.seen
    assert (seen["method"], seen["raw_path"]) == ("PUT", b"/a%2Fb//c")
    assert (seen["query_string"], seen["body"]) == (b"x=%20&y", content)
    got = dict(seen["headers"])
    assert got[b"authorization"] == b"Bearer secret-1" and got[b"x-api-key"] == b"secret-2"
    assert got[b"cookie"] == b"secret-3" and got[b"x-session-id"] == b"ses_1"
    assert got[b"accept-encoding"] == b"identity" and got[b"content-length"] == b"%d" % len(content)
    assert b"x-only-here" not in got and b"user-agent" in got
    assert got[b"host"].startswith(b"127.0.0.1:")
    text = json.dumps(recorded)
    assert "secret" not in text and "ses_1" in text and "gzip, br" in text


def test_pieces_arrive_as_they_are_sent(tmp_path: Path) -> None:
    upstream = Upstream(pieces=[sse(delta(content="first"))], then="hang")
    with (
        proxied(upstream, tmp_path / "raw.jsonl") as proxy,
        httpx.stream("POST", f"{proxy}/v1/chat/completions", json=BODY) as reply,
    ):
        # The upstream hangs here: a proxy that gathers would give nothing.
        assert next(reply.iter_raw()) == upstream.pieces[0]


@pytest.mark.parametrize("pieces", [[], [sse(delta(reasoning_content="a"), delta(content="b"))]])
def test_a_client_that_leaves_closes_the_upstream_at_once(
    tmp_path: Path, pieces: list[bytes]
) -> None:
    upstream = Upstream(pieces=pieces, then="hang")
    with proxied(upstream, tmp_path / "raw.jsonl") as proxy:
        with httpx.stream("POST", f"{proxy}/v1/chat/completions", json=BODY) as reply:
            # Kept: a generator that is collected closes the connection.
            chunks = reply.iter_raw()
            if pieces:
                next(chunks)
            assert not upstream.left.is_set()
            left_s = time.monotonic()
        assert upstream.left.wait(WAIT_S)
        assert time.monotonic() - left_s < 1.0
        (line,) = lines(tmp_path / "raw.jsonl", 1)
    assert line["reply"]["aborted"] is True and line["reply"]["status"] == 200
    assert line["reply"]["parts"] == ([["reasoning", "a"], ["content", "b"]] if pieces else [])
    assert line["reply"]["frames"] == 2 * len(pieces)


def test_a_client_that_leaves_before_the_head_is_recorded(tmp_path: Path) -> None:
    upstream = Upstream(before_head_s=WAIT_S)
    with proxied(upstream, tmp_path / "raw.jsonl") as proxy:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{proxy}/v1/chat/completions", json=BODY, timeout=0.2)
        (line,) = lines(tmp_path / "raw.jsonl", 1)
        assert upstream.left.wait(WAIT_S)
    assert line["reply"]["aborted"] is True and line["reply"]["status"] is None
    assert line["body"] == BODY


def test_an_interrupt_ends_the_recorder_and_keeps_what_is_open(tmp_path: Path) -> None:
    upstream = Upstream(pieces=[sse(delta(content="so far"))], then="hang")
    out, code = (
        tmp_path / "raw.jsonl",
        (
            "import sys; from pathlib import Path; from serve.record import record;"
            "record(sys.argv[1], Path(sys.argv[2]), port=int(sys.argv[3]))"
        ),
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with served(upstream, "off") as origin:
        command = [sys.executable, "-c", code, origin, str(out), str(port)]
        with subprocess.Popen(command) as recording:
            until(lambda: connects(port))
            url = f"http://127.0.0.1:{port}/v1/chat/completions"
            with httpx.stream("POST", url, json=BODY) as reply:
                next(reply.iter_raw())
                recording.send_signal(signal.SIGINT)
                assert recording.wait(WAIT_S) == 0
    (line,) = lines(out, 1)
    assert line["reply"]["aborted"] is True
    assert line["reply"]["parts"] == [["content", "so far"]]


def connects(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_no_upstream_gives_502_in_the_usual_shape(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        origin = f"http://127.0.0.1:{free.getsockname()[1]}"
    out = tmp_path / "raw.jsonl"
    with served(recorder(origin, out)) as proxy:
        reply = httpx.post(f"{proxy}/v1/chat/completions", json=BODY)
        (line,) = lines(out, 1)
    error = reply.json()["error"]
    assert reply.status_code == 502 and set(error) == {"message", "type", "param", "code"}
    assert origin in error["message"] and error["type"] == "upstream_error"
    assert (line["reply"]["status"], line["reply"]["aborted"]) == (502, False)
    assert line["reply"]["error"]["message"].startswith("ConnectError")


@pytest.mark.parametrize("head", [SSE, [*SSE, (b"content-length", b"100000")]])
def test_an_upstream_that_breaks_off_is_not_taken_for_one_that_ended(
    tmp_path: Path, head: list[tuple[bytes, bytes]]
) -> None:
    upstream = Upstream(head=head, pieces=[sse(delta(content="half"))], then="break")
    with proxied(upstream, tmp_path / "raw.jsonl") as proxy:
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.post(f"{proxy}/v1/chat/completions", json=BODY)
        (line,) = lines(tmp_path / "raw.jsonl", 1)
    assert line["reply"]["parts"] == [["content", "half"]]
    assert line["reply"]["aborted"] is False and line["reply"]["status"] == 200
    assert line["reply"]["error"]["type"] == "upstream_error"


def test_replies_that_are_not_streamed(tmp_path: Path) -> None:
    calls = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    message = {"content": None, "reasoning_content": "why", "tool_calls": calls}
    answer = {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    content = json.dumps(answer, indent=1).encode()
    head = [*JSON, (b"content-length", str(len(content)).encode()), (b"x-request-id", b"r1")]
    upstream = Upstream(head=head, pieces=[content[:9], content[9:]])
    with proxied(upstream, tmp_path / "raw.jsonl") as proxy:
        reply = httpx.post(f"{proxy}/v1/chat/completions", json={"stream": False})
        (line,) = lines(tmp_path / "raw.jsonl", 1)
    assert reply.content == content and reply.headers["x-request-id"] == "r1"
    assert set(reply.headers) == {"content-type", "content-length", "x-request-id"}
    assert line["reply"]["parts"] == [["reasoning", "why"], ["tool", "c1", "f", "{}"]]
    assert (line["reply"]["finish_reason"], line["reply"]["frames"]) == ("tool_calls", 0)


def test_half_a_surrogate_pair_in_a_body_is_recorded(tmp_path: Path) -> None:
    upstream = Upstream()
    with proxied(upstream, tmp_path / "raw.jsonl") as proxy:
        httpx.post(f"{proxy}/v1/chat/completions", content=b'{"cut": "\\ud83d"}')
        assert lines(tmp_path / "raw.jsonl", 1)[0]["body"] == {"cut": "\ud83d"}


def test_models_and_other_paths_pass(tmp_path: Path) -> None:
    upstream = Upstream(head=list(JSON), pieces=[b'{"object": "list", "data": []}'])
    with proxied(upstream, tmp_path / "raw.jsonl") as proxy, httpx.Client(base_url=proxy) as client:
        assert client.get("/v1/models").json() == {"object": "list", "data": []}
        upstream.status, upstream.head, upstream.pieces = 404, [(b"x", b"y")], [b"nothing here"]
        assert client.post("/upload", content=b"\x00\xff not json").status_code == 404
        upstream.status, upstream.pieces = 204, []
        assert client.delete("/v1/x").status_code == 204
        upstream.status, upstream.head = 200, [(b"content-length", b"7")]
        assert client.head("/v1/x").headers["content-length"] == "7"
        models, upload, deleted, head = lines(tmp_path / "raw.jsonl", 4)
    assert (models["method"], models["path"], models["body"]) == ("GET", "/v1/models", None)
    assert models["reply"]["parts"] == [] and "body_bytes" not in models
    assert (upload["body"], upload["body_bytes"], upload["reply"]["status"]) == (None, 11, 404)
    assert (deleted["reply"]["status"], head["method"]) == (204, "HEAD")
    assert b"content-length" not in dict(upstream.seen[0]["headers"])


def test_a_mark_is_taken_from_the_reply(tmp_path: Path) -> None:
    upstream = Upstream(head=[*SSE, (b"X-Moorage-Mark", b'{"label": "a.1", "think_s": 12.5}')])
    with proxied(upstream, tmp_path / "raw.jsonl") as proxy:
        httpx.post(f"{proxy}/v1/chat/completions", json=BODY)
        assert lines(tmp_path / "raw.jsonl", 1)[0]["mark"] == {"label": "a.1", "think_s": 12.5}


def test_many_at_once_leave_whole_lines(tmp_path: Path) -> None:
    upstream = Upstream(pieces=[sse(delta(content="x" * 3000)) for _ in range(5)])
    out = tmp_path / "raw.jsonl"

    async def ask(proxy: str) -> None:
        async with httpx.AsyncClient(timeout=WAIT_S) as client:
            bodies = [{"n": i, "pad": "y" * 50_000} for i in range(24)]
            await asyncio.gather(
                *(client.post(f"{proxy}/v1/chat/completions", json=body) for body in bodies)
            )

    with proxied(upstream, out) as proxy:
        asyncio.run(ask(proxy))
        recorded = lines(out, 24)
    assert sorted(line["body"]["n"] for line in recorded) == list(range(24))
    assert {len(line["reply"]["parts"][0][1]) for line in recorded} == {15_000}


def test_a_disk_that_takes_no_line_does_not_stop_the_traffic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    upstream = Upstream(pieces=[sse(delta(content="still here"))])
    out = tmp_path / "raw.jsonl"
    real = os.write

    def full(fd: int, data: bytes) -> int:
        if b"moorage.raw" in data and b'"n":1' in data:
            raise OSError(28, "No space left on device")
        return real(fd, data)

    with proxied(upstream, out) as proxy:
        monkeypatch.setattr(tape_module.os, "write", full)
        for n in range(3):
            reply = httpx.post(f"{proxy}/v1/chat/completions", json={"n": n})
            assert reply.content == upstream.pieces[0]
        assert [line["body"]["n"] for line in lines(out, 2)] == [0, 2]
    assert "not recorded" in caplog.text


@pytest.mark.parametrize(
    ("given", "root"),
    [
        ("http://h:1", "http://h:1/"),
        ("http://h:1/v1", "http://h:1/"),
        ("https://h/base/v1/", "https://h/base"),
        ("http://h/v10?x=1", "http://h/v10"),
    ],
)
def test_upstream_addresses(given: str, root: str) -> None:
    assert str(upstream_url(given)) == root


@pytest.mark.parametrize("given", ["localhost:8000", "ftp://h", "http://", "", "http://h:port"])
def test_what_is_no_address_is_refused(given: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput):
        recorder(given, tmp_path / "raw.jsonl")
    assert not (tmp_path / "raw.jsonl").exists()


def test_a_file_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No such file"):
        recorder("http://h", tmp_path / "nowhere" / "raw.jsonl")


def test_headers_of_one_hop_go_no_further() -> None:
    hops = [(b"Connection", b"close, X-Hop"), (b"x-hop", b"1"), (b"TE", b"a"), (b"X-End", b"b")]
    assert passed_on(hops) == [(b"x-end", b"b")]
