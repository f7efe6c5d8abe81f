"""The doors: by which name, from which page and with which token the server may be asked"""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from starlette.applications import Starlette
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.bad import BadInput
from serve.body import BodyCap
from serve.errors import ApiError, bad_request, forbidden, unauthorized
from serve.last_resort import LastResort, refuse
from serve.recording import Recording, Reel

TOKEN_VARIABLE = "MOORAGE_TOKEN"
ANY = "*"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing."""
ASKING = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/cache/peek"})
"""Posted to, and nothing changes that a client sets: open to everybody on this machine."""
HEALTH = "/health"
"""Open to everybody: it tells only that somebody is there."""
PREFLIGHT_S = 600
EXPOSED = b"retry-after, x-request-id"

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]@/\\?#\s]+)(?::[0-9]{1,5})?")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#\s@]+")
_TOKEN = re.compile(r"[!-~]+")

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Rules:
    """Who may ask."""

    host: str
    """The address the server is bound to."""
    token: str | None = None
    allow_hosts: tuple[str, ...] = ()
    """Names that it may be called by, beside those of this machine; `*` is any."""
    allow_origins: tuple[str, ...] = ()
    """Origins whose pages may ask and read the answers; `*` is any."""

    @property
    def local(self) -> bool:
        """Whether only this machine reaches the server."""
        return is_loopback(self.host)


def rules_of(
    host: str,
    token: str | None = None,
    allow_hosts: Sequence[str] = (),
    allow_origins: Sequence[str] = (),
) -> Rules:
    """The rules of a command line. Raises BadInput."""
    hosts = tuple(name.lower() for name in allow_hosts)
    origins = tuple(origin.lower() for origin in allow_origins)
    for name in hosts:
        if name != ANY and called(name) != name:
            raise BadInput("--allow-host", None, f"not a host's name without a port: {name!r}")
    for origin in origins:
        if origin != ANY and not _ORIGIN.fullmatch(origin):
            what = f"not an origin such as https://chat.example:8443: {origin!r}"
            raise BadInput("--allow-origin", None, what)
    return Rules(host, token, hosts, origins)


def is_loopback(host: str) -> bool:
    """Whether a name or an address is this machine's own."""
    if host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def must_have_token(host: str, token: str | None) -> str | None:
    """Why the server can't be bound to `host` like this, as one line; None when it can."""
    if token is not None or is_loopback(host):
        return None
    return (
        f"{host or 'every address'} can be reached from other machines: give a token with "
        f"--token-file FILE or {TOKEN_VARIABLE}, or bind to 127.0.0.1"
    )


def read_token(path: Path | None, environment: Mapping[str, str]) -> str | None:
    """The token in a file, else in the environment, else none. Raises BadInput, which never
    quotes it.
    """
    source = TOKEN_VARIABLE if path is None else str(path)
    if path is None:
        text = environment.get(TOKEN_VARIABLE)
    else:
        try:
            text = path.read_text(encoding="ascii")
        except OSError as error:
            raise BadInput(source, None, error.strerror or str(error)) from error
        except UnicodeDecodeError:
            raise BadInput(source, None, "a token is printable ASCII without blanks") from None
    if text is None:
        return None
    if not text.strip():
        # Who names a token wants one: an empty file is a mistake, and not a wish for none.
        raise BadInput(source, None, "the token is empty")
    if not _TOKEN.fullmatch(text.strip()):
        raise BadInput(source, None, "a token is printable ASCII without blanks")
    return text.strip()


def called(host: str) -> str | None:
    """The name in a Host header, without its port; None for what is none."""
    found = _HOST.fullmatch(host.lower())
    return found.group(1) if found else None


def hang(
    app: Starlette, rules: Rules, body_bytes_max: Callable[[], int], reel: Reel | None = None
) -> None:
    """Put the doors, the cap on bodies and the recording around an application's routes.

    What the doors turn away is neither read nor recorded.
    """
    if reel is not None:
        app.add_middleware(Recording, reel=reel)
    app.add_middleware(BodyCap, limit_bytes=body_bytes_max)
    app.add_middleware(Doors, rules=rules)
    app.add_middleware(LastResort)


class Doors:
    """Middleware that lets a request in or answers it itself; its body is not touched.

    Three doors, one after another. The *name* it was called by: a page whose name was made to
    point at this machine (DNS rebinding) asks for its own name. The *page* that asks: one of
    another origin may neither change anything nor use the model, whatever its browser lets it
    send. And the *token*, where one is needed.
    """

    def __init__(self, app: ASGIApp, rules: Rules) -> None:
        self._app, self._rules = app, rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        shared: Headers = []
        answer = _with(shared, send)
        try:
            self._by_name(scope)
            origin = self._from_page(scope)
            if origin is not None:
                shared += [(b"access-control-allow-origin", origin), (b"vary", b"origin")]
                shared += [(b"access-control-expose-headers", EXPOSED)]
                if _preflight(scope):
                    await _leave(scope, answer)
                    return
            self._with_token(scope)
        except ApiError as error:
            await refuse(error, scope, receive, answer)
            return
        await self._app(scope, receive, answer)

    def _by_name(self, scope: Scope) -> None:
        """Raises ApiError when the server was called by a name that is not its own."""
        rules = self._rules
        if ANY in rules.allow_hosts or not (rules.local or rules.allow_hosts):
            return
        given = _all(scope, b"host")
        name = called(given[0]) if len(given) == 1 else None
        if name is None:
            raise bad_request("One Host header is wanted, with the name of this server.")
        own = is_loopback(name) or name.strip("[]") == rules.host.lower()
        if not own and name not in rules.allow_hosts:
            raise forbidden("This server goes by other names; --allow-host NAME adds one.")

    def _from_page(self, scope: Scope) -> bytes | None:
        """The origin of a page that may read the answer, as it is to be told; None when there is
        no such page. Raises ApiError for a page that may not even ask.
        """
        given = _all(scope, b"origin")
        if not given:
            return None
        origin, allowed = given[0].lower(), self._rules.allow_origins
        if len(given) == 1 and origin in allowed:
            return given[0].encode("latin-1")
        if ANY in allowed:
            return ANY.encode()
        own = [f"{scope['scheme']}://{host.lower()}" for host in _all(scope, b"host")]
        if own != [origin] and scope["method"] not in SAFE_METHODS:
            raise forbidden("Pages of other origins may not ask; --allow-origin ORIGIN lets one.")
        return None

    def _with_token(self, scope: Scope) -> None:
        """Raises ApiError when a token is needed and not given."""
        rules, path, method = self._rules, scope["path"], scope["method"]
        if rules.local:
            needed = method not in SAFE_METHODS and not (method == "POST" and path in ASKING)
        else:
            needed = path != HEALTH or method not in ("GET", "HEAD")
        if not needed or (rules.local and rules.token is None):
            return
        if _has(_all(scope, b"authorization"), rules.token):
            return
        error = unauthorized()
        if method == "GET" and "text/html" in "".join(_all(scope, b"accept")):
            # A browser can't be given a bearer token, but it can ask its user for a password.
            error.headers["WWW-Authenticate"] += ', Basic realm="moorage"'
        raise error


def _has(authorization: Sequence[str], token: str | None) -> bool:
    """Whether the headers carry the token: as the bearer's, or as a password of any user."""
    if token is None or len(authorization) != 1:
        return False
    scheme, _, given = authorization[0].partition(" ")
    value = given.strip().encode("latin-1")
    if scheme.lower() == "basic":
        try:
            value = base64.b64decode(value, validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            return False
    elif scheme.lower() != "bearer":
        return False
    return hmac.compare_digest(value, token.encode())


def _all(scope: Scope, name: bytes) -> list[str]:
    """The values of a header, as often as it came."""
    headers: Iterable[tuple[bytes, bytes]] = scope["headers"]
    return [value.decode("latin-1") for key, value in headers if key.lower() == name]


def _preflight(scope: Scope) -> bool:
    """Whether a browser asks what its page may send, before it does."""
    asks = _all(scope, b"access-control-request-method")
    return scope["method"] == "OPTIONS" and bool(asks)


def _with(more: Headers, send: Send) -> Send:
    """Sends with these headers added to a response's own."""

    async def sends(message: Message) -> None:
        if more and message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *more]}
        await send(message)

    return sends


async def _leave(scope: Scope, send: Send) -> None:
    """Answer a preflight: the page is trusted, so it may send what it says it will."""
    headers: Headers = [
        (b"access-control-allow-methods", b"GET, POST, PUT, DELETE"),
        (b"access-control-max-age", str(PREFLIGHT_S).encode()),
    ]
    for asked in _all(scope, b"access-control-request-headers"):
        headers.append((b"access-control-allow-headers", asked.encode("latin-1")))
    if _all(scope, b"access-control-request-private-network") == ["true"]:
        headers.append((b"access-control-allow-private-network", b"true"))
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
