"""What a smaller prefill chunk costs and saves: weights read again, and finer resume lines.

Three parts. The board's measured prompt, and the line through it that the clock charges. The same
prompt through the small hybrid on this machine, in one run: only the ratios can be compared. And
traces replayed on grids from 256 to 4,096 under one anchor budget in bytes, so that a finer grid
has its lines closer together and not more of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pandas as pd
from rich.console import Console

from cache.types import Ids
from engine.adapter import Engine
from engine.bad import BadInput
from experiments.figure import Figure
from experiments.traffic import refuse_failures
from replay.commands import replayed, traces_of
from replay.driver import Options
from replay.models import build
from replay.trace import Trace
from sim.chunks import ChunkTimes
from sim.compute import PrefillTime
from sim.profile import Profile

NAME = "chunk-size"
ABOUT = "what a smaller prefill chunk costs and saves, on grids of 256 to 4,096 (--traces)"
TRACES = ("night",)

GRIDS = (256, 512, 1_024, 2_048, 4_096)
ROUNDS = 7
"""The quickest of so many counts, in seconds of this process: others use the machine too."""


def run(board: Profile, names: Sequence[str], skip_bad: bool = False) -> list[Figure]:
    """The measured prompt, the same on this machine, and the traces on every grid."""
    if board.chunk_times is None:
        raise BadInput(
            "--profile", None, f"{board.name} has no prefill measured in two chunk sizes"
        )
    times = board.chunk_times
    figures = [*fitted(times), *on_this_machine(board, times)]
    for name in names:
        traces, _ = traces_of([name], skip_bad, Console(stderr=True))
        for grid in GRIDS:
            key = f"{name.rstrip('/').split('/')[-1]}.grid_{grid}"
            figures += replayed_on(key, replace(board, grid=grid), traces)
    return figures


def label(times: ChunkTimes, chunk: int) -> str:
    """A chunk size as part of a figure's name."""
    return "one_piece" if chunk >= times.tokens else f"chunks_{chunk}"


def fitted(times: ChunkTimes) -> list[Figure]:
    """The line through the measured prompt, beside what was measured."""
    figures = []
    for chunk, took in times.seconds:
        predicted_s = times.predicted_s(chunk)
        note = f"{times.pieces(chunk)} chunks, off by {1_000 * (predicted_s - took):+.0f} ms"
        figures.append(Figure(f"board.{label(times, chunk)}_s", took, predicted_s, "s", note))
    chunk_s, rest_s = times.line
    return [
        *figures,
        Figure("board.chunk_s", None, chunk_s, "s", "each chunk, by least squares"),
        Figure("board.rest_s", None, rest_s, "s", f"{times.tokens:,} tokens beside that"),
    ]


def on_this_machine(
    board: Profile,
    times: ChunkTimes,
    rounds: int = ROUNDS,
    now: Callable[[], float] = time.process_time,
) -> list[Figure]:
    """The same prompt through the model of `--model random`, over its prefill in one piece."""
    size = times.tokens
    engine = build("random", replace(board, grid=size, window=size), seed=0)
    ids = np.random.default_rng(0).integers(0, board.vocab, size).astype(np.int32)
    chunks = [chunk for chunk, _ in times.seconds]
    took = {chunk: [0.0] * rounds for chunk in chunks}
    for at in range(-1, rounds):
        # In turn, so that a busy moment meets all of them; the round before the first warms up.
        for chunk in chunks:
            seconds = prefill_s(engine, ids, chunk, now)
            if at >= 0:
                took[chunk][at] = seconds
    whole, whole_s = max(chunks), dict(times.seconds)[max(chunks)]
    return [
        Figure(
            f"here.{label(times, chunk)}",
            measured_s / whole_s,
            min(took[chunk]) / min(took[whole]),
            "of one piece",
            f"{1_000 * min(took[chunk]):.0f} ms on one core, the quickest of {rounds}",
        )
        for chunk, measured_s in times.seconds
    ]


def prefill_s(engine: Engine, ids: Ids, chunk: int, now: Callable[[], float]) -> float:
    """Seconds of a cold prefill in pieces of `chunk`."""
    engine.resume_at(0)
    edges = [*range(0, len(ids), chunk), len(ids)]
    begun = now()
    for start, stop in pairwise(edges):
        engine.prefill(ids[start:stop])
    return now() - begun


def replayed_on(key: str, board: Profile, traces: Sequence[Trace]) -> list[Figure]:
    """What a pack reads again and what its prefills take on the board's grid."""
    ledger, _ = replayed(traces, Options(board))
    refuse_failures(ledger)
    served = ledger[~ledger["over_window"]]
    prompt, cached = int(served["prompt"].sum()), int(served["cached"].sum())
    lines = board.resident_bytes // board.anchor_bytes
    return [
        Figure(f"{key}.reread", None, int(served["reread"].sum()), "tokens", f"{lines} anchors"),
        Figure(f"{key}.reread_grid", None, int(served["reread_grid"].sum()), "tokens"),
        Figure(f"{key}.reread_evicted", None, int(served["reread_evicted"].sum()), "tokens"),
        Figure(f"{key}.reused", None, 100 * cached / max(1, prompt), "%", "of the prompts"),
        Figure(f"{key}.prefill_s", None, float(served["prefill_s"].sum()), "s", "of the board"),
        Figure(f"{key}.chunks_s", None, chunks_s(served, board), "s", "of that, over 1,024"),
    ]


def chunks_s(served: pd.DataFrame, board: Profile) -> float:
    """Seconds that chunks of this grid cost beyond those of the fitted one."""
    time_of = PrefillTime.fit(board)
    rows = zip(served["cached"].tolist(), served["prompt"].tolist(), strict=True)
    return sum(time_of.chunks_s(cached, prompt) for cached, prompt in rows)
