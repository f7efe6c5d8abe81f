"""Applications on real sockets of loopback, for tests"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

WAIT_S = 10.0


@contextmanager
def served(app: Any, lifespan: Any = "on") -> Iterator[str]:
    """The application on a free port of loopback, in a thread of its own."""
    # An upstream that breaks off makes uvicorn log an error; that is what the test wants.
    config = uvicorn.Config(
        app,
        port=0,
        lifespan=lifespan,
        log_level="critical",
        ws="none",
        server_header=False,
        date_header=False,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(WAIT_S)
        assert not thread.is_alive()


def until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)
