"""Applications on real sockets of loopback, for tests"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

WAIT_S = 10.0
TICK_S = 0.01


class Server(uvicorn.Server):
    """Looks ten times as often whether it is to stop: tests start and stop hundreds of them."""

    async def main_loop(self) -> None:
        tick = 0
        while not await self.on_tick(tick // 10):
            tick = (tick + 1) % 864_000
            await asyncio.sleep(TICK_S)


@contextmanager
def served(
    app: Any, lifespan: Any = "on", log_level: str = "critical", stop_s: float = WAIT_S
) -> Iterator[str]:
    """The application on a free port of loopback, in a thread of its own."""
    # An upstream that breaks off makes uvicorn log an error; that is what some tests want.
    config = uvicorn.Config(
        app,
        lifespan=lifespan,
        log_level=log_level,
        ws="none",
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=2,
    )
    # As `moorage serve` listens: answers are sent at once.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    server = Server(config)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        until(lambda: server.started)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(stop_s)
        listener.close()
        assert not thread.is_alive(), "the server did not stop"


def until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)
