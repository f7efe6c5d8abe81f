"""Goal: a call's text becomes its JSON arguments, as it comes, in both forms, and broken ones too.

Method: random arguments are written in each form, cut anywhere and read: the joined pieces must be
their JSON, and a string's pieces must come before its end. Soups of tags never raise. What a
schema says of a parameter decides how its text is read: a table of schemas and texts.
Canary: a reader that ends a value at the first end tag.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.chat.arguments import canonical, value_text
from serve.chat import xml_calls
from serve.chat.calls import CallText, call_text
from serve.chat.json_calls import JsonCall
from serve.chat.schemas import schemas_of, surely_string, types, value_json
from serve.chat.xml_calls import XmlCall

STRINGS = {"f": {"properties": {key: {"type": "string"} for key in "abc"}}}


def pieces(text: str, reader: CallText, cuts: list[int], *, closed: bool = True) -> list[str]:
    """The arguments as they come, with the text cut at these places."""
    at = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    out = [reader.feed(text[a:b]) for a, b in itertools.pairwise(at)]
    return [*out, reader.end(closed=closed)]


def xml(text: str, schemas: Any = STRINGS, *, closed: bool = True) -> tuple[str | None, str]:
    reader = XmlCall(schemas)
    said = "".join(pieces(text, reader, list(range(len(text))), closed=closed))
    other = XmlCall(schemas)
    assert "".join(pieces(text, other, [], closed=closed)) == said and other.name == reader.name
    return reader.name, said


def written(arguments: dict[str, Any]) -> str:
    body = "".join(
        f"<parameter={key}>\n{value_text(value)}\n</parameter>\n"
        for key, value in arguments.items()
    )
    return f"\n<function=f>\n{body}</function>\n"


tags = ["</parameter>", "<parameter=", "</function>", "\n", " ", "x", '"', "\\", "</", "<"]
strings = st.lists(st.sampled_from(tags), max_size=8).map("".join)
strings = strings.filter(
    lambda s: xml_calls._value_end(s + "\n</parameter>\n</function>", 0, True)[0] == len(s)
)
cuts = st.lists(st.integers(0, 400), max_size=12)


@given(st.dictionaries(st.sampled_from("abc"), strings), cuts)
@settings(deadline=None)
def test_strings_in_xml(arguments: dict[str, str], cuts: list[int]) -> None:
    reader = XmlCall(STRINGS)
    said = "".join(pieces(written(arguments), reader, cuts))
    assert reader.name == "f" and json.loads(said) == arguments


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
objects = st.dictionaries(st.text(max_size=4), json_values, max_size=3)


@given(objects, cuts, st.booleans(), st.booleans(), st.sampled_from([None, 2]), st.booleans())
@settings(deadline=None)
def test_json_in_any_order_and_form(
    arguments: dict[str, Any], cuts: list[int], first: bool, quoted: bool, indent: Any, ascii: bool
) -> None:
    inner = json.dumps(arguments, ensure_ascii=ascii)
    members = {"name": 'f"é\\', "arguments": inner if quoted else arguments, "id": {"a": ["}"]}}
    if first:
        members = dict(reversed(members.items()))
    text = json.dumps(members, indent=indent, ensure_ascii=ascii)
    reader = JsonCall()
    said = "".join(pieces(f"\n{text}\n", reader, cuts))
    assert reader.name == 'f"é\\' and not reader.stray
    assert canonical(said) == canonical(inner)


@pytest.mark.parametrize(
    ("text", "closed", "name", "arguments"),
    [
        ('{"name": "f", "arguments": {"a": 1.0}}', True, "f", '{"a": 1.0}'),
        ('{"name": "f", "arguments": {"a": "x', False, "f", '{"a": "x'),
        ('{"name": "f", "arguments": {"a": 1}', True, "f", '{"a": 1}'),
        ('{"name": "f", "parameters": {}}}}', True, "f", "{}"),
        ('{"name": "f", "arguments": null}', True, "f", "{}"),
        ('{"name": "f", "arguments": 5 }', True, "f", "5"),
        ('{"name": "f"}', True, "f", "{}"),
        ('{"name": "f"', False, "f", ""),
        ('{"arguments": {"a": 1}, "na', False, None, ""),
        ('{"name": "f", "arguments": {"a": "x\ny"}}', True, "f", '{"a": "x\\ny"}'),
        ('{"name": "f", "arguments": "{\\"a\\": \\"\\ud83d\\ude42\\\\n\\"}"}', True, "f",
         '{"a": "🙂\\n"}'),
        ('{"name": "f", "arguments": "{\\"a\\": \\"\\ud83d\\"}"}', True, "f", '{"a": "\\ud83d"}'),
        ('{"name": "\\ud83d", "arguments": {}}', True, "\ufffd", "{}"),
    ],
)  # fmt: skip
def test_broken_and_odd_json(text: str, closed: bool, name: str | None, arguments: str) -> None:
    for cut in ([], list(range(len(text)))):
        reader = JsonCall()
        assert "".join(pieces(text, reader, cut, closed=closed)) == arguments
        assert reader.name == name


@pytest.mark.parametrize(
    ("text", "closed", "name", "arguments"),
    [
        ("<function=f></function>", True, "f", "{}"),
        ("<function=f>", True, "f", "{}"),
        ("<function=f>\n", False, "f", ""),
        ("<function=f><parameter=a>x</parameter><parameter=b>y</parameter></function>", True, "f",
         '{"a":"x","b":"y"}'),
        ("<function=f>\n<parameter=a>\nx\n</func", False, "f", '{"a":"x'),
        ("<function=f>\n<parameter=a>\n</function>x\n", False, "f", '{"a":"</function>x\\n'),
        ("<function=f>\n<parameter=a>\nx\n</function>\n", True, "f", '{"a":"x"}'),
        ("<function=f>\n<parameter=a>\nx\n", True, "f", '{"a":"x"}'),
        ("<function=f>\n<parameter=a>\nx\n", False, "f", '{"a":"x\\n'),
        ("<function=f>\n<parameter=a>\nx\n</para", False, "f", '{"a":"x'),
        ("<function=f>\n<parameter=a>\nx\n</parameter>\n", False, "f", '{"a":"x"'),
        ("<function=f>\n<parameter=a>\nx\n</parameter>\n</function>", False, "f", '{"a":"x"}'),
        ("<function=f>\n<parameter=a>\nx\n</parameter>\nso\n<parameter=b>\ny\n</parameter>"
         "\n</function>", True, "f", '{"a":"x\\n</parameter>\\nso\\n<parameter=b>\\ny"}'),
        ("<function=f>\n<parameter=n>\n1\n</parameter>\n</function>\n", True, "f", '{"n":1}'),
        ("<function=f>\n<parameter=n>\n12", False, "f", '{"n":12'),
        ("<function=f>\n<parameter=n>\n", False, "f", '{"n":'),
        ("<function=f>\n<parameter=a", False, "f", ""),
        ('<function=f>\n{"a": 1}\n</function>\n', True, "f", '{"a": 1}'),
        ('<function=f>\n{"a": 1', False, "f", '{"a": 1'),
        ("<function=f", False, None, ""),
        ("<function=f\n>", True, None, ""),
        ("<funktion=f>", True, None, ""),
    ],
)  # fmt: skip
def test_broken_and_odd_xml(text: str, closed: bool, name: str | None, arguments: str) -> None:
    assert xml(text, closed=closed) == (name, arguments)


@given(st.lists(st.sampled_from([*tags, "<function=f>", "<parameter=a>", "1", "{", ":"])), cuts)
@settings(deadline=None)
def test_no_soup_raises_and_cuts_change_nothing(parts: list[str], cuts: list[int]) -> None:
    text = "".join(parts)
    for closed in (True, False):
        for make in (lambda: XmlCall(STRINGS), JsonCall):
            one, two = make(), make()
            assert "".join(pieces(text, one, cuts, closed=closed)) == "".join(
                pieces(text, two, [], closed=closed)
            )
            assert (one.name, one.stray) == (two.name, two.stray)


def test_a_value_is_said_as_soon_as_it_is_clear() -> None:
    reader = XmlCall({})
    assert reader.feed("<function=f>\n<parameter=new>\n") == '{"new":'
    assert reader.feed("t") == ""  # may become true
    assert reader.feed("he start") == '"the start'
    assert reader.feed("\n</parameter>\nno end") == "\\n</parameter>\\nno end"
    reader = JsonCall()
    assert reader.feed('{"name": "f", "arguments": {"a') == '{"a'


def test_the_first_character_decides_the_form() -> None:
    assert call_text(" \n", {}) is None
    assert isinstance(call_text("\n{", {}), JsonCall) and isinstance(call_text("<", {}), XmlCall)


@pytest.mark.parametrize(
    ("schema", "text", "expected"),
    [
        ({"type": "string"}, "12", '"12"'),
        ({"type": "string"}, "null", '"null"'),
        ({}, "12", "12"),
        ({}, '"x"', '"\\"x\\""'),
        ({}, "True", '"True"'),
        ({}, "NaN", '"NaN"'),
        ({}, "[1, 2]", "[1, 2]"),
        ({}, "[1, 2", '"[1, 2"'),
        ({"type": "boolean"}, "True", "true"),
        ({"type": "integer"}, "5", "5"),
        ({"type": "integer"}, "five", '"five"'),
        ({"type": "array"}, "None", "null"),
        ({"type": ["string", "null"]}, "null", "null"),
        ({"type": ["string", "null"]}, "12", '"12"'),
        ({"type": ["string", "integer"]}, "12", "12"),
        ({"anyOf": [{"type": "string"}, {"type": "array"}]}, "[1]", "[1]"),
        ({"anyOf": [{"type": "string"}, {}]}, "1", "1"),
        ({"enum": ["1", "2"]}, "1", '"1"'),
        ({"const": 1}, "1", "1"),
        ({"$ref": "#/$defs/S"}, "1", '"1"'),
        ({"$ref": "#/$defs/loop"}, "1", "1"),
        ("nonsense", "1", "1"),
        ({"type": "object"}, "[" * 100_000, json.dumps("[" * 100_000)),
    ],
)
def test_a_schema_says_what_a_text_is(schema: Any, text: str, expected: str) -> None:
    definitions = {"S": {"type": "string"}, "loop": {"$ref": "#/$defs/loop"}}
    root = {"properties": {"p": schema}, "$defs": definitions}
    kinds = types(root, "p")
    assert value_json(text, kinds) == expected
    begun = any(surely_string(text[:n], kinds) for n in range(min(len(text), 9) + 1))
    assert not begun or expected.startswith('"')


def test_schemas_by_name() -> None:
    tools = [{"function": {"name": "f", "parameters": {"a": 1}}}, {"function": {"name": "g"}}, {}]
    assert schemas_of(tools) == {"f": {"a": 1}, "g": {}}
    assert types(None, "p") == types({"properties": 3}, "p") == frozenset()


def test_canary_a_value_that_ends_at_the_first_end_tag(monkeypatch: pytest.MonkeyPatch) -> None:
    text = written({"a": "</parameter>x"})
    assert json.loads(xml(text)[1]) == {"a": "</parameter>x"}

    def first(text: str, start: int, ended: bool) -> tuple[int, int]:
        at = text.find("</parameter>", start)
        return (at, at + len("</parameter>")) if at >= 0 else (start, 0)

    monkeypatch.setattr(xml_calls, "_value_end", first)
    assert json.loads(xml(text)[1]) != {"a": "</parameter>x"}
