"""Goal: nobody changes anything, or uses the model, who was not let in: by name, page and token.

Method: `serve.doors` in front of an application that says yes to everything, asked in process with
the headers that browsers and attackers send (DNS rebinding, a form of another site, a page that may
ask, tokens that are almost right); one table a door, every row once more where it must turn red.
`hang` is asked on a real socket, in the order in which a FastAPI application has it.
"""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from hypothesis import given
from hypothesis import strategies as st
from sockets import served

from engine.bad import BadInput
from serve import doors as doors_module
from serve.doors import (
    Doors,
    Rules,
    hang,
    is_loopback,
    must_have_token,
    read_token,
    rules_of,
)
from serve.recording import Reel

CHAT, CLEAR, STATS = "/v1/chat/completions", "/v1/cache/clear", "/v1/cache/stats"
TOKEN = "s3cret-token/with+signs="
OWN = "http://127.0.0.1:8000"


class Yes:
    """Says yes, and notes what came through."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.seen.append((scope["method"], scope["path"]))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"yes"})


def asked(rules: Rules, method: str, path: str, url: str = OWN, **headers: str) -> httpx.Response:
    """The response of the doors, with `_` for `-` in the headers' names."""
    yes = Yes()

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(Doors(yes, rules))
        async with httpx.AsyncClient(transport=transport, base_url=url) as client:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            return await client.request(method, path, headers=named)

    reply = asyncio.run(ask())
    assert bool(yes.seen) == (reply.status_code == 200)
    if reply.status_code >= 400:
        assert set(reply.json()["error"]) == {"message", "type", "param", "code"}
    return reply


def status(rules: Rules, method: str, path: str, url: str = OWN, **headers: str) -> int:
    return asked(rules, method, path, url, **headers).status_code


LOCAL, LOCAL_TOKEN = rules_of("127.0.0.1"), rules_of("127.0.0.1", TOKEN)
AWAY = rules_of("0.0.0.0", TOKEN)
BEARER = f"Bearer {TOKEN}"


@pytest.mark.parametrize(
    ("host", "wanted"),
    [
        ("localhost", 200),
        ("LOCALHOST:8000", 200),
        ("127.0.0.1:9999", 200),
        ("127.8.8.8", 200),
        ("[::1]:8000", 200),
        ("evil.example:8000", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("192.168.0.7:8000", 403),
        ("2130706433", 403),
        ("0x7f.1", 403),
        ("evil@localhost", 400),
        ("localhost:8000:1", 400),
        ("[::1", 400),
        ("", 400),
    ],
)
def test_on_this_machine_the_server_goes_by_this_machines_names(host: str, wanted: int) -> None:
    for method in ("GET", "POST"):
        assert status(LOCAL, method, CHAT, Host=host) == wanted
        # A token does not open this door: a rebound page could have been given one.
        assert status(LOCAL_TOKEN, method, CHAT, Host=host, Authorization=BEARER) == wanted


def test_two_host_headers_or_none_are_no_name() -> None:
    for headers in ([], [(b"host", b"localhost"), (b"host", b"evil.example")]):
        told: list[Any] = []

        async def send(message: Any, told: list[Any] = told) -> None:
            told.append(message)

        scope = {"type": "http", "method": "GET", "path": "/", "headers": headers, "scheme": "http"}
        asyncio.run(Doors(Yes(), LOCAL)(scope, None, send))  # type: ignore[arg-type]
        assert told[0]["status"] == 400


def test_other_names_can_be_allowed() -> None:
    rules = rules_of("127.0.0.1", None, ["Box.Example", "[fd00::7]"])
    assert status(rules, "GET", STATS, Host="box.example:443") == 200
    assert status(rules, "GET", STATS, Host="[fd00::7]:8000") == 200
    assert status(rules, "GET", STATS, Host="localhost") == 200
    assert status(rules, "GET", STATS, Host="evil.example") == 403
    assert status(rules_of("127.0.0.1", None, ["*"]), "GET", STATS, Host="evil.example") == 200
    # Bound elsewhere nobody knows its names, until some are given; its address is one.
    headers = {"Authorization": BEARER}
    assert status(AWAY, "GET", STATS, Host="anything.example", **headers) == 200
    named = rules_of("10.0.0.7", TOKEN, ["box.example"])
    assert status(named, "GET", STATS, Host="10.0.0.7:8000", **headers) == 200
    assert status(named, "GET", STATS, Host="anything.example", **headers) == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
@pytest.mark.parametrize(
    ("origin", "wanted"),
    [
        (OWN, 200),
        ("https://evil.example", 403),
        ("null", 403),
        ("", 403),
        ("http://127.0.0.1:3000", 403),
        ("http://localhost:8000", 403),
        ("https://127.0.0.1:8000", 403),
        ("http://127.0.0.1:8000.evil.example", 403),
    ],
)
def test_a_page_of_another_origin_changes_nothing_and_asks_nothing(
    method: str, origin: str, wanted: int
) -> None:
    for path in (CHAT, CLEAR, "/v1/settings"):
        reply = asked(LOCAL, method, path, Origin=origin)
        assert reply.status_code == wanted
        assert not [name for name in reply.headers if name.startswith("access-control")]
    # What it may fetch it can't read: nothing tells its browser that it could.
    reply = asked(LOCAL, "GET", STATS, Origin=origin)
    assert reply.status_code == 200
    assert not [name for name in reply.headers if name.startswith("access-control")]
    ask = {"Access_Control_Request_Method": "POST"}
    reply = asked(LOCAL, "OPTIONS", CHAT, Origin=origin, **ask)
    assert not [name for name in reply.headers if name.startswith("access-control")]


def test_a_rebound_page_has_the_same_origin_as_the_name_it_asks_by() -> None:
    """So the second door lets it through; it is the first that holds."""
    evil = "http://evil.example:8000"
    assert status(LOCAL, "POST", CHAT, url=evil, Origin=evil) == 403
    assert status(rules_of("127.0.0.1", None, ["*"]), "POST", CHAT, url=evil, Origin=evil) == 200


def test_a_page_that_may_ask_reads_answers_and_errors() -> None:
    page = "https://Chat.Example"
    rules = rules_of("127.0.0.1", TOKEN, (), ["https://chat.example"])
    for method, path, wanted in (("POST", CHAT, 200), ("GET", STATS, 200), ("POST", CLEAR, 401)):
        reply = asked(rules, method, path, Origin=page)
        assert reply.status_code == wanted
        assert reply.headers["access-control-allow-origin"] == page
        assert reply.headers["vary"] == "origin"
        assert "access-control-allow-credentials" not in reply.headers
    assert status(rules, "POST", CHAT, Origin="https://other.example") == 403
    anyone = asked(rules_of("127.0.0.1", None, (), ["*"]), "POST", CHAT, Origin=page)
    assert anyone.headers["access-control-allow-origin"] == "*"


@pytest.mark.parametrize("rules", [LOCAL, AWAY])
def test_a_preflight_is_answered_before_there_is_a_token(rules: Rules) -> None:
    page = "https://chat.example"
    open_to = rules_of(rules.host, rules.token, (), [page])
    ask = {
        "Origin": page,
        "Access_Control_Request_Method": "PUT",
        "Access_Control_Request_Headers": "authorization,x-stainless-os",
    }
    reply = asked(open_to, "OPTIONS", "/v1/settings", **ask)
    assert reply.status_code == 204 and reply.content == b""
    assert reply.headers["access-control-allow-origin"] == page
    assert "PUT" in reply.headers["access-control-allow-methods"]
    assert reply.headers["access-control-allow-headers"] == "authorization,x-stainless-os"
    assert "access-control-allow-private-network" not in reply.headers
    ask["Access_Control_Request_Private_Network"] = "true"
    reply = asked(open_to, "OPTIONS", "/v1/settings", **ask)
    assert reply.headers["access-control-allow-private-network"] == "true"


@pytest.mark.parametrize(
    ("method", "path", "here", "away"),
    [
        ("GET", "/health", 200, 200),
        ("HEAD", "/health", 200, 200),
        ("POST", "/health", 401, 401),
        ("GET", "/", 200, 401),
        ("GET", "/metrics", 200, 401),
        ("GET", "/v1/models", 200, 401),
        ("GET", STATS, 200, 401),
        ("GET", "/health/", 200, 401),
        ("GET", "//health", 200, 401),
        ("OPTIONS", CHAT, 200, 401),
        ("POST", CHAT, 200, 401),
        ("POST", "/v1/completions", 200, 401),
        ("POST", "/v1/cache/peek", 200, 401),
        ("POST", CLEAR, 401, 401),
        ("POST", "/v1/cache/prewarm", 401, 401),
        ("PUT", "/v1/settings", 401, 401),
        ("DELETE", CHAT, 401, 401),
        ("PUT", CHAT, 401, 401),
        ("POST", CHAT + "/", 401, 401),
        ("POST", "/nowhere", 401, 401),
        ("BREW", "/v1/cache/peek", 401, 401),
    ],
)
def test_what_needs_the_token(method: str, path: str, here: int, away: int) -> None:
    assert status(LOCAL, method, path) == 200
    for rules, wanted in ((LOCAL_TOKEN, here), (AWAY, away)):
        assert status(rules, method, path) == wanted
        assert status(rules, method, path, Authorization=BEARER) == 200


def basic(password: str, user: str = "anybody") -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


WRONG = [
    "",
    "Bearer",
    "Bearer ",
    f"Bearer {TOKEN}x",
    f"Bearer {TOKEN[:-1]}",
    f"Bearer {TOKEN.upper()}",
    f"Bearer {TOKEN} {TOKEN}",
    f"Bearer\t{TOKEN}",
    TOKEN,
    f"Token {TOKEN}",
    basic(TOKEN + "x"),
    basic(""),
    "Basic !!!",
    "Basic " + base64.b64encode(TOKEN.encode()).decode(),
    "Bearer \xff",
]


@pytest.mark.parametrize("given_", WRONG)
def test_a_wrong_token_is_told_nothing_but_that(given_: str) -> None:
    first = asked(AWAY, "POST", CHAT)
    headers = [(b"host", b"x"), (b"authorization", given_.encode("latin-1"))]
    told: list[Any] = []

    async def send(message: Any) -> None:
        told.append(message)

    scope = {"type": "http", "method": "POST", "path": CHAT, "headers": headers, "scheme": "http"}
    asyncio.run(Doors(Yes(), AWAY)(scope, None, send))  # type: ignore[arg-type]
    assert told[0]["status"] == 401 and told[1]["body"] == first.content
    assert first.headers["www-authenticate"] == 'Bearer realm="moorage"'
    assert TOKEN not in first.text


@pytest.mark.parametrize("right", [BEARER, f"bearer  {TOKEN}", basic(TOKEN), basic(TOKEN, "")])
def test_the_token_as_a_bearers_or_as_a_password(right: str) -> None:
    assert status(AWAY, "PUT", "/v1/settings", Authorization=right) == 200


def test_two_tokens_are_none() -> None:
    yes, told = Yes(), []

    async def send(message: Any) -> None:
        told.append(message)

    headers = [(b"authorization", BEARER.encode())] * 2
    scope = {"type": "http", "method": "GET", "path": STATS, "headers": headers, "scheme": "http"}
    asyncio.run(Doors(yes, AWAY)(scope, None, send))  # type: ignore[arg-type]
    assert told[0]["status"] == 401 and not yes.seen


def test_a_browser_that_opens_the_page_is_asked_for_a_password() -> None:
    reply = asked(AWAY, "GET", "/", Accept="text/html,application/xhtml+xml")
    assert reply.status_code == 401
    assert reply.headers["www-authenticate"] == 'Bearer realm="moorage", Basic realm="moorage"'
    assert "Basic" not in asked(AWAY, "GET", STATS, Accept="*/*").headers["www-authenticate"]


def test_bound_elsewhere_without_a_token_nobody_comes_in() -> None:
    rules = rules_of("0.0.0.0")
    for given_ in ("", "Bearer ", "Bearer None", basic("")):
        assert status(rules, "POST", CHAT, Authorization=given_) == 401


@given(st.text(st.characters(max_codepoint=255, exclude_characters="\r\n\0"), max_size=30))
def test_no_other_text_is_the_token(text: str) -> None:
    held = doors_module._has([f"Bearer {text}"], TOKEN)
    assert held == (text.strip() == TOKEN)
    assert not doors_module._has([text], TOKEN) or text.lower().startswith(("bearer", "basic"))


def test_canary_a_comparison_of_prefixes_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors_module.hmac, "compare_digest", lambda a, b: a[:5] == b[:5])
    assert status(AWAY, "POST", CHAT, Authorization=f"Bearer {TOKEN}x") == 200


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.255.0.3", True),
        ("localhost", True),
        ("::1", True),
        ("[::1]", True),
        ("::ffff:127.0.0.1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
        ("192.168.1.1", False),
        ("box.example", False),
        ("127.1", False),
    ],
)
def test_an_address_that_others_reach_needs_a_token(host: str, local: bool) -> None:
    assert is_loopback(host) == local
    said = must_have_token(host, None)
    assert (said is None) == local and must_have_token(host, TOKEN) is None
    assert said is None or ("\n" not in said and "--token-file" in said)


def test_where_the_token_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    assert read_token(file, {}) == TOKEN == read_token(None, {"MOORAGE_TOKEN": TOKEN})
    assert read_token(file, {"MOORAGE_TOKEN": "other"}) == TOKEN
    assert read_token(None, {}) is None


@pytest.mark.parametrize("text", ["", " \n", "two words", "tökén", "a\nb", "\x7f"])
def test_what_is_no_token_is_refused_without_saying_it(tmp_path: Path, text: str) -> None:
    file = tmp_path / "token"
    file.write_text(text)
    for path, environment in ((file, {}), (None, {"MOORAGE_TOKEN": text})):
        with pytest.raises(BadInput) as refused:
            read_token(path, environment)
        assert "\n" not in str(refused.value) and not (text.strip() and text in str(refused.value))


def test_a_token_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No such file"):
        read_token(tmp_path / "nowhere", {"MOORAGE_TOKEN": TOKEN})


@pytest.mark.parametrize("name", ["http://box", "box:8000", "box/path", "", "a b"])
def test_what_is_no_hosts_name_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match="--allow-host"):
        rules_of("127.0.0.1", None, [name])


@pytest.mark.parametrize("origin", ["chat.example", "https://chat.example/", "https://a@b", "null"])
def test_what_is_no_origin_is_refused(origin: str) -> None:
    with pytest.raises(BadInput, match="--allow-origin"):
        rules_of("127.0.0.1", None, (), [origin])


def test_hung_before_an_application(tmp_path: Path) -> None:
    app = FastAPI()

    @app.post(CHAT)
    async def chat(request: Request) -> dict[str, int]:
        return {"bytes": len(await request.body())}

    reel = Reel(tmp_path / "recordings")
    hang(app, rules_of("127.0.0.1", TOKEN), lambda: 1_000, reel)
    with served(app) as url:
        assert httpx.post(url + CHAT, json={"a": 1}).json() == {"bytes": 7}
        # What is turned away is not even read, and not written down.
        long = httpx.post(url + CHAT, content=b"x" * 2_000)
        evil = httpx.post(url + CHAT, content=b"x" * 2_000, headers={"Origin": "https://evil"})
        none = httpx.post(url + CLEAR, content=b"x" * 2_000)
        assert [r.status_code for r in (long, evil, none)] == [413, 403, 401]
        for reply in (long, evil, none):
            assert reply.headers["x-content-type-options"] == "nosniff"
            assert reply.headers["cache-control"] == "no-store"
    reel.close()
    (path,) = (tmp_path / "recordings").iterdir()
    assert path.read_text().count("\n") == 1
