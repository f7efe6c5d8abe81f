"""A served house for tests: the real application on a real socket, over a small engine."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import uvicorn

from engine.chat.dialect import Bundled
from engine.chat.template import Template
from engine.chat.tokenizer import Tokenizer
from serve.about import About
from serve.app import app_of
from serve.doors import Rules
from serve.embedded import embedded
from serve.house import House, Setup
from serve.script import Script
from serve.service import Service
from serve.settings import Settings

GRID, WINDOW = 64, 4_096
MODEL = "small"
DIALECT = Bundled(Template(Tokenizer()))
STOP_S = 30.0


@dataclass(frozen=True, slots=True)
class Served:
    """A server under way."""

    url: str
    service: Service

    @property
    def house(self) -> House:
        """What it serves from."""
        return self.service.house

    def client(self) -> httpx.Client:
        """Speaks HTTP with it."""
        return httpx.Client(base_url=self.url, timeout=60.0, trust_env=False)


def house(
    cache_dir: Path | None = None,
    *,
    parallel: int = 1,
    window: int = WINDOW,
    grid: int = GRID,
    seed: int = 0,
    settings: Settings | None = None,
) -> House:
    """A small random model with its caches; with a directory they are on a drive too."""
    engine = embedded(DIALECT, seed, grid=grid, window=window)
    setup = Setup(cache_dir, parallel=parallel, side_window=window // 2)
    return House(engine, DIALECT, setup, settings or usual())


def usual() -> Settings:
    """Settings under which a small conversation is worth a tier's while."""
    some = {
        "disk": {"tokens_min": 2 * GRID, "admit_after": 1, "min_free_gb": 0.0},
        "spill": {"tokens_min": 4 * GRID, "park_tokens_min": 2 * GRID, "min_free_gb": 0.0},
    }
    try:
        return Settings().changed(some)
    except ValueError:
        for section in some.values():
            section.pop("min_free_gb")
        return Settings().changed(some)


@contextmanager
def serving(
    of: House | None = None,
    script: Script | None = None,
    token: str | None = None,
    about: About | None = None,
) -> Iterator[Served]:
    """Serve a house until the block ends; a planned stop."""
    of = of or house()
    service = Service(of, about or About(MODEL), script)
    rules = replace(Rules("127.0.0.1"), token=token)
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    config = uvicorn.Config(
        app_of(service, rules), log_level="warning", timeout_graceful_shutdown=2, lifespan="on"
    )
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]), daemon=True)
    thread.start()
    port = listener.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    _until_up(url)
    try:
        yield Served(url, service)
    finally:
        server.should_exit = True
        thread.join(STOP_S)
        assert not thread.is_alive(), "the server did not stop"
        listener.close()


def _until_up(url: str) -> None:
    with httpx.Client(
        transport=httpx.HTTPTransport(retries=50), trust_env=False, timeout=STOP_S
    ) as client:
        client.get(f"{url}/health").raise_for_status()
