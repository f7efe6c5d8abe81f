"""Goal: a script says what its file says, to the request that it means, in the model's own tokens.

Method: `serve.script` on files in both forms and on everything that can be wrong with one; requests
told apart by each thing a rule can ask; answers decoded by force on the witness and on the random
hybrid, read again by `serve.chat.writer`, and held to the file. Canary: a rule that forgets to look
at what it asks answers another request too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rawlines import TOOLS, assistant, result, system, user
from support import box

from engine.adapter import Engine
from engine.bad import BadInput
from engine.chat.clients import Identity
from engine.chat.dialect import Bundled
from engine.chat.messages import messages_of
from engine.chat.template import Template
from engine.chat.tokenizer import Tokenizer
from engine.config import HybridConfig
from engine.events import Tokens
from engine.forced import Forced
from engine.hybrid import Hybrid
from engine.prompt import Prompt
from engine.turn import turn
from engine.witness import Witness
from serve import script as script_module
from serve.chat.deltas import whole
from serve.chat.schemas import schemas_of
from serve.chat.writer import Writer
from serve.choice import ACCEPTED, DRAFTS
from serve.script import NOTHING, ROUND_TOKENS, Said, Script, When

TOKENIZER = Tokenizer()
TEMPLATE = Template(TOKENIZER)
DIALECT = Bundled(TEMPLATE)


def script(path: Path, *rules: Any, lines: bool = False) -> Script:
    file = path / "script.json"
    text = "\n".join(map(json.dumps, rules)) if lines else json.dumps(list(rules), indent=1)
    file.write_text(text)
    return Script.load(file)


def asked(of: Script, *messages: Any, tools: bool = False, **who: Any) -> Said:
    identity = Identity(
        **({"client": "c", "version": "", "session": None, "parent": None, "kind": "turn"} | who)
    )
    return of.answer(identity, messages_of(list(messages)), TOOLS if tools else ())


def saying(text: str, **when: Any) -> dict[str, Any]:
    return {"when": when, "say": [["content", text]]}


@pytest.mark.parametrize("lines", [True, False])
def test_the_first_rule_that_matches_answers(tmp_path: Path, lines: bool) -> None:
    rules = [
        saying("titles", kind=["title", "tags"]),
        saying("code", client="opencode"),
        saying("files", last_user="list.*files"),
        saying("kind", system="be kind"),
        saying("found", last_result="^ok$"),
        saying("result", last_role="tool"),
        saying("tools", has_tools=True),
        saying("third", turn=3),
        saying("step", step=2),
        {"say": [["content", "else"]], "tokens_s": 10},
    ]
    of = script(tmp_path, *rules, lines=lines)
    loop = [user("a"), assistant("b", "", ["c1", "f", "{}"])]
    cases: list[tuple[Said, int]] = [
        (asked(of, user("list"), kind="tags"), 1),
        (asked(of, user("list"), client="opencode"), 2),
        (asked(of, user("list my files")), 3),
        (asked(of, user("list my files"), assistant("A"), user("x")), 10),
        (asked(of, system("please be kind"), user("x")), 4),
        (asked(of, *loop, result("ok")), 5),
        (asked(of, *loop, result("no")), 6),
        (asked(of, user("ok"), tools=True), 7),
        (asked(of, user("x"), assistant("1"), user("y"), assistant("2"), user("z")), 8),
        (asked(of, *loop), 9),
        (asked(of, user("x")), 10),
    ]
    assert [said.rule for said, _ in cases] == [number for _, number in cases]
    first = cases[0][0]
    assert first.reply.message.content == "titles" and first.round_s == 0.0
    assert cases[-1][0].round_s == ROUND_TOKENS / 10


def test_all_that_a_rule_asks_must_hold(tmp_path: Path) -> None:
    of = script(tmp_path, saying("both", last_user="a", turn=1))
    assert asked(of, user("a")).rule == 1
    assert asked(of, user("b")).rule is None
    assert asked(of, user("a"), assistant("b"), user("a")).rule is None
    assert asked(of, system("nobody asks")).rule is None
    assert asked(of, user("b")).reply.message.content == NOTHING


def test_canary_a_rule_that_does_not_look_answers_others_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = script(tmp_path, saying("both", last_user="a", turn=1))
    monkeypatch.setattr(When, "holds", lambda self, request: True)
    assert asked(of, user("b")).rule == 1


def test_a_request_is_answered_the_same_whenever_it_comes(tmp_path: Path) -> None:
    rules = [saying(f"{n}", turn=n) for n in (1, 2)]
    of = script(tmp_path, *rules)
    again = script(tmp_path, *rules, lines=True)
    told = [user("a"), assistant("1"), user("b")]
    before = asked(of, *told)
    asked(of, user("a"))
    assert asked(of, *told) == before == asked(again, *told)


def test_steps_of_a_loop_begin_anew_with_every_question(tmp_path: Path) -> None:
    of = script(tmp_path, saying("one", step=1), saying("two", step=2), saying("three", step=3))
    call = assistant("", "", ["c", "f", "{}"])
    told: list[Any] = []
    for question in ("a", "b"):
        told.append(user(question))
        for number in (1, 2, 3):
            assert asked(of, *told).rule == number
            told += [call, result("r")]


def engines(model: str) -> Engine:
    if model == "witness":
        return Witness(64, 2_048, vocab=TOKENIZER.vocab)
    config = HybridConfig.tiny(dtype="float32", vocab=TOKENIZER.vocab)
    return Hybrid.random(config, 1, grid=64, window=2_048)


@pytest.mark.parametrize("model", ["witness", "hybrid"])
@pytest.mark.parametrize("finish", ["stop", "length"])
def test_the_engine_says_it_and_the_client_gets_it(tmp_path: Path, model: str, finish: str) -> None:
    arguments = {"command": "ls -la\n\n# é 漢字", "count": 10, "deep": {"a": [1, None, "x"]}}
    text = "Look: <|im_end|> is text. naïve 🙂\n\n    indented"
    say = [["reasoning", "I should look.\n\nYes."], ["content", text], ["tool", "bash", arguments]]
    say = say[:2] if finish == "length" else say
    of = script(tmp_path, {"say": say, "finish": finish})
    messages = messages_of([user("please")])
    said = asked(of, user("please"), tools=True)
    answer = TEMPLATE.answer_ids(said.reply, messages)
    prompt = TEMPLATE.render(messages, TOOLS)
    got = decoded(engines(model), prompt.ids, answer.ids)
    assert got == answer.ids.tolist()
    assert (got[-1] in DIALECT.stop_ids) == (finish == "stop")
    writer = Writer(DIALECT, tools=schemas_of(TOOLS), new_id=lambda: "call_1")
    deltas = [delta for token in got for delta in writer.wrote([token])] + writer.end()
    out = whole(deltas)
    assert (out.reasoning, out.content) == ("I should look.\n\nYes.", text)
    found = [(call.name, json.loads(call.arguments)) for call in out.calls]
    assert found == ([("bash", arguments)] if finish == "stop" else [])


def decoded(engine: Engine, prompt: Any, answer: Any) -> list[int]:
    """What one turn writes with the answer forced."""
    rule = Forced(
        np.asarray(answer), seed="s", vocab=engine.vocab, drafts=DRAFTS, accepted=ACCEPTED
    )
    events = turn(box(engine), Prompt(prompt), rule, len(answer), DIALECT.stop_ids)
    return [token for event in events if isinstance(event, Tokens) for token in event.ids]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no rules"),
        ("[]", "no rules"),
        ("{", r"script.json:1: not JSON"),
        ('{"say": []}\n{"say" []}', r"script.json:2: not JSON"),
        ('[{"say": []},\n {"say" []}]', r"script.json:2: not JSON"),
        ("[" * 100_000, "not JSON"),
        ('[{"say": []}, 7]', "rule 2: the rule is not an object"),
        ('{"say": []}\n\n{"sai": []}', "script.json:3: rule 2: the rule has the unknown key 'sai'"),
        ("[{}]", "rule 1: 'say' is not a list"),
        ('[{"say": "hello"}]', "'say' is not a list"),
        ('[{"say": [], "finish": "length"}]', "says something"),
        ('[{"say": [], "finish": "abort"}]', "neither 'stop' nor 'length'"),
        ('[{"say": [], "tokens_s": 0}]', "'tokens_s'"),
        ('[{"say": [], "tokens_s": "fast"}]', "'tokens_s'"),
        ('[{"say": [], "tokens_s": Infinity}]', "'tokens_s'"),
        ('[{"say": [["shout", "x"]]}]', "part 1 of 'say'"),
        ('[{"say": [["content", "x"], ["content", 7]]}]', "part 2 of 'say'"),
        ('[{"say": [["tool", "f", "{}"]]}]', "part 1 of 'say'"),
        ('[{"say": [["tool", "f>", {}]]}]', "no name of a tool"),
        ('[{"say": [], "when": []}]', "'when' is not an object"),
        ('[{"say": [], "when": {"user": "x"}}]', "'when' has the unknown key 'user'"),
        ('[{"say": [], "when": {"last_user": "("}}]', "'last_user' is not a regular expression"),
        ('[{"say": [], "when": {"system": 7}}]', "'system' is not a regular expression"),
        ('[{"say": [], "when": {"kind": [7]}}]', "'kind' is neither"),
        ('[{"say": [], "when": {"last_role": "robot"}}]', "'last_role' is none of"),
        ('[{"say": [], "when": {"turn": 0}}]', "'turn' is not a whole number"),
        ('[{"say": [], "when": {"step": true}}]', "'step' is not a whole number"),
        ('[{"say": [], "when": {"has_tools": 1}}]', "'has_tools' is neither"),
    ],
)
def test_what_is_no_script_is_one_line(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "script.json"
    file.write_text(text)
    with pytest.raises(BadInput, match=says) as bad:
        Script.load(file)
    assert "\n" not in str(bad.value) and str(file) in str(bad.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No such file"):
        Script.load(tmp_path / "nowhere")
    (tmp_path / "bytes").write_bytes(b"\xff")
    with pytest.raises(BadInput, match="not UTF-8"):
        Script.load(tmp_path / "bytes")


def test_the_example_of_the_docstring_is_a_script(tmp_path: Path) -> None:
    doc = script_module.__doc__ or ""
    file = tmp_path / "script.json"
    file.write_text(doc[doc.index('    [{"when"') : doc.index("`when` may")])
    of = Script.load(file)
    assert len(of.rules) == 3
    assert asked(of, user("list the files")).reply.finish == "tool_calls"
