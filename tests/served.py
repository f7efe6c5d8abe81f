"""A served house for tests: the real application on a real socket, over a small engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import sockets

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
    response_mb: int = 0,
) -> House:
    """A small random model with its caches; with a directory they are on a drive too."""
    engine = embedded(DIALECT, seed, grid=grid, window=window)
    setup = Setup(cache_dir, parallel, window // 2, response_mb=response_mb)
    return House(engine, DIALECT, setup, settings or usual())


def usual() -> Settings:
    """Settings under which a small conversation is worth a tier's while."""
    disk = {"tokens_min": 2 * GRID, "admit_after": 1}
    spill = {"tokens_min": 4 * GRID, "park_tokens_min": 2 * GRID}
    return Settings().changed({"disk": disk, "spill": spill})


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
    with sockets.served(app_of(service, rules), log_level="warning", stop_s=STOP_S) as url:
        yield Served(url, service)
