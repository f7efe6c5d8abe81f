"""What the trace tests share: arbitrary valid traces, and the naive form of a trace's tokens."""

from __future__ import annotations

import json
import random
from typing import Any

from hypothesis import strategies as st

from replay.trace import FRESH, Header, Parts, Request, Run, Trace

NAMES = st.text(max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(-1e9, 1e9) | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=4,
)
EXTRA = st.dictionaries(NAMES.map(lambda name: f"x-{name}"), JSON, max_size=2)
COUNTS = st.integers(0, 2**20)


@st.composite
def runs(draw: st.DrawFn, held: dict[int, int], least: int) -> tuple[Run, ...]:
    """Runs over what requests held, `held` being their tokens by number."""
    sources = [number for number, tokens in held.items() if tokens]
    out = []
    for _ in range(draw(st.integers(least, 3))):
        if sources and draw(st.booleans()):
            src = draw(st.sampled_from(sources))
            # Mostly from the start, as prompts are.
            offset = draw(st.just(0) | st.integers(0, held[src] - 1))
            out.append(Run(src, offset, draw(st.integers(1, held[src] - offset))))
        else:
            length = draw(st.integers(1, 9) | st.integers(1, 300))
            out.append(Run(FRESH, draw(st.integers(0, 2)), length))
    return tuple(out)


@st.composite
def requests(draw: st.DrawFn, number: int, t_s: float, held: dict[int, int]) -> Request:
    """Request `number` at `t_s` or later, after those in `held`."""
    prompt, output = draw(runs(held, 1)), draw(runs(held, 0))
    asked, written = sum(r.length for r in prompt), sum(r.length for r in output)
    earlier = st.none() | (st.sampled_from(sorted(held)) if held else st.none())
    system = draw(st.integers(0, asked))
    tools = draw(st.integers(0, asked - system))
    rest = asked - system - tools
    parts = st.sampled_from([Parts(), Parts(system, tools, rest), Parts(system, tools, 0, rest)])
    start = draw(st.integers(0, max(0, written - 1)))
    span = (start, draw(st.integers(1, max(1, written - start))))
    return Request(
        number=number,
        id=draw(NAMES),
        t_s=t_s + draw(st.floats(0, 1e6)),
        prompt=prompt,
        output=output,
        session=draw(st.none() | NAMES),
        client=draw(NAMES),
        kind=draw(st.sampled_from(["turn", "title", "subagent"]) | NAMES),
        after=draw(earlier),
        think_s=draw(st.just(0.0) | st.floats(0, 1e6)),
        extends=draw(earlier),
        parts=draw(parts),
        think_end=draw(st.none() | st.integers(0, written)),
        hidden=draw(st.sampled_from([(), (span,)])) if written else (),
        finish=draw(NAMES),
        max_tokens=draw(st.none() | COUNTS),
        sampling=draw(EXTRA),
        aborted_after=draw(st.none() | st.integers(0, written)),
        accepts=draw(st.lists(COUNTS, max_size=3).map(tuple)),
        values=draw(st.sampled_from([(), ((0, 1, 3),)])),
        extra=draw(EXTRA),
    )


@st.composite
def traces(draw: st.DrawFn, most: int = 6, gaps: bool = True) -> Trace:
    """A valid trace named `trace`, with unused numbers here and there if `gaps`."""
    header = Header(
        clients=draw(st.dictionaries(NAMES, NAMES, max_size=2)),
        timing=draw(st.sampled_from(["recorded", "synthetic"])),
        tokenizer=draw(NAMES),
        licence=draw(NAMES),
        notes=draw(NAMES),
        extra=draw(EXTRA),
    )
    held: dict[int, int] = {}
    made: list[Request] = []
    for _ in range(draw(st.integers(1, most))):
        number = made[-1].number + 1 if made else 0
        number += draw(st.integers(0, 2)) if gaps else 0
        made.append(draw(requests(number, made[-1].t_s if made else 0.0, held)))
        held[number] = made[-1].prompt_tokens + made[-1].output_tokens
    return Trace("trace", header, tuple(made))


def small(number: int, prompt: list[Any], output: list[Any], **more: Any) -> Request:
    """A request from plain lists of runs."""
    as_runs = (tuple(Run(*run) for run in side) for side in (prompt, output))
    return Request(number, f"r{number}", float(number), *as_runs, **more)


def naive_sequences(trace: Trace) -> dict[int, list[tuple[int, int, int]]]:
    """Every sequence, token by token, as (request drawn for, place, class): what the runs say."""
    sequences: dict[int, list[tuple[int, int, int]]] = {}
    for request in trace.requests:
        tokens: list[tuple[int, int, int]] = []
        for run in request.prompt + request.output:
            if run.src == FRESH:
                start = len(tokens)
                tokens += [(request.number, start + i, run.offset) for i in range(run.length)]
            else:
                tokens += sequences[run.src][run.offset : run.offset + run.length]
        sequences[request.number] = tokens
    return sequences


MUTANTS: list[Any] = [None, True, -1, 0, 1, 2**70, 0.5, 1e308, "", "x", [], {}, [[0, 0, 1]]]


def mutated(line: str, rng: random.Random) -> str:
    """A line with a value replaced, dropped or moved; or with characters cut or changed."""
    try:
        row = json.loads(line)
    except ValueError:
        return line
    if rng.random() < 0.3 or not isinstance(row, dict):
        at = rng.randrange(len(line))
        return line[:at] if rng.random() < 0.5 else line[:at] + rng.choice('"{[,9-') + line[at:]
    key = rng.choice(sorted(row))
    if rng.random() < 0.2:
        del row[key]
    elif isinstance(row[key], list) and row[key] and rng.random() < 0.7:
        item = rng.randrange(len(row[key]))
        inner = row[key][item]
        if isinstance(inner, list) and inner:
            inner[rng.randrange(len(inner))] = rng.choice(MUTANTS)
        else:
            row[key][item] = rng.choice(MUTANTS)
    else:
        row[key] = rng.choice(MUTANTS)
    return json.dumps(row)
