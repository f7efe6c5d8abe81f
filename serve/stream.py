"""An event stream: frames go out as they come, and nobody writes for a client that left"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
"""No proxy may hold frames back."""


class EventStream(Response):
    """Sends frames as they come. When the client hangs up, the frames' iterator is closed."""

    media_type = "text/event-stream"

    def __init__(self, frames: AsyncIterator[bytes], headers: Mapping[str, str] | None = None):
        self.status_code = 200
        self.background = None
        self._frames = frames
        self.init_headers({**HEADERS, **(headers or {})})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all of it; returns early when the client is gone."""
        pump = asyncio.ensure_future(self._pump(send))
        gone = asyncio.ensure_future(_hung_up(receive))
        try:
            await asyncio.wait({pump, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (pump, gone):
                task.cancel()
            await asyncio.gather(pump, gone, return_exceptions=True)
        if not pump.cancelled() and (error := pump.exception()) is not None:
            raise error

    async def _pump(self, send: Send) -> None:
        head = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        try:
            await send(head)
            async for frame in self._frames:
                await send({"type": "http.response.body", "body": frame, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except OSError:
            return  # The client is gone.
        finally:
            # Its own finally tells the engine that nobody waits.
            await self._frames.aclose()  # type: ignore[attr-defined]


async def _hung_up(receive: Receive) -> None:
    """Returns when the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(request: Request, work: asyncio.Future, left: Callable[[], None]) -> bool:
    """Wait for `work`; False, and `left` was called, when the client hung up first."""
    gone = asyncio.ensure_future(_hung_up(request.receive))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return True
        left()
        return False
    finally:
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
