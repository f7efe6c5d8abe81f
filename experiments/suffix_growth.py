"""What a suffix store grows by: every prompt whole, or only what the last requests had not.

An agent sends the same growing prompt every turn. The seed added it whole: 397.5 million tokens in
a night for about 4.8 million new ones, with the suffix array built anew after every turn. Times are
of this machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from rich.console import Console

from cache.suffix_recent import Recent
from cache.suffix_store import SuffixConfig, SuffixStore
from experiments.drafts import SEED, hidden
from experiments.figure import Figure
from replay.commands import traces_of
from replay.progress import progress
from replay.suffixes import asked, scratch_store, sources_of, tokenizer_of
from replay.trace import Trace
from sim.profile import Profile

NAME = "suffix-growth"
ABOUT = "tokens a suffix store grows by, prompts whole against what is new (--traces)"
TRACES = ("night",)

SEED_WHOLE, SEED_NEW = 397_500_000, 4_800_000
REMEMBERED = (1, 2, 8, 32)
WHOLE_MOST = 100_000_000
"""Of a pack with more tokens, what adding whole would add is counted and not done: the array would
be built anew for hours."""


def run(board: Profile, names: Sequence[str], skip_bad: bool = False) -> list[Figure]:
    """Both ways over the same requests, each pack of traces by itself."""
    figures = []
    for name in names:
        traces, _ = traces_of([name], skip_bad, Console(stderr=True))
        figures += grown(name.rstrip("/").split("/")[-1], board, traces)
    return figures


def grown(pack: str, board: Profile, traces: Sequence[Trace]) -> list[Figure]:
    """One pack's figures."""
    config = SuffixConfig()
    tokenizer = tokenizer_of(traces, board, SEED)
    requests = [request for trace in traces for request in trace.requests]
    sent = sum(request.prompt_tokens + request.output_tokens for request in requests)
    figures = [Figure(f"{pack}.whole.added_tokens", SEED_WHOLE, sent, "tokens")]
    if sent <= WHOLE_MOST:
        with scratch_store(replace(config, remembered=0), tokenizer) as whole:
            fill(whole, board, traces, "whole")
            figures += of_store(f"{pack}.whole", whole)
        for count, added in by_remembered(board, traces).items():
            note = f"the last {count} requests remembered"
            figures.append(Figure(f"{pack}.last_{count}.added_tokens", None, added, "tokens", note))
    with scratch_store(config, tokenizer) as new:
        fill(new, board, traces, "new")
        added = new.stats.added_tokens
        figures.append(Figure(f"{pack}.new.added_tokens", SEED_NEW, added, "tokens"))
        figures += of_store(f"{pack}.new", new)
    seed, every = 100 * SEED_NEW / SEED_WHOLE, new.stats.adding_requests
    return [
        *figures,
        Figure(f"{pack}.new_of_whole", seed, 100 * added / max(1, sent), "%"),
        Figure(f"{pack}.rebuilds_a_turn", None, every, "rebuilds", "one after every turn"),
    ]


def by_remembered(board: Profile, traces: Sequence[Trace]) -> dict[int, int]:
    """What would be added if more or fewer of the last requests were remembered."""
    recent, added = {count: Recent(count) for count in REMEMBERED}, dict.fromkeys(REMEMBERED, 0)
    for prompt, output in asked(traces, sources_of(traces, board, SEED)):
        ids = np.concatenate([prompt, output])
        for count in REMEMBERED:
            added[count] += sum(stop - start for start, stop in recent[count].added(ids))
    return added


def fill(store: SuffixStore, board: Profile, traces: Sequence[Trace], name: str) -> None:
    """Add every request that was served, in the order of its trace."""
    total = sum(len(trace.requests) for trace in traces)
    with progress(name, total, unit="requests") as advance:
        for trace, source in zip(traces, sources_of(traces, board, SEED), strict=True):
            for request in trace.requests:
                prompt, output = source.prompt(request.number), source.output(request.number)
                store.add(prompt, output.tolist(), hidden(request))
                store.drain()
                advance(1)


def of_store(key: str, store: SuffixStore) -> list[Figure]:
    """What it cost to grow."""
    stats = store.stats
    return [
        Figure(f"{key}.file_bytes", None, store.file_bytes, "bytes"),
        Figure(f"{key}.forgotten_documents", None, stats.forgotten_documents, "documents"),
        Figure(f"{key}.rebuilds", None, stats.rebuilds, "rebuilds"),
        Figure(f"{key}.sorted_tokens", None, stats.rebuilt_tokens, "tokens"),
        Figure(f"{key}.rebuild_s", None, stats.rebuild_s_total, "s", "of this machine"),
    ]
