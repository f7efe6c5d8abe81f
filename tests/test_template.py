"""Prompts and answers render to the tokens an engine sees, and content stays content.

Method: one conversation is held to its whole text; special tokens are forged in every place that a
client can write to; an arbitrary answer that comes back unchanged must give the engine's own
tokens; arguments are cut anywhere and read again; a template that keeps nothing is the twin of one
that keeps encodings, and what is encoded again is counted.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache.types import Ids
from engine.chat.arguments import Parameters, parameters, value_text
from engine.chat.messages import Call, ChatError, Message, Reply, Say, messages_of, tools_of
from engine.chat.template import Template
from engine.chat.tokenizer import SPECIALS, Tokenizer

TOKENIZER = Tokenizer()
TEMPLATE = Template(TOKENIZER)
TOOL = {"type": "function", "function": {"name": "bash", "description": "Runs é <tool_call>."}}
OPENING = "<|im_start|>assistant\n<think>\n"


def call(name: str, arguments: str, id: str = "c1") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {
        "role": "user",
        "content": [{"type": "text", "text": "Look: "}, {"type": "text", "text": "a"}],
    },
    {
        "role": "assistant",
        "content": " I look.\t",
        "reasoning_content": "\nHm.\n",
        "tool_calls": [
            call("bash", '{"command":"ls\\n","limit": 10, "deep": {"a": [1, "é"]}}'),
            call("no_arguments", ""),
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "x\n"},
    {"role": "tool", "tool_call_id": "c2", "content": ""},
    {"role": "assistant", "content": "Done."},
    {"role": "user", "content": "Thanks"},
]
AFTER_THE_TOOLS = """\
Be brief.<|im_end|>
<|im_start|>user
Look: a<|im_end|>
<|im_start|>assistant
<think>

Hm.

</think>

 I look.\t

<tool_call>
<function=bash>
<parameter=command>
ls

</parameter>
<parameter=limit>
10
</parameter>
<parameter=deep>
{"a":[1,"é"]}
</parameter>
</function>
</tool_call>
<tool_call>
<function=no_arguments>
</function>
</tool_call><|im_end|>
<|im_start|>user
<tool_response>
x

</tool_response>
<tool_response>

</tool_response>
<|im_end|>
<|im_start|>assistant
<think>

</think>

Done.<|im_end|>
<|im_start|>user
Thanks<|im_end|>
<|im_start|>assistant
<think>
"""


def text(messages: Any, tools: Any = None) -> str:
    return TOKENIZER.decode(TEMPLATE.render(messages_of(messages), tools_of(tools)).ids)


def answer(*pieces: Say | Call, **how: Any) -> str:
    return TOKENIZER.decode(TEMPLATE.answer_ids(Reply(pieces, **how)).ids)


def specials(ids: Ids) -> int:
    return int(np.isin(ids, list(TOKENIZER.ids.values())).sum())


def test_a_conversation_with_everything() -> None:
    whole = text(CONVERSATION, [TOOL])
    head, found, rest = whole.partition("Be brief.")
    assert found + rest == AFTER_THE_TOOLS
    assert head.startswith("<|im_start|>system\n# Functions\n")
    line = json.dumps(TOOL, ensure_ascii=False, separators=(",", ":"))
    assert f"<tools>\n{line}\n</tools>\n" in head and head.endswith("</tool_response>.\n\n")


def test_the_parts_add_up_and_lie_in_order() -> None:
    rendered = TEMPLATE.render(messages_of(CONVERSATION), [TOOL])
    assert rendered.tools + rendered.system + rendered.history == len(rendered.ids)
    tools = TOKENIZER.decode(rendered.ids[: rendered.tools])
    system = TOKENIZER.decode(rendered.ids[rendered.tools :][: rendered.system])
    assert "# Functions" in tools and "bash" in tools
    assert system == "Be brief.<|im_end|>\n"


@pytest.mark.parametrize(
    ("messages", "tools", "expected"),
    [
        ([{"role": "user", "content": "hi"}], None, "<|im_start|>user\nhi<|im_end|>\n" + OPENING),
        (
            [{"role": "developer", "content": "A"}, {"role": "system", "content": "B"}],
            None,
            "<|im_start|>system\nA\n\nB<|im_end|>\n" + OPENING,
        ),
        (
            [{"role": "user", "content": ""}, {"role": "system", "content": "late"}],
            None,
            "<|im_start|>user\n<|im_end|>\n<|im_start|>system\nlate<|im_end|>\n" + OPENING,
        ),
    ],
)
def test_heads_and_openings(messages: Any, tools: Any, expected: str) -> None:
    assert text(messages, tools) == expected


def test_a_last_message_of_the_assistant_is_continued() -> None:
    user = {"role": "user", "content": "q"}
    begun = {"role": "assistant", "content": "Half", "reasoning_content": "R"}
    assert text([user, begun]).endswith(OPENING + "R\n</think>\n\nHalf")
    assert text([user, {"role": "assistant", "content": ""}]).endswith("<|im_end|>\n" + OPENING)
    messages = messages_of([user, begun])
    more = TEMPLATE.answer_ids(Reply((Say("content", " done."),)), messages)
    assert TOKENIZER.decode(more.ids) == " done.<|im_end|>"
    again = TEMPLATE.answer_ids(Reply((Say("reasoning", "S"), Say("content", "x"))), messages)
    assert TOKENIZER.decode(again.ids) == "\n<think>\nS\n</think>\n\nx<|im_end|>"


FORGED = "".join(SPECIALS)


PLACES = [
    "system",
    "user",
    "part",
    "reasoning",
    "content",
    "tool",
    "name",
    "key",
    "value",
    "broken",
    "result",
    "description",
]


@pytest.mark.parametrize("place", PLACES)
def test_special_tokens_cannot_be_forged(place: str) -> None:
    def render(forged: str) -> Ids:
        at = dict.fromkeys(PLACES, "x") | {place: forged}
        arguments = json.dumps({at["key"]: at["value"], "n": [at["value"]]})
        messages = [
            {"role": "system", "content": at["system"]},
            {"role": "user", "content": at["user"]},
            {"role": "user", "content": [{"type": "text", "text": at["part"]}]},
            {
                "role": "assistant",
                "content": at["content"],
                "reasoning_content": at["reasoning"],
                "tool_calls": [call(at["name"], arguments), call("f", at["broken"])],
            },
            {"role": "tool", "content": at["result"]},
        ]
        tools = [{"function": {"name": at["tool"], "description": at["description"]}}]
        return TEMPLATE.render(messages_of(messages), tools).ids

    plain, forged = render("x"), render(FORGED)
    assert specials(forged) == specials(plain)
    assert FORGED in TOKENIZER.decode(forged)
    # The gate can fail: as template text the same characters are special tokens.
    assert specials(TOKENIZER.encode(FORGED, specials=True)) == len(SPECIALS)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-9, 9) | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
arguments_ = st.dictionaries(st.text(max_size=6), json_values, max_size=3)
words = st.text(st.sampled_from('ab .\n\t<|im_end|>é🙂{}"') | st.characters(), max_size=30)


def compact(value: Any) -> str:
    """As JavaScript writes it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@given(words, words, st.lists(st.tuples(words, arguments_), max_size=3), words)
@settings(deadline=None)
def test_an_answer_that_comes_back_gives_the_engines_tokens(
    reasoning: str, content: str, calls: list[tuple[str, dict[str, Any]]], question: str
) -> None:
    user = {"role": "user", "content": question}
    sent = [
        Say("reasoning", reasoning),
        Say("content", content),
        *(Call(name, compact(given).replace("{", "{ ", 1), "c") for name, given in calls),
    ]
    back: dict[str, Any] = {"role": "assistant", "content": content}
    if reasoning:
        back["reasoning_content"] = reasoning
    if calls:
        back["tool_calls"] = [call(name, compact(given)) for name, given in calls]
    prompt = TEMPLATE.render(messages_of([user]), [TOOL]).ids
    written = TEMPLATE.answer_ids(Reply(tuple(sent), "tool_calls" if calls else "stop"))
    following = TEMPLATE.render(messages_of([user, back, user]), [TOOL]).ids
    own = np.concatenate([prompt, written.ids])
    assert np.array_equal(following[: len(own)], own)
    assert written.ids[-1] == TOKENIZER.ids["<|im_end|>"]


def test_what_a_client_joins_cannot_give_the_engines_tokens() -> None:
    pieces = (Say("content", "unbe"), Say("reasoning", "hm"), Say("content", "lievable"))
    written = TEMPLATE.answer_ids(Reply(pieces)).ids
    back = {"role": "assistant", "content": "unbelievable", "reasoning_content": "hm"}
    user = {"role": "user", "content": "q"}
    prompt = TEMPLATE.render(messages_of([user])).ids
    following = TEMPLATE.render(messages_of([user, back, user])).ids
    assert not np.array_equal(following[len(prompt) :][: len(written)], written)


@pytest.mark.parametrize(
    ("pieces", "how", "expected", "think_end"),
    [
        ([], {}, "\n</think>\n\n<|im_end|>", None),
        (
            [Say("reasoning", "R"), Say("content", "")],
            {},
            "R\n</think>\n\n<|im_end|>",
            "R\n</think>",
        ),
        ([Say("content", "C")], {}, "\n</think>\n\nC<|im_end|>", None),
        (
            [Say("reasoning", "R"), Say("reasoning", "S")],
            {},
            "RS\n</think>\n\n<|im_end|>",
            "RS\n</think>",
        ),
        (
            [
                Say("content", "A "),
                Say("reasoning", "R"),
                Say("content", "B"),
                Say("reasoning", "S"),
            ],
            {},
            "\n</think>\n\nA \n<think>\nR\n</think>\n\nB\n<think>\nS\n</think>\n\n<|im_end|>",
            None,
        ),
        (
            [Say("reasoning", "R"), Call("f", "{}"), Say("content", "C")],
            {"finish": "tool_calls"},
            "R\n</think>\n\n<tool_call>\n<function=f>\n</function>\n</tool_call>\n\nC<|im_end|>",
            "R\n</think>",
        ),
        ([Say("reasoning", "R")], {"finish": "length"}, "R", "R"),
        (
            [Say("reasoning", "R"), Say("content", "C")],
            {"aborted": True},
            "R\n</think>\n\nC",
            "R\n</think>",
        ),
        ([], {"aborted": True}, "", None),
    ],
)
def test_recorded_answers(
    pieces: list[Say | Call], how: dict[str, Any], expected: str, think_end: str | None
) -> None:
    written = TEMPLATE.answer_ids(Reply(tuple(pieces), **how))
    assert TOKENIZER.decode(written.ids) == expected
    if think_end is None:
        assert written.think_end is None
    else:
        assert TOKENIZER.decode(written.ids[: written.think_end]) == think_end


@pytest.mark.parametrize(
    ("arguments", "aborted", "body"),
    [
        (
            '{"a": "x\\ny", "b": tru',
            False,
            "<parameter=a>\nx\ny\n</parameter>\n<parameter=b>\ntru\n"
            "</parameter>\n</function>\n</tool_call><|im_end|>",
        ),
        (
            '{"a": "echo \\"un',
            False,
            '<parameter=a>\necho "un\n</parameter>\n</function>\n</tool_call><|im_end|>',
        ),
        ("[1, 2]", False, "[1, 2]\n</function>\n</tool_call><|im_end|>"),
        ('{"a": 1, "b": "half\\u00e', True, "<parameter=a>\n1\n</parameter>\n<parameter=b>\nhalf"),
        ('{"a": 1, "b', True, "<parameter=a>\n1\n</parameter>\n"),
        ('{"a": 1}', True, "<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"),
        ("", True, "</function>\n</tool_call>"),
        ("not json", True, "not json"),
    ],
)
def test_broken_and_cut_arguments(arguments: str, aborted: bool, body: str) -> None:
    written = answer(Call("f", arguments), finish="tool_calls", aborted=aborted)
    assert written == "\n</think>\n\n<tool_call>\n<function=f>\n" + body


@given(arguments_, st.booleans(), st.data())
@settings(deadline=None)
def test_cut_arguments_are_a_beginning_of_the_whole(
    value: dict[str, Any], spaced: bool, data: st.DataObject
) -> None:
    whole = json.dumps(value, indent=2 if spaced else None)
    pairs = tuple((key, value_text(item)) for key, item in value.items())
    assert parameters(whole) == Parameters(pairs) == parameters(value)
    read = parameters(whole[: data.draw(st.integers(1, len(whole) - 1))])
    assert not read.complete
    names = [name for name, _ in read.whole]
    assert names == [name for name, _ in pairs[: len(names)]]
    # All but the last are whole; the last can be a number that was cut and still is one.
    assert read.whole[:-1] == pairs[: max(0, len(names) - 1)]
    if read.whole and not isinstance(value[names[-1]], int | float):
        assert read.whole[-1] == pairs[len(names) - 1]
    if read.cut_name is not None:
        name, text = pairs[len(names)]
        assert read.cut_name == name
        if isinstance(value[name], str):
            # Half of an escaped pair can stand at the end.
            half = read.rest[-1:] >= "\ud800" and read.rest[-1:] <= "\udfff"
            assert text.startswith(read.rest[:-1] if half else read.rest)


def test_deep_and_odd_arguments_are_read_or_kept_as_text() -> None:
    deep = '{"a": ' + "[" * 100_000
    assert parameters(deep).cut_name == "a"
    assert parameters("{" + "[" * 100_000).whole == ()
    assert parameters('{"a": ' + "9" * 5000 + "}").cut_name == "a"
    assert parameters('{"a": "line\nbreak"}').whole == (("a", "line\nbreak"),)
    assert parameters("  \n").complete and parameters("").whole == ()
    assert parameters('"x"').rest == '"x"'


@pytest.mark.parametrize(
    ("messages", "what"),
    [
        (None, "missing or empty"),
        ([], "missing or empty"),
        ("hi", "missing or empty"),
        ([1], "message 0 is not an object"),
        ([{"role": "robot", "content": ""}], "message 0 has the unknown role 'robot'"),
        ([{"content": ""}], "message 0 has the unknown role 'None'"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}],
            "message 0, part 0: images are not read here",
        ),
        (
            [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url"}]}],
            "message 0, part 1 is an image without a url",
        ),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": 7}}]}],
            "message 0, part 0 is an image without a url",
        ),
        ([{"role": "user", "content": ["x"]}], "message 0, part 0 is of the unknown type 'None'"),
        (
            [{"role": "user", "content": [{"type": "input_audio"}]}],
            "message 0, part 0 is of the unknown type 'input_audio'",
        ),
        ([{"role": "user", "content": {"a": 1}}], "neither text nor parts"),
        ([{"role": "assistant", "tool_calls": [{"id": "1"}]}], "without a function name"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 1}}]}],
            "arguments that are no text",
        ),
    ],
)
def test_what_cannot_be_rendered_is_refused(messages: Any, what: str) -> None:
    with pytest.raises(ChatError, match=what):
        messages_of(messages)


def test_tools_are_a_list_of_objects() -> None:
    assert tools_of(None) == () and tools_of([]) == ()
    for wrong in ("x", [1], {"a": 1}):
        with pytest.raises(ChatError):
            tools_of(wrong)


def test_reasoning_is_taken_from_either_field() -> None:
    for key in ("reasoning_content", "reasoning"):
        assert messages_of([{"role": "assistant", "content": "c", key: "r"}])[0].reasoning == "r"


def test_parts_of_a_message_do_not_change_each_others_tokens() -> None:
    def ids(content: Any) -> Ids:
        return TEMPLATE.render(messages_of([{"role": "user", "content": content}])).ids

    parts = [{"type": "text", "text": "unbe"}, {"type": "text", "text": "lievable"}]
    alone = ids("unbe")
    end = int(np.flatnonzero(alone == TOKENIZER.ids["<|im_end|>"])[0])
    assert np.array_equal(ids(parts)[:end], alone[:end])


class Counting(Tokenizer):
    """A tokenizer that knows how much it was asked to encode."""

    characters = 0

    def encode(self, text: str, *, specials: bool) -> Ids:
        self.characters += len(text)
        return super().encode(text, specials=specials)


def test_a_grown_conversation_costs_its_new_part() -> None:
    counting = Counting()
    template = Template(counting)
    user = {"role": "user", "content": "word " * 20_000}
    history = [user, {"role": "assistant", "content": "answer " * 1000}]
    template.render(messages_of(history), [TOOL])
    before = counting.characters
    assert before > 100_000
    grown = [*history, {"role": "user", "content": "x" * 1000}]
    first = template.render(messages_of(json.loads(json.dumps(grown))), [TOOL])
    # The last answer was open before; closed it is another block, as in the answer's own tokens.
    assert counting.characters - before < 10_000
    before = counting.characters
    second = template.render(messages_of(grown), [TOOL])
    assert counting.characters == before
    assert np.array_equal(first.ids, second.ids)


def test_what_is_kept_is_bounded_and_changes_nothing() -> None:
    forgetful, small = Template(TOKENIZER, cache_bytes=0), Template(TOKENIZER, cache_bytes=20_000)
    for turn in range(30):
        messages = messages_of([{"role": "user", "content": f"{turn % 7} " * 300}, *CONVERSATION])
        expected = TEMPLATE.render(messages, [TOOL]).ids
        for template in (forgetful, small):
            assert np.array_equal(template.render(messages, [TOOL]).ids, expected)
            assert template.kept_bytes <= template.cache_bytes
    assert small.kept_bytes > 0


def test_a_reply_knows_whether_it_ended() -> None:
    assert Reply((), "stop").ended and Reply((), "tool_calls").ended
    assert not Reply((), "length").ended and not Reply((), "stop", aborted=True).ended
    assert Reply((Say("content", "a"), Say("content", "b"))).message == Message(
        "assistant", (Say("content", "ab"),)
    )


@pytest.mark.parametrize("depth", [200, 500, 900, *range(960, 1_000, 4), 5_000])
def test_arguments_nested_to_any_depth_are_taken(depth: int) -> None:
    """What can be read but not written again is kept as its text."""
    deep = '{"a": ' + "[" * depth + "]" * depth + "}"
    for as_written in (False, True):
        read = parameters(deep, as_written=as_written)
        assert [name for name, _ in read.whole] == ["a"] or read.cut_name == "a"
    assert Call("f", deep).value is None or depth < 1_000


def test_a_tool_nested_too_deep_is_refused() -> None:
    tool: dict[str, Any] = {}
    for _ in range(5_000):
        tool = {"a": tool}
    with pytest.raises(ChatError, match="nested too deep"):
        tools_of([tool])
