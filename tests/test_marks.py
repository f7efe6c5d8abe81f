"""Where a prompt's last user message and first answer start: from the runs, and as rendered.

Method: the runs against a naive twin that says of every token who wrote it; small conversations
whose rows are plain to see; recordings whose messages are known, beside their scrubbed traces.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from nights import Builder
from rawlines import assistant, own, result, user, write
from traces import traces

from engine.chat.messages import messages_of
from engine.chat.template import Template
from engine.chat.tokenizer import Tokenizer
from replay.marks import marks
from replay.readers.raw import read
from replay.source import Marks
from replay.tokens import Tokens
from replay.trace import FRESH, Trace

TEMPLATE = Template(Tokenizer())


def naive(trace: Trace) -> dict[int, Marks]:
    """The marks by looking at every token: the number of the request that wrote it, or None."""
    requests = {request.number: request for request in trace.requests}
    wrote: dict[int, list[int | None]] = {}
    found: dict[int, Marks] = {}
    for number, request in requests.items():
        prompt: list[int | None] = []
        for run in request.prompt:
            source = wrote[run.src] if run.src != FRESH else [None] * (run.offset + run.length)
            prompt += source[run.offset : run.offset + run.length]
        wrote[number] = prompt + [number] * request.output_tokens
        here = [
            (at, by)
            for at, by in enumerate(prompt)
            if by is not None and requests[by].session == request.session
        ]
        if not here:
            found[number] = Marks(request.parts.tools + request.parts.system)
            continue
        (first, by), (last, writer) = here[0], here[-1]
        begins = min(first, requests[by].prompt_tokens)
        called = requests[writer].finish == "tool_calls"
        # The last stretch that one request wrote begins after the last token of another.
        stretch = last
        while stretch and prompt[stretch - 1] == writer:
            stretch -= 1
        earlier = found[writer].last_user if called else last + 1
        found[number] = Marks(min(earlier, stretch) if called else earlier, begins)
    return found


@given(traces())
def test_the_runs_say_what_every_token_says(trace: Trace) -> None:
    calls = tuple(
        replace(one, finish="tool_calls" if one.number % 2 else "stop") for one in trace.requests
    )
    trace = replace(trace, requests=calls)
    ours, plain = marks(trace), naive(trace)
    for number, expected in plain.items():
        assert ours[number].first_answer == expected.first_answer
        if not adjoined(trace):
            assert ours[number] == expected


def adjoined(trace: Trace) -> bool:
    """Whether two copies of one answer may stand side by side, which the runs keep apart."""
    return any(
        a.src != FRESH and b.src != FRESH
        for request in trace.requests
        for a, b in zip(request.prompt, request.prompt[1:], strict=False)
    )


def test_a_conversation_turn_by_turn() -> None:
    build = Builder()
    first = build.fresh(500, 40, tools=200, system=100)
    second = build.extend(first, 30, 20)
    build.change(finish="tool_calls")
    second = build.requests[-1]
    third = build.extend(second, 60, 10)
    other = build.part(first, 400, 100, 10, session="b")
    found = marks(build.trace())
    assert found[first.number] == Marks(300, 0)
    assert found[second.number] == Marks(540, 500)
    # What follows an answer that called tools are results: the message is the one before.
    assert found[third.number] == Marks(540, 500)
    assert found[other.number] == Marks(0, 0)  # it has no head of its own, and nobody answered it


def test_an_answer_whose_thought_is_left_out_starts_where_its_prompt_ended() -> None:
    build = Builder()
    first = build.fresh(500, 40, tools=200, system=100)
    build.drop(first, 500, 512, 30, 20)
    assert marks(build.trace())[1] == Marks(528, 500)


def test_an_answer_of_another_conversation_is_text_like_any_other() -> None:
    """A sub-agent's task is quoted from what its parent wrote."""
    build = Builder()
    first = build.fresh(500, 40, tools=200, system=100)
    build.part(first, 540, 10, 20, session="b")
    build.change(parts=replace(first.parts, history=250))
    assert marks(build.trace())[1] == Marks(300, 0)


def conversation(path: Path, *, tools: bool) -> Path:
    """Three turns; with tools the later ones bring results, else new questions."""
    lines, messages = [], [user("word " * 200)]
    for turn in range(3):
        call = [["tool", "c1", "f", '{"n": 1}']] if tools else []
        parts = [["content", f"The answer number {turn} is text of some length. " * 9], *call]
        finish = "tool_calls" if tools else "stop"
        lines.append(own(10.0 * turn, messages, parts, session="a", finish=finish))
        said = assistant(parts[0][1], "", *([["c1", "f", '{"n": 1}']] if tools else []))
        messages = [*messages, said, result("done " * 30) if tools else user("more " * 30)]
    return write(path, *lines)


@pytest.mark.parametrize("tools", [True, False])
def test_a_recording_and_its_scrubbed_trace_agree(tools: bool, tmp_path: Path) -> None:
    trace = read(conversation(tmp_path / "a.jsonl", tools=tools))
    assert trace.live is not None
    scrubbed = Tokens(replace(trace, live=None))
    for request in trace.requests:
        exact, ours = trace.live.marks(request.number), scrubbed.marks(request.number)
        assert ours.first_answer == exact.first_answer
        # A trace does not know the end of the turn before from the start of this one.
        assert 0 <= exact.last_user - ours.last_user <= 2
    last = trace.live.marks(2)
    assert (last.last_user < last.first_answer) == tools


def test_a_rendered_prompt_says_where_they_start() -> None:
    messages = [user("first " * 20), assistant("an answer", ""), user("second")]
    text = messages_of(messages)
    rendered = TEMPLATE.render(text)
    decode = TEMPLATE.tokenizer.decode
    assert decode(rendered.ids[rendered.last_user :]).startswith("<|im_start|>user\nsecond")
    assert np.array_equal(rendered.ids[: rendered.first_answer], TEMPLATE.render(text[:1]).ids), (
        "the first answer starts where the first prompt ended"
    )
    begun = TEMPLATE.render(text[:1])
    assert (begun.last_user, begun.first_answer) == (0, 0)


def test_an_answer_that_is_continued_is_none_yet() -> None:
    text = messages_of([user("first " * 20), assistant("an ans", "")])
    rendered = TEMPLATE.render(text)
    assert rendered.first_answer == 0
    assert [role for role, _ in groupby(m.role for m in text)] == ["user", "assistant"]
