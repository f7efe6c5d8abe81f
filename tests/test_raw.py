"""Recordings of three shapes become the same exchanges, and bad lines are named.

Method: made-up recordings in the shapes of our recorder and of the two rigs, with everything real
clients send: kinds told by prompts and headers (engine.chat.clients), conversations told by ids,
prompts and quotations (replay.readers.sessions), answers cut by a hang-up and refused requests
(replay.readers.wire); then every way a line can be bad.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import zstandard
from rawlines import (
    SUMMARISE,
    TITLE,
    TOOLS,
    WEBUI_AGENT,
    assistant,
    opencode,
    own,
    result,
    system,
    user,
    webui,
    webui_reply,
    write,
)

from engine.bad import BadInput
from engine.chat.messages import Call, Reply, Say
from replay.readers.exchange import Exchange
from replay.readers.raw import exchanges, read

HISTORY = "### Chat History:\n<chat_history>\nUSER: {}\nASSISTANT: {}\n</chat_history>"
TASKS = {
    "title": "Generate a concise title summarizing the chat history.\n",
    "tags": "Generate 1-3 broad tags categorizing the main themes of the chat history.\n",
    "followups": "Predict 3-5 useful messages this user might naturally send next.\n",
    "queries": "Analyze the chat history to determine the necessity of generating queries.\n",
    "autocomplete": "You are an autocompletion system. Continue the text.\n",
    "side": "Reflect the speaker's likely facial expression through a fitting emoji.\n",
}


def task(kind: str, question: str = "q", answer: str = "a") -> list[dict[str, Any]]:
    return [user(f"### Task:\n{TASKS[kind]}" + HISTORY.format(question, answer))]


def only(path: Path) -> Exchange:
    found = exchanges(path)
    assert len(found) == 1
    return found[0]


def test_a_line_of_our_recorder(tmp_path: Path) -> None:
    parts = [["reasoning", "r"], ["content", "c"], ["tool", "c1", "bash", '{"command": "ls"}']]
    line = own(
        100.5,
        [system("s"), user("u")],
        parts,
        session="ses_1",
        finish="tool_calls",
        body={"max_tokens": 7},
        mark={"think_s": 2.5, "label": "x"},
    )
    line["reply"]["usage"] = {"prompt_tokens": 3}
    found = only(write(tmp_path / "a.jsonl", line))
    assert (found.line, found.t_s, found.t_end_s, found.status) == (1, 100.5, 101.5, 200)
    assert (found.client, found.version, found.session) == ("opencode", "1.2.3", "ses_1")
    assert (found.kind, found.parent, found.delivered) == ("turn", None, None)
    assert found.body == {"model": "m", "stream": True, "max_tokens": 7}
    assert found.tools == tuple(TOOLS) and found.usage == {"prompt_tokens": 3}
    assert found.mark == {"think_s": 2.5, "label": "x"}
    assert found.reply == Reply(
        (Say("reasoning", "r"), Say("content", "c"), Call("bash", '{"command": "ls"}', "c1")),
        "tool_calls",
    )


@pytest.mark.parametrize(
    ("messages", "more", "kind"),
    [
        ([system(TITLE), user("Generate a title"), user("u")], {"tools": None}, "title"),
        ([system(TITLE), user("u")], {}, "turn"),
        ([system(SUMMARISE), user("x")], {"tools": None}, "compaction"),
        (
            [user("Here is the conversation so far:\n\n<conversation>")],
            {"tools": None},
            "compaction",
        ),
        ([system("s"), user("u")], {"parent": "ses_0"}, "subagent"),
        ([user("u")], {"tools": None}, "turn"),
        ([user("u")], {"headers": {"X-Task": "title_generation"}}, "title"),
        ([user("u")], {"headers": {"Any-Name": "follow_up_generation"}}, "followups"),
        ([user("u")], {"headers": {"X-Task": "emoji_generation"}}, "side"),
        ([user("u")], {"headers": {"X-Task": ""}}, "turn"),
        ([user("### Task:\nRespond to the user query using the provided context")], {}, "turn"),
        ([user("### Task:\nFix the tests")], {}, "turn"),
        *((task(kind), {"tools": None}, kind) for kind in TASKS),
        ([system("You are plain."), *task("tags")], {"tools": None}, "tags"),
    ],
)
def test_kinds_are_told_by_the_request(
    tmp_path: Path, messages: list[Any], more: dict[str, Any], kind: str
) -> None:
    line = own(1, messages, [["content", "c"]], session="s", **more)
    assert only(write(tmp_path / "a.jsonl", line)).kind == kind


@pytest.mark.parametrize(
    ("headers", "body", "session"),
    [
        ({"x-session-id": "h"}, {}, "h"),
        ({"X-OpenWebUI-Chat-Id": "h"}, {}, "h"),
        ({"X-Session": "h"}, {}, "h"),
        ({"x-session-id": "h"}, {"conversation_id": "b"}, "b"),
        ({}, {"metadata": {"chat_id": "b"}}, "b"),
        ({"x-session-id": ""}, {"session_id": ""}, "a#0"),
        ({}, {"metadata": "no object"}, "a#0"),
    ],
)
def test_conversations_are_told_by_ids(
    tmp_path: Path, headers: dict[str, str], body: dict[str, Any], session: str
) -> None:
    line = own(1, [user("u")], [["content", "c"]], headers=headers, body=body)
    assert only(write(tmp_path / "a.jsonl", line)).session == session


@pytest.mark.parametrize(
    ("agent", "headers", "client"),
    [
        ("opencode/1.2.3 x", {}, ("opencode", "1.2.3")),
        (WEBUI_AGENT, {}, ("openwebui", "aiohttp-3.14.5")),
        ("", {"X-OpenWebUI-Chat-Id": "c"}, ("openwebui", "")),
        ("OpenAI/Python 2.1", {}, ("unknown", "")),
        ("curl/8.5.0", {}, ("curl", "8.5.0")),
        ("a person's own (browser)/1.0", {}, ("unknown", "")),
        ("", {}, ("unknown", "")),
    ],
)
def test_clients_are_told_by_headers(
    tmp_path: Path, agent: str, headers: dict[str, str], client: tuple[str, str]
) -> None:
    line = own(1, [user("u")], [["content", "c"]], agent=agent, headers=headers)
    found = only(write(tmp_path / "a.jsonl", line))
    assert (found.client, found.version) == client


def chat(path: Path, *rows: Any) -> list[tuple[str, str | None]]:
    return [(found.kind, found.session) for found in exchanges(write(path, *rows))]


def test_conversations_without_ids_are_told_by_prompts_and_quotations(tmp_path: Path) -> None:
    a1, a2 = [user("first"), assistant("one")], [user("second")]
    rows = [
        webui(1, 0, task("title", "first", ""), tools=False),
        webui(2, 1, a1[:1]),
        webui_reply(1, 1.2, "t"),
        webui_reply(2, 2, "\n\none\n", "thought"),
        webui(3, 2.1, task("followups", "first", "one"), tools=False),
        webui_reply(3, 2.2, "f"),
        webui(4, 5, [user("other")]),
        webui_reply(4, 6, "two"),
        webui(5, 8, [*a1, *a2]),
        webui_reply(5, 9, "three"),
        webui(6, 9.5, task("followups", "second", "three"), tools=False),
        webui_reply(6, 9.6, "f"),
        webui(7, 10, [*a1, user("edited")]),  # parts behind the first answer
        webui_reply(7, 11, "four"),
        webui(8, 12, task("tags", "nobody asked this", "x"), tools=False),
        webui_reply(8, 13, "t"),
        {"kind": "mark", "t": 14, "label": "x"},
    ]
    assert chat(tmp_path / "a.jsonl", *rows) == [
        ("title", "a#0"),
        ("turn", "a#0"),
        ("followups", "a#0"),
        ("turn", "a#1"),
        ("turn", "a#0"),
        ("followups", "a#0"),
        ("turn", "a#0"),
        ("tags", None),
    ]


def test_a_wrapped_question_stays_in_its_conversation(tmp_path: Path) -> None:
    wrapped = (
        "### Task:\nRespond to the user query using the provided context\n<context>x</context>\n"
    )
    rows = [
        webui(1, 0, [user(wrapped + "what?")]),
        webui_reply(1, 1, "this"),
        webui(2, 2, task("queries", "what?\nASSISTANT: this\nUSER: and?", ""), tools=False),
        webui_reply(2, 2.1, "q"),
        webui(3, 3, [user("what?"), assistant("this"), user(wrapped + "and?")]),
        webui_reply(3, 4, "that"),
    ]
    found = chat(tmp_path / "a.jsonl", *rows)
    assert found == [("turn", "a#0"), ("queries", "a#0"), ("turn", "a#0")]


def test_the_open_webui_rigs_clock_and_answers(tmp_path: Path) -> None:
    tool = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    rows = [
        webui(1, 20.25, [user("a")]),
        webui(2, 21.0, [user("b")]),
        webui_reply(2, 21.5, "<think>\nhm\n</think>\n\nyes\n"),
        webui_reply(1, 22.25, "", "why", tool=tool),
        webui(3, 23, [user("c")]),
        webui_reply(3, 24, "whole answer", "r", sent_before_abort="whole", aborted="pipe"),
    ]
    first, second, third = exchanges(write(tmp_path / "a.jsonl", *rows))
    assert first.t_s == pytest.approx(1795994120.0) and first.line == 1
    assert first.t_end_s - first.t_s == pytest.approx(2.0)
    assert second.t_s - first.t_s == pytest.approx(0.75)
    assert first.reply == Reply((Say("reasoning", "why"), Call("f", "{}", "c")), "tool_calls")
    assert second.reply.pieces == (Say("reasoning", "hm"), Say("content", "yes\n"))
    assert third.reply == Reply((Say("reasoning", "r"), Say("content", "whole")), "stop", True)
    assert third.delivered == 6


@pytest.mark.parametrize(
    ("frames", "pieces"),
    [
        (0, ()),
        (1, ()),
        (2, (Say("reasoning", "r" * 24),)),
        (3, (Say("reasoning", "r" * 30),)),
        (4, (Say("reasoning", "r" * 30), Say("content", "c" * 24))),
        (6, (Say("reasoning", "r" * 30), Say("content", "c" * 30), Call("f", "", "c"))),
        (7, (Say("reasoning", "r" * 30), Say("content", "c" * 30), Call("f", '{"a": 1}', "c"))),
    ],
)
def test_the_opencode_rigs_frames_say_what_was_delivered(
    tmp_path: Path, frames: int, pieces: tuple[Any, ...]
) -> None:
    parts = [["reasoning", "r" * 30], ["content", "c" * 30], ["tool", "c", "f", '{"a": 1}']]
    line = opencode(1, 5, [user("u")], parts, aborted="CancelledError()", frames_sent=frames)
    found = only(write(tmp_path / "a.jsonl", line))
    assert found.reply == Reply(pieces, "stop", aborted=True)
    lengths = [len(p.arguments if isinstance(p, Call) else p.text) for p in pieces]
    assert found.delivered == sum(lengths)


def test_what_our_recorder_saw_of_a_cut_answer_is_taken_as_it_is(tmp_path: Path) -> None:
    parts = [["content", "half"], ["tool", "c", "f", '{"a": "x']]
    line = own(1, [user("u")], parts, finish=None, aborted=True)
    found = only(write(tmp_path / "a.jsonl", line))
    assert found.reply.aborted and found.delivered == 4 + 8
    never = own(1, [user("u")], [], finish=None, aborted=True, status=None)
    found = only(write(tmp_path / "a.jsonl", never))
    assert found.delivered == 0 and found.status is None and not found.failed


def test_refused_requests_are_exchanges_that_failed(tmp_path: Path) -> None:
    refused = opencode(1, 1, [user("u")], [], status=503, error={"message": "busy"})
    del refused["reply"]["finish_reason"]
    rows = [
        refused,
        opencode(2, 3, [user("u")], [["content", "c"]]),
        own(9, [user("u")], [], status=400),
    ]
    assert [found.failed for found in exchanges(write(tmp_path / "a.jsonl", *rows))] == [
        True,
        False,
        True,
    ]


def test_other_paths_and_requests_without_a_body_are_passed_over(tmp_path: Path) -> None:
    no_body = own(3, [user("u")], [["content", "c"]])
    no_body["body"] = None
    rows = [
        {"n": None, "kind": "models", "t": 1, "method": "GET", "path": "/v1/models", "headers": []},
        webui(7, 2, [user("x")], path="/v1/embeddings"),
        no_body,
        own(4, [user("u")], [["content", "c"]], path="/v1/completions"),
        own(5, [user("u")], [["content", "c"]], path="/v1/chat/completions?key=x"),
    ]
    assert only(write(tmp_path / "a.jsonl", *rows)).line == 5


def test_exchanges_come_in_order_of_arrival_and_share_their_messages(tmp_path: Path) -> None:
    long = [user("u" * 100), assistant("a"), result("r" * 100)]
    rows = [own(9, [*long, user("2")], [["content", "c"]]), own(3, long, [["content", "b"]])]
    first, second = exchanges(write(tmp_path / "a.jsonl", *rows))
    assert (first.line, second.line) == (2, 1)
    assert all(a is b for a, b in zip(first.messages, second.messages, strict=False))


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "jsonl.zst"])
def test_packed_files(tmp_path: Path, ending: str) -> None:
    text = (json.dumps(own(1, [user("é")], [["content", "c"]])) + "\n").encode()
    packed = {"gz": gzip.compress, "zst": zstandard.compress}.get(ending[6:], bytes)(text)
    path = tmp_path / f"a.{ending}"
    path.write_bytes(packed)
    assert only(path).messages[0].content == "é"
    if ending != "jsonl":
        path.write_bytes(packed[:-5])
        with pytest.raises(BadInput, match="cut off"):
            exchanges(path)


GOOD = own(1, [user("u")], [["content", "c"]])


def changed(**fields: Any) -> dict[str, Any]:
    return GOOD | fields


def reply(**fields: Any) -> dict[str, Any]:
    return GOOD | {"reply": GOOD["reply"] | fields}


def body(**fields: Any) -> dict[str, Any]:
    return GOOD | {"body": GOOD["body"] | fields}


IMAGE = [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "data:"}}]


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        (json.dumps(GOOD)[:-40], "not JSON"),
        ("[1]", "not an object"),
        ("{}", "no 'kind'"),
        (changed(format="moorage.trace"), "'format' is not 'moorage.raw'"),
        (changed(version=2), "version 2 is not known"),
        (changed(t="now"), "'t' is not a number"),
        (changed(t=float("nan")), "NaN"),
        (changed(headers=[["a"]]), "a header is not"),
        (changed(reply=None), "no 'reply'"),
        (reply(parts=[["song", "x"]]), "unknown kind 'song'"),
        (reply(parts=[["tool", "x"]]), "unknown kind 'tool'"),
        (reply(parts=["x"]), "not a list of texts"),
        (reply(parts=[["content", None]]), "not a list of texts"),
        (reply(status="fine"), "'status' is not a whole number"),
        (body(messages=[]), "messages are missing or empty"),
        (body(messages=[{"role": "wizard", "content": ""}]), "unknown role 'wizard'"),
        (body(messages=[{"role": "user", "content": IMAGE}]), "message 0, part 1: the data:"),
        (body(tools={"a": 1}), "tools are not a list"),
        (webui(5, 1, [user("x")]) | {"wall": "today"}, "'wall' is not a time"),
        (webui_reply(5, 1, "x"), "request 5, which is not open"),
        (webui(5, 1, [user("x")]), "the request has no reply"),
    ],
)
def test_a_bad_line_is_named_and_can_be_passed_over(tmp_path: Path, bad: Any, what: str) -> None:
    path = write(tmp_path / "a.jsonl", GOOD, bad, GOOD | {"t": 2})
    with pytest.raises(BadInput, match=what) as caught:
        exchanges(path)
    assert (caught.value.source, caught.value.line) == (str(path), 2)
    skipped: list[BadInput] = []
    assert len(exchanges(path, skipped.append)) == 2
    assert [bad.line for bad in skipped] == [2]


def test_a_file_without_anything_is_refused(tmp_path: Path) -> None:
    for text, what in (
        ("", "empty"),
        ("\n\n", "empty"),
        (json.dumps(changed(path="/x")), "no chat"),
    ):
        path = tmp_path / "a.jsonl"
        path.write_text(text)
        for on_bad in (None, lambda bad: None):
            with pytest.raises(BadInput, match=what):
                exchanges(path, *([on_bad] if on_bad else []))
    with pytest.raises(BadInput):
        exchanges(tmp_path / "missing.jsonl")


def test_a_recording_is_read_as_a_trace(tmp_path: Path) -> None:
    trace = read(write(tmp_path / "night.jsonl", GOOD))
    assert trace.name == "night" and len(trace.requests) == 1
