"""Prefill beside transformers on one checkpoint, and what tiers and drafts cost and give

One random checkpoint of Qwen3.5's text architecture with some 50 million parameters is written and
read by both. The same prompt is prefilled cold, in turn: here in chunks of 1,024; there in the same
chunks and in one piece, with no gradients and one row of logits, of which the faster counts. Beside
it stands what the ratio would be if all but the products were free here, at the rate that this
machine has for them: both sides need nearly the same ones. Then here: the same cold prefill through
a turn with every tier on, over one with none; and greedy decoding with guesses of the draft layer,
with lookups of a text that was read before, and with guesses of which as many are right as on the
modelled board, over decoding without any. Times are of this machine, ratios of one run.
"""

from __future__ import annotations

import importlib
import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cache.types import Ids
from engine.adapter import Engine
from engine.bad import BadInput
from engine.checkpoint.open import open_weights
from engine.checkpoint.save import save_checkpoint
from engine.config import HybridConfig
from engine.decode import Rule, decode
from engine.forced import Forced
from engine.hybrid import Hybrid
from engine.layers.decoder import Decoder
from engine.lookup import Lookup, LookupConfig
from engine.sampling import Greedy
from engine.weights import random_weights
from experiments.figure import Figure
from experiments.roofline import operations, rate_per_s
from experiments.tiered import bare, tiered
from experiments.traffic import GateFailed
from replay.progress import progress
from sim.profile import Profile

NAME = "prefill-vs-transformers"
ABOUT = "prefill on this machine beside transformers, tiers on over none, drafts over none"

CHUNK = 1_024
BOUNDS = {"float32": 2e-3, "bfloat16": 0.5}
"""How far the last logits may be apart: other sums over 8 layers; wrong ones are off by ones."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is measured."""

    prompt: int = 4_096
    rounds: int = 5
    enough_s: float = 100.0
    """Of a comparison: no further round begins then. Without bfloat16 products transformers takes
    a minute for a prompt."""
    answer: int = 192
    threads: tuple[int, ...] = (1, 2)
    shape: HybridConfig = HybridConfig(  # noqa: RUF009 - frozen
        vocab=16_384,
        hidden=512,
        layers=8,
        q_heads=6,
        kv_heads=1,
        head_dim=256,
        key_heads=4,
        value_heads=12,
        key_dim=128,
        value_dim=128,
        intermediate=1_792,
        draft=False,
    )


USUAL = Sizes()


def run(board: Profile, sizes: Sizes = USUAL) -> list[Figure]:
    """Figures of this machine; raises BadInput without transformers, which the tests install."""
    try:
        peers = importlib.import_module("transformers")
    except ImportError:
        what = "needs transformers, which `make .venv/installed-test` installs"
        raise BadInput(NAME, None, what) from None
    before, found = torch.get_num_threads(), list[Figure]()
    steps = len(sizes.threads) * 2 + 2
    with (
        tempfile.TemporaryDirectory(prefix="moorage-") as name,
        progress("measuring", steps, unit="parts") as advance,
    ):
        directory = Path(name) / "model"
        save_checkpoint(random_weights(sizes.shape, 0), directory, kind="qwen3_5_text")
        try:
            for threads in sizes.threads:
                torch.set_num_threads(threads)
                for dtype in BOUNDS:
                    found += _prefill(peers, directory, dtype, threads, sizes)
                    advance(1)
            torch.set_num_threads(1)
            found.append(_tiers(directory, Path(name) / "caches", sizes))
            advance(1)
            found += _drafts(board, sizes)
            advance(1)
        finally:
            torch.set_num_threads(before)
    return found


def prompt_of(sizes: Sizes) -> Ids:
    """Random tokens."""
    draw = np.random.default_rng(0)
    return draw.integers(0, sizes.shape.vocab, sizes.prompt).astype(np.int32)


def in_turn(
    ways: Mapping[str, Callable[[], Any]], sizes: Sizes, now: Callable[[], float]
) -> dict[str, float]:
    """Seconds of each way, the quickest of several rounds; each has run before.

    In turn, so that a busy moment meets all of them.
    """
    took: dict[str, list[float]] = {name: [] for name in ways}
    end = now() + sizes.enough_s
    for at in range(sizes.rounds):
        if at and now() > end:
            break
        for name, way in ways.items():
            begun = now()
            way()
            took[name].append(now() - begun)
    return {name: min(seconds) for name, seconds in took.items()}


def clock_of(threads: int) -> Callable[[], float]:
    """Of one thread its own seconds, as others use the machine too; of several the wall's."""
    return time.thread_time if threads == 1 else time.perf_counter


def _prefill(
    peers: Any, directory: Path, dtype: str, threads: int, sizes: Sizes
) -> Iterator[Figure]:
    """Tokens a second here over the faster way there, and were there nothing but products here."""
    ids = prompt_of(sizes)
    engine = hybrid(directory, dtype, sizes.prompt)
    kind = getattr(torch, dtype)
    with quiet(peers):
        theirs = peers.Qwen3_5ForCausalLM.from_pretrained(directory, dtype=kind).eval()
    ways: dict[str, Callable[[], Any]] = {
        "here": lambda: prefill(engine, ids),
        "chunks": lambda: their_prefill(theirs, ids, CHUNK),
        "whole": lambda: their_prefill(theirs, ids, len(ids)),
    }
    with quiet(peers):
        logits = [way().float() for way in ways.values()]
    apart = max(float((one - logits[0]).abs().max()) for one in logits)
    if not apart <= BOUNDS[dtype]:
        raise GateFailed(f"{dtype}: logits are {apart:.3g} apart from transformers'")
    now = clock_of(threads)
    took = in_turn(ways, sizes, now)
    rates = {name: sizes.prompt / seconds for name, seconds in took.items()}
    size = sum(p.numel() for p in theirs.parameters()) / 1e6
    note = f"{rates['here']:,.0f} tokens/s over {rates['chunks']:,.0f} in chunks"
    note += f", {rates['whole']:,.0f} in one piece; {size:.0f} M parameters, {apart:.1g} apart"
    theirs_s, key = max(rates["chunks"], rates["whole"]), f"prefill.{dtype}.threads_{threads}"
    yield Figure(f"{key}_ratio", None, rates["here"] / theirs_s, "times", note)
    product_s = rate_per_s(sizes.shape, kind, now)
    bound = sizes.prompt * product_s / operations(sizes.shape, sizes.prompt)
    note = f"{bound:,.0f} tokens/s were all but products free, at {product_s / 1e9:,.0f} GFLOP/s"
    note += f"; here {100 * rates['here'] / bound:.0f} % of that"
    yield Figure(f"{key}_bound_ratio", None, bound / theirs_s, "times", note)


def hybrid(directory: Path, dtype: str, window: int) -> Hybrid:
    """Our engine over the checkpoint."""
    window = -(-window // CHUNK) * CHUNK
    return Hybrid(Decoder(open_weights(directory, dtype=dtype)), grid=CHUNK, window=window)


def prefill(engine: Engine, ids: Ids) -> torch.Tensor:
    """The last logits of a cold prefill."""
    engine.resume_at(0)
    logits = torch.empty(0)
    for start in range(0, len(ids), engine.grid):
        logits = engine.prefill(ids[start : start + engine.grid])
    return logits


@torch.inference_mode()
def their_prefill(model: Any, ids: Ids, chunk: int) -> torch.Tensor:
    """The same of transformers' model."""
    rows, memory, out = torch.from_numpy(ids.astype(np.int64))[None], None, None
    for start in range(0, len(ids), chunk):
        piece = rows[:, start : start + chunk]
        out = model(piece, cache=memory, use_cache=True, logits_to_keep=1)
        memory = out.past_key_values
    assert out is not None
    last: torch.Tensor = out.logits[0, -1]
    return last


@contextmanager
def quiet(peers: Any) -> Iterator[None]:
    """It shows how far it is with a small file, and advises to install kernels of other devices."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    peers.utils.logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.disable(before)


def _tiers(directory: Path, folder: Path, sizes: Sizes) -> Figure:
    """A cold turn up to its first token with every tier on, over one without any."""
    ids = prompt_of(sizes)
    window = sizes.prompt + 4 * CHUNK
    ratios = []
    with (
        bare(hybrid(directory, "float32", window)) as none,
        tiered(hybrid(directory, "float32", window), folder) as every,
    ):
        none.cold_s(ids, 0)
        every.cold_s(ids, 0)
        for number in range(1, 1 + sizes.rounds):
            # The order changes, so that what drifts falls on both.
            pair = (none, every) if number % 2 else (every, none)
            took = {one: one.cold_s(ids, number) for one in pair}
            ratios.append(took[every] / took[none])
        if not every.wrote_bytes:
            raise GateFailed("no tier wrote anything")
    note = f"wall time, median of {sizes.rounds} pairs; {every.wrote_bytes / 1e6:,.0f} MB written"
    return Figure("tiers_ratio", None, statistics.median(ratios), "of none", note)


def _drafts(board: Profile, sizes: Sizes) -> list[Figure]:
    """Tokens a second of decoding with guesses over those without."""
    config = replace(sizes.shape, draft=True)
    window = sizes.prompt + 2 * sizes.answer + CHUNK
    engine = Hybrid.random(config, 0, grid=CHUNK, window=-(-window // CHUNK) * CHUNK)
    ids = prompt_of(sizes)[: sizes.prompt - CHUNK // 2]
    text = _written(engine, ids, Greedy(0), sizes.answer)
    # What a store holds of the text before, and where the answer begins.
    told = np.concatenate([ids, text, ids[-64:]]).astype(np.int32)
    right = partial(Forced, text, seed="0", drafts=board.drafts, accepted=board.accepted)
    rules: Mapping[str, Callable[[], Rule]] = {
        "none": lambda: Greedy(0),
        "mtp": lambda: Greedy(board.drafts),
        "lookup": lambda: Greedy(0, lookup=Lookup(None, LookupConfig(drafts=board.drafts))),
        "accepted": lambda: right(vocab=config.vocab),
    }
    took: dict[str, list[float]] = {name: [] for name in rules}
    alike = dict.fromkeys(rules, 0)
    for at in range(-1, sizes.rounds):
        for name, rule in rules.items():
            logits, heard = prefill(engine, ids), told if name == "lookup" else ids
            begun_s = time.thread_time()
            wrote = _decoded(engine, logits, rule(), heard, sizes.answer)
            if at >= 0:
                took[name].append(time.thread_time() - begun_s)
            # A block rounds otherwise than one row: a near tie may part two random models' texts.
            alike[name] = int((wrote == text).cumprod().sum())
    per_s = {name: sizes.answer / min(seconds) for name, seconds in took.items()}
    notes = {
        "mtp": "random weights guess nothing right: what drafting costs at worst",
        "lookup": "the text was read before",
        "accepted": f"a draft is right with a chance of {board.accepted}",
    }
    return [
        Figure(
            f"decode.{name}_ratio",
            None,
            per_s[name] / per_s["none"],
            "of none",
            f"{note}; {alike[name]} of {sizes.answer} tokens as without",
        )
        for name, note in notes.items()
    ]


def _written(engine: Engine, ids: Ids, rule: Rule, count: int) -> Ids:
    return _decoded(engine, prefill(engine, ids), rule, ids, count)


def _decoded(engine: Engine, logits: torch.Tensor, rule: Rule, ids: Ids, count: int) -> Ids:
    rule.begin(ids)
    tokens: list[int] = []
    for new in decode(engine, logits, rule, count, frozenset()):
        tokens += new
    return np.array(tokens, np.int32)
