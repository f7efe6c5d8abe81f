"""Drafts accepted a round: lookups, the draft layer, and both, on the answers as recorded.

A round's guesses are compared with what the recording goes on with, as greedy decoding would judge
them. A trace without text keeps which tokens are copies, so that what a lookup finds is real; what
was written anew there has tokens that stand nowhere else, so that short common phrases, which a
lookup also finds in real text, are missing. Recordings have their own tokens.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from rich.console import Console

from cache.suffix_store import SuffixConfig, SuffixStore
from cache.types import Ids
from engine.lookup import Lookup, LookupConfig
from experiments.figure import Figure
from replay.commands import traces_of
from replay.progress import progress
from replay.suffixes import Flags, open_store, refuse_seen, scratch_store, sources_of, tokenizer_of
from replay.trace import Request, Trace
from sim.profile import Profile

NAME = "drafts"
ABOUT = "drafts accepted a round: none, lookups, the draft layer, both (--traces, --suffix-dir)"
TRACES = ("night",)
SUFFIX = True
"""Takes --suffix-dir."""
SEED = 0

LONGEST = 8
"""Guesses that are looked up; a way takes as many as a block of its carries."""
LOOKUP = LookupConfig(drafts=LONGEST)
MOSTLY = replace(LOOKUP, prefer="frequent")


@dataclass(slots=True)
class Tally:
    """Rounds of one way to draft."""

    rounds: int = 0
    accepted: int = 0
    drafted: int = 0
    seconds: list[float] = field(default_factory=list)
    """Of each lookup."""

    def took(self, guesses: Sequence[int], text: Sequence[int], at: int) -> int:
        """Count a round that guessed what follows `text[:at]`; the tokens it gives."""
        right = 0
        for guess, token in zip(guesses, text[at:], strict=False):
            if guess != token:
                break
            right += 1
        return self.gave(right, len(guesses), len(text) - at)

    def gave(self, right: int, drafted: int, left: int) -> int:
        """Count a round of so many right drafts; the answer has `left` tokens left."""
        # The token after the drafts is one of the answer's too.
        right = min(right, left - 1)
        self.rounds += 1
        self.accepted += right
        self.drafted += drafted
        return right + 1


class Layer:
    """The draft layer: what the trace recorded, else the board's chance, drawn from a seed."""

    def __init__(self, board: Profile, request: Request) -> None:
        self._draw = random.Random(f"drafts:{request.number}")
        self._accepts = iter(request.accepts)
        self._board = board
        self.drafts = board.drafts

    def right(self) -> int:
        """How many of its drafts the next round accepts."""
        recorded, most = next(self._accepts, None), self._board.drafts
        if recorded is not None:
            return min(recorded, most)
        right = 0
        while right < most and self._draw.random() < self._board.accepted:
            right += 1
        return right


@dataclass(frozen=True, slots=True)
class Way:
    """One way to draft."""

    name: str
    lookup: str
    """Which lookup it asks first, of the names in `lookups`; empty for none."""
    drafts: int
    """Guesses of a lookup that a block carries."""
    layer: bool
    note: str


WAYS = (
    Way("none", "", 0, False, "a token a round"),
    Way("prompt", "prompt", 3, False, "lookup in the request alone"),
    Way("store", "store", 3, False, "and in earlier requests"),
    Way("frequent", "frequent", 3, False, "what mostly followed"),
    Way("layer", "", 0, True, "the draft layer alone"),
    Way("both", "store", 3, True, "lookup first, else the layer"),
    Way("both_8", "store", LONGEST, True, "lookups of up to 8"),
)
GIVEN = (
    Way("given", "given", 3, False, "the store of --suffix-dir"),
    Way("given_both", "given", 3, True, "and the layer"),
)


def lookups(grown: SuffixStore, given: SuffixStore | None) -> dict[str, Lookup]:
    """Every lookup that a way asks, for one answer."""
    found = {
        "prompt": Lookup(None, LOOKUP),
        "store": Lookup(grown, LOOKUP),
        "frequent": Lookup(grown, MOSTLY),
    }
    return found | ({"given": Lookup(given, LOOKUP)} if given is not None else {})


def guessed(
    lookup: Lookup, prompt: Ids, text: Sequence[int], seconds: list[float]
) -> list[list[int]]:
    """What a lookup guesses at every place of an answer, whichever rounds lead there."""
    guesses: list[list[int]] = [[]]
    lookup.begin(prompt)
    for token in text[:-1]:
        lookup.wrote((token,))
        begun = time.thread_time()
        found = lookup.find(LONGEST)
        seconds.append(time.thread_time() - begun)
        guesses.append(found.tokens if found is not None else [])
    return guesses


def answered(
    tally: Tally, way: Way, text: Sequence[int], guesses: Sequence[list[int]], layer: Layer
) -> None:
    """One answer, written in rounds; its first token is the prefill's."""
    at = 1
    while at < len(text):
        guess = guesses[at][: way.drafts] if way.lookup else []
        if guess or not way.layer:
            at += tally.took(guess, text, at)
        else:
            at += tally.gave(layer.right(), layer.drafts, len(text) - at)


def tallies(
    board: Profile,
    traces: Sequence[Trace],
    ways: Sequence[Way],
    given: SuffixStore | None = None,
    config: SuffixConfig | None = None,
) -> dict[str, Tally]:
    """Every answer written in every way; the store that grows has what was served before."""
    counted = {way.name: Tally() for way in ways}
    seconds: dict[str, list[float]] = {}
    total = sum(request.output_tokens for trace in traces for request in trace.requests)
    with (
        scratch_store(config or SuffixConfig(), tokenizer_of(traces, board, SEED)) as grown,
        progress("drafting", total, unit="tokens") as advance,
    ):
        for request, prompt, answer in requests(board, traces):
            text = answer.tolist()
            guesses = {
                name: guessed(lookup, prompt, text, seconds.setdefault(name, []))
                for name, lookup in lookups(grown, given).items()
            }
            for way in ways:
                found = guesses.get(way.lookup, [])
                answered(counted[way.name], way, text, found, Layer(board, request))
            grown.add(prompt, answer.tolist(), hidden(request))
            grown.drain()
            advance(len(answer))
    for way in ways:
        counted[way.name].seconds = seconds.get(way.name, [])
    return counted


def requests(board: Profile, traces: Sequence[Trace]) -> Iterator[tuple[Request, Ids, Ids]]:
    """Those with an answer of more than a token: request, prompt, answer."""
    for trace, source in zip(traces, sources_of(traces, board, SEED), strict=True):
        for request in trace.requests:
            answer = source.output(request.number)
            if len(answer) > 1:
                yield request, source.prompt(request.number), answer


def hidden(request: Request) -> list[tuple[int, int]]:
    """What no client saw of its answer, from the prompt's start."""
    return [(request.prompt_tokens + at, size) for at, size in request.hidden]


def run(
    board: Profile,
    names: Sequence[str],
    skip_bad: bool = False,
    suffix_dir: Path | None = None,
) -> list[Figure]:
    """Every way; with a directory also a lookup in its store, which must not have seen this."""
    traces, _ = traces_of(names, skip_bad, Console(stderr=True))
    with ExitStack() as closing:
        given = None
        if suffix_dir is not None:
            flags = Flags(suffix_dir, readonly=True)
            given = open_store(flags, tokenizer_of(traces, board, SEED), SEED)
            closing.callback(given.close)
            refuse_seen(given, flags, traces, board, SEED)
        ways = (*WAYS, *GIVEN) if given is not None else WAYS
        counted = tallies(board, traces, ways, given)
    recorded = sum(bool(request.accepts) for trace in traces for request in trace.requests)
    chance = f"{board.drafts} drafts, chance {board.accepted}; recorded for {recorded} requests"
    figures = []
    for way in ways:
        note = f"{way.note}; {chance}" if way.name == "layer" else way.note
        figures += of_way(way.name, counted[way.name], note)
    return figures


def of_way(name: str, tally: Tally, note: str) -> list[Figure]:
    """One way's figures."""
    rounds = max(1, tally.rounds)
    share = 100 * tally.accepted / max(1, tally.drafted)
    figures = [
        Figure(f"{name}.accepted", None, tally.accepted / rounds, "drafts a round", note),
        Figure(f"{name}.accepted_share", None, share, "%", "of those drafted"),
        Figure(f"{name}.rounds", None, tally.rounds, "rounds"),
    ]
    if tally.seconds:
        micro = 1e6 * np.array(tally.seconds)
        seed = 200.0 if name == "store" else None
        half, most = np.quantile(micro, (0.5, 0.99)).tolist()
        figures += [
            Figure(f"{name}.lookup_p50_us", seed, half, "us", "CPU time of this machine"),
            Figure(f"{name}.lookup_p99_us", None, most, "us"),
        ]
    return figures
