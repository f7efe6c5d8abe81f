"""Goal: a checkpoint's own chat format gives its publisher's tokens, and content can't forge any.

Method: ordinary conversations are rendered beside transformers' apply_chat_template, with three
templates in the style of published ones. Special-token text is put into every place a client can
write to, whole and in halves: no special token more may come of it, and the text must be there.
Answers are read by the Writer and sent back: the next prompt goes on with their tokens. Broken
files are one line. The modules are engine.chat.checkpoint_files, engine.chat.dicts,
engine.chat.placed, engine.chat.sandbox and engine.chat.sealed too. Canaries: no seals, and other
ids than transformers'.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from chat_templates import ADDED, JSON, PLAIN, UNFLAGGED, XML, checkpoint, tokenizer_file
from hypothesis import given, settings
from hypothesis import strategies as st
from photos import attached, data_url, photo
from transformers.utils import chat_template_utils

from cache.types import Ids
from engine.bad import BadInput
from engine.chat.checkpoint import Checkpoint, load_dialect
from engine.chat.dialect import Defaults, Gaps, close_thought, inside_thought, open_call
from engine.chat.gallery import Gallery
from engine.chat.messages import ChatError, messages_of, tools_of
from engine.chat.sandbox import compiled
from engine.chat.sealed import MARK, Seals
from engine.chat.tokenizer import SPECIALS, Tokenizer
from engine.pictures.patches import PatchConfig
from serve.chat.deltas import whole
from serve.chat.schemas import schemas_of
from serve.chat.writer import Writer

GREEDY = {"eos_token_id": [16374, 16372], "do_sample": False, "temperature": 0.6, "top_k": 20}
STRING = {"type": "string"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "bash",
            "description": "Runs é <b> & co.",
            "parameters": {"type": "object", "properties": {"command": STRING}},
        },
    }
]
FORGED = "".join((*SPECIALS, *(name for name, _ in ADDED if name != "<h1>")))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("checkpoints")
    for name, template in (("xml", XML), ("json", JSON), ("plain", PLAIN)):
        checkpoint(root / name, template, GREEDY, small=False)
    return root


@pytest.fixture(scope="module")
def dialects(folder: Path) -> dict[str, Checkpoint]:
    return {name: load_dialect(folder / name) for name in ("xml", "json", "plain")}


@pytest.fixture(scope="module")
def published(folder: Path) -> dict[str, Any]:
    names = ("xml", "json", "plain")
    return {name: transformers.AutoTokenizer.from_pretrained(str(folder / name)) for name in names}


def call(name: str, arguments: str, id: str = "c1") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def assistant(content: str, reasoning: str = "", *calls: dict[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if reasoning:
        message["reasoning_content"] = reasoning
    return message | ({"tool_calls": list(calls)} if calls else {})


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def theirs(tokenizer: Any, messages: list[dict[str, Any]], tools: Any, thinking: bool) -> list[int]:
    """The ids of transformers; arguments as objects, the way its templates want them."""
    given_ = json.loads(json.dumps(messages))
    for message in given_:
        for one in message.get("tool_calls", ()):
            one["function"]["arguments"] = json.loads(one["function"]["arguments"] or "{}")
    ids = tokenizer.apply_chat_template(
        given_, tools=tools, tokenize=True, add_generation_prompt=True, enable_thinking=thinking
    )["input_ids"]
    return list(ids)


texts = st.lists(
    st.sampled_from(
        ["a", " ", "\n", ">", "|>", "<|", "<", "</", "é", "🙂", "<h1>", "{{", "{%", "x"]
    )
    | st.text(st.characters(codec="utf-8"), max_size=4),
    max_size=8,
).map("".join)
arguments = st.dictionaries(
    st.text("abc", min_size=1, max_size=3), texts | st.integers() | st.booleans() | st.lists(texts)
)
turns = st.lists(
    st.builds(lambda a, b: [user(a), assistant(b)], texts, texts)
    | st.builds(
        lambda a, b, r, given_, c: [
            user(a),
            assistant(b, r, call("bash", json.dumps(given_))),
            {"role": "tool", "tool_call_id": "c1", "content": c},
        ],
        texts, texts, texts, arguments, texts,
    ),
    max_size=3,
).map(lambda parts: [message for part in parts for message in part])  # fmt: skip


@given(st.none() | texts, turns, texts, st.booleans(), st.booleans(), st.data())
@settings(deadline=None, max_examples=60)
def test_ordinary_conversations_have_the_publishers_ids(
    dialects: dict[str, Checkpoint],
    published: dict[str, Any],
    system: str | None,
    turns: list[dict[str, Any]],
    last: str,
    tools: bool,
    thinking: bool,
    data: st.DataObject,
) -> None:
    name = data.draw(st.sampled_from(["xml", "json", "plain"]))
    messages = [*turns, user(last)]
    if name == "plain":
        messages = [m for m in messages if m["role"] != "tool"]
    if system is not None:
        messages = [{"role": "system", "content": system}, *messages]
    given_ = TOOLS if tools and name != "plain" else None
    rendered = dialects[name].render(messages_of(messages), tools_of(given_), thinking=thinking)
    assert rendered.ids.tolist() == theirs(published[name], messages, given_, thinking)
    assert rendered.system + rendered.tools + rendered.history == len(rendered.ids)
    assert min(rendered.system, rendered.tools, rendered.history) >= 0
    assert bool(rendered.tools) == bool(given_)


def test_canary_other_ids_than_the_publishers(
    dialects: dict[str, Checkpoint], published: dict[str, Any]
) -> None:
    forged = [user("a <think> b")]
    ours = dialects["xml"].render(messages_of(forged)).ids.tolist()
    assert ours != theirs(published["xml"], forged, None, True)


CONVERSATION = [
    {"role": "system", "content": "  Be brief.\n"},
    user("first"),
    assistant("I look.", "Hm", call("bash", '{"command": "ls", "n": [1, 2.5]}')),
    {"role": "tool", "tool_call_id": "c1", "content": "x\n"},
    assistant("Done.", "R"),
    user("Thanks"),
    assistant("Welcome", "T", call("bash", "{}"), call("bash", '{"a": 1, "b": "c', "c2")),
    {"role": "tool", "tool_call_id": "c1", "content": "y"},
]


@pytest.mark.parametrize(
    ("name", "tools", "system"),
    [("xml", True, "Be brief.<|im_end|>\n"), ("json", False, "<|im_start|>system\n  Be brief")],
)
def test_the_parts_and_places(
    dialects: dict[str, Checkpoint], name: str, tools: bool, system: str
) -> None:
    dialect = dialects[name]
    rendered = dialect.render(messages_of(CONVERSATION), TOOLS)
    decode, ids = dialect.tokenizer.decode, rendered.ids
    head = decode(ids[: rendered.tools + rendered.system])
    assert head.count("<|im_start|>") == head.count("<|im_end|>") == 1 and head.endswith("\n")
    first = rendered.tools if tools else rendered.system
    start, stop = decode(ids[:first]), decode(ids[first : rendered.tools + rendered.system])
    assert (system in stop and "<tools>" in start) if tools else start.startswith(system)
    assert decode(ids[rendered.last_user :]).startswith("<|im_start|>user\nThanks<|im_end|>")
    answer = decode(ids[rendered.first_answer :])
    assert answer.startswith("I look." if name == "xml" else "Hm\n</think>\n\nI look.")
    spans = [decode(ids[span.start : span.stop]) for span in rendered.valued]
    assert len(spans) == 2 and all(s.startswith("<tool_call>\n") for s in spans)
    assert [span.value for span in rendered.valued][1] == ("bash", "{}")
    assert dialect.render(messages_of([user("q")])).system == 0


def test_places_behind_tokens_that_take_blanks(dialects: dict[str, Checkpoint]) -> None:
    dialect, messages = dialects["plain"], [user("a"), assistant("é b"), user("c")]
    rendered = dialect.render(messages_of(messages))
    decode = dialect.tokenizer.decode
    assert decode(rendered.ids[rendered.first_answer :]).startswith("é b<|eos|><|start|>user")
    assert decode(rendered.ids[rendered.last_user :]).startswith("<|start|>user<|end|>c")


PLACES = ["system", "user", "part", "content", "reasoning", "name", "key", "value", "broken",
          "result", "tool", "description"]  # fmt: skip


def everything(at: dict[str, str]) -> tuple[list[Any], list[dict[str, Any]]]:
    given_ = json.dumps({at["key"]: at["value"], "n": [at["value"]]})
    messages: list[Any] = [
        {"role": "system", "content": at["system"]},
        {"role": "user", "content": [{"type": "text", "text": t} for t in ("a", at["part"], "b")]},
        user(at["user"]),
        assistant(
            at["content"], at["reasoning"], call(at["name"], given_), call("f", at["broken"], "c2")
        ),
        {"role": "tool", "tool_call_id": "c1", "content": at["result"]},
    ]
    return messages, [{"function": {"name": at["tool"], "description": at["description"]}}]


def specials(dialect: Checkpoint, ids: Ids) -> int:
    return int(np.isin(ids, list(dialect.tokenizer.ids.values())).sum())


def forge(dialect: Checkpoint, place: str, text: str) -> tuple[int, int, str]:
    """Special tokens without and with the text in its place, and what is rendered with it."""
    out = []
    for forged in ("x", text):
        messages, tools = everything(dict.fromkeys(PLACES, "x") | {place: forged})
        out.append(dialect.render(messages_of(messages), tools).ids)
    plain, with_text = out
    return specials(dialect, plain), specials(dialect, with_text), dialect.tokenizer.decode(out[1])


@pytest.mark.parametrize("name", ["xml", "json"])
@pytest.mark.parametrize("place", PLACES)
def test_special_tokens_cannot_be_forged(
    dialects: dict[str, Checkpoint], name: str, place: str
) -> None:
    plain, forged, text = forge(dialects[name], place, FORGED)
    assert plain == forged and FORGED in text
    assert MARK not in text
    plain, forged, text = forge(dialects[name], place, f"{MARK}1{MARK}{MARK}s0{MARK}")
    assert plain == forged and f"{MARK}1{MARK}{MARK}s0{MARK}" in text


def test_halves_of_special_tokens_do_not_join(dialects: dict[str, Checkpoint]) -> None:
    dialect = dialects["json"]
    for special in dialect.tokenizer.ids:
        for at in range(1, len(special)):
            parts = [{"type": "text", "text": text} for text in (special[:at], special[at:])]
            two = [{"role": "user", "content": parts}]
            one = [{"role": "user", "content": [*parts[:1], parts[0], parts[1]]}]
            for messages in (two, one):
                ids = dialect.render(messages_of(messages)).ids
                assert specials(dialect, ids) == 3
                assert special in dialect.tokenizer.decode(ids)


@given(
    st.lists(st.sampled_from([*SPECIALS, MARK, "<|im", "_end|>", "<", ">", " ", "\n", "a", "1"]))
)
@settings(deadline=None)
def test_sealed_texts_hold_no_special_token_and_open_to_themselves(parts: list[str]) -> None:
    seals = Seals(SPECIALS)
    sealed = "".join(map(seals.text, parts))
    assert not any(name in sealed for name in SPECIALS)
    assert seals.opened(sealed) == "".join(parts)
    assert seals.opened(sealed.strip()) == "".join(parts).strip()


def test_canary_without_seals(
    dialects: dict[str, Checkpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Seals, "text", lambda self, text: text)
    for place in PLACES:
        plain, forged, _ = forge(dialects["json"], place, FORGED)
        assert forged > plain, place


clean = st.text(st.sampled_from('ab \né🙂<>{"\\'), max_size=8).map(str.strip)


@given(clean, clean.filter(bool), st.lists(st.dictionaries(st.just("command"), clean), max_size=2),
       st.data())  # fmt: skip
@settings(deadline=None, max_examples=60)
def test_an_answer_that_is_sent_back_is_gone_on_with(
    dialects: dict[str, Checkpoint],
    content: str,
    reasoning: str,
    given_: list[dict[str, str]],
    data: st.DataObject,
) -> None:
    """In a loop of calls templates keep the thoughts."""
    name = data.draw(st.sampled_from(["xml", "json"]))
    dialect = dialects[name]
    messages = [user("q")]
    prompt = dialect.render(messages_of(messages), TOOLS).ids
    sent = assistant(content, reasoning, *(call("bash", json.dumps(g)) for g in given_ or [{}]))
    messages = [*messages, sent, {"role": "tool", "content": "r"}]
    following = dialect.render(messages_of(messages), TOOLS)
    ids = following.ids[len(prompt) :]
    assert np.array_equal(following.ids[: len(prompt)], prompt)
    answer = ids[: 1 + int(np.flatnonzero(ids == dialect.tokenizer.ids["<|im_end|>"])[0])]
    numbers = itertools.count()
    writer = Writer(
        dialect,
        tools=schemas_of(TOOLS),
        new_id=lambda: f"c{next(numbers)}",
        inside=inside_thought(dialect, prompt),
    )
    result = whole(writer.wrote(answer.tolist()) + writer.end())
    assert (result.reasoning, result.content) == (reasoning, content)
    assert [json.loads(c.arguments) for c in result.calls] == (given_ or [{}])
    spans = tuple((span.start + len(prompt), span.value) for span in writer.answer(1 << 20).valued)
    assert spans == tuple((span.start, span.value) for span in following.valued)
    assert writer.answer(len(answer)).thinking == writer.reasoning_tokens > 0


def test_what_the_files_say(folder: Path, dialects: dict[str, Checkpoint]) -> None:
    xml, js, plain = dialects["xml"], dialects["json"], dialects["plain"]
    assert (xml.call_form, js.call_form) == ("xml", "json")
    assert (xml.thinks, js.thinks, plain.thinks) == (True, False, False)
    assert xml.gaps == Gaps() and js.gaps == Gaps(call="\n")
    assert xml.defaults == Defaults(0.0, None, 20)
    eos = xml.tokenizer.ids["<|eos|>"]
    assert xml.stop_ids == {16374, 16372, eos} and xml.think_end == xml.tokenizer.ids["</think>"]
    assert load_dialect(folder / "xml", call_form="json").call_form == "json"
    decode = xml.tokenizer.decode
    assert decode(close_thought(xml)) == "\n</think>\n\n"
    assert decode(open_call(xml, "f")) == "<tool_call>\n<function=f>\n"
    assert decode(open_call(js, "f")) == '<tool_call>\n{"name": "f", "arguments":'
    assert specials(xml, open_call(xml, "</tool_call>")) == 1


@pytest.mark.parametrize("where", ["json", "config", "list"])
def test_a_template_is_found_in_each_of_its_places(tmp_path: Path, where: str) -> None:
    dialect = load_dialect(checkpoint(tmp_path, JSON, where=where))
    assert dialect.call_form == "json" and dialect.gaps.call == "\n"
    assert dialect.defaults == Defaults()


def test_a_last_message_of_the_assistant_is_continued(dialects: dict[str, Checkpoint]) -> None:
    xml = dialects["xml"]

    def end(*messages: dict[str, Any]) -> str:
        return xml.tokenizer.decode(xml.render(messages_of([user("q"), *messages])).ids)

    opening = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\n"
    assert end(assistant("Half ", "R")) == opening + "R\n</think>\n\nHalf "
    assert end(assistant("", "R ")) == opening + "R "
    assert end(assistant("")) == opening
    assert end(assistant("C", "R", call("f", "{}"))).endswith("</function>\n</tool_call>")


def test_images_are_where_the_template_shows_them(dialects: dict[str, Checkpoint]) -> None:
    gallery = Gallery(patches=PatchConfig(min_pixels=9_216, max_pixels=40_000))
    messages = messages_of(
        [attached("Look", ("a.png", data_url(photo(1)))), assistant("A"), user("and?")], gallery.see
    )
    rendered = dialects["xml"].render(messages)
    (shown,) = rendered.shown
    rows = shown.image.picture.ids
    assert np.array_equal(rendered.ids[shown.start : shown.start + len(rows)], rows)
    assert rendered.images == len(rows) and rendered.system == rendered.tools == 0
    assert rendered.history == len(rendered.ids) - len(rows)
    before = rendered.ids[shown.start - 1]
    assert before == dialects["xml"].tokenizer.ids["<|vision_start|>"]
    with pytest.raises(ChatError, match="chat template"):
        dialects["json"].render(messages)


@pytest.mark.parametrize(
    ("messages", "what"),
    [
        ([user("a"), {"role": "system", "content": "late"}], "System message must be at the beg"),
        ([], "No messages provided"),
    ],
)
def test_what_the_template_refuses(
    dialects: dict[str, Checkpoint], messages: list[dict[str, Any]], what: str
) -> None:
    with pytest.raises(ChatError, match=what):
        dialects["xml"].render(messages_of(messages) if messages else ())


@pytest.mark.parametrize("depth", [10, 600, 3_000])
def test_odd_texts_and_deep_arguments_are_rendered_or_refused(
    dialects: dict[str, Checkpoint], depth: int
) -> None:
    deep = '{"a": "\\ud800", "b": NaN, "c": ' + "[" * depth + "]" * depth + "}"
    messages = [user("\ud83d <|im_end|>"), assistant("", "", call("f", deep)), user("q")]
    for name in ("xml", "json"):
        try:
            ids = dialects[name].render(messages_of(messages)).ids
        except ChatError as error:
            assert depth == 600 and "recursion" in str(error)
        else:
            assert "\ufffd <|im_end|>" in dialects[name].tokenizer.decode(ids)


def test_the_sandbox_has_what_templates_use_and_no_more(tmp_path: Path) -> None:
    template = (
        "{% set n = namespace(a=dict(b=1)) %}{% set n.a = 2 %}{{ n.a }}"
        "{{ strftime_now('%Y') }}{{ dict.fromkeys('ab') | length }}"
        "{{ {'é': '</think>'} | tojson(ensure_ascii=true) }}"
        "{{ messages[0].content | tojson(True) }}"
    )
    clock: Callable[[], datetime] = lambda: datetime(2031, 5, 4)  # noqa: E731
    dialect = load_dialect(checkpoint(tmp_path / "a", template), now=clock)
    text = dialect.tokenizer.decode(dialect.render(messages_of([user("</think>é")])).ids)
    assert text == '220312{"\\u00e9": "</think>"}"</think>\\u00e9"'
    for bad in ("{{ messages.__class__.mro() }}", "{% set n = namespace(__x=1) %}",
                "{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}"):  # fmt: skip
        with pytest.raises(BadInput, match="chat template"):
            load_dialect(checkpoint(tmp_path / "b", bad))


@pytest.mark.parametrize(
    "source",
    [
        "{% set a = 1 %}{% generation %}{% set a = 2 %}{{ a }}{% endgeneration %}{{ a }}",
        "{% for x in 'ab' %}{% generation %}{{ loop.index }}{{ x }}{% endgeneration %}{% endfor %}",
        "{% set n = dict(a=1) %}{%- generation -%} {{ n.b }} {% endgeneration %}{{ n.a }}",
        "{{ [1, {'<': 'é'}] | tojson }}{{ {'b': 1, 'a': 2} | tojson(indent=1, sort_keys=true) }}",
        "{% for x in range(9) %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}\n {{ y }}",
    ],
)
def test_templates_run_as_the_publishers_tools_run_them(source: str) -> None:
    theirs = chat_template_utils._compile_jinja_template(source)
    assert compiled(source, datetime.now, MARK).render() == theirs.render()


BROKEN: list[tuple[str, str | None, str]] = [
    ("tokenizer.json", None, "tokenizer.json: is missing"),
    ("tokenizer.json", "{}", "tokenizer.json: is no tokenizer"),
    ("tokenizer.json", "[", "tokenizer.json: is no tokenizer"),
    ("chat_template.jinja", None, "no file has a chat template"),
    ("chat_template.jinja", "a\n{% if %}", "chat_template.jinja:2: the chat template is broken"),
    ("chat_template.jinja", "{{ 1 / 0 }}", "chat_template.jinja: the model's chat template: div"),
    ("chat_template.jinja", "", "chat_template.jinja: the chat template does not show what"),
    ("config.json", '{"vocab_size": 1000000000}', "config.json: a vocabulary of 1,000,000,000 is"),
    ("generation_config.json", "[1]", "generation_config.json: is no JSON object"),
    ("generation_config.json", '{\n"a": }', "generation_config.json:2: is no JSON"),
    ("generation_config.json", '{"eos_token_id": -1}', "eos_token_id -1 is no token"),
    ("generation_config.json", '{"eos_token_id": "x"}', "eos_token_id 'x' is no token"),
    ("generation_config.json", '{"top_p": 2}', "top_p 2 is not in 0.0..1.0"),
    ("generation_config.json", '{"top_k": "x"}', "top_k 'x' is no number"),
]


@pytest.mark.parametrize(("name", "text", "what"), BROKEN)
def test_broken_files_are_one_line(tmp_path: Path, name: str, text: str | None, what: str) -> None:
    directory = checkpoint(tmp_path, XML, {"eos_token_id": 260})
    (directory / name).unlink() if text is None else (directory / name).write_text(text)
    with pytest.raises(BadInput) as bad:
        load_dialect(directory)
    assert what in str(bad.value) and "\n" not in str(bad.value)


def test_a_missing_directory_and_other_vocabularies(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is no directory"):
        load_dialect(tmp_path / "none")
    with pytest.raises(BadInput, match="is no directory: File name too long"):
        load_dialect(tmp_path / ("a" * 300))
    directory = checkpoint(tmp_path, XML)
    (directory / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(BadInput, match="is no UTF-8"):
        load_dialect(directory)
    words = {"version": "1.0", "added_tokens": [], "model": {"type": "WordLevel",
             "vocab": {"▁a": 0}, "unk_token": "▁a"}}  # fmt: skip
    (directory / "tokenizer.json").write_text(json.dumps(words))
    (directory / "chat_template.jinja").write_text(PLAIN)
    with pytest.raises(BadInput, match="not byte-level"):
        load_dialect(directory)


def test_a_tokenizer_may_lack_our_special_tokens_and_have_others(tmp_path: Path) -> None:
    file = json.loads(tokenizer_file(ADDED))
    file["added_tokens"] = [t for t in file["added_tokens"] if t["content"] not in UNFLAGGED]
    tokenizer = Tokenizer(json.dumps(file).encode(), vocab=20_000, name="other")
    assert tokenizer.name == "other-20000" and "<think>" not in tokenizer.ids
    assert "<h1>" not in tokenizer.ids and "<|start|>" in tokenizer.ids
    assert tokenizer.text(np.array([19_999], np.int32)) == b""
    ids = tokenizer.encode("<|start|><h1>", specials=False)
    assert tokenizer.decode(ids) == "<|start|><h1>" and not tokenizer.structure(ids).any()
    whole_file = Tokenizer(tokenizer_file(ADDED))
    for name in UNFLAGGED:  # not called special by the file, and no content may hold them
        assert len(whole_file.encode(name, specials=False)) > 1
        assert whole_file.encode(name, specials=True).tolist() == [whole_file.ids[name]]
