"""A scrubbed trace keeps a recording's structure and nothing that can be read.

Method: made-up recordings with what clients do between turns (arguments written anew, thoughts left
out, ends stripped, hang-ups, edits, regenerations, continuations, sub-agents, side requests) are
scrubbed; links and cuts are held to what was done; the trace is written, read and drawn again as
tokens, which must repeat and part where the rendered prompts do; and its text is searched for every
word of its source.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from photos import attached, data_url, photo
from rawlines import SUMMARISE, TITLE, WEBUI_AGENT, assistant, own, result, system, user, write

from cache.types import common_prefix
from engine.bad import BadInput
from engine.chat.gallery import Gallery
from engine.chat.messages import Call, Reply, Say, messages_of
from engine.chat.template import Template
from engine.chat.tokenizer import Tokenizer
from replay.links import Links
from replay.readers.answers import Follow, came_back, follows
from replay.readers.exchange import Exchange
from replay.readers.raw import exchanges
from replay.scrub import scrub
from replay.tokens import Tokens
from replay.trace import FRESH, Request, Trace
from replay.tracefile import parse_trace, trace_lines

TEMPLATE = Template(Tokenizer())
SALT = b"0123456789abcdef"
S, Q = system("Be a careful secretary."), user("Where is the zebra?")
THOUGHT, ANSWER = "Zebras live in the savannah, I think.", "\n\nIn the savannah, near the lake.  \n"
PARTS = [["reasoning", THOUGHT], ["content", ANSWER]]
LS = ["tool", "call_77", "bash", '{ "command" : "ls -la \\/home",  "limit": 10.0 }']
LS_BACK = ["call_77", "bash", '{"command":"ls -la /home","limit":10}']


def exchanged(tmp_path: Path, *rows: Any) -> list[Exchange]:
    return exchanges(write(tmp_path / "recording.jsonl", *rows))


def scrubbed(tmp_path: Path, *rows: Any, **how: Any) -> Trace:
    found = exchanged(tmp_path, *rows)
    return scrub(found, name="t", salt=SALT, template=TEMPLATE, **how)


def turns(*said: tuple[Sequence[Any], list[list[str]]], **how: Any) -> list[dict[str, Any]]:
    """Requests of one conversation, ten seconds apart, a second long."""
    return [own(10.0 * i, list(m), parts, session="s", **how) for i, (m, parts) in enumerate(said)]


def test_a_tool_loop(tmp_path: Path) -> None:
    called = assistant("\n\nI look.", THOUGHT, LS_BACK)
    loop = [S, Q, called, result("zebra.txt", "call_77")]
    rows = turns(
        ([S, Q], [["reasoning", THOUGHT], ["content", "\n\nI look."], LS]),
        (loop, PARTS),
        ([*loop, assistant(ANSWER, THOUGHT), user("Thanks")], [["content", "Welcome"]]),
        finish="tool_calls",
        body={"max_tokens": 500, "temperature": 0.5, "seed": "secret", "reasoning_effort": "high"},
    )
    trace = scrubbed(tmp_path, *rows)
    assert [r.extends for r in trace.requests] == [None, 0, 1]
    assert [(r.after, r.think_s) for r in trace.requests] == [(None, 0.0), (0, 9.0), (1, 9.0)]
    assert [r.t_s for r in trace.requests] == [0.0, 10.0, 20.0]
    assert {(r.kind, r.client, r.finish) for r in trace.requests} == {
        ("turn", "opencode", "tool_calls")
    }
    assert trace.requests[0].sampling == {"temperature": 0.5, "reasoning_effort": "high"}
    assert trace.requests[0].max_tokens == 500
    first, second, third = trace.requests
    # The number's text changed on its way; all before it is a copy, the end of the call too.
    assert second.prompt[0].src == 0 and second.prompt[0].offset == 0
    assert first.prompt_tokens < second.prompt[0].length < first.prompt_tokens + first.output_tokens
    # The answer came back as it was written: one copy of all that the request before it held.
    assert third.prompt[0] == (1, 0, second.prompt_tokens + second.output_tokens)
    assert trace.header.clients == {"opencode": "1.2.3"} and trace.header.timing == "recorded"
    assert TEMPLATE.tokenizer.name in trace.header.tokenizer


@pytest.mark.parametrize("back", [ANSWER, ANSWER.strip()])
def test_a_dropped_thought_and_stripped_ends(tmp_path: Path, back: str) -> None:
    rows = turns(([Q], PARTS), ([Q, assistant(back), user("Thanks")], [["content", "x"]]))
    first, second = scrubbed(tmp_path, *rows).requests
    assert second.extends == 0
    assert second.prompt[0] == (0, 0, first.prompt_tokens)
    # What stays of the answer is a copy from inside the engine's own.
    words = len(TEMPLATE.tokenizer.encode(ANSWER.strip(), specials=False))
    copied = [r for r in second.prompt if r.src == 0 and r.offset >= first.prompt_tokens]
    assert sum(run.length for run in copied) >= words


def test_the_parts_and_the_thought_are_where_the_tokens_are(tmp_path: Path) -> None:
    (request,) = scrubbed(tmp_path, *turns(([S, Q], PARTS))).requests
    rendered = TEMPLATE.render(messages_of([S, Q]), rows_tools())
    assert (request.parts.system, request.parts.tools) == (rendered.system, rendered.tools)
    parts = request.parts
    assert parts.system + parts.tools + parts.history + parts.images == request.prompt_tokens
    answer = TEMPLATE.answer_ids(Reply((Say("reasoning", THOUGHT), Say("content", ANSWER))))
    assert request.think_end == answer.think_end and request.output_tokens == len(answer.ids)
    assert request.hidden == ()


def rows_tools() -> list[Any]:
    return list(own(0, [Q], [])["body"]["tools"])


NEXT = user("And the lion?")


def links(*said: tuple[Sequence[Any], Reply]) -> list[int | None]:
    """What each of some turns of one conversation extends."""
    known, out = Links(), []
    for number, (messages, reply) in enumerate(said):
        turn = exchange(messages, reply, number)
        out.append(known.extends(turn))
        known.add(number, turn)
    return out


def exchange(messages: Sequence[Any], reply: Reply, t_s: float = 0.0, **more: Any) -> Exchange:
    fields: dict[str, Any] = {
        "source": "f",
        "line": 1,
        "client": "c",
        "version": "",
        "kind": "turn",
        "session": "s",
        "parent": None,
        "headers": (),
        "body": {},
        "tools": (),
        "usage": None,
        "delivered": None,
        "status": 200,
        "mark": {},
        "t_end_s": t_s + 0.5,
    }
    return Exchange(t_s=t_s, messages=messages_of(list(messages)), reply=reply, **(fields | more))


SAID = Reply((Say("reasoning", THOUGHT), Say("content", ANSWER)))
CALLED = Reply((Call("bash", LS[3], "call_77"),), "tool_calls")
DONE = result("zebra.txt", "call_77")
INVALID = ["call_77", "invalid", '{"tool":"bash","error":"broken"}']


@pytest.mark.parametrize(
    ("before", "reply", "after", "how"),
    [
        ([Q], SAID, [Q, assistant(ANSWER, THOUGHT), NEXT], Follow.EXACT),
        ([Q], SAID, [Q, assistant(ANSWER), NEXT], Follow.EXACT),
        ([Q], SAID, [Q, assistant(ANSWER.strip(), THOUGHT + "\n"), NEXT], Follow.EXACT),
        ([Q], SAID, [Q, assistant(ANSWER, "another thought"), NEXT], None),
        ([Q], SAID, [Q, assistant("Edited by the user"), NEXT], None),
        ([Q], SAID, [Q, assistant(ANSWER[:-8]), NEXT], None),
        ([Q], SAID, [Q], None),
        ([Q], SAID, [Q, NEXT], None),
        ([Q], SAID, [user("Where is the gnu?"), assistant(ANSWER), NEXT], None),
        ([Q], SAID, [Q, assistant(ANSWER), NEXT, assistant("x"), NEXT], None),
        ([Q], SAID, [Q, assistant(ANSWER)], Follow.EXACT),
        ([S, Q], SAID, [system("It is 12:01"), Q, assistant(ANSWER), NEXT], Follow.REWRITTEN),
        ([user("Context. " + Q["content"])], SAID, [Q, assistant(ANSWER), NEXT], Follow.REWRITTEN),
        ([Q], CALLED, [Q, assistant("", "", LS_BACK), DONE], Follow.EXACT),
        ([Q], CALLED, [Q, assistant("", "", INVALID), DONE], Follow.EXACT),
        ([Q], CALLED, [Q, assistant("", "", ["other", *LS_BACK[1:]]), DONE], Follow.EXACT),
        ([Q], CALLED, [Q, assistant("", "", ["other", "bash", '{"command":"rm"}']), DONE], None),
        ([Q], CALLED, [Q, assistant(""), DONE], None),
        (
            [Q, assistant("", "", LS_BACK), result("long result", "call_77")],
            SAID,
            [Q, assistant("", "", LS_BACK), result("[pruned]", "call_77"), assistant(ANSWER), NEXT],
            Follow.REWRITTEN,
        ),
        (
            [Q, assistant("In the ", "r")],
            Reply((Say("content", "savannah."),)),
            [Q, assistant("In the\nsavannah.", "r"), NEXT],
            Follow.EXACT,
        ),
        ([Q, assistant("In the")], SAID, [Q, assistant("Elsewhere"), NEXT], None),
    ],
)
def test_what_counts_as_going_on(
    before: list[Any], reply: Reply, after: list[Any], how: Follow | None
) -> None:
    assert follows(messages_of(before), reply, messages_of(after)) is how


def test_a_question_about_another_picture_is_an_edit() -> None:
    def shown(*seeds: int) -> dict[str, Any]:
        return attached("What is it?", *(("a.png", data_url(photo(seed))) for seed in seeds))

    see = Gallery().see
    for before, after, how in (
        (shown(1), shown(1), Follow.EXACT),
        (shown(1), shown(2), None),
        (shown(1), shown(1, 2), None),
        (shown(1, 2), shown(2, 1), None),
        # Clients that send no old images leave the words alone.
        (shown(1), {**shown(1), "content": shown(1)["content"][:2]}, Follow.REWRITTEN),
    ):
        old, new = (messages_of(m, see) for m in ([before], [after, assistant(ANSWER), NEXT]))
        assert follows(old, SAID, new) is how


def test_a_hang_up_leaves_what_was_there_or_nothing() -> None:
    text = Reply((Say("reasoning", THOUGHT), Say("content", ANSWER[:20])), aborted=True)
    thought = Reply((Say("reasoning", THOUGHT[:9]),), aborted=True)
    call = Reply((Call("bash", '{"comm', "call_77"),), aborted=True)
    aborted = assistant("", "", ["call_77", "bash", "{}"])
    for reply, back, how in (
        (text, [assistant(ANSWER[:15])], Follow.EXACT),
        (text, [assistant(ANSWER[2:20], THOUGHT)], Follow.EXACT),
        (text, [assistant(ANSWER[:20] + " and more")], None),
        (text, [], None),
        (thought, [], Follow.EXACT),
        (thought, [assistant("", THOUGHT[:5])], Follow.EXACT),
        (call, [aborted, result("aborted", "call_77")], Follow.EXACT),
        (call, [], None),
    ):
        after = messages_of([Q, *back, NEXT])
        assert follows(messages_of([Q]), reply, after) is how, (reply, back)


def test_an_answer_of_several_pieces_comes_back_joined() -> None:
    pieces = (Say("content", "a "), Say("reasoning", "r"), Say("content", "b"))
    (back,) = messages_of([assistant("a b", "r")])
    assert came_back(Reply((*pieces, Say("reasoning", ""))), back)


def test_an_edit_or_another_answer_extends_nothing() -> None:
    again = [Q, assistant(ANSWER), NEXT]
    edited = [Q, assistant(ANSWER), user("And the gnu?")]
    turns = (([Q], SAID), (again, SAID), (again, SAID), (edited, SAID))
    assert links(*turns) == [None, 0, None, None]
    on = [*edited, assistant(ANSWER), NEXT]
    assert links(([Q], SAID), (again, SAID), (edited, SAID), (on, SAID)) == [None, 0, None, 2]


def test_a_continued_answer_extends_and_is_extended() -> None:
    more = [Q, assistant(ANSWER.strip())]
    on = [Q, assistant(ANSWER.strip() + "\n" + ANSWER.rstrip()), NEXT]
    assert links(([Q], SAID), (more, SAID), (on, SAID)) == [None, 0, 1]


def test_a_hang_up_is_cut_where_the_client_left(tmp_path: Path) -> None:
    rows = [
        own(0, [Q], [], session="a", aborted=True, finish=None, status=None),
        own(1, [Q], [["reasoning", THOUGHT]], session="b", aborted=True, finish=None),
        own(2, [Q], PARTS, session="c", finish="length"),
    ]
    never, thinking, full = scrubbed(tmp_path, *rows).requests
    assert (never.aborted_after, never.output, never.finish) == (0, (), "abort")
    assert thinking.aborted_after == thinking.output_tokens == thinking.think_end > 0
    assert full.aborted_after is None and full.finish == "length"


def test_side_requests_sub_agents_and_compactions(tmp_path: Path) -> None:
    spawn = [["content", "Two helpers."], ["tool", "c1", "task", '{"prompt":"count"}']]
    asked = assistant("Two helpers.", "", ["c1", "task", '{"prompt":"count"}'])
    job, child = [user("count the zebras")], {"session": "sub", "parent": "s"}
    rows = [
        own(0, [system(TITLE), Q], [["content", "T"]], session="s", tools=None, seconds=9),
        own(1, [S, Q], spawn, session="s"),
        own(3, job, [["content", "a"]], **child),
        own(5, [*job, assistant("a"), NEXT], [["content", "b"]], **child),
        own(7, [S, Q, asked, result("b")], [["content", "Two."]], session="s"),
        own(9, [system(SUMMARISE), user("all")], [["content", "sum"]], session="s", tools=None),
        own(12, [S, user("What?"), assistant("sum"), NEXT], [["content", "x"]], session="s"),
        own(14, [Q], [["content", "y"]], session=None, headers={"X-Task": "tags_generation"}),
    ]
    trace = scrubbed(tmp_path, *rows)
    kinds = [r.kind for r in trace.requests]
    assert kinds == ["title", "turn", "subagent", "subagent", "turn", "compaction", "turn", "tags"]
    assert [r.extends for r in trace.requests] == [None, None, None, 2, 1, None, None, None]
    assert [r.after for r in trace.requests] == [None, None, 1, 2, 3, 4, 5, None]
    assert [r.think_s for r in trace.requests] == [0, 0, 1, 1, 1, 1, 2, 0]
    sessions = [r.session for r in trace.requests]
    assert sessions[2] == sessions[3] != sessions[1] == sessions[6] and sessions[7] is None


def test_nobody_waits_for_what_still_runs(tmp_path: Path) -> None:
    """Two sub-agents side by side, and a message sent while an answer is being written."""
    rows = [
        own(0, [Q], [["content", "a"]], session="s"),
        own(2, [Q], [["content", "b"]], session="one", parent="s", seconds=6),
        own(3, [Q], [["content", "c"]], session="two", parent="s", seconds=2),
        own(7, [Q, NEXT], [["content", "d"]], session="s"),
    ]
    assert [r.after for r in scrubbed(tmp_path, *rows).requests] == [None, 0, 0, 2]


def test_tags_wait_for_follow_ups_and_a_turn_for_its_queries(tmp_path: Path) -> None:
    def side(t: float, task: str) -> dict[str, Any]:
        headers = {"X-Task": task, "X-Session": "s"}
        return own(t, [user("side")], [["content", "x"]], headers=headers, tools=None)

    rows = [
        own(0, [Q], PARTS, headers={"X-Session": "s"}, agent=WEBUI_AGENT),
        side(2, "follow_up_generation"),
        side(4, "tags_generation"),
        side(6, "query_generation"),
        own(8, [Q, assistant(ANSWER), NEXT], PARTS, headers={"X-Session": "s"}, agent=WEBUI_AGENT),
    ]
    found = scrubbed(tmp_path, *rows).requests
    assert [r.after for r in found] == [None, 0, 1, 0, 3] and found[4].extends == 0


def test_refused_requests_are_counted_and_left_out(tmp_path: Path) -> None:
    busy = [own(t, [Q], [], session="s", status=503) for t in (0, 1)]
    trace = scrubbed(tmp_path, *busy, *turns(([Q], PARTS)), notes="made up")
    assert len(trace.requests) == 1
    assert trace.header.notes == "made up; 2 refused with 503, left out"
    with pytest.raises(BadInput, match="no request"):
        scrubbed(tmp_path, *busy)


def test_a_plans_marks_set_the_pauses_and_the_pace(tmp_path: Path) -> None:
    def mark(**facts: Any) -> dict[str, Any]:
        return {"factor": 10.0} | facts

    rows = [
        own(0, [Q], PARTS, session="s", mark=mark(think_s=5)),
        own(3, [Q, assistant(ANSWER), NEXT], PARTS, session="s", mark=mark(think_s=42.5)),
        own(6, [Q, assistant(ANSWER), NEXT], PARTS, session="s", mark=mark(think_s=None)),
    ]
    trace = scrubbed(tmp_path, *rows)
    assert [r.t_s for r in trace.requests] == [0, 30, 60]
    assert [r.think_s for r in trace.requests] == [0, 42.5, 2]
    assert trace.header.timing == "synthetic" and "10 times" in trace.header.notes
    for wrong in (0, "fast", [1]):
        with pytest.raises(BadInput, match="one speed"):
            scrubbed(tmp_path, rows[0], own(1, [Q], PARTS, mark={"factor": wrong}))


def test_versions_that_headers_do_not_tell_can_be_given(tmp_path: Path) -> None:
    rows = turns(([Q], PARTS), agent=WEBUI_AGENT)
    trace = scrubbed(tmp_path, *rows, versions={"openwebui": "0.12.4"}, licence="CC0-1.0")
    assert trace.header.clients == {"openwebui": "0.12.4"} and trace.header.licence == "CC0-1.0"


SECRETS = [
    "zebra",
    "savannah",
    "lake",
    "careful",
    "secretary",
    "bash",
    "home",
    "call_77",
    "ses_hidden",
    "private",
    "zelda",
    "example.org",
    "hot",
    "wild",
    "gnu",
    "browser",
    "label",
]


def secretive(tmp_path: Path) -> list[Exchange]:
    """A recording with a secret in every place that a client can write to."""
    headers = {"X-OpenWebUI-User-Email": "zelda@example.org"}
    body = {"model": "private-model", "stop": ["zebra"], "user": "zelda", "temperature": "hot"}
    loop = [S, Q, assistant("", THOUGHT, LS_BACK), result("gnu.txt", "call_77")]
    first = own(0, [S, Q], [["reasoning", THOUGHT], LS], session="ses_hidden", headers=headers)
    first["body"] |= body | {"reasoning_effort": "wild", "max_tokens": "private"}
    return exchanged(
        tmp_path,
        first,
        own(9, loop, PARTS, session="ses_hidden", finish="wild", mark={"label": "zelda"}),
        own(11, [Q], PARTS, agent="zebra browser (private; Zelda)/1 <x>", tools=None),
        own(12, [Q], PARTS, agent="savannah/gnu private", tools=None),
    )


def leaks(trace: Trace) -> list[str]:
    """The secrets that stand in what is written of a trace."""
    text = "\n".join(trace_lines(trace)).lower()
    return [word for word in SECRETS if word in text]


def test_nothing_of_the_source_can_be_read(tmp_path: Path) -> None:
    found = secretive(tmp_path)
    source = (tmp_path / "recording.jsonl").read_text().lower()
    assert [word for word in SECRETS if word not in source] == []
    trace = scrub(found, name="t", salt=SALT, template=TEMPLATE)
    assert leaks(trace) == []
    assert {r.client for r in trace.requests} == {"openwebui", "opencode", "unknown"}
    assert all(r.sampling == {} and r.max_tokens is None for r in trace.requests)


def test_the_search_for_leaks_finds_one(tmp_path: Path) -> None:
    trace = scrub(secretive(tmp_path), name="t", salt=SALT, template=TEMPLATE, notes=THOUGHT)
    assert leaks(trace) == ["zebra", "savannah"]


def test_sessions_are_hashed_with_the_salt(tmp_path: Path) -> None:
    found = exchanged(tmp_path, *turns(([Q], PARTS)))
    salts = (SALT, SALT, b"another", None, None)
    hashes = [scrub(found, name="t", salt=salt, template=TEMPLATE).requests[0] for salt in salts]
    sessions = [request.session for request in hashes]
    assert sessions[0] == sessions[1] and len(set(sessions)) == 4


def night(tmp_path: Path) -> tuple[Trace, list[Exchange]]:
    """Conversations with every kind of parting."""
    rows, t = [], 0.0
    for chat in range(3):
        history: list[Any] = [S, user(f"Question {chat} about zebras and lakes")]
        for turn in range(6):
            parts = [["reasoning", THOUGHT * turn], ["content", f"\n\nAnswer {turn}. " * 5], LS]
            parts = parts if turn % 2 else parts[:2]
            rows.append(own(t, list(history), parts, session=f"s{chat}", aborted=turn == 4))
            back = assistant(f"Answer {turn}. " * 5, THOUGHT * turn if chat else "")
            history += [back, user(f"Question {chat}.{turn}, a longer one, about the zebra")]
            if turn == 3:
                history[1] = user("Edited question")
            t += 5
    found = exchanged(tmp_path, *rows)
    return scrub(found, name="night", salt=SALT, template=TEMPLATE), found


def test_a_trace_written_and_drawn_again_repeats_and_parts_where_the_prompts_do(
    tmp_path: Path,
) -> None:
    trace, found = night(tmp_path)
    lines = list(trace_lines(trace))
    assert parse_trace("night", "f", iter(list(enumerate(lines, 1)))) == trace
    tokens = Tokens(trace)
    real = [
        np.concatenate(
            [
                TEMPLATE.render(e.messages, e.tools).ids,
                TEMPLATE.answer_ids(e.reply, e.messages).ids,
            ]
        )
        for e in found
    ]
    for number, request in enumerate(trace.requests):
        prompt = request.prompt_tokens
        assert len(tokens.sequence(number)) == len(real[number])
        for earlier in range(number):
            drawn = common_prefix(tokens.sequence(earlier), tokens.prompt(number))
            assert drawn == common_prefix(real[earlier], real[number][:prompt])


def test_most_of_a_night_is_copied(tmp_path: Path) -> None:
    trace, _ = night(tmp_path)
    fresh = sum(run.length for r in trace.requests for run in r.prompt if run.src == FRESH)
    total = sum(r.prompt_tokens for r in trace.requests)
    assert fresh < total / 10
    assert all(isinstance(r, Request) and r.prompt for r in trace.requests)
