"""A planned stop: answers under way have their time, then whoever still waits is told"""

from __future__ import annotations

import asyncio
import socket

import uvicorn

from serve.desk import Desk

TOLD_S = 2
"""For so long whoever was told may take to read it; then connections are cut."""


class Server(uvicorn.Server):
    """Tells those whose answers take longer than the grace that the server stops: a stream ends
    with an error frame, and what has not begun is refused. Their tasks are not cancelled in the
    middle, so that nothing fails."""

    def __init__(self, config: uvicorn.Config, desk: Desk, grace_s: int) -> None:
        """The configuration's own grace is what follows."""
        config.timeout_graceful_shutdown = grace_s + TOLD_S
        super().__init__(config)
        self._desk, self._grace_s = desk, grace_s

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more requests; returns when those under way are over."""
        ending = asyncio.ensure_future(self._end())
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()

    async def _end(self) -> None:
        await asyncio.sleep(self._grace_s)
        # It waits for the engine to come to the end of a chunk or a block.
        await asyncio.to_thread(self._desk.close)
