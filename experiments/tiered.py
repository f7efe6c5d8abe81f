"""A box with every tier, files and all, or with none: what a cold turn takes to its first token"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from cache.anchors import AnchorConfig
from cache.config import StackConfig
from cache.guest import GuestConfig
from cache.host import SystemClock, ThreadJobs
from cache.journal import Journal
from cache.parked import ParkConfig
from cache.snapshot import StoreConfig
from cache.stack import Stack
from cache.types import Ids
from engine.adapter import Engine
from engine.box import Box
from engine.chat.dialect import Bundled
from engine.chat.template import Template
from engine.chat.tokenizer import Tokenizer
from engine.events import Ready
from engine.forced import Forced
from engine.prompt import Prompt
from engine.turn import turn
from experiments.traffic import GateFailed
from serve.house import House, Setup
from serve.settings import Settings

ANSWER = 4


class Tiered:
    """One engine in a box."""

    def __init__(self, box: Box, folder: Path | None) -> None:
        self._box, self._folder = box, folder

    def cold_s(self, ids: Ids, number: int) -> float:
        """Wall seconds of a cold turn up to its first token; each number has a prompt of its own.

        Then it ends as turns do, and what it left to write is written, outside of that time.
        """
        box, vocab = self._box, self._box.engine.vocab
        own = ((ids.astype(np.int64) + number) % vocab).astype(np.int32)
        answer = own[:ANSWER]
        rule = Forced(answer, seed="0", vocab=vocab, drafts=3, accepted=0.6)
        begun_s = time.perf_counter()
        took_s = 0.0
        for event in turn(box, Prompt(own, f"session {number}"), rule, limit=ANSWER):
            if isinstance(event, Ready):
                took_s = time.perf_counter() - begun_s
        row = box.journal.rows[-1]
        if row.source != "cold":
            raise GateFailed(f"a cold turn was served from {row.source}")
        box.jobs.drain()
        return took_s

    @property
    def wrote_bytes(self) -> int:
        """What lies in the tiers' files."""
        if self._folder is None:
            return 0
        return sum(path.stat().st_size for path in self._folder.rglob("*") if path.is_file())


@contextmanager
def bare(engine: Engine) -> Iterator[Tiered]:
    """No tier: no anchor is copied, and nothing is kept."""
    jobs = ThreadJobs()
    config = StackConfig(
        AnchorConfig(budget_bytes=0),
        ParkConfig(park_bytes=0, pin_bytes=0),
        GuestConfig(tokens_max=0),
        StoreConfig(budget_bytes=0, entry_bytes=0),
        keeps_end=False,
        checkpoint_tokens=0,
    )
    try:
        yield Tiered(Box(engine, Stack(engine, config), SystemClock(), jobs, Journal()), None)
    finally:
        jobs.close()


@contextmanager
def tiered(engine: Engine, folder: Path) -> Iterator[Tiered]:
    """Every tier as a server has them; a head is written at its first cold read."""
    every = {"disk": {"admit_after": 1, "tokens_min": engine.grid}}
    settings = Settings().changed(every)
    house = House(engine, Bundled(Template(Tokenizer())), Setup(folder, 0), settings)
    try:
        yield Tiered(house.box, folder)
    finally:
        house.close()
