"""Trace files: reading a trace, line by line and checked, and writing it

Line 1 is the header, then a line a request, with the fields of `replay.trace` as keys; what has its
default is left out. A request's number is its place after the header; the key `number` is written
only where numbers before it are unused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from engine.bad import BadInput, OnBad, refuse
from replay.fields import SEQUENCE_MAX, Fields, shown, spans, whole
from replay.imagelines import ImageLines
from replay.open import Malformed, read_lines, stem, write_lines
from replay.trace import (
    FORMAT,
    FRESH,
    NAMED,
    NAMES,
    VERSION,
    Header,
    Parts,
    Request,
    Run,
    Trace,
)

_PARTS = tuple(f.name for f in fields(Parts))
_HEADER = ("format", "version", "clients", "timing", "tokenizer", "licence", "notes")
_KEYS = {
    "number": "number",
    "id": "id",
    "t": "t_s",
    "session": "session",
    "client": "client",
    "kind": "kind",
    "after": "after",
    "think_s": "think_s",
    "extends": "extends",
    "prompt": "prompt",
    "parts": "parts",
    "output": "output",
    "think_end": "think_end",
    "hidden": "hidden",
    "finish": "finish",
    "max_tokens": "max_tokens",
    "sampling": "sampling",
    "aborted_after": "aborted_after",
    "accepts": "accepts",
    "values": "values",
    "images": "images",
}
"""Key in the file to field of a request, in the order they are written."""
NUMBER_MAX = (1 << 31) - 2
"""Largest request number, so that numbers fit in 32 bits."""
_DEFAULTS = Request(0, "", 0.0, (), ())


def read_trace(path: Path, on_bad: OnBad = refuse) -> Trace:
    """Read a trace file. Raises BadInput for its header, and what `on_bad` raises for a line.

    A bad line that `on_bad` passes over leaves its number unused, and lines that point to it are
    bad in turn.
    """
    return parse_trace(stem(path), str(path), read_lines(path), on_bad)


def parse_trace(
    name: str, source: str, lines: Iterator[tuple[int, str]], on_bad: OnBad = refuse
) -> Trace:
    """As `read_trace`, from (line number, text) pairs; `source` names the file in messages."""
    line, text = next(lines, (0, ""))
    if not line:
        raise BadInput(source, None, "the file is empty")
    try:
        header = _header(Fields.parse(text))
    except Malformed as wrong:
        raise BadInput(source, line, str(wrong)) from None
    requests: list[Request] = []
    held: dict[int, int] = {}
    images = ImageLines()
    number, t_s = 0, 0.0
    for line, text in lines:
        try:
            row = Fields.parse(text)
            number = row.whole_or("number", number, number, NUMBER_MAX)
            request = _request(row, number, held, images)
            if request.t_s < t_s:
                raise Malformed(f"'t' goes back from {t_s:g} to {request.t_s:g}")
            requests.append(request)
            held[number] = request.prompt_tokens + request.output_tokens
            images.add(request)
            t_s = request.t_s
        except Malformed as wrong:
            on_bad(BadInput(source, line, str(wrong)))
        number += 1
    if not requests:
        raise BadInput(source, None, "the trace holds no request")
    return Trace(name, header, tuple(requests))


def write_trace(trace: Trace, path: Path) -> None:
    """Write a trace; a name that ends in .zst or .gz is packed."""
    write_lines(path, trace_lines(trace))


def trace_lines(trace: Trace) -> Iterator[str]:
    """A trace's lines: the header, then a line a request."""
    header = trace.header
    assert not header.extra.keys() & set(_HEADER)
    values = {key: getattr(header, key) for key in _HEADER[2:]}
    known = {key: value for key, value in values.items() if value != getattr(Header(), key)}
    yield _json({"format": FORMAT, "version": VERSION} | known | dict(header.extra))
    expected = 0
    for request in trace.requests:
        assert not request.extra.keys() & _KEYS.keys()
        row: dict[str, Any] = {}
        for key, name in _KEYS.items():
            value = getattr(request, name)
            if key in ("id", "t", "prompt", "output") or value != getattr(_DEFAULTS, name):
                row[key] = value
        row.pop("number", None)
        if request.number != expected:
            row["number"] = request.number
        if request.parts != Parts():
            row["parts"] = {p: getattr(request.parts, p) for p in _PARTS}
        expected = request.number + 1
        yield _json(row | dict(request.extra))


def _json(row: dict[str, Any]) -> str:
    return json.dumps(row, separators=(",", ":"), allow_nan=False, default=dict)


def _header(row: Fields) -> Header:
    if row.values.get("format") != FORMAT:
        raise Malformed(f"'format' is not {FORMAT!r}: {shown(row.values.get('format'))}")
    if row.whole("version") != VERSION:
        raise Malformed(f"version {row.values['version']} is not known; this reads {VERSION}")
    clients = row.object("clients")
    for client, version in clients.items():
        if not isinstance(version, str):
            raise Malformed(f"the version of client {client!r} is not a string")
    timing = row.text("timing", Header().timing)
    if timing not in ("recorded", "synthetic"):
        raise Malformed(f"'timing' is neither recorded nor synthetic: {shown(timing)}")
    tokenizer, licence = row.text("tokenizer", ""), row.text("licence", "")
    notes = row.text("notes", "")
    return Header(clients, timing, tokenizer, licence, notes, row.without(_HEADER))


def _request(row: Fields, number: int, held: dict[int, int], images: ImageLines) -> Request:
    """A line's request. Raises Malformed."""
    prompt = _runs(row, "prompt", number, held)
    output = _runs(row, "output", number, held)
    asked, written = sum(r.length for r in prompt), sum(r.length for r in output)
    if not asked:
        raise Malformed("the prompt is empty")
    if asked + written > SEQUENCE_MAX:
        raise Malformed(f"{asked + written} tokens are more than the {SEQUENCE_MAX} allowed")
    accepts = tuple(whole(n, "an entry of 'accepts'", 0) for n in row.items("accepts"))
    return Request(
        number=number,
        id=row.text("id"),
        t_s=row.finite("t"),
        prompt=prompt,
        output=output,
        session=row.text("session") if row.has("session") else None,
        client=row.text("client", _DEFAULTS.client),
        kind=row.text("kind", _DEFAULTS.kind),
        after=_earlier(row, "after", number, held),
        think_s=row.finite_or("think_s", 0.0),
        extends=_earlier(row, "extends", number, held),
        parts=_parts(row, asked),
        think_end=row.whole_or("think_end", None, 0, written),
        hidden=_hidden(row, written),
        finish=row.text("finish", _DEFAULTS.finish),
        max_tokens=row.whole_or("max_tokens", None),
        sampling=row.object("sampling"),
        aborted_after=row.whole_or("aborted_after", None, 0, written),
        accepts=accepts,
        values=_values(row, asked + written),
        images=images.of(row, prompt, output),
        extra=row.without(_KEYS),
    )


def _runs(row: Fields, key: str, number: int, held: dict[int, int]) -> tuple[Run, ...]:
    row.get(key)
    return tuple(_run(value, key, number, held) for value in row.items(key))


def _run(value: Any, key: str, number: int, held: dict[int, int]) -> Run:
    if not isinstance(value, list) or len(value) != 3:
        raise Malformed(f"a run of {key!r} is not [src, offset, length]: {shown(value)}")
    src, offset = whole(value[0], f"a source in {key!r}", FRESH), value[1]
    length = whole(value[2], f"a length in {key!r}", 1, SEQUENCE_MAX)
    if src == FRESH:
        return Run(src, whole(offset, f"a class in {key!r}", 0, NAMED + NAMES - 1), length)
    whole(offset, f"an offset in {key!r}", 0, SEQUENCE_MAX)
    _known(src, f"a run of {key!r}", number, held)
    if offset + length > held[src]:
        raise Malformed(
            f"a run of {key!r} reaches {offset + length}, past the {held[src]} tokens of its source"
        )
    return Run(src, offset, length)


def _known(src: int, what: str, number: int, held: dict[int, int]) -> None:
    if src == number:
        raise Malformed(f"{what} points to its own request {src}")
    if src > number:
        raise Malformed(f"{what} points to request {src}, which comes later")
    if src not in held:
        raise Malformed(f"{what} points to request {src}, which is not in the trace")


def _earlier(row: Fields, key: str, number: int, held: dict[int, int]) -> int | None:
    if not row.has(key):
        return None
    _known(row.whole(key), repr(key), number, held)
    return row.whole(key)


def _parts(row: Fields, asked: int) -> Parts:
    given = row.object("parts")
    if unknown := sorted(set(given) - set(_PARTS)):
        raise Malformed(f"no part is named {shown(unknown[0])}")
    if not given:
        return Parts()
    parts = Parts(**{name: whole(given[name], f"part {name!r}", 0) for name in given})
    total = sum(given.values())
    if total != asked:
        raise Malformed(f"the parts add up to {total} tokens, the prompt has {asked}")
    return parts


def _values(row: Fields, held: int) -> tuple[tuple[int, int, int], ...]:
    return tuple(
        (start, length, whole(value, "a value in 'values'", 0))
        for start, length, value in spans(row, "values", held, ("start", "length", "value"))
    )


def _hidden(row: Fields, written: int) -> tuple[tuple[int, int], ...]:
    found = spans(row, "hidden", written, ("start", "length"))
    return tuple((start, length) for start, length in found)
