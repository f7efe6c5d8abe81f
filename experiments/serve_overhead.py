"""What HTTP adds to a turn, and a resumed turn's first token beside a cold one's

The real `moorage serve` in a process of its own, on loopback, with the embedded model on one
thread. One turn of a conversation is asked again and again, streamed: with nothing in the caches,
where the conversation is in place, where a head of it is on the drive, and where it is on the drive
because another one took its rows. Then the same turn as it resumes in place, streamed and whole:
what the client waited for, less what the engine computed, is what HTTP, chat format and desk cost.
Times are of this machine; ratios are of one run.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from engine.chat.tokenizer import Tokenizer
from experiments.figure import Figure
from experiments.results import Rows
from experiments.served_here import Messages, ServedHere, Took, served_here
from experiments.traffic import GateFailed
from replay.progress import progress
from sim.profile import Profile

NAME = "serve-overhead"
ABOUT = "over HTTP, here: a resumed turn's first token beside a cold one's, and what HTTP adds"

SIZES = (2_048, 8_192, 24_576)
ROUNDS, REQUESTS = 5, 20
ANSWER = 24
"""Tokens of an answer."""
GRID = 1_024
"""The served model's."""
BESIDE = "a resumed turn beside the engine, here"
OURS, OTHER = "ours", "other"
WAYS = ("cold", "memory", "head", "drive")
SOURCES = {"cold": "cold", "memory": "end", "head": "disk.grid", "drive": "spill.end"}
"""What has to serve the turn, by how it is asked."""
ABOUT_WAYS = {
    "cold": "nothing is in the caches",
    "memory": "the conversation is in place",
    "head": "memory is empty, and a head of the prompt is on the drive",
    "drive": "another conversation took the rows, and the pool has no room",
}


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured of one size of prompt."""

    tokens: int
    ways: Mapping[str, Sequence[Took]]
    streamed: Sequence[Took]
    whole: Sequence[Took]

    def first_s(self, way: str) -> float:
        """The median to the first token."""
        return statistics.median(took.first_s for took in self.ways[way])


@dataclass(frozen=True, slots=True)
class Talk:
    """A conversation of two turns, the first of which was answered, and somebody else's."""

    first: Messages
    turn: Messages
    other: Messages


def text_of(tokenizer: Tokenizer, tokens: int, of: str) -> str:
    """Text of about so many tokens."""
    line = f"{of} is told of the harbour, its boats and the tide that takes them out.\n"
    size = len(tokenizer.encode(line, specials=False))
    return "".join(f"{number}: {line}" for number in range(max(1, tokens // (size + 3))))


def talk_of(server: ServedHere, tokenizer: Tokenizer, tokens: int) -> Talk:
    """A conversation with its first answer."""
    first = [{"role": "user", "content": text_of(tokenizer, tokens, "Ann")}]
    other = [{"role": "user", "content": text_of(tokenizer, tokens, "Ben")}]
    answer = server.ask(first, OURS, stream=True, tokens=ANSWER).message
    return Talk(first, [*first, answer, {"role": "user", "content": "And then?"}], other)


def asked(server: ServedHere, talk: Talk, way: str) -> Took:
    """The conversation's second turn, once; raises GateFailed when something else served it."""
    server.clear("all")
    if way != "cold":
        server.ask(talk.first, OURS, stream=True, tokens=ANSWER)
    if way == "head":
        server.settled()
        server.clear("ram")
    if way == "drive":
        server.ask(talk.other, OTHER, stream=True, tokens=1)
    took = server.ask(talk.turn, OURS, stream=True, tokens=ANSWER)
    if took.source != SOURCES[way]:
        raise GateFailed(f"{way}: {took.source} served {took.cached} of {took.prompt} tokens")
    return took


def measured(
    server: ServedHere, tokens: int, rounds: int, requests: int, done: Callable[[int], object]
) -> Measured:
    """Every way in turn, `rounds` times, and the requests whose overhead is counted."""
    talk = talk_of(server, Tokenizer(), tokens)
    ways: dict[str, list[Took]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way in WAYS:
            ways[way].append(asked(server, talk, way))
            done(1)
    asked(server, talk, "memory")
    over: dict[bool, list[Took]] = {True: [], False: []}
    for _ in range(requests):
        for stream, took in over.items():
            took.append(server.ask(talk.turn, OURS, stream=stream, tokens=ANSWER))
    done(1)
    return Measured(ways["cold"][0].prompt, ways, over[True], over[False])


def results(
    sizes: Sequence[int] = SIZES, rounds: int = ROUNDS, requests: int = REQUESTS
) -> list[Measured]:
    """All sizes, on one server."""
    window = -(-2 * max(sizes) // GRID) * GRID + 4 * GRID
    steps = len(sizes) * (rounds * len(WAYS) + 1)
    with served_here(window) as server, progress(NAME, steps, unit="rounds") as advance:
        server.set(memory={"park_gib": 0.0, "pin_gib": 0.0, "store_gib": 0.0, "guest_tokens": 0})
        server.floored(
            disk={"tokens_min": GRID, "admit_after": 1},
            spill={"tokens_min": GRID, "park_tokens_min": GRID, "idle_s": 0.0},
        )
        return [measured(server, size, rounds, requests, advance) for size in sizes]


@cache
def usual() -> list[Measured]:
    """At full size; figures and tables are of one run."""
    return results()


def run(board: Profile) -> list[Figure]:
    """First tokens and overheads; the board has no part in it."""
    return figures(usual())


def figures(found: Sequence[Measured]) -> list[Figure]:
    """For every size: the cold turn's first token, the others' share of it, and the overheads."""
    out: list[Figure] = []
    for one in found:
        size, cold_s = f"{one.tokens}", one.first_s("cold")
        out.append(Figure(f"{size}.cold_ms", None, 1e3 * cold_s, "ms", "first token, here"))
        for way in WAYS[1:]:
            share = 100 * one.first_s(way) / cold_s
            out.append(Figure(f"{size}.{way}", None, share, "% of cold", ABOUT_WAYS[way]))
        for name, took in (("streamed", one.streamed), ("whole", one.whole)):
            over_s = statistics.median(each.over_s for each in took)
            share = statistics.median(each.over_s / each.engine_s for each in took)
            out.append(Figure(f"{size}.{name}_ms", None, 1e3 * over_s, "ms", BESIDE))
            note = "the same over the engine's own time"
            out.append(Figure(f"{size}.{name}_of_engine", None, 100 * share, "%", note))
            note = "the same over the cold first token"
            out.append(Figure(f"{size}.{name}_of_cold", None, 100 * over_s / cold_s, "%", note))
    return out


def tables(board: Profile) -> dict[str, Rows]:
    """Every request that was measured."""
    return {"requests": rows_of(usual())}


def rows_of(found: Sequence[Measured]) -> Rows:
    """A row a request."""
    groups = [
        (one.tokens, name, took)
        for one in found
        for name, took in (*one.ways.items(), ("streamed", one.streamed), ("whole", one.whole))
    ]
    return [
        {
            "size_tokens": size,
            "way": name,
            "source": each.source,
            "prompt_tokens": each.prompt,
            "cached_tokens": each.cached,
            "first_s": each.first_s,
            "wall_s": each.wall_s,
            "engine_s": each.engine_s,
        }
        for size, name, took in groups
        for each in took
    ]
