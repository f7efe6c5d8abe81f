"""What tests share: engines of every kind, sequences of tokens, and turns with forced answers."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np
import pytest
import torch

from cache.anchors import AnchorConfig
from cache.config import StackConfig
from cache.disk.config import DiskConfig
from cache.disk.open import Identity, open_tier
from cache.disk.tier import DiskTier
from cache.guest import GuestConfig
from cache.journal import Journal, TurnRow
from cache.meet import Meeting, exactly
from cache.parked import ParkConfig
from cache.ports import Clock, Files, Jobs, Way, Workers
from cache.snapshot import StoreConfig
from cache.spill.config import SpillConfig
from cache.spill.open import open_spill
from cache.spill.tier import Spill
from cache.stack import Stack
from cache.store import Store
from cache.types import CacheState, Gate, Ids
from cache.writeguard import GuardConfig, WriteGuard
from engine.adapter import Engine
from engine.config import HybridConfig
from engine.flash.config import FlashConfig
from engine.flash.decoder import FlashDecoder
from engine.flash.engine import Flash
from engine.flash.weights import random_weights as flash_weights
from engine.forced import Forced
from engine.hybrid import Hybrid
from engine.layers.decoder import Decoder
from engine.turn import Box, Prompt, Reader, Ready, Tokens, plainly, turn
from engine.weights import random_weights
from engine.witness import Witness
from replay.verify import ColdVerifier, Verdict, Verifier, WitnessVerifier, tolerance
from sim.clock import VirtualClock
from sim.jobs import SeededJobs
from sim.timed_workers import TimedWay, TimedWorkers

GRID = 64
WINDOW = 2_048
VOCAB = 499
MODELS = ("witness", "hybrid-float32", "hybrid-bfloat16", "flash", "third")
"""What every gate is held to."""
CANARIES = (
    "witness",
    "hybrid-float32",
    "third",
    pytest.param("hybrid-bfloat16", marks=pytest.mark.slow),
    pytest.param("flash", marks=pytest.mark.slow),
)
"""What a planted fault is seen on: the same code judges all, so `make test` asks three."""


def tokens(count: int, seed: int = 0) -> Ids:
    """Random token ids; the same for the same seed."""
    return np.random.default_rng(seed).integers(0, VOCAB, count).astype(np.int32)


def joined(*parts: Ids) -> Ids:
    """One sequence of several."""
    return np.concatenate(parts).astype(np.int32)


@cache
def decoder(model: str, seed: int) -> Decoder | FlashDecoder:
    """Weights, made once. Two layers, one of each kind: caches hold tensors, however many.

    The bfloat16 hybrid has no draft layer: that is float32's and the flash model's to show.
    """
    if model == "flash":
        config = FlashConfig.tiny(layers=2, attention_interval=2)
        return FlashDecoder(flash_weights(config, seed))
    dtype = model.removeprefix("hybrid-")
    shape = {"layers": 2, "full_attention_interval": 2, "draft": dtype == "float32"}
    return Decoder(random_weights(HybridConfig.tiny(dtype=dtype, **shape), seed))


KINDS: WeakKeyDictionary[Engine, tuple[str, int]] = WeakKeyDictionary()
"""Model and seed of the engines made here."""


def engine(model: str, grid: int = GRID, window: int = WINDOW, seed: int = 1) -> Engine:
    """An empty engine of the named kind."""
    of = _engine(model, grid, window, seed)
    KINDS[of] = model, seed
    return of


def _engine(model: str, grid: int, window: int, seed: int) -> Engine:
    if model == "witness":
        return Witness(grid, window, vocab=VOCAB)
    if model == "third":
        # JAX takes a second to import: only who needs it waits.
        from engine.third import Third

        return Third(grid, window, seed=seed, vocab=VOCAB)
    weights = decoder(model, seed)
    if isinstance(weights, FlashDecoder):
        return Flash(weights, grid=grid, window=window)
    return Hybrid(weights, grid=grid, window=window)


@dataclass(frozen=True, slots=True)
class Given:
    """What a cold prefill of some prompt gave: digests of rows by chunk and of sections."""

    rows: tuple[bytes, ...]
    sections: bytes
    logits: torch.Tensor

    @classmethod
    def of(cls, state: CacheState, rows: int, grid: int, logits: torch.Tensor) -> Given:
        """Of a state in place, up to `rows`."""
        chunks = [
            digest([view.rows(at, min(at + grid, rows)) for view in state.views])
            for at in range(0, rows, grid)
        ]
        sections = digest([section.tensor for section in state.sections])
        return cls(tuple(chunks), sections, logits.clone())


def digest(tensors: list[torch.Tensor]) -> bytes:
    """Of their bytes."""
    total = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        total.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
    return total.digest()


class ColdOnce(ColdVerifier):
    """Prefills a prompt cold once a process; whoever has it again is held to digests.

    What differs from a digest is prefilled cold again, so that a failure has its usual words. Only
    engines made here share: a test that changes what an engine computes builds its own.
    """

    known: ClassVar[dict[tuple[object, ...], Given]] = {}

    def check(self, ids: Ids, logits: torch.Tensor, gate: Gate, clean: int) -> Verdict:
        """As the cold verifier's."""
        given = self.known.get(self._name(ids))
        if given is not None and self._same(given, len(ids), logits, gate, clean):
            return Verdict(gate)
        return super().check(ids, logits, gate, clean)

    def _same(self, given: Given, size: int, logits: torch.Tensor, gate: Gate, clean: int) -> bool:
        grid, live = self._engine.grid, self._engine.cache_state()
        rows = size if gate is Gate.BITS else clean // grid * grid
        found = Given.of(live, rows, grid, logits)
        if found.rows != given.rows[: len(found.rows)]:
            return False
        if gate is Gate.GREEDY:
            worst = float((logits.float() - given.logits.float()).abs().max())
            return worst <= tolerance(live, logits.dtype)
        return found.sections == given.sections and torch.equal(logits, given.logits)

    def _prefilled(self, ids: Ids) -> tuple[Engine, torch.Tensor]:
        twin, logits = super()._prefilled(ids)
        self.known[self._name(ids)] = Given.of(twin.cache_state(), len(ids), twin.grid, logits)
        return twin, logits

    def _name(self, ids: Ids) -> tuple[object, ...]:
        return *KINDS[self._engine], self._engine.grid, ids.tobytes()


def verifier(of: Engine) -> Verifier:
    """What checks this engine."""
    if isinstance(of, Witness):
        return WitnessVerifier(of)
    return ColdOnce(of) if of in KINDS else ColdVerifier(of)


def box(
    of: Engine,
    *,
    anchors: int = 17,
    newest: int = 4,
    keeps_end: bool = True,
    seed: int = 0,
    park_rows: int = 0,
    pin_rows: int = 0,
    guest_tokens: int = 0,
    stash_rows: int = 0,
    checkpoint_tokens: int = 0,
    store_bytes: int = 0,
    boundaries: int = 1,
    session_trim: bool = False,
    meeting: Meeting = exactly,
    store: Store | None = None,
    disk: DiskTier | None = None,
    spill: Spill | None = None,
    writes: bool = True,
) -> Box:
    """A box around an engine, with room for so many anchors; what is not asked for is off."""
    cost = of.cost()
    config = StackConfig(
        anchors=AnchorConfig(
            budget_bytes=anchors * cost.anchor_bytes,
            newest_kept=newest,
            head_step=4 * of.grid,
            head_limit=8 * of.grid,
        ),
        park=ParkConfig(
            park_bytes=park_rows * cost.row_bytes,
            pin_bytes=pin_rows * cost.row_bytes,
            block_rows=of.grid,
        ),
        guest=GuestConfig(
            tokens_max=guest_tokens,
            stash_bytes=stash_rows * cost.row_bytes,
            margin_rows=16,
            block_rows=of.grid,
        ),
        store=StoreConfig(
            budget_bytes=store_bytes,
            entry_bytes=store_bytes,
            boundaries=boundaries,
            block_rows=of.grid,
            session_trim=session_trim,
        ),
        keeps_end=keeps_end,
        checkpoint_tokens=checkpoint_tokens,
    )
    stack = Stack(of, config, meeting, store, disk=disk, spill=spill, writes=writes)
    jobs = SeededJobs(seed) if disk is None else disk.keeper.jobs
    return Box(of, stack, VirtualClock(), jobs, Journal())


def plain(fingerprint: str = "f" * 64) -> Identity:
    """What computes rows, named by hand; nothing else is accepted."""
    return Identity(fingerprint, lambda files: ())


def tier(
    files: Files,
    of: Engine,
    *,
    jobs: Jobs | None = None,
    clock: Clock | None = None,
    identity: Identity | None = None,
    guard: WriteGuard | None = None,
    way: Way | None = None,
    **settings: Any,
) -> DiskTier:
    """The disk tier of a directory; a refusal fails the test."""
    config = DiskConfig(**{"tokens_min": 1, "floor_bytes": 0, "min_free_bytes": 0} | settings)
    found = open_tier(
        files,
        clock or VirtualClock(),
        jobs or SeededJobs(0),
        config,
        of,
        identity or plain(),
        guard,
        way,
    )
    assert isinstance(found, DiskTier), found
    return found


def spill(
    files: Files,
    of: Engine,
    *,
    clock: Clock | None = None,
    identity: Identity | None = None,
    workers: Workers | None = None,
    guard: WriteGuard | None = None,
    way: Way | None = None,
    **settings: Any,
) -> Spill:
    """The spill of a directory, for conversations of any length; a refusal fails the test."""
    small = {"tokens_min": 1, "park_tokens_min": 1, "floor_bytes": 0, "min_free_bytes": 0}
    small["idle_tokens_min"] = 1
    config = SpillConfig(**{**small, "block_rows": of.grid, **settings})
    clock = clock or VirtualClock()
    found = open_spill(
        *(files, clock, config, of, identity or plain()),
        workers or TimedWorkers(VirtualClock(), {}),
        guard or WriteGuard(clock, GuardConfig()),
        way or TimedWay(VirtualClock()),
    )
    assert isinstance(found, Spill), found
    return found


def forced(answer: Ids, *, accepts: tuple[int, ...] = (), seed: str = "0") -> Forced:
    """A rule that writes `answer`."""
    return Forced(answer, seed=seed, vocab=VOCAB, drafts=3, accepted=0.6, accepts=accepts)


def serve(
    on: Box,
    ids: Ids,
    answer: Ids,
    *,
    check: Verifier | None = None,
    accepts: tuple[int, ...] = (),
    session: str | None = None,
    kind: str = "turn",
    limit: int | None = None,
    read: Reader = plainly,
    check_accounts: bool = True,
) -> tuple[TurnRow, Verdict | None]:
    """One turn with a forced answer; its journal row, and the verdict when a verifier is given."""
    verdict: Verdict | None = None
    prompt = Prompt(ids, session, kind=kind)
    rule, most = forced(answer, accepts=accepts), limit or len(answer)
    for event in turn(on, prompt, rule, limit=most, read=read):
        if isinstance(event, Ready) and check is not None:
            verdict = judge(on, event.ids, event.logits, check)
    if check_accounts:
        on.stack.check()
    return on.journal.rows[-1], verdict


def judge(on: Box, ids: Ids, logits: torch.Tensor, check: Verifier) -> Verdict:
    """Hold the state after a prefill to the gate that the taint line implies."""
    taint = on.stack.taint
    gate = Gate.BITS if taint is None else Gate.GREEDY
    return check.check(ids, logits, gate, len(ids) if taint is None else taint)


def prefill_only(on: Box, ids: Ids) -> None:
    """A turn whose caller leaves when the prompt is in place."""
    events = turn(on, Prompt(ids), forced(tokens(4)), limit=4)
    for event in events:
        if isinstance(event, Tokens | Ready):
            events.close()
