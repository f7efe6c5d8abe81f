"""The server's own recording: what it serves, in a folder, as the proxy would write it"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.bad import BadInput
from serve.reply import Reply, parse_json
from serve.tape import FORMAT, VERSION, Tape, public_headers

PATHS = ("/chat/completions", "/completions")
FILE_BYTES_MAX = 256 << 20
"""A file that has grown so long is closed, and the next one begun."""
PENDING_BYTES_MAX = 128 << 20
"""Request bodies that wait for the disk; what comes while it is slower than that is not written."""

_NAME = re.compile(r"raw-([0-9]{6,})\.jsonl")

_log = logging.getLogger(__name__)


class Reel:
    """A folder of tapes; every start of a server and every full tape begin a new one.

    Lines are made and written on a thread of its own, in the order in which they come. A disk that
    is full or too slow costs lines, which are counted and logged, and never the traffic.
    """

    def __init__(
        self,
        folder: Path,
        file_bytes_max: int = FILE_BYTES_MAX,
        pending_bytes_max: int = PENDING_BYTES_MAX,
    ) -> None:
        """Raises BadInput when the folder can't be made or written to."""
        self._folder, self._file_bytes_max = folder, file_bytes_max
        self._pending_bytes_max = pending_bytes_max
        try:
            # One that exists keeps its mode: it may hold other people's things.
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._tape = self._next()
        except OSError as error:
            raise BadInput(str(folder), None, error.strerror or str(error)) from error
        self.lost = 0
        self._pending_bytes = 0
        self._closed = False
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, "recording")

    def add(self, make: Callable[[], dict[str, Any]], nbytes: int) -> None:
        """Write what `make` gives, when its turn comes; it holds so many bytes until then."""
        with self._lock:
            held = self._pending_bytes + nbytes
            full = self._closed or (nbytes < held > self._pending_bytes_max)
            if full:
                self.lost += 1
            else:
                self._pending_bytes = held
                self._thread.submit(self._write, make, nbytes)
        if full:
            _log.warning("an exchange was not recorded: the disk is too slow")

    def close(self) -> None:
        """Write what waits, and close."""
        with self._lock:
            self._closed = True
        self._thread.shutdown(wait=True)
        self._tape.close()

    def _write(self, make: Callable[[], dict[str, Any]], nbytes: int) -> None:
        try:
            if self._tape.nbytes >= self._file_bytes_max:
                full, self._tape = self._tape, self._next()
                full.close()
        except OSError as error:
            # The line goes to the old tape: better one too long than none.
            _log.warning("no new file for the recording: %s", error)
        before = self._tape.lost
        self._tape.append(make())
        with self._lock:
            self._pending_bytes -= nbytes
            self.lost += self._tape.lost - before

    def _next(self) -> Tape:
        """A tape with a number that none has yet, whoever else writes here. Raises OSError."""
        found = (_NAME.fullmatch(path.name) for path in self._folder.iterdir())
        number = max((int(name.group(1)) for name in found if name), default=0)
        while True:
            number += 1
            path = self._folder / f"raw-{number:06d}.jsonl"
            try:
                path.touch(mode=0o600, exist_ok=False)
            except FileExistsError:
                continue
            return Tape(path)


class Recording:
    """Middleware that writes every exchange down as it passed: the body that came, the reply as
    far as it went out before the client left.
    """

    def __init__(self, app: ASGIApp, reel: Reel, clock: Callable[[], float] = time.time) -> None:
        self._app, self._reel, self._clock = app, reel, clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asks = scope["type"] == "http" and scope["method"] == "POST"
        if not asks or not scope["path"].endswith(PATHS):
            await self._app(scope, receive, send)
            return
        passing = _Passing(receive, send)
        start_s = self._clock()
        try:
            await self._app(scope, passing.receive, passing.send)
        except Exception as error:
            passing.failed(error)
            raise
        finally:
            passing.close()
            self._write(scope, passing, start_s, self._clock())

    def _write(self, scope: Scope, passing: _Passing, start_s: float, end_s: float) -> None:
        pieces, reply = passing.pieces, passing.reply
        nbytes = sum(map(len, pieces))

        def make() -> dict[str, Any]:
            body = b"".join(pieces)
            parsed = parse_json(body)
            exchange: dict[str, Any] = {"format": FORMAT, "version": VERSION}
            exchange |= {"t": round(start_s, 4), "t_end": round(end_s, 4)}
            # The query is not recorded: it may hold a key.
            exchange |= {"method": scope["method"], "path": scope["path"]}
            exchange |= {"headers": public_headers(scope["headers"]), "body": parsed}
            if parsed is None and body:
                exchange["body_bytes"] = len(body)
            return exchange | {"reply": reply.as_json()}

        self._reel.add(make, nbytes)


class _Passing:
    """One exchange under way.

    Whether a client is still there is known only to who asks the server below, and the application
    does not always ask: from the body's end on this asks, and tells the application.
    """

    def __init__(self, receive: Receive, send: Send) -> None:
        self.pieces: list[bytes] = []
        self.reply = Reply()
        self._receive, self._send = receive, send
        self._gone: asyncio.Task[Message] | None = None
        self._ended = False

    async def receive(self) -> Message:
        """The next of the request's messages."""
        if self._gone is not None:
            return await asyncio.shield(self._gone)
        message = await self._receive()
        if message["type"] == "http.request":
            self.pieces.append(message.get("body", b""))
            if not message.get("more_body", False):
                self._gone = asyncio.create_task(self._left())
        else:
            self.reply.aborted = True
        return message

    async def send(self, message: Message) -> None:
        """The next of the response's messages; what nobody is there to get counts for nothing."""
        if self._gone is not None and self._gone.done() and not self._ended:
            self.reply.aborted = True
        if not self.reply.aborted:
            self._note(message)
        await self._send(message)

    def failed(self, error: Exception) -> None:
        """The application gave up in the middle."""
        self.reply.error = {"message": type(error).__name__, "type": "server_error"}

    def close(self) -> None:
        """The application is done with it."""
        gone = self._gone is not None and self._gone.done()
        if not self._ended and (gone or self.reply.error is None):
            self.reply.aborted = True
        if self._gone is not None:
            self._gone.cancel()
        self.reply.close()

    def _note(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = {key.lower(): value for key, value in message.get("headers", ())}
            kind = headers.get(b"content-type", b"").decode("latin-1")
            encoding = headers.get(b"content-encoding", b"").decode("latin-1")
            self.reply.start(message["status"], kind, encoding)
        elif message["type"] == "http.response.body":
            self.reply.feed(message.get("body", b""))
            self._ended = self._ended or not message.get("more_body", False)

    async def _left(self) -> Message:
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return message
