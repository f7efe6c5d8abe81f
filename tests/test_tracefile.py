"""Trace files keep everything they were given, and refuse everything else in one line.

Method: arbitrary valid traces are written and read again, plain and packed; every rule is broken
by a line of its own, with the line number and the words checked; then valid files are mutated at
random, in their values and in their bytes, and must be read or refused, never crash.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from traces import mutated, small, traces

from engine.bad import BadInput
from replay.trace import Header, Parts, Request, Trace
from replay.tracefile import NUMBER_MAX, parse_trace, read_trace, trace_lines, write_trace

HEADER = {"format": "moorage.trace", "version": 1}
FIRST = {"id": "a", "t": 1.5, "prompt": [[-1, 0, 10]], "output": [[-1, 0, 4]]}
SECOND = {"id": "b", "t": 2, "prompt": [[0, 0, 14], [-1, 1, 3]], "output": []}


def parse(*lines: Any, on_bad: Callable[[BadInput], None] | None = None) -> Trace:
    """Lines given as text or as what JSON is made of."""
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    more = {"on_bad": on_bad} if on_bad else {}
    return parse_trace("trace", "f.jsonl", iter(list(enumerate(texts, 1))), **more)


@given(traces())
@settings(deadline=None, max_examples=60)
def test_what_is_written_is_read_again(trace: Trace) -> None:
    lines = list(trace_lines(trace))
    again = parse_trace("trace", "f", iter(list(enumerate(lines, 1))))
    assert again == trace
    assert list(trace_lines(again)) == lines


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.zst", "jsonl.gz"])
def test_a_file_of_each_packing_is_read_again(tmp_path: Path, ending: str) -> None:
    first = small(0, [(-1, 0, 10)], [(-1, 2, 1)], session="s", parts=Parts(4, 3, 3))
    trace = Trace("night", Header(notes="é"), (first, small(1, [(0, 0, 11)], [])))
    path = tmp_path / f"night.{ending}"
    write_trace(trace, path)
    assert read_trace(path) == trace
    bytes_once = path.read_bytes()
    write_trace(trace, path)
    assert path.read_bytes() == bytes_once
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_defaults_are_not_written_and_unknown_keys_are_kept() -> None:
    extra = {"sounds": [[3, 2, "digest"]]}
    plain, odd = small(0, [(-1, 0, 2)], []), small(1, [(-1, 0, 2)], [], extra=extra)
    header, first, second = map(json.loads, trace_lines(Trace("t", Header(), (plain, odd))))
    assert header == {"format": "moorage.trace", "version": 1}
    assert first == {"id": "r0", "t": 0.0, "prompt": [[-1, 0, 2]], "output": []}
    assert second == {"id": "r1", "t": 1.0, "prompt": [[-1, 0, 2]], "output": []} | extra
    read = parse(HEADER | {"future": [1]}, first, second)
    assert read.header.extra == {"future": [1]}
    assert [request.extra for request in read.requests] == [{}, extra]


def broken(key: str, value: Any, base: dict[str, Any] = SECOND) -> dict[str, Any]:
    return base | {key: value}


BAD_LINES = {
    "cut": ('{"id": "b", "t": 2, "pro', "not JSON"),
    "no object": ([1], "not an object"),
    "nan": ('{"id": "b", "t": NaN, "prompt": [[-1, 0, 1]], "output": []}', "NaN is no number"),
    "infinite": ('{"id": "b", "t": 1e999, "prompt": [[-1, 0, 1]], "output": []}', "finite"),
    "deep": ("[" * 100_000, "nested too deeply"),
    "digits": ('{"t": ' + "9" * 5_000 + "}", "not JSON"),
    "no id": ({k: v for k, v in SECOND.items() if k != "id"}, "no 'id'"),
    "no prompt": ({k: v for k, v in SECOND.items() if k != "prompt"}, "no 'prompt'"),
    "no output": ({k: v for k, v in SECOND.items() if k != "output"}, "no 'output'"),
    "id": (broken("id", 7), "'id' is not a string: 7"),
    "t text": (broken("t", "2"), "'t' is not a number"),
    "t true": (broken("t", True), "'t' is not a number"),
    "t below": (broken("t", -1), "at least 0"),
    "t back": (broken("t", 1.0), "'t' goes back from 1.5 to 1"),
    "empty prompt": (broken("prompt", []), "the prompt is empty"),
    "run of two": (broken("prompt", [[0, 0]]), "not [src, offset, length]"),
    "itself": (broken("prompt", [[1, 0, 1]]), "points to its own request 1"),
    "later": (broken("prompt", [[2, 0, 1]]), "points to request 2, which comes later"),
    "src below": (broken("prompt", [[-2, 0, 1]]), "a source in 'prompt' is not in -1.."),
    "past": (broken("prompt", [[0, 10, 5]]), "reaches 15, past the 14 tokens of its source"),
    "offset below": (broken("prompt", [[0, -1, 5]]), "an offset in 'prompt' is not in 0.."),
    "length below": (broken("prompt", [[0, 5, -1]]), "a length in 'prompt' is not in 1.."),
    "length none": (broken("prompt", [[0, 5, 0]]), "a length in 'prompt' is not in 1.."),
    "length half": (broken("prompt", [[0, 5, 1.0]]), "not a whole number: 1.0"),
    "length huge": (broken("output", [[-1, 0, 1 << 24]]), "more than the 16777216 allowed"),
    "class": (broken("output", [[-1, 259, 1]]), "a class in 'output' is not in 0..258"),
    "after": (broken("after", 1), "'after' points to its own request 1"),
    "extends": (broken("extends", 5), "'extends' points to request 5, which comes later"),
    "think_s": (broken("think_s", -0.5), "'think_s' is not a finite number of at least 0"),
    "parts": (broken("parts", {"system": 16}), "add up to 16 tokens, the prompt has 17"),
    "part": (broken("parts", {"injected": 17}), "no part is named 'injected'"),
    "part below": (broken("parts", {"system": 18, "tools": -1}), "part 'tools' is not in"),
    "think_end": (broken("think_end", 1), "'think_end' is not in 0..0"),
    "hidden": (broken("hidden", [[0, 5]], FIRST | {"t": 2}), "a length in 'hidden'"),
    "values": (broken("values", [[0, 99, 1]], FIRST | {"t": 2}), "a length in 'values'"),
    "values form": (broken("values", [[0, 1]], FIRST | {"t": 2}), "is not [start, length, value]"),
    "values order": (
        broken("values", [[2, 1, 0], [0, 1, 0]], FIRST | {"t": 2}),
        "past the span before",
    ),
    "value below": (broken("values", [[0, 1, -1]], FIRST | {"t": 2}), "a value in 'values'"),
    "hidden order": (broken("hidden", [[2, 1], [0, 1]], FIRST | {"t": 2}), "past the span before"),
    "aborted": (broken("aborted_after", 5, FIRST | {"t": 2}), "'aborted_after' is not in 0..4"),
    "accepts": (broken("accepts", [1, -1]), "an entry of 'accepts'"),
    "sampling": (broken("sampling", []), "'sampling' is not an object"),
    "max_tokens": (broken("max_tokens", -1), "'max_tokens' is not in 0.."),
    "number back": (broken("number", 0), "'number' is not in 1.."),
    "number huge": (broken("number", NUMBER_MAX + 1), "'number' is not in 1.."),
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_a_bad_line_is_refused_with_its_number(name: str) -> None:
    line, words = BAD_LINES[name]
    with pytest.raises(BadInput) as caught:
        parse(HEADER, FIRST, line)
    message = str(caught.value)
    assert message.startswith("f.jsonl:3: ") and words in message, message
    assert "\n" not in message and len(message) < 200


def test_the_lines_that_were_broken_are_good_unbroken() -> None:
    assert [r.id for r in parse(HEADER, FIRST, SECOND).requests] == ["a", "b"]
    assert len(parse(HEADER, FIRST, FIRST | {"t": 2, "hidden": [[0, 1], [2, 2]]}).requests) == 2


BAD_HEADERS = {
    "other": ({"format": "other", "version": 1}, "'format' is not 'moorage.trace': 'other'"),
    "none": (FIRST, "'format' is not 'moorage.trace': None"),
    "version": ({"format": "moorage.trace", "version": 2}, "version 2 is not known"),
    "no version": ({"format": "moorage.trace"}, "no 'version'"),
    "timing": (HEADER | {"timing": "guessed"}, "neither recorded nor synthetic"),
    "client": (HEADER | {"clients": {"a": 1}}, "version of client 'a' is not a string"),
}


@pytest.mark.parametrize("name", BAD_HEADERS)
def test_a_bad_header_is_refused_whatever_may_be_skipped(name: str) -> None:
    header, words = BAD_HEADERS[name]
    with pytest.raises(BadInput) as caught:
        parse(header, FIRST, on_bad=lambda bad: None)
    assert caught.value.line == 1 and words in str(caught.value)


def test_an_empty_file_and_a_header_alone_are_refused(tmp_path: Path) -> None:
    for name, text in (("empty", ""), ("blank", " \n\n"), ("alone", json.dumps(HEADER) + "\n")):
        path = tmp_path / f"{name}.jsonl"
        path.write_text(text)
        with pytest.raises(BadInput, match=r"the file is empty|holds no request"):
            read_trace(path)


def test_a_skipped_line_leaves_its_number_and_takes_those_that_point_to_it() -> None:
    bad: list[BadInput] = []
    third = {"id": "c", "t": 3, "prompt": [[1, 0, 2]], "output": []}
    fourth = {"id": "d", "t": 4, "prompt": [[0, 0, 2]], "output": []}
    fifth = {"id": "e", "t": 5, "prompt": [[0, 0, 2]], "output": [], "after": 2}
    trace = parse(HEADER, FIRST, "{", third, fourth, fifth, on_bad=bad.append)
    assert [(r.number, r.id) for r in trace.requests] == [(0, "a"), (3, "d")]
    assert [(b.line, b.what.split(",")[-1]) for b in bad[1:]] == [
        (4, " which is not in the trace"),
        (6, " which is not in the trace"),
    ]
    assert bad[0].line == 3 and len(bad) == 3
    # The gap survives being written and read.
    assert parse(*trace_lines(trace)) == trace


@given(traces(most=4), st.integers(0, 2**32), st.booleans())
@settings(deadline=None, max_examples=100)
def test_a_mutated_file_is_read_or_refused(trace: Trace, seed: int, skip: bool) -> None:
    rng = random.Random(seed)
    lines = list(trace_lines(trace))
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(lines))
        lines[at] = mutated(lines[at], rng)
    bad: list[BadInput] = []
    try:
        read = parse(*lines, on_bad=bad.append) if skip else parse(*lines)
    except BadInput as refused:
        assert "\n" not in str(refused)
        return
    # Whatever was read keeps the rules: it can be written and read without a complaint.
    assert parse(*trace_lines(read)) == read
    assert len(read.requests) + len(bad) == len(lines) - 1


def test_a_request_with_a_known_key_among_its_unknown_ones_cannot_be_written() -> None:
    request = replace(small(0, [(-1, 0, 2)], []), extra={"t": 3})
    assert isinstance(request, Request)
    with pytest.raises(AssertionError):
        list(trace_lines(Trace("t", Header(), (request,))))
