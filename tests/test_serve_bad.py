"""Goal: nothing that is sent hurts the server: 4xx in OpenAI's shape, and the next one is served.

Method: the real application on a real socket over the small random model (serve.app, serve.doors,
serve.body, serve.wire_chat behind it), sent every kind of bad request; after each, a greedy request
must get the tokens that it got at first, nothing is left waiting, and the log has no traceback. The
command's own bad inputs (serve.command) are one line and exit 2. Canary: a server whose checks are
taken out fails the same test.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from served import Served, house, serving

from moorage import main
from serve import service as service_module
from serve.script import Script

CHAT, TEXT, PEEK = "/v1/chat/completions", "/v1/completions", "/v1/cache/peek"
PREWARM, SETTINGS = "/v1/cache/prewarm", "/v1/settings"
TOKEN = "right"
HELLO = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 6, "temperature": 0}
KEEP = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serving(token=TOKEN) as under_way:
        yield under_way


@pytest.fixture(scope="module")
def first(server: Served) -> str:
    """What the server says to HELLO before anything bad was sent."""
    return said(server)


def said(server: Served) -> str:
    with server.client() as client:
        answer = client.post(CHAT, json=HELLO)
    assert answer.status_code == 200, answer.text
    message = answer.json()["choices"][0]["message"]
    return json.dumps([message["content"], message.get("reasoning_content")])


def sent(server: Served, method: str, path: str, **how: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {TOKEN}"} | how.pop("headers", {})
    with server.client() as client:
        return client.request(method, path, headers=headers, **how)


def refused(answer: httpx.Response) -> dict[str, Any]:
    """The error of a response in OpenAI's shape."""
    assert 400 <= answer.status_code < 500, (answer.status_code, answer.text[:300])
    assert answer.headers["content-type"].startswith("application/json")
    error = answer.json()["error"]
    assert set(answer.json()) == {"error"}
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str) and error["message"] and "\n" not in error["message"]
    assert "Traceback" not in answer.text and len(answer.text) < 5_000
    return error


def goes_on(server: Served, first: str, caplog: pytest.LogCaptureFixture) -> None:
    """The next request is served as if nothing had been."""
    assert said(server) == first
    assert (server.service.desk.active, server.service.desk.waiting) == (0, 0)
    # The server below has a line of its own for what is no HTTP.
    ours = [r for r in caplog.records if r.exc_info or not r.name.startswith("uvicorn")]
    assert not [r for r in ours if r.exc_info or r.levelno >= logging.ERROR]


def chat(*messages: Any, **body: Any) -> dict[str, Any]:
    return {"messages": list(messages), "max_tokens": 4} | body


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


HUGE = "9" * 4_000
NO_JSON: list[bytes] = [
    b"",
    b"{",
    b"nonsense",
    b'{"messages": [{"role": "user", "content": "a"}],}',
    b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}',
    b'{"messages": [{"role": "user", "content": "\xed\xa0\x80"}]}',
    b"\x00" * 100,
    b"[" * 100_000,
    b'{"messages":' * 100_000,
    b"[" * 100_000 + b"]" * 100_000,
    b'{"messages": [{"role": "user", "content": ' + b"[" * 900 + b"]" * 900 + b"}]}",
    b'{"temperature": NaN}',
    b'{"temperature": 1e999}',
    b'{"max_tokens": ' + b"9" * 5_000 + b"}",
    b"null",
    b"7",
    b'"text"',
    b"[]",
    b"{}",
]
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
ASSISTANT = {"role": "assistant", "content": "", "tool_calls": [CALL]}
BAD_CHATS: list[Any] = [
    chat(),
    {"messages": "hello"},
    {"messages": None},
    {"messages": {}},
    chat("hello"),
    chat(None),
    chat({}),
    chat({"content": "no role"}),
    chat({"role": "robot", "content": "x"}),
    chat({"role": 7, "content": "x"}),
    chat({"role": ["user"], "content": "x"}),
    chat(user(7)),
    chat(user({"text": "x"})),
    chat(user([7])),
    chat(user([{"type": "smell", "smell": "x"}])),
    chat(user([{"type": "text"}])),
    chat(user([{"type": "image_url"}])),
    chat(user([{"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x.png"}}])),
    chat(user([{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}])),
    chat(user([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}])),
    chat(user("x"), {"role": "tool", "content": "a result", "tool_call_id": "c1"}),
    chat({"role": "tool", "content": "a result", "tool_call_id": "c1"}),
    chat(user("x"), ASSISTANT, {"role": "tool", "content": "r", "tool_call_id": "c2"}),
    chat(user("x"), {"role": "assistant", "content": "", "tool_calls": [{"id": "c"}]}),
    chat(user("x"), {"role": "assistant", "content": "", "tool_calls": "f"}),
    chat(user("x"), tools="f"),
    chat(user("x"), tools=[7]),
    chat(user("x"), tools=[{"type": "function"}]),
    chat(user("x"), tool_choice="required"),
    chat(user("x"), tool_choice={"type": "function", "function": {"name": "nobody"}}),
    chat(user("x"), max_tokens=0),
    chat(user("x"), max_tokens=-1),
    chat(user("x"), max_tokens=10**400),
    chat(user("x"), max_tokens=1.5),
    chat(user("x"), max_completion_tokens="many"),
    chat(user("x"), temperature=-1),
    chat(user("x"), temperature=1e300),
    chat(user("x"), top_p=2),
    chat(user("x"), top_p=-(10**30)),
    chat(user("x"), n=0),
    chat(user("x"), n=10**9),
    chat(user("x"), seed="x"),
    chat(user("x"), stop=[7]),
    chat(user("x"), stop=["a"] * 10_000),
    chat(user("x"), logprobs=True, top_logprobs=10**6),
    chat(user("x"), frequency_penalty=99),
    chat(user("x"), logit_bias={"x": 1}),
    chat(user("x"), logit_bias={"999999999": 1}),
    chat(user("x"), stream="yes please"),
    chat(user("x"), stream_options=7),
    chat(user("x"), response_format={"type": "poem"}),
    chat(user("x"), reasoning_effort="infinite"),
    chat(user("x"), model=7),
]


@pytest.mark.parametrize(
    ("path", "number"),
    [
        (path, number)
        for path in (CHAT, TEXT, PEEK, PREWARM, SETTINGS)
        for number, body in enumerate(NO_JSON)
        if path != SETTINGS or body != b"{}"  # a change of nothing is one
    ],
)
def test_what_is_no_request(
    server: Served, first: str, caplog: pytest.LogCaptureFixture, path: str, number: int
) -> None:
    method = "PUT" if path == SETTINGS else "POST"
    headers = {"content-type": "application/json"}
    answer = sent(server, method, path, content=NO_JSON[number], headers=headers)
    assert answer.status_code == 400
    assert refused(answer)["type"] == "invalid_request_error"
    goes_on(server, first, caplog)


@pytest.mark.parametrize("number", range(len(BAD_CHATS)))
def test_requests_that_make_no_sense(
    server: Served, first: str, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    for path in (CHAT, PEEK):
        body = json.dumps(BAD_CHATS[number]).encode()
        answer = sent(server, "POST", path, content=body)
        assert answer.status_code == 400, (BAD_CHATS[number], answer.text[:200])
        refused(answer)
    goes_on(server, first, caplog)


def test_another_model_is_not_found(
    server: Served, first: str, caplog: pytest.LogCaptureFixture
) -> None:
    answer = sent(server, "POST", CHAT, json=chat(user("x"), model="gpt-9"))
    assert answer.status_code == 404 and refused(answer)["code"] == "model_not_found"
    goes_on(server, first, caplog)


def test_a_prompt_over_the_window(
    server: Served, first: str, caplog: pytest.LogCaptureFixture
) -> None:
    for stream in (False, True):
        long = chat(user("word " * 9_000), stream=stream)
        assert refused(sent(server, "POST", CHAT, json=long))["code"] == "context_length_exceeded"
    goes_on(server, first, caplog)


@pytest.mark.parametrize("path", [CHAT, TEXT, SETTINGS, "/v1/cache/clear", "/nowhere"])
def test_a_body_of_fifty_megabytes(
    server: Served, first: str, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    def body() -> Iterator[bytes]:
        for _ in range(50):
            yield b"x" * 1_000_000

    told = {"content-length": "50000000"}
    for headers in ({}, told):
        method = "PUT" if path == SETTINGS else "POST"
        answer = sent(server, method, path, content=body(), headers=headers)
        assert answer.status_code == 413 and refused(answer)["code"] == "request_too_large"
    goes_on(server, first, caplog)


def test_half_a_surrogate_pair_is_text(server: Served) -> None:
    """JavaScript cuts texts in the middle of one, and clients send what it cut."""
    body = b'{"messages": [{"role": "user", "content": "cut \\ud83d"}], "max_tokens": 2}'
    answer = sent(server, "POST", CHAT, content=body)
    assert answer.status_code == 200, answer.text
    body = b'{"messages": [{"role": "\\ud83d", "content": "x"}]}'
    refused(sent(server, "POST", CHAT, content=body))


@pytest.mark.parametrize(
    ("method", "path", "wanted"),
    [
        ("GET", CHAT, 405),
        ("DELETE", "/v1/models", 405),
        ("GET", "/nowhere", 404),
        ("GET", "/v1/models/other", 404),
        ("GET", "/v1/models/" + "x" * 4_000, 404),
        ("GET", "/v1/%ff%fe", 404),
        ("GET", "/page/../../etc/passwd", 404),
        ("GET", "/page/%2e%2e/%2e%2e/etc/passwd", 404),
        ("POST", CHAT + "/", 404),
        ("POST", "/v1/cache/clear?tier=everything", 400),
    ],
)
def test_routes_that_are_none(
    server: Served,
    first: str,
    caplog: pytest.LogCaptureFixture,
    method: str,
    path: str,
    wanted: int,
) -> None:
    answer = sent(server, method, path)
    assert answer.status_code == wanted, answer.text
    refused(answer)
    goes_on(server, first, caplog)


def test_a_wrong_token_changes_nothing(
    server: Served, first: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = server.house.settings.as_json()
    for given in ("Bearer wrong", "Bearer", "Basic eDp3cm9uZw==", ""):
        for method, path in (("POST", "/v1/cache/clear"), ("PUT", SETTINGS), ("POST", PREWARM)):
            answer = sent(server, method, path, json={}, headers={"authorization": given})
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"].startswith("Bearer")
            assert refused(answer)["code"] == "invalid_api_key" and TOKEN not in answer.text
    assert server.house.settings.as_json() == before
    goes_on(server, first, caplog)


def test_a_page_of_another_site_and_a_rebound_name(
    server: Served, first: str, caplog: pytest.LogCaptureFixture
) -> None:
    for headers in ({"origin": "https://evil.example"}, {"host": "evil.example"}):
        for path in (CHAT, "/v1/cache/clear"):
            answer = sent(server, "POST", path, json=HELLO, headers=headers)
            assert answer.status_code == 403
            refused(answer)
    goes_on(server, first, caplog)


def test_what_is_no_http(server: Served, first: str, caplog: pytest.LogCaptureFixture) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    for junk in (
        b"\x16\x03\x01\x02\x00\x01",
        b"GET\r\n\r\n",
        b"POST " + CHAT.encode() + b" HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"POST "
        + CHAT.encode()
        + b" HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: " + b"y" * 200_000 + b"\r\n\r\n",
    ):
        with socket.create_connection((host, int(port)), timeout=10) as sock:
            sock.sendall(junk)
            try:
                got = sock.recv(65_536)
            except ConnectionResetError:
                got = b""
        assert not got or got.startswith(b"HTTP/1.1 4")
    goes_on(server, first, caplog)


def test_canary_a_check_that_is_taken_out_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(service_module, "read_json", json.loads)
    with serving() as server:
        answer = sent(server, "POST", CHAT, content=b"{")
        assert answer.status_code == 500
        with pytest.raises(AssertionError):
            refused(answer)
        with pytest.raises(AssertionError):
            goes_on(server, said(server), caplog)


Bad = tuple[int, str]


def command(capsys: pytest.CaptureFixture[str], *arguments: object) -> Bad:
    """Exit code and standard error of `moorage serve`."""
    with pytest.raises(SystemExit) as stopped:
        main(["serve", "--port", "0", "--window", "4096", *map(str, arguments)])
    return int(stopped.value.code or 0), capsys.readouterr().err


def test_bad_inputs_of_the_command_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MOORAGE_TOKEN", raising=False)
    (tmp_path / "bad.json").write_text('[{"say": 7}]')
    (tmp_path / "file").write_text("x y")
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "letter.txt").write_text("dear")
    taken = socket.create_server(("127.0.0.1", 0))
    port = taken.getsockname()[1]
    cases: list[tuple[tuple[object, ...], str]] = [
        (("--host", "0.0.0.0"), "give a token"),
        (("--host", "no.such.host.invalid", "--token-file", tmp_path / "bad.json"), "printable"),
        (("--port", port), "cannot be listened on"),
        (("--host", "256.1.1.1"), "give a token"),
        (("--token-file", tmp_path / "nowhere"), "No such file"),
        (("--token-file", tmp_path / "file"), "printable ASCII"),
        (("--script", tmp_path / "bad.json"), "rule 1: 'say'"),
        (("--allow-host", "http://x"), "--allow-host"),
        (("--allow-origin", "x"), "--allow-origin"),
        (("--record", tmp_path / "file"), "file"),
        (("--cache-dir", tmp_path / "file"), "file"),
        (("--cache-dir", foreign), "foreign"),
        (("--model", "nothing"), "nothing"),
        (("--window", "1000"), "--window"),
    ]
    for arguments, says in cases:
        code, err = command(capsys, *arguments)
        assert code == 2, (arguments, err)
        assert err.count("\n") == 1 and err.startswith("moorage: ") and says in err, err
    taken.close()


def test_two_servers_on_one_directory(tmp_path: Path) -> None:
    folder = tmp_path / "caches"
    with serving(house(folder)) as server:
        before = said(server)
        argv = [sys.executable, "-m", "moorage", "serve", "--port", "0", "--window", "4096"]
        argv += ["--cache-dir", str(folder)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            argv, cwd=KEEP, env=environment, capture_output=True, text=True, timeout=120
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.count("\n") == 1 and str(folder) in done.stderr, done.stderr
        assert said(server) == before


def test_a_script_that_says_nothing_of_it_still_answers(tmp_path: Path) -> None:
    file = tmp_path / "script.jsonl"
    file.write_text('{"when": {"last_user": "^hello$"}, "say": [["content", "Good day."]]}\n')
    with serving(script=Script.load(file)) as server, server.client() as client:
        for content, wanted in (("hello", "Good day."), ("x", "The script has no answer to this.")):
            body = chat(user(content), max_tokens=40)
            answer = client.post(CHAT, json=body).json()
            assert answer["choices"][0]["message"]["content"] == wanted
            assert answer["choices"][0]["finish_reason"] == "stop"
