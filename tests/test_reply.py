"""Goal: a reply is read into the parts a client got, in order, and no reply can break the reading.

Method: frames as the common servers send them, with the expected parts beside them; random JSON for
everything else; the streamed and the whole form of one reply must give the same parts.
"""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from serve import reply as reply_module
from serve.reply import Reply

FIELDS = [
    "choices",
    "delta",
    "message",
    "content",
    "reasoning",
    "tool_calls",
    "function",
    "name",
    "arguments",
    "index",
    "usage",
    "error",
    "finish_reason",
    "text",
    "id",
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(FIELDS),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


def streamed(frames: list[Any], end: bytes = b"data: [DONE]\n\n") -> Reply:
    reply = Reply()
    reply.start(200, "text/event-stream; charset=utf-8")
    for frame in frames:
        reply.feed(b"data: " + json.dumps(frame).encode() + b"\n\n")
    reply.feed(end)
    reply.close()
    return reply


def whole(answer: Any, status: int = 200) -> Reply:
    reply = Reply()
    reply.start(status, "application/json")
    reply.feed(json.dumps(answer).encode())
    reply.close()
    return reply


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def call(index: int, arguments: str, **fields: Any) -> dict[str, Any]:
    name = {"name": fields.pop("name")} if "name" in fields else {}
    return delta(
        tool_calls=[{"index": index, **fields, "function": {**name, "arguments": arguments}}]
    )


def test_pieces_of_one_kind_are_joined_and_the_order_of_kinds_is_kept() -> None:
    reply = streamed(
        [
            delta(role="assistant", content=""),
            delta(reasoning_content=" Hm"),
            delta(reasoning_content=", so.\n"),
            delta(content="One"),
            delta(content=""),
            delta(content=" two "),
            delta(reasoning="again"),
            delta(finish="stop"),
            {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 7}},
        ]
    )
    assert reply.as_json() == {
        "status": 200,
        "parts": [["reasoning", " Hm, so.\n"], ["content", "One two "], ["reasoning", "again"]],
        "finish_reason": "stop",
        "usage": {"prompt_tokens": 5, "completion_tokens": 7},
        "aborted": False,
        "frames": 10,
    }


def test_tool_calls_in_pieces_two_at_a_time() -> None:
    reply = streamed(
        [
            delta(content="Look. "),
            call(0, "", id="call_a", name="read"),
            call(0, '{"file'),
            call(1, '{ "x":', id="call_b", name="bash"),
            call(0, 'Path": "a"}'),
            call(1, " 10.0 }"),
            delta(finish="tool_calls"),
        ]
    )
    assert reply.parts == [
        ["content", "Look. "],
        ["tool", "call_a", "read", '{"filePath": "a"}'],
        ["tool", "call_b", "bash", '{ "x": 10.0 }'],
    ]
    assert reply.finish_reason == "tool_calls"


def test_a_whole_reply_gives_the_parts_of_the_streamed_one() -> None:
    calls = [
        {"id": f"c{i}", "function": {"name": "read", "arguments": f'{{"a":{i}}}'}} for i in range(3)
    ]
    message = {"content": "Text", "reasoning_content": "Why", "tool_calls": calls}
    usage = {"prompt_tokens": 1}
    answer = {
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
        "usage": usage,
    }
    pieces = [call(i, f'{{"a":{i}}}', id=f"c{i}", name="read") for i in range(3)]
    frames = [
        delta(reasoning_content="Why"),
        delta(content="Text"),
        *pieces,
        {**delta(finish="tool_calls"), "usage": usage},
    ]
    one, other = whole(answer).as_json(), streamed(frames).as_json()
    assert (one.pop("frames"), other.pop("frames")) == (0, 7)
    assert one == other


def test_other_shapes() -> None:
    assert whole({"choices": [{"text": "completion"}]}).parts == [["content", "completion"]]
    as_object = {"function": {"name": "f", "arguments": {"a": [1]}}}
    assert whole({"choices": [{"message": {"tool_calls": [as_object]}}]}).parts == [
        ["tool", "", "f", '{"a": [1]}']
    ]
    second = {"choices": [{"index": 1, "delta": {"content": "not this one"}}]}
    assert streamed([second]).parts == []


def test_errors_are_kept() -> None:
    error = {"message": "too long", "code": "context_length_exceeded"}
    assert whole({"error": error}, 400).as_json()["error"] == error
    assert streamed([delta(content="a"), {"error": error}]).as_json()["error"] == error


def test_frames_that_are_no_json_are_counted_and_passed_over() -> None:
    end = b"data: {broken\n\ndata: 7\n\n: comment\n\ndata: [DONE]\n\n"
    reply = streamed([delta(content="a")], end)
    assert (reply.frames, reply.unreadable, reply.parts) == (4, 2, [["content", "a"]])
    assert reply.as_json()["unreadable"] == 2


def test_the_half_frame_of_a_cut_reply_is_no_frame() -> None:
    reply = Reply()
    reply.start(200, "text/event-stream")
    reply.feed(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\ndata: {"choi')
    reply.aborted = True
    reply.close()
    assert (reply.frames, reply.unreadable, reply.parts) == (1, 0, [["content", "a"]])


def test_bodies_that_are_not_read(monkeypatch: Any) -> None:
    monkeypatch.setattr(reply_module, "BODY_BYTES_MAX", 40)
    assert whole({"choices": [{"text": "x" * 40}]}).parts == []
    for kind, encoding in (("text/html", ""), ("application/json", "gzip")):
        reply = Reply()
        reply.start(200, kind, encoding)
        reply.feed(b'{"choices":[{"text":"a"}]}')
        reply.close()
        assert reply.parts == []
    deep = Reply()
    deep.start(200, "application/json")
    deep.feed(b"[" * 40)
    deep.close()
    assert deep.parts == []


@given(st.lists(JSON, max_size=6))
def test_no_reply_can_break_the_reading(frames: list[Any]) -> None:
    assert streamed(frames).frames == len(frames) + 1
    for frame in frames:
        whole(frame)
        for part in streamed([delta(content="x"), frame]).parts:
            assert part[0] in ("reasoning", "content", "tool")
            assert all(isinstance(field, str) for field in part)
