"""Mooncake files are read to runs and written from them with the same sharing of blocks.

Method: small files in the published form and with AIPerf's keys, each showing one rule; every way a
line can be wrong; then arbitrary traces exported and imported again, which must share exactly the
same blocks, and must export to the very same lines.
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

import replay.writers.mooncake as writer
from engine.bad import BadInput
from replay.ideal import ideal_by_blocks
from replay.readers.mooncake import read
from replay.trace import FRESH, TEXT, Header, Run, Trace
from replay.tracefile import parse_trace, trace_lines

LINE = {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}


def read_rows(folder: Path, *rows: Any, **how: Any) -> Trace:
    path = folder / "rows.jsonl"
    texts = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("".join(f"{text}\n" for text in texts))
    return read(path, **how)


def test_the_published_form(tmp_path: Path) -> None:
    second = LINE | {"timestamp": 1500, "input_length": 1600, "hash_ids": [0, 1, 3, 4]}
    third = LINE | {"timestamp": 1500, "extra": {"priority": 1}, "model": "m"}
    trace = read_rows(tmp_path, LINE, second, third)
    assert trace.name == "rows" and "block size 512" in trace.header.notes
    assert [request.prompt for request in trace.requests] == [
        (Run(FRESH, TEXT, 1100),),
        (Run(0, 0, 1024), Run(FRESH, TEXT, 576)),
        (Run(0, 0, 1100),),
    ]
    assert [request.t_s for request in trace.requests] == [0.0, 1.5, 1.5]
    assert trace.requests[0].output == (Run(FRESH, TEXT, 5),)
    assert trace.requests[2].extra == {"extra": {"priority": 1}, "model": "m"}
    assert {request.session for request in trace.requests} == {None}


def test_how_the_published_figure_counts(tmp_path: Path) -> None:
    # Whole and partial blocks alike: 1024 of the second, all 1100 of the third.
    second = LINE | {"input_length": 1600, "hash_ids": [0, 1, 3, 4]}
    trace = read_rows(tmp_path, LINE, second, LINE)
    assert ideal_by_blocks(trace, 512) == (1024 + 1100, 3800)


def test_a_session_s_line_is_what_its_turn_adds(tmp_path: Path) -> None:
    rows = [
        {"session_id": "s", "timestamp": 1000, "input_length": 6, "hash_ids": [1, 2]},
        {"timestamp": 1500, "input_length": 8, "output_length": 2, "hash_ids": [3, 1]},
        {
            "session_id": "s",
            "delay": 2000,
            "input_length": 5,
            "output_length": 3,
            "hash_ids": [1, 9],
        },
        {"session_id": "s", "timestamp": 9000, "input_length": 4, "hash_ids": [4]},
        {"timestamp": 9500, "input_length": 8, "hash_ids": [4, 3]},
    ]
    trace = read_rows(tmp_path, *rows, block=4)
    assert [request.prompt for request in trace.requests] == [
        (Run(FRESH, TEXT, 6),),
        (Run(FRESH, TEXT, 4), Run(0, 0, 4)),
        # Prompt and answer before (6 + 1), then block 1 again, from where it stood last.
        (Run(0, 0, 7), Run(1, 4, 4), Run(FRESH, TEXT, 1)),
        (Run(2, 0, 15), Run(FRESH, TEXT, 4)),
        (Run(3, 15, 4), Run(1, 0, 4)),
    ]
    assert [request.t_s for request in trace.requests] == [0.0, 0.5, 2.0, 8.0, 8.5]
    assert [request.after for request in trace.requests] == [None, None, 0, 2, None]
    assert [request.extends for request in trace.requests] == [None, None, 0, 2, None]
    assert [request.think_s for request in trace.requests] == [0.0, 0.0, 2.0, 6.0, 0.0]
    assert [request.session for request in trace.requests] == ["s", None, "s", "s", None]
    assert [request.output_tokens for request in trace.requests] == [1, 2, 3, 1, 1]


def test_lines_without_ids_or_out_of_order(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 2000.5, "input_length": 3},
        {"timestamp": 500, "input_length": 4, "hash_ids": []},
        {"input_length": 5, "messages": [{"role": "user", "content": "counted elsewhere"}]},
    ]
    trace = read_rows(tmp_path, *rows)
    assert [request.id for request in trace.requests] == ["1", "2", "0"]
    assert [request.t_s for request in trace.requests] == pytest.approx([0.0, 0.0, 1.5005])
    assert all(request.prompt[0].src == FRESH for request in trace.requests)
    assert trace.requests[1].extra == {}, "text must not be carried along"


BAD_LINES = {
    "json": ('{"timestamp": 0', "not JSON"),
    "text": ({"text_input": "hello"}, "'text_input' needs a tokenizer to be counted"),
    "messages": ({"messages": [{"role": "user"}]}, "'messages' needs a tokenizer"),
    "payload": ({"payload": {"prompt": "x"}}, "'payload' needs a tokenizer"),
    "no length": ({"timestamp": 0}, "no 'input_length'"),
    "length": (LINE | {"input_length": 0}, "'input_length' is not in 1.."),
    "answer": (LINE | {"output_length": -1}, "'output_length' is not in 0.."),
    "ids": (LINE | {"hash_ids": [0, 1]}, "2 hash ids for 1100 tokens in blocks of 512"),
    "id": (LINE | {"hash_ids": [0, 1, None]}, "a block id is not a whole number: None"),
    "time": (LINE | {"timestamp": -1}, "'timestamp' is not a finite number"),
    "nan": (json.dumps(LINE).replace(": 0,", ": NaN,", 1), "NaN is no number"),
    "delay": (LINE | {"delay": "1"}, "'delay' is not a number"),
    "session": (LINE | {"session_id": 4}, "'session_id' is not a string"),
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_a_bad_line_is_refused_or_passed_over(tmp_path: Path, name: str) -> None:
    line, words = BAD_LINES[name]
    with pytest.raises(BadInput) as caught:
        read_rows(tmp_path, LINE, line)
    assert "rows.jsonl:2: " in str(caught.value) and words in str(caught.value)
    bad: list[BadInput] = []
    trace = read_rows(tmp_path, LINE, line, LINE, on_bad=bad.append)
    assert [request.number for request in trace.requests] == [0, 2] and len(bad) == 1
    assert trace.requests[1].prompt == (Run(0, 0, 1100),)


def test_a_file_without_a_request_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="the file holds no request"):
        read_rows(tmp_path)
    with pytest.raises(BadInput, match="the file holds no request"):
        read_rows(tmp_path, "{", on_bad=lambda bad: None)


def test_a_session_has_a_largest_size(tmp_path: Path) -> None:
    row = {"session_id": "s", "timestamp": 0, "input_length": 1 << 23, "output_length": 0}
    assert len(read_rows(tmp_path, row, row).requests) == 2
    with pytest.raises(BadInput, match="session 's' grows past 16777216 tokens"):
        read_rows(tmp_path, row, row, row | {"input_length": 1})
    with pytest.raises(BadInput, match="'output_length' is not in 0"):
        read_rows(tmp_path, row | {"output_length": (1 << 23) + 1})


@given(traces(most=8, gaps=False), st.sampled_from([1, 7, 16, 512]))
@settings(
    deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_an_export_read_again_shares_the_same_blocks(
    tmp_path: Path, trace: Trace, block: int
) -> None:
    path = tmp_path / "export.jsonl.gz"
    writer.write(trace, path, block)
    again = read(path, block=block)
    assert ideal_by_blocks(again, block) == ideal_by_blocks(trace, block)
    for one, other in zip(trace.requests, again.requests, strict=True):
        assert one.prompt_tokens == other.prompt_tokens
        assert one.output_tokens == other.output_tokens
        assert abs(one.t_s - trace.requests[0].t_s - other.t_s) <= 0.0011
    first_ms = round(trace.requests[0].t_s * 1000)
    lines = [json.loads(line) for line in writer.lines(trace, block)]
    for line in lines:
        line["timestamp"] -= first_ms
    assert [json.loads(line) for line in writer.lines(again, block)] == lines


@given(st.integers(0, 2**32), st.booleans())
@settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_mutated_file_is_read_or_refused(tmp_path: Path, seed: int, skip: bool) -> None:
    rng = random.Random(seed)
    rows: list[Any] = [LINE, LINE | {"session_id": "s", "delay": 5}, LINE | {"session_id": "s"}]
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
    trace = Trace("t", Header(), (small(0, [(-1, 0, 520)], [(-1, 0, 3)], session="s"),))
    assert list(writer.lines(trace)) == [
        '{"timestamp": 0, "input_length": 520, "output_length": 3, "hash_ids": [0, 1]}'
    ]
