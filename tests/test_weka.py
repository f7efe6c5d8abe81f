"""Weka sessions become the runs, links and times that their blocks and clocks say.

Method: sessions made here in Weka's format, small block sizes, each showing one rule: extension
with its partial block and the answer coming back, edits, side chains, sub-agents, clocks. Then
every way a file can be wrong, and random sessions whose runs are checked against the ids.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from traces import mutated, naive_sequences

from engine.bad import BadInput
from replay.readers.weka import read
from replay.trace import FRESH, TEXT, Parts, Run, Trace
from replay.tracefile import parse_trace, trace_lines

BLOCK = 10


def call(t: float, tokens: int, ids: list[int], out: int = 7, **more: Any) -> dict[str, Any]:
    return {"t": t, "type": "n", "in": tokens, "out": out, "hash_ids": ids, "stop": ""} | more


def session(*requests: dict[str, Any], **more: Any) -> dict[str, Any]:
    top = {"id": "w1", "models": ["m"], "block_size": BLOCK, "hash_id_scope": "local"}
    return top | {"tool_tokens": 0, "system_tokens": 0, "requests": list(requests)} | more


def read_session(folder: Path, document: Any, **how: Any) -> Trace:
    path = folder / "trace_0001.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return read(path, **how)


def test_a_prompt_that_extends_the_last_gets_its_partial_block_and_its_answer(
    tmp_path: Path,
) -> None:
    first, second = call(0.0, 25, [1, 2]), call(9.0, 58, [1, 2, 3, 4, 5])
    trace = read_session(tmp_path, session(first, second, call(20.0, 60, [1, 2, 3, 4, 5, 6])))
    assert trace.name == "trace_0001" and "assumed to come back" in trace.header.notes
    one, two, three = trace.requests
    assert one.prompt == (Run(FRESH, TEXT, 25),) and one.output == (Run(FRESH, TEXT, 7),)
    assert two.prompt == (Run(0, 0, 32), Run(FRESH, TEXT, 26)) and two.extends == 0
    # What the third adds is less than the answer before it: it comes back as far as that goes.
    assert three.prompt == (Run(1, 0, 60),) and three.extends == 1
    assert one.extends is None


def test_an_edit_keeps_whole_blocks_only(tmp_path: Path) -> None:
    rows = [
        call(0, 35, [1, 2, 3]),
        call(1, 41, [1, 2, 9, 10]),  # parts in the third block
        call(2, 35, [1, 2, 3]),  # the first one again: nothing is added
        call(3, 33, [1, 2, 3]),  # shorter than it
        call(4, 36, [1, 2, 3]),  # longer by one
        call(5, 9, []),  # less than a block
        call(6, 9, []),
    ]
    trace = read_session(tmp_path, session(*rows))
    assert [request.prompt for request in trace.requests[1:]] == [
        (Run(0, 0, 20), Run(FRESH, TEXT, 21)),
        (Run(0, 0, 30), Run(FRESH, TEXT, 5)),
        (Run(2, 0, 30), Run(FRESH, TEXT, 3)),
        (Run(2, 0, 36),),
        (Run(FRESH, TEXT, 9),),
        (Run(FRESH, TEXT, 9),),
    ]
    assert [request.extends for request in trace.requests] == [None] * 4 + [2, None, None]


def test_a_side_chain_does_not_end_the_main_one(tmp_path: Path) -> None:
    rows = [call(0, 20, [1, 2]), call(1, 12, [8]), call(2, 30, [1, 2, 3]), call(3, 22, [8, 9])]
    trace = read_session(tmp_path, session(*rows))
    assert [request.extends for request in trace.requests] == [None, None, 0, 1]
    assert [request.after for request in trace.requests] == [None, 0, 1, 2]


def test_of_two_chains_the_longer_one_is_extended(tmp_path: Path) -> None:
    rows = [call(0, 12, [1]), call(1, 25, [1, 2]), call(2, 14, [1]), call(3, 40, [1, 2, 3, 4])]
    trace = read_session(tmp_path, session(*rows))
    # 1 extends 0 and 3 extends 1: request 2, a branch of its own, extends nothing longer.
    assert [request.extends for request in trace.requests] == [None, 0, None, 1]


def test_blocks_that_reach_past_the_chain_s_last_prompt_win(tmp_path: Path) -> None:
    agent = call(0, 40, [1, 2, 3, 4])
    nested = {"t": 0.0, "type": "subagent", "agent_id": "a", "requests": [agent]}
    trace = read_session(tmp_path, session(nested, call(1, 15, [1]), call(2, 45, [1, 2, 3, 4])))
    assert trace.requests[2].prompt == (Run(0, 0, 40), Run(FRESH, TEXT, 5))
    assert trace.requests[2].extends is None


def test_sub_agents_have_their_own_session_times_and_sizes(tmp_path: Path) -> None:
    agent = {
        "t": 100.0,
        "type": "subagent",
        "agent_id": "agent_001",
        "tool_tokens": 5,
        "system_tokens": 50,
        "requests": [
            call(0.0, 12, [7], think_time=0.0, api_time=2.0, stop="tool_use"),
            call(4.0, 22, [7, 8], think_time=2.0, stop="end_turn"),
        ],
    }
    main = [
        call(90.0, 11, [1], api_time=6.5),
        agent,
        call(102.0, 21, [1, 2], think_time=5.5, model="m", ttft=0.4, api_time=1.0),
    ]
    trace = read_session(tmp_path, session(*main, tool_tokens=4, system_tokens=3))
    rows = trace.requests
    assert [row.t_s for row in rows] == [0.0, 10.0, 12.0, 14.0]
    assert [row.kind for row in rows] == ["turn", "subagent", "turn", "subagent"]
    assert [row.session for row in rows] == ["w1", "w1/agent_001", "w1", "w1/agent_001"]
    assert [row.after for row in rows] == [None, 0, 0, 1]
    # The agent's first request waits for the main chain's answer: 100 - 90 - 6.5.
    assert [row.think_s for row in rows] == [0.0, 3.5, 5.5, 2.0]
    assert [row.finish for row in rows] == ["stop", "tool_calls", "stop", "stop"]
    assert [row.extends for row in rows] == [None, None, 0, 1]
    assert rows[0].parts == Parts(system=3, tools=4, history=4)
    assert rows[1].parts == Parts(system=7, tools=5, history=0)
    assert rows[2].extra == {"model": "m", "ttft": 0.4, "api_time": 1.0}
    assert {row.client for row in rows} == {"claude-code"}
    assert list(trace.header.clients) == ["claude-code"]


def test_requests_are_numbered_by_arrival(tmp_path: Path) -> None:
    rows = [call(5, 20, [1, 2]), call(3, 30, [1, 2, 3]), call(3, 31, [1, 2, 3])]
    trace = read_session(tmp_path, session(*rows))
    assert [request.prompt_tokens for request in trace.requests] == [30, 31, 20]
    assert [request.t_s for request in trace.requests] == [0.0, 0.0, 2.0]
    assert trace.requests[2].prompt == (Run(1, 0, 20),) and trace.requests[2].extends is None


BAD_SESSIONS = {
    "empty": ("", "the file is empty"),
    "cut": ('{"id": "w1", "requests": [', "not JSON"),
    "list": ([], "the document is not an object"),
    "scope": (session(hash_id_scope="global"), "hash_id_scope 'global' is not known"),
    "no block size": (session(block_size=None), "no 'block_size'"),
    "no requests": (session(), "the session holds no request"),
    "requests": (session(requests={}), "'requests' is not a list"),
    "agent": (session({"type": "subagent", "requests": [call(0, 9, [])]}), "no 't'"),
    "row": (session([]), "request 0: it is not an object"),
    "ids": (session(call(0, 25, [1])), "request 0: 1 hash ids for 25 tokens, not 2"),
    "id": (session(call(0, 25, [1, "2"])), "request 0: a block id is not a whole number: '2'"),
    "in": (session(call(0, 0, [])), "request 0: 'in' is not in 1.."),
    "out": (session(call(0, 9, [], out=-1)), "request 0: 'out' is not in 0.."),
    "no t": (session(call(None, 9, [])), "request 0: no 't'"),
    "think": (session(call(0, 9, [], think_time=-2)), "request 0: 'think_time' is not a finite"),
    "stop": (session(call(0, 9, [], stop=3)), "request 0: 'stop' is not a string"),
}


@pytest.mark.parametrize("name", BAD_SESSIONS)
def test_a_bad_session_is_refused_in_a_line(tmp_path: Path, name: str) -> None:
    document, words = BAD_SESSIONS[name]
    with pytest.raises(BadInput) as caught:
        read_session(tmp_path, document)
    message = str(caught.value)
    assert "trace_0001.json:" in message and words in message and "\n" not in message


def test_a_bad_request_can_be_passed_over(tmp_path: Path) -> None:
    bad: list[BadInput] = []
    rows = [call(0, 20, [1, 2]), call(1, 20, [1]), call(2, 30, [1, 2, 3])]
    trace = read_session(tmp_path, session(*rows), on_bad=bad.append)
    assert [request.number for request in trace.requests] == [0, 2]
    assert trace.requests[1].extends == 0 and trace.requests[1].after == 0
    assert [b.what[:10] for b in bad] == ["request 1:"]


@given(st.integers(0, 2**32), st.booleans())
@settings(
    deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_mutated_session_is_read_or_refused(tmp_path: Path, seed: int, skip: bool) -> None:
    rng = random.Random(seed)
    rows: list[Any] = [call(t, 10 * t + 15, [*range(1, t + 2)], think_time=1) for t in range(4)]
    rows.append({"t": 2.5, "type": "subagent", "agent_id": "a", "requests": [call(0, 12, [9])]})
    for _ in range(rng.randint(1, 2)):
        at = rng.randrange(len(rows))
        rows[at] = mutated(rows[at] if isinstance(rows[at], str) else json.dumps(rows[at]), rng)
    texts = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    document = json.dumps(session())
    if rng.random() < 0.3:
        document = mutated(document, rng)
    document = document.replace('"requests": []', f'"requests": [{",".join(texts)}]')
    bad: list[BadInput] = []
    try:
        trace = read_session(tmp_path, document, **({"on_bad": bad.append} if skip else {}))
    except BadInput as refused:
        assert "\n" not in str(refused)
        return
    lines = iter(list(enumerate(trace_lines(trace), 1)))
    assert parse_trace(trace.name, "again", lines) == trace


@st.composite
def sessions(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Sessions whose ids name prefixes; chains go on, branch off and start anew."""
    known: dict[tuple[int, ...], int] = {}
    prompts: list[tuple[tuple[int, ...], int]] = []
    rows: list[dict[str, Any]] = []
    for t in range(draw(st.integers(1, 9))):
        words: tuple[int, ...] = ()
        if prompts and draw(st.integers(0, 3)):
            words = draw(st.sampled_from(prompts))[0]
            words = words[: draw(st.integers(0, len(words)) | st.just(len(words)))]
        words += tuple(draw(st.lists(st.integers(0, 2), max_size=3)))
        tokens = len(words) * BLOCK + draw(st.integers(0 if words else 1, BLOCK - 1))
        prefixes = [words[: i + 1] for i in range(len(words))]
        ids = [known.setdefault(prefix, len(known) + 1) for prefix in prefixes]
        prompts.append((words, tokens))
        rows.append(call(t, tokens, ids, out=draw(st.integers(0, 25))))
    return rows


@given(sessions())
@settings(
    deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_equal_ids_are_equal_tokens(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    trace = read_session(tmp_path, session(*rows))
    sequences = naive_sequences(trace)
    named: dict[int, list[tuple[int, int, int]]] = {}
    for request, row in zip(trace.requests, rows, strict=True):
        tokens = sequences[request.number]
        assert request.prompt_tokens == row["in"] and request.output_tokens == row["out"]
        for i, one in enumerate(row["hash_ids"]):
            prefix = tokens[: (i + 1) * BLOCK]
            assert named.setdefault(one, prefix) == prefix
        if request.extends is not None:
            last = trace.requests[request.extends]
            back = min(last.output_tokens, request.prompt_tokens - last.prompt_tokens)
            shared = last.prompt_tokens + back
            assert tokens[:shared] == sequences[last.number][:shared]
    assert len({tuple(prefix) for prefix in named.values()}) == len(named)
    # What was read is a valid trace.
    lines = iter(list(enumerate(trace_lines(trace), 1)))
    assert parse_trace(trace.name, "again", lines) == trace
