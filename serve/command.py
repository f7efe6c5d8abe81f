"""What `moorage serve` does: builds the house, binds the port, serves until it is told to stop"""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from rich.console import Console

from engine.adapter import Engine
from engine.bad import BadInput
from engine.chat.checkpoint import load_dialect
from engine.chat.dialect import Bundled, Dialect
from engine.chat.template import Template
from engine.chat.tokenizer import Tokenizer
from engine.checkpoint.open import check_tokenizer
from engine.knobs import PLAIN, Knobs
from engine.open_model import is_directory, load, shape_of
from engine.pictures.encoded import Encoded
from serve.about import About
from serve.app import app_of
from serve.box_lock import BoxLock
from serve.doors import Rules, must_have_token, read_token, rules_of
from serve.embedded import load_embedded
from serve.house import House, Setup
from serve.recording import Reel
from serve.script import Script
from serve.service import Service
from serve.stopping import Server

WINDOW = 131_072
RANDOM = ("random", "flash")
"""Embedded models."""
RANDOM_ANSWER_TOKENS, RANDOM_THINKING_TOKENS = 160, 32
"""After so many tokens the random model's answers are ended for it, and its thoughts."""
GRACE_S = 5
"""For so long a stop waits for answers under way."""


@dataclass(frozen=True, slots=True)
class Flags:
    """The command line's; a house's own are in `Setup`."""

    model: str = RANDOM[0]
    name: str = ""
    tokenizer: Path | None = None
    window: int = 0
    """0 is what suits the model: WINDOW, or fewer where a checkpoint was made for fewer."""
    seed: int = 0
    host: str = "127.0.0.1"
    port: int = 8_000
    token_file: Path | None = None
    allow_hosts: tuple[str, ...] = ()
    allow_origins: tuple[str, ...] = ()
    script: Path | None = None
    record: Path | None = None
    box_lock: Path | None = None
    knobs: Knobs = PLAIN


def serve(flags: Flags, setup: Setup) -> None:
    """Serve until SIGTERM or SIGINT; raises BadInput for what is no good before anything begins."""
    token = read_token(flags.token_file, os.environ)
    if why := must_have_token(flags.host, token):
        raise BadInput("--host", None, why)
    rules = rules_of(flags.host, token, flags.allow_hosts, flags.allow_origins)
    script = Script.load(flags.script) if flags.script is not None else None
    listener = _bound(flags.host, flags.port)
    try:
        _serve(flags, setup, rules, script, listener)
    finally:
        listener.close()


def _serve(
    flags: Flags, setup: Setup, rules: Rules, script: Script | None, listener: socket.socket
) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    # It warns of every write to a client that has gone.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    dialect = dialect_of(flags)
    if script is not None and not isinstance(dialect, Bundled):
        raise BadInput("--script", None, "needs the bundled chat format, not a tokenizer's own")
    engine = engine_of(flags, dialect)
    house = House(engine, dialect, setup)
    about = about_of(flags)
    lock = BoxLock(flags.box_lock, house.clock) if flags.box_lock is not None else None
    service = Service(house, about, script, lock)
    reel = Reel(flags.record) if flags.record is not None else None
    address = f"http://{flags.host}:{listener.getsockname()[1]}"
    _banner(address, about, setup, rules)
    config = uvicorn.Config(
        app_of(service, rules, reel),
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=75,
    )
    # uvicorn raises the signal again once everything is written and closed: that is an end as
    # planned, and no failure.
    signal.signal(signal.SIGTERM, lambda *_: None)
    with suppress(KeyboardInterrupt):
        Server(config, service.desk, GRACE_S).run(sockets=[listener])


def dialect_of(flags: Flags) -> Dialect:
    """The chat format: of a folder that is named, the model's own, or ours; raises BadInput."""
    if flags.tokenizer is not None:
        return load_dialect(flags.tokenizer)
    if flags.model not in RANDOM:
        if not is_directory(flags.model):
            what = f"{flags.model!r} is none of {', '.join(RANDOM)}, and no directory"
            raise BadInput("--model", None, what)
        return load_dialect(Path(flags.model))
    return Bundled(Template(Tokenizer()))


def engine_of(flags: Flags, dialect: Dialect) -> Engine:
    """The engine of the flags; raises BadInput."""
    if flags.model in RANDOM:
        loaded = load_embedded(flags.model, dialect, flags.seed, flags.knobs)
    else:
        vocab, source = shape_of(flags.model).vocab, str(flags.tokenizer or flags.model)
        check_tokenizer(vocab, dialect.tokenizer, source)
        loaded = load(flags.model, flags.knobs)
    grid, most = loaded.grid, loaded.window_max
    window = flags.window or min(WINDOW, most or WINDOW) // grid * grid
    if window % grid or window < 4 * grid:
        raise BadInput("--window", None, f"must be a multiple of {grid:,}, at least {4 * grid:,}")
    if most is not None and window > most:
        raise BadInput("--window", None, f"{window:,} is more than the model's {most:,} positions")
    if loaded.said:
        logging.warning("%s", loaded.said)
    return loaded.engine(grid=grid, window=window, encoded=Encoded())


def about_of(flags: Flags) -> About:
    """A random model is not left to find the end of an answer; a checkpoint is."""
    if flags.model in RANDOM:
        name = flags.name or f"moorage-{flags.model}"
        return About(name, RANDOM_ANSWER_TOKENS, RANDOM_THINKING_TOKENS)
    return About(flags.name or Path(flags.model).resolve().name)


def _bound(host: str, port: int) -> socket.socket:
    """A socket that listens there; raises BadInput."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends at once (TCP_NODELAY) only on sockets that say that they are TCP's; on others an
    # answer's second piece waits for the first one's acknowledgement, which takes 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1_024)
    except (OSError, OverflowError) as error:
        listener.close()
        raise BadInput(f"{host}:{port}", None, f"cannot be listened on: {error}") from None
    return listener


def _banner(address: str, about: About, setup: Setup, rules: Rules) -> None:
    """Say where it is, and where it keeps what."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    where = str(setup.cache_dir) if setup.cache_dir is not None else "memory (--cache-dir keeps it)"
    lines: Sequence[tuple[str, str]] = (
        ("API", f"{address}/v1   model {about.model}"),
        ("status", f"{address}/"),
        ("caches", where),
        ("slots", f"1 and {setup.parallel} beside it"),
        ("token", "wanted" if rules.token else "none"),
    )
    for name, text in lines:
        console.print(f"{name:>7}  {text}", markup=False)
