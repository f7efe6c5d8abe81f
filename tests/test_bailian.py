"""Bailian files are read to runs and chats, and written from them with the same sharing.

Method: small files in the published form, each showing one rule; every way a line can be wrong;
then arbitrary traces exported and imported again, which must share exactly the same blocks and
chats.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from traces import mutated, small, traces

import replay.writers.bailian as writer
from engine.bad import BadInput
from replay.ideal import ideal_by_blocks
from replay.readers.bailian import read
from replay.trace import FRESH, TEXT, Header, Run, Trace
from replay.tracefile import parse_trace, trace_lines

LINE = {
    "chat_id": 159,
    "parent_chat_id": -1,
    "timestamp": 61.114,
    "input_length": 40,
    "output_length": 6,
    "type": "text",
    "turn": 1,
    "hash_ids": [5, 6, 7],
}


def read_rows(folder: Path, *rows: Any, **how: Any) -> Trace:
    path = folder / "rows.jsonl"
    texts = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("".join(f"{text}\n" for text in texts))
    return read(path, **how)


def more(chat: int, parent: int, t: float, tokens: int, ids: list[int], **other: Any) -> Any:
    row = {"chat_id": chat, "parent_chat_id": parent, "timestamp": t, "input_length": tokens}
    return LINE | row | {"hash_ids": ids} | other


def test_the_published_form(tmp_path: Path) -> None:
    rows = [
        LINE,
        more(7, 159, 62.114, 70, [5, 6, 8, 9, 10], turn=2),
        more(8, 7, 65.0, 75, [5, 6, 8, 9], type="search", turn=3),  # no id for the partial block
        more(9, 4, 66.0, 5, []),  # a parent from before the file began
    ]
    trace = read_rows(tmp_path, *rows)
    assert [request.prompt for request in trace.requests] == [
        (Run(FRESH, TEXT, 40),),
        (Run(0, 0, 32), Run(FRESH, TEXT, 38)),
        (Run(1, 0, 64), Run(FRESH, TEXT, 11)),
        (Run(FRESH, TEXT, 5),),
    ]
    assert [request.id for request in trace.requests] == ["159", "7", "8", "9"]
    assert [request.session for request in trace.requests] == ["159", "159", "159", "9"]
    assert [request.kind for request in trace.requests] == ["turn", "turn", "search", "turn"]
    assert [request.after for request in trace.requests] == [None, 0, 1, None]
    assert [round(r.think_s, 3) for r in trace.requests] == [0.0, 1.0, 2.886, 0.0]
    assert [round(r.t_s, 3) for r in trace.requests] == [0.0, 1.0, 3.886, 4.886]
    assert [r.extra for r in trace.requests] == [{"turn": n} for n in (1, 2, 3, 1)]
    assert "think_s counts from the parent's arrival" in trace.header.notes
    assert all(request.extends is None for request in trace.requests)


def test_a_parent_that_comes_later_is_none(tmp_path: Path) -> None:
    trace = read_rows(tmp_path, more(1, 2, 5.0, 16, [1]), more(2, -1, 9.0, 16, [1]))
    assert [request.after for request in trace.requests] == [None, None]
    trace = read_rows(tmp_path, more(1, 2, 9.0, 16, [1]), more(2, -1, 5.0, 16, [1]))
    assert [(r.id, r.after) for r in trace.requests] == [("2", None), ("1", 0)]


BAD_LINES = {
    "json": ('{"chat_id": 1', "not JSON"),
    "no chat": ({k: v for k, v in LINE.items() if k != "chat_id"}, "no 'chat_id'"),
    "chat": (LINE | {"chat_id": "x"}, "'chat_id' is not a whole number: 'x'"),
    "twice": (LINE, "chat_id 159 is taken by an earlier line"),
    "parent": (more(2, 1.5, 0.0, 40, []), "'parent_chat_id' is not a whole number"),
    "time": (more(2, -1, None, 40, []), "no 'timestamp'"),
    "nan": (json.dumps(LINE).replace("61.114", "-Infinity"), "-Infinity is no number"),
    "length": (more(2, -1, 0.0, 0, []), "'input_length' is not in 1.."),
    "answer": (more(2, -1, 0.0, 40, [], output_length=None), "no 'output_length'"),
    "ids": (more(2, -1, 0.0, 40, [1]), "1 hash ids for 40 tokens in blocks of 16"),
    "id": (more(2, -1, 0.0, 40, [1, 2, "3"]), "a block id is not a whole number: '3'"),
    "type": (more(2, -1, 0.0, 40, [], type=1), "'type' is not a string: 1"),
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_a_bad_line_is_refused_or_passed_over(tmp_path: Path, name: str) -> None:
    line, words = BAD_LINES[name]
    with pytest.raises(BadInput) as caught:
        read_rows(tmp_path, LINE, line)
    assert "rows.jsonl:2: " in str(caught.value) and words in str(caught.value)
    bad: list[BadInput] = []
    trace = read_rows(tmp_path, LINE, line, more(7, 159, 70.0, 40, [5, 6, 7]), on_bad=bad.append)
    assert [request.number for request in trace.requests] == [0, 2] and len(bad) == 1
    assert trace.requests[1].prompt == (Run(0, 0, 40),)


def test_a_file_without_a_request_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="the file holds no request"):
        read_rows(tmp_path)


@given(traces(most=8, gaps=False))
@settings(
    deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_an_export_read_again_shares_the_same_blocks_and_chats(
    tmp_path: Path, trace: Trace
) -> None:
    path = tmp_path / "export.jsonl.zst"
    writer.write(trace, path)
    again = read(path)
    assert ideal_by_blocks(again, 16) == ideal_by_blocks(trace, 16)
    lines = [json.loads(line) for line in writer.lines(trace)]
    assert [line["chat_id"] for line in lines] == [r.number for r in trace.requests]
    for request, other, line in zip(trace.requests, again.requests, lines, strict=True):
        assert (request.prompt_tokens, request.output_tokens) == (
            other.prompt_tokens,
            other.output_tokens,
        )
        before = [r for r in trace.requests[: request.number] if r.session == request.session]
        chained = request.session is not None and before
        assert other.after == (before[-1].number if chained else None)
        assert line["turn"] == (1 + len(before) if request.session is not None else 1)
    assert [json.loads(line)["hash_ids"] for line in writer.lines(again)] == [
        line["hash_ids"] for line in lines
    ]


@given(st.integers(0, 2**32), st.booleans())
@settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_mutated_file_is_read_or_refused(tmp_path: Path, seed: int, skip: bool) -> None:
    rng = random.Random(seed)
    rows: list[Any] = [
        LINE,
        more(7, 159, 62.114, 70, [5, 6, 8, 9, 10]),
        more(8, 7, 65.0, 75, [5, 6, 8, 9]),
    ]
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(rows))
        rows[at] = mutated(rows[at] if isinstance(rows[at], str) else json.dumps(rows[at]), rng)
    bad: list[BadInput] = []
    try:
        trace = read_rows(tmp_path, *rows, **({"on_bad": bad.append} if skip else {}))
    except BadInput as refused:
        assert "\n" not in str(refused)
        return
    blank = sum(isinstance(row, str) and not row.strip() for row in rows)
    assert len(trace.requests) + len(bad) == len(rows) - blank
    lines = iter(list(enumerate(trace_lines(trace), 1)))
    assert parse_trace(trace.name, "again", lines) == trace


def test_a_line_as_it_is_published() -> None:
    requests = (
        small(0, [(-1, 0, 20)], [(-1, 0, 3)], session="s"),
        small(1, [(0, 0, 23)], [], session="s", kind="search"),
    )
    assert list(writer.lines(Trace("t", Header(), requests))) == [
        '{"chat_id": 0, "parent_chat_id": -1, "timestamp": 0.0, "input_length": 20, '
        '"output_length": 3, "type": "text", "turn": 1, "hash_ids": [0, 1]}',
        '{"chat_id": 1, "parent_chat_id": 0, "timestamp": 1.0, "input_length": 23, '
        '"output_length": 0, "type": "search", "turn": 2, "hash_ids": [0, 2]}',
    ]
