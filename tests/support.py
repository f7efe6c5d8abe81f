"""What tests share: engines of every kind, sequences of tokens, and turns with forced answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from made_up import MadeUp

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
from cache.types import Gate, Ids
from cache.writeguard import GuardConfig, WriteGuard
from engine.adapter import Engine
from engine.config import HybridConfig
from engine.forced import Forced
from engine.hybrid import Hybrid
from engine.turn import Box, Prompt, Reader, Ready, Tokens, plainly, turn
from engine.witness import Witness
from replay.verify import ColdVerifier, Verdict, Verifier, WitnessVerifier
from sim.clock import VirtualClock
from sim.jobs import SeededJobs
from sim.timed_workers import TimedWay, TimedWorkers

GRID = 64
WINDOW = 2_048
VOCAB = 499
MODELS = ("witness", "hybrid-float32", "hybrid-bfloat16", "made-up")


def tokens(count: int, seed: int = 0) -> Ids:
    """Random token ids; the same for the same seed."""
    return np.random.default_rng(seed).integers(0, VOCAB, count).astype(np.int32)


def joined(*parts: Ids) -> Ids:
    """One sequence of several."""
    return np.concatenate(parts).astype(np.int32)


def engine(model: str, grid: int = GRID, window: int = WINDOW, seed: int = 1) -> Engine:
    """An empty engine of the named kind."""
    if model == "witness":
        return Witness(grid, window, vocab=VOCAB)
    if model == "made-up":
        return MadeUp(grid, window)
    dtype = model.removeprefix("hybrid-")
    return Hybrid.random(HybridConfig.tiny(dtype=dtype), seed, grid=grid, window=window)


def verifier(of: Engine) -> Verifier:
    """What checks this engine."""
    return WitnessVerifier(of) if isinstance(of, Witness) else ColdVerifier(of)


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
