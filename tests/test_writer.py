"""Goal: an answer's tokens become what the model said, however they are cut, and come back as rows.

Method: random replies are written by the template, read by the Writer, and sent back by a client
that joins the deltas: reasoning, content and calls must be the reply's, the spans the template's,
and the history's tokens the answer's. Any soup of marks and tags is read token by token, whole, and
cut into other tokens, with one outcome; a twin that sees the whole text at once must agree on it.
Canaries: a Writer that trims too much, one that trusts text, and one that holds nothing back.
"""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from talks import recut

from cache.types import Ids
from engine.chat.arguments import canonical
from engine.chat.dialect import Bundled, Gaps
from engine.chat.messages import Call, Piece, Reply, Say, messages_of
from engine.chat.template import Template
from engine.chat.tokenizer import Tokenizer
from serve.chat.deltas import CallArguments, CallBegins, Content, Delta, Reasoning, Whole, whole
from serve.chat.marks import Mark, Marked
from serve.chat.seeker import Seeker
from serve.chat.tail import Tail
from serve.chat.writer import Writer

TOKENIZER = Tokenizer()
TEMPLATE = Template(TOKENIZER)
DIALECT = Bundled(TEMPLATE)
USER = {"role": "user", "content": "q"}
STRING = {"type": "string"}


def writer(dialect: Any = DIALECT, **how: Any) -> Writer:
    numbers = itertools.count()
    return Writer(dialect, new_id=lambda: f"c{next(numbers)}", **how)


def read(ids: Ids, one: Writer | None = None, **how: Any) -> list[Delta]:
    one = one or writer(**how)
    return [delta for id in ids.tolist() for delta in one.wrote([id])] + one.end()


def said(*parts: str, **how: Any) -> Whole:
    return whole(read(ids_of(*parts), **how))


def ids_of(*parts: str) -> Ids:
    """Tokens of an answer: the special ones by their names, all other text as it is."""
    pieces = [TOKENIZER.encode(part, specials=part in TOKENIZER.ids) for part in parts]
    return np.concatenate([np.empty(0, np.int32), *pieces])


def calls_of(result: Whole) -> list[tuple[str, str]]:
    return [(call.name, call.arguments) for call in result.calls]


texts = st.lists(
    st.sampled_from(
        ["a", " ", "\n", "\n\n", "é", "🙂", "</think>", "<tool_call>", "<|im_end|>", "{", '"', "\\"]
    )
    | st.text(st.characters(codec="utf-8"), max_size=4),
    max_size=8,
).map("".join)
values = st.lists(
    st.sampled_from(["x", "\n", " ", "</parameter>", "</function>", "<parameter=a>", '"', "\\n"])
    | st.text(st.characters(codec="utf-8"), max_size=3),
    max_size=6,
).map("".join)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(-9, 9) | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=5,
).filter(lambda value: not isinstance(value, str))
names = st.text(st.sampled_from("abc_-.é "), min_size=1, max_size=8)
arguments = st.dictionaries(names | st.just(""), values | json_values, max_size=3)
AMBIGUOUS = re.compile(r"</parameter>\s*(<parameter=|</function>)")


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def schemas(calls: Sequence[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """Says of each parameter whether it is a string; of one that is both, both."""
    out: dict[str, Any] = {}
    for name, given_ in calls:
        properties = out.setdefault(name, {"properties": {}})["properties"]
        for key, value in given_.items():
            kinds = {"string"} if isinstance(value, str) else {"object", "array", "number"}
            kinds |= set() if isinstance(value, str) else {"boolean", "null"}
            properties[key] = {"type": sorted(kinds | set(properties.get(key, STRING)["type"]))}
            if kinds == {"string"}:
                properties[key] = STRING
    return out


def consistent(calls: Sequence[tuple[str, dict[str, Any]]]) -> bool:
    """A parameter is a string in all calls of a function, or in none; values end where they do."""
    strings: dict[tuple[str, str], bool] = {}
    for name, given_ in calls:
        for key, value in given_.items():
            is_string = isinstance(value, str)
            if strings.setdefault((name, key), is_string) != is_string:
                return False
            if AMBIGUOUS.search(value if isinstance(value, str) else compact(value)):
                return False
    return True


def sent_back(result: Whole) -> dict[str, Any]:
    """The message that a client makes of the deltas."""
    message: dict[str, Any] = {"role": "assistant", "content": result.content}
    if result.reasoning:
        message["reasoning_content"] = result.reasoning
    if result.calls:
        message["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
            for c in result.calls
        ]
    return message


def round_trip(
    reasoning: str,
    content: str,
    calls: list[tuple[str, dict[str, Any]]],
    read_: Callable[..., list[Delta]] = read,
) -> None:
    pieces: list[Piece] = [Say("reasoning", reasoning), Say("content", content)]
    pieces += [Call(name, compact(given_), "c") for name, given_ in calls]
    written = TEMPLATE.answer_ids(Reply(tuple(pieces), "tool_calls" if calls else "stop"))
    one = writer(tools=schemas(calls))
    result = whole(read_(written.ids, one))
    assert (result.reasoning, result.content) == (reasoning, content)
    assert [(c.name, canonical(c.arguments)) for c in result.calls] == [
        (name, canonical(compact(given_))) for name, given_ in calls
    ]
    assert all(isinstance(json.loads(c.arguments), dict) for c in result.calls)
    answer = one.answer(len(written.ids))
    assert answer.valued == written.valued
    assert answer.thinking == (written.think_end or 0) == one.reasoning_tokens
    prompt = TEMPLATE.render(messages_of([USER])).ids
    following = TEMPLATE.render(messages_of([USER, sent_back(result), USER])).ids
    own = np.concatenate([prompt, written.ids])
    assert np.array_equal(following[: len(own)], own)


@given(texts, texts, st.lists(st.tuples(names, arguments), max_size=3).filter(consistent))
@settings(deadline=None, max_examples=60)
def test_a_reply_is_read_as_it_was_said_and_comes_back_as_its_rows(
    reasoning: str, content: str, calls: list[tuple[str, dict[str, Any]]]
) -> None:
    round_trip(reasoning, content, calls)


soup = st.lists(
    st.sampled_from(
        [
            *("<think>", "</think>", "<tool_call>", "</tool_call>", "<|vision_start|>"),
            *("\n", "\n\n", "<function=f>", "<parameter=a>", "</parameter>", "</function>"),
            *('{"name": "g", "arguments": {"a": "', '"}}', "STOP", "ST", "🙂", " ", "12", "[1]"),
        ]
    )
    | texts,
    max_size=14,
)


@given(soup, st.randoms(use_true_random=False), st.booleans(), st.integers(0, 40))
@settings(deadline=None, max_examples=60)
def test_how_an_answer_is_cut_changes_nothing(
    parts: list[str], draw: random.Random, parse: bool, at: int
) -> None:
    ids = ids_of(*parts)
    how: dict[str, Any] = {"parse_calls": parse, "stop": ("STOP", "TO", "\n\n\n"), "tools": TOOLS}
    one, two = writer(**how), writer(**how)
    first = read(ids, one)
    at_once = two.wrote(ids[:at].tolist()) + two.wrote(ids[at:].tolist()) + two.end()
    assert whole(first) == whole(at_once)
    assert one.stopped_at == two.stopped_at and one.answer(one.size) == two.answer(two.size)
    other = read(recut(ids, draw), **how)
    assert whole(other) == whole(first)
    assert all(isinstance(d, CallBegins) or d.text for d in first)


tokens = st.integers(0, TOKENIZER.vocab + 9) | st.sampled_from(sorted(TOKENIZER.ids.values()))


@given(st.lists(tokens, max_size=40), st.integers(0, 40))
@settings(deadline=None, max_examples=60)
def test_nothing_that_a_model_writes_raises(ids: list[int], size: int) -> None:
    one = writer(stop=("a", "\n"))
    deltas = one.wrote(ids) + one.end()
    assert sum(isinstance(delta, CallBegins) for delta in deltas) == one.calls
    answer = one.answer(min(size, one.size))
    assert all(span.stop <= size for span in answer.valued) and answer.thinking <= one.size


TOOLS = {"f": {"properties": {"a": STRING}}}


def naive(parts: Sequence[str]) -> tuple[str, str, list[tuple[str, str]]]:
    """The twin: sees an answer's parts whole, and has no calls but whole ones of `f`."""
    text = {"thought": "", "content": ""}
    state, lead, now, calls = "thought", 0, "", []

    def close(gap: int) -> None:
        body = now[min(lead, len(now) - len(now.lstrip("\n"))) :]
        text[state] += body[: len(body) - min(gap, len(body) - len(body.rstrip("\n")))]

    for part in [*parts, ""]:
        if part == "</think>" and state == "thought":
            close(1)
            state, lead, now = "content", 2, ""
        elif part == "<think>" and state == "content":
            close(1)
            state, lead, now = "thought", 1, ""
        elif part.startswith("CALL"):
            close(2)
            calls.append(("f", compact({"a": part[4:]})))
            state, lead, now = "content", 2, ""
        elif part not in TOKENIZER.ids:
            now += part
    close(0)
    return text["thought"], text["content"], calls


def as_call(part: str) -> list[str]:
    if not part.startswith("CALL"):
        return [part]
    body = f"\n<function=f>\n<parameter=a>\n{part[4:]}\n</parameter>\n</function>\n"
    return ["<tool_call>", body, "</tool_call>"]


@given(
    st.lists(
        st.sampled_from(
            ["<think>", "</think>", "</tool_call>", "\n", "\n\n", "a", "<|vision_end|>"]
        )
        | texts.filter(lambda text: text not in TOKENIZER.ids)
        | values.filter(lambda v: not AMBIGUOUS.search(v)).map("CALL{}".format),
        max_size=12,
    )
)
@settings(deadline=None, max_examples=60)
def test_the_twin_that_sees_the_whole_text_agrees(parts: list[str]) -> None:
    result = said(*(piece for part in parts for piece in as_call(part)), tools=TOOLS)
    assert (result.reasoning, result.content, calls_of(result)) == naive(parts)


@given(texts, st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3), st.randoms())
@settings(deadline=None, max_examples=60)
def test_a_stop_string_is_found_at_its_last_character(
    text: str, stop: list[str], draw: random.Random
) -> None:
    text = text + "".join(stop) + "aab"
    ids = ids_of("</think>", "x" + text)
    one = writer(stop=stop)
    result = whole(read(ids, one))
    ends = [(("x" + text).find(s) + len(s), ("x" + text).find(s)) for s in stop]
    ends = [end for end in ends if end[1] >= 0]
    assert result.content == ("x" + text)[: min(ends)[1]] if ends else "x" + text
    if ends:
        assert one.stopped_at is not None
        before = TOKENIZER.decode(ids[1 : one.stopped_at - 1])
        until = TOKENIZER.decode(ids[1 : one.stopped_at])
        assert not any(s in before for s in stop) and any(s in until for s in stop)
        assert one.wrote([5, 6]) == [] and one.size == one.stopped_at


@pytest.mark.parametrize(
    ("parts", "how", "reasoning", "content"),
    [
        (("I STOP", "\n", "</think>", "\n\n", "so STOP."), {"stop": ("STOP",)}, "I STOP", "so "),
        (("a STOP b",), {"stop": ("STOP",), "inside": False}, "", "a "),
        (("x\n\n\n", "</think>", "\n\n\ny\n"), {}, "x\n\n", "\ny\n"),
        (("never", "</think>", "a", "</think>", "b"), {}, "never", "ab"),
        (("R", "</think>", "\n\n", "A", "\n", "<think>", "\n", "S", "\n", "</think>", "\n\n", "B")
         , {}, "RS", "AB"),
        (("half a thought\n",), {}, "half a thought\n", ""),
        (("<think>", "\n", "again", "\n", "</think>", "\n\n", "x"), {}, "\nagain", "x"),
        (("</think>", "<tool_call>", "\n<func"), {}, "", ""),
        (("</think>", "<tool_call>", "\nno call\n", "</tool_call>", "x"), {}, "", "\nno call\nx"),
        (("</think>", "<tool_call>", "\n", "</tool_call>", "\n\n", "x"), {}, "", "x"),
        (("</think>", "a", "</tool_call>", "b", "<|im_end|>"), {}, "", "ab"),
    ],
)  # fmt: skip
def test_thoughts_and_texts(
    parts: tuple[str, ...], how: dict[str, Any], reasoning: str, content: str
) -> None:
    result = said(*parts, **how)
    assert (result.reasoning, result.content, result.calls) == (reasoning, content, ())


def test_a_call_is_streamed_as_it_comes() -> None:
    one = writer(tools=TOOLS)
    assert one.wrote(ids_of("</think>", "\n\n", "Look.", "\n\n").tolist()) == [Content("Look.")]
    opening = ids_of("<tool_call>", "\n<function=f>").tolist()
    assert one.wrote(opening) == [CallBegins(0, "c0", "f")] and one.calls == 1
    assert one.wrote(ids_of("\n<parameter=a>\n").tolist()) == [CallArguments(0, '{"a":')]
    assert one.wrote(ids_of('echo "é').tolist()) == [CallArguments(0, '"echo \\"é')]
    assert one.wrote(ids_of("\n</parameter>\n").tolist()) == []
    assert one.wrote(ids_of("</function>\n", "</tool_call>").tolist()) == [CallArguments(0, '"}')]
    assert one.end() == []


def test_a_call_that_breaks_off_has_what_there_is() -> None:
    parts = ("</think>", "<tool_call>", "\n<function=f>\n<parameter=a>\nls -")
    assert calls_of(said(*parts, tools=TOOLS)) == [("f", '{"a":"ls -')]
    assert calls_of(said(*parts, "<|im_end|>", tools=TOOLS)) == [("f", '{"a":"ls -')]
    another = said(*parts, "<tool_call>", '{"name": "g"}', "</tool_call>", tools=TOOLS)
    assert calls_of(another) == [("f", '{"a":"ls -'), ("g", "{}")]
    one = writer(tools=TOOLS)
    read(ids_of(*parts), one)
    assert one.answer(one.size).valued == ()


def test_a_call_inside_a_thought_is_meant() -> None:
    ids = ids_of("I call", "\n", "<tool_call>", '\n{"name": "g"}\n', "</tool_call>", "</think>")
    one = writer()
    result = whole(read(ids, one))
    assert result.reasoning == "I call" and calls_of(result) == [("g", "{}")]
    thinking = int(np.flatnonzero(ids == TOKENIZER.ids["<tool_call>"])[0])
    assert one.answer(len(ids)).thinking == one.reasoning_tokens == thinking


def test_other_marks_inside_a_call_are_its_text() -> None:
    body = ("\n<function=f>\n<parameter=a>\n", "</think>", "x", "\n</parameter>\n</function>\n")
    result = said("</think>", "<tool_call>", *body, "</tool_call>", tools=TOOLS)
    assert calls_of(result) == [("f", '{"a":"</think>x"}')]


def test_calls_that_nobody_asked_for_are_text() -> None:
    parts = ("</think>", "\n\n", "<tool_call>", "\n<function=f>\n", "</tool_call>", "<|im_end|>")
    result = said(*parts, parse_calls=False, stop=("</tool",))
    assert result == Whole("", "<tool_call>\n<function=f>\n")


def test_hidden_tokens_are_not_said_but_act() -> None:
    visible = ids_of("Long thought")
    forced = ids_of("\nEnough.\n", "</think>", "\n\n")
    ids = np.concatenate([visible, forced, ids_of("So.")])
    one = writer()
    deltas = one.wrote(ids.tolist(), [(len(visible), len(forced))]) + one.end()
    assert whole(deltas) == Whole("Long thought", "So.")
    answer = one.answer(len(ids))
    assert answer.hidden == ((len(visible), len(forced)),)
    assert answer.thinking == len(visible) + len(forced) - len(ids_of("\n\n"))
    assert one.answer(len(visible) + 1).hidden == ((len(visible), 1),)
    assert one.answer(len(visible)).hidden == ()


@given(texts, st.lists(st.tuples(st.integers(0, 12), st.integers(1, 4)), max_size=3))
@settings(deadline=None, max_examples=60)
def test_what_is_not_hidden_is_said(text: str, spans: list[tuple[int, int]]) -> None:
    ids = TOKENIZER.encode(text, specials=False)
    hidden = {at for start, size in spans for at in range(start, start + size)}
    one = writer(inside=False)
    result = whole(one.wrote(ids.tolist(), spans) + one.end())
    runs = itertools.groupby(range(len(ids)), key=lambda at: at in hidden)
    seen = [TOKENIZER.decode(ids[list(run)]) for mute, run in runs if not mute]
    assert result == Whole("", "".join(seen))


def test_an_empty_thought_is_none_and_an_unfinished_one_is_all() -> None:
    one = writer()
    read(ids_of("\n", "</think>", "\n\n", "x"), one)
    assert one.answer(one.size).thinking == one.reasoning_tokens == 0
    one = writer()
    one.wrote(ids_of("hm hm").tolist())
    assert one.answer(one.size).thinking == one.size == one.reasoning_tokens
    one = writer(inside=False)
    ids = ids_of("<think>", "\n", "hm", "\n", "</think>", "\n\n", "x")
    assert whole(read(ids, one)) == Whole("hm", "x")
    assert one.answer(len(ids)).thinking == len(ids_of("<think>", "\n", "hm", "\n", "</think>"))


class WithoutMarks(Bundled):
    """A vocabulary that has no tokens for the marks: they are found in the text."""

    def __init__(self) -> None:
        super().__init__(TEMPLATE)
        self.tokenizer = Tokenizer()
        kept = {n: i for n, i in TOKENIZER.ids.items() if n.startswith("<|")}
        self.tokenizer.ids = kept


def test_marks_without_tokens_are_found_in_the_text() -> None:
    text = 'hm\n</think>\n\nA <tool\n\n<tool_call>\n{"name": "g"}\n</tool_call>'
    one = writer(WithoutMarks())
    result = whole(read(TOKENIZER.encode(text, specials=False), one))
    assert (result.reasoning, result.content) == ("hm", "A <tool")
    assert calls_of(result) == [("g", "{}")] and one.answer(one.size).valued == ()
    # With tokens for them the same characters are text.
    assert whole(read(TOKENIZER.encode(text, specials=False))) == Whole(text)


def test_pieces_of_marked_text() -> None:
    marked = Marked(TOKENIZER)
    found = [piece for id in ids_of("é", "<think>").tolist() for piece in marked.feed(id)]
    assert found == ["é", Mark("<think>")] and list(marked.end()) == []
    assert list(marked.feed(TOKENIZER.vocab)) == list(marked.feed(-1)) == []
    half = ids_of("🙂").tolist()[:1]
    assert list(marked.feed(half[0])) == [] and list(marked.end()) == ["\ufffd"]


def test_a_tail_holds_line_ends_back() -> None:
    tail = Tail(2)
    assert [tail.feed(text) for text in ("a\n", "\n", "\n", "b\n")] == ["a", "", "\n", "\n\nb"]
    assert tail.end(2) == "" and tail.end() == ""


# canaries


def test_canary_a_writer_that_trims_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tail, "feed", lambda self, text: text.rstrip("\n"))
    with pytest.raises(AssertionError):
        round_trip("a\n\n", "b", [])


def test_canary_other_gaps_than_the_templates() -> None:
    wrong = Bundled(TEMPLATE)
    wrong.gaps = Gaps(call="\n")
    with pytest.raises(AssertionError):
        round_trip("", "b", [("f", {})], lambda ids, one: read(ids, writer(wrong)))


def test_canary_a_writer_that_trusts_text() -> None:
    with pytest.raises(AssertionError):
        round_trip("", "</think>x", [], lambda ids, one: read(ids, writer(WithoutMarks())))


def test_canary_nothing_is_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve.chat.seeker.partial", lambda text, needles: 0)
    assert said("</think>", "a STO", "P b", stop=("STOP",)).content != "a "
    assert Seeker(["STOP"]).feed("ST") == ("ST", None, "")
    assert isinstance(read(ids_of("x"))[0], Reasoning)
