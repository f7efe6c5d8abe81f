"""Goal: the night's plan is what its seed says, and the scripted model follows it step by step.

Method: the plan is made twice and compared; its calls are played on its own files; the model is
asked as the clients ask, with compactions, retries and regenerated answers between.
"""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest

from experiments.night.check import Exchange, changes, missing
from experiments.night.coding import as_written
from experiments.night.model import CLOSING, ScriptedModel
from experiments.night.plan import make_night
from experiments.night.script import Act, Call, Night, Step, Turn, even
from experiments.night.upstream import common_prefix, deltas, pieces
from experiments.night.words import Writer

ROOT = "/root/of/folders"


@pytest.fixture(scope="module")
def night() -> Night:
    return make_night(7)


def acts(night: Night) -> list[Act]:
    return [act for part in night.parts for lane in part.lanes for act in lane.acts]


def test_a_seed_gives_one_night(night: Night) -> None:
    assert make_night(7) == night
    other = make_night(8)
    assert other.parts[0].files != night.parts[0].files
    assert other.sessions["oc1"].turns[0].prompt != night.sessions["oc1"].turns[0].prompt


def test_every_turn_is_said_once_in_its_order(night: Night) -> None:
    said: dict[str, list[str]] = {}
    for act in acts(night):
        if act.do in ("say", "edit"):
            said.setdefault(act.session, []).append(act.turn)
    assert said == {
        label: [turn.label for turn in session.turns] for label, session in night.sessions.items()
    }


def test_the_night_has_what_was_asked(night: Night) -> None:
    coding = [session for session in night.sessions.values() if session.client != "page"]
    assert len(coding) >= 8 and len({session.folder for session in coding}) == 4
    assert {session.client for session in coding} == {"serve", "run"}
    assert sum(session.client == "page" for session in night.sessions.values()) >= 12
    assert {act.do for act in acts(night)} == {"say", "regenerate", "edit", "compact", "rules"}
    cuts = [(t.session[:2], t.cut.part) for t in night.turns().values() if t.cut]
    assert {part for client, part in cuts if client == "oc"} == {"reasoning", "content", "tool"}
    assert {part for client, part in cuts if client != "oc"} == {"reasoning", "content"}
    kinds = {call["subagent_type"] for call in arguments(night, "task")}
    assert kinds == {"general", "explore"}
    thinks = sorted(act.think_s for act in acts(night))
    assert 8 <= thinks[len(thinks) // 2] <= 25 and thinks[-1] >= 180


def arguments(night: Night, name: str) -> list[dict[str, Any]]:
    steps = [step for turn in night.turns().values() for step in turn.steps]
    return [
        json.loads(call.arguments) for step in steps for call in step.calls if call.name == name
    ]


def test_sub_agents_are_asked_what_the_plan_answers(night: Night) -> None:
    helpers = {helper.prompt for s in night.sessions.values() for helper in s.helpers}
    assert {call["prompt"] for call in arguments(night, "task")} == helpers


def edited(files: dict[str, str], call: Call) -> bool:
    """Plays an edit or a write on the files; False when it does not apply."""
    try:
        given = json.loads(call.arguments)
    except ValueError:
        return False
    path = given["filePath"].removeprefix("{CWD}/")
    if call.name == "write":
        files[path] = given["content"]
        return True
    if files[path].count(given["oldString"]) != 1:
        return False
    files[path] = files[path].replace(given["oldString"], given["newString"])
    return True


def test_edits_apply_to_the_files_but_for_the_planned_failures(night: Night) -> None:
    played = failed = 0
    for part in night.parts:
        files = {name: dict(paths) for name, paths in part.files.items()}
        for act in (act for lane in part.lanes for act in lane.acts if act.turn):
            folder = night.sessions[act.session].folder
            for step in night.turns()[act.turn].steps:
                for call in step.calls:
                    if call.name in ("edit", "write"):
                        played += 1
                        failed += not edited(files[folder], call)
    stumbles = [turn for turn in night.turns().values() if turn.prompt.startswith("The log shows")]
    # Each of them has one call that is no JSON and one edit that does not match.
    assert failed == 2 * len(stumbles) > 0
    assert played > 40


def test_generated_python_is_python(night: Night) -> None:
    for name in ("tidewatch", "orrery"):
        for path, text in night.parts[-1].files[name].items():
            if path.endswith(".py"):
                ast.parse(text)


def test_arguments_are_written_in_many_ways_but_mean_one_thing() -> None:
    writer = Writer("arguments")
    given = {"filePath": "{CWD}/src/é.py", "offset": 10, "limit": 60}
    texts = {as_written(writer, given) for _ in range(200)}
    assert all(json.loads(text) == given for text in texts)
    for mark in ("\\/", "\\u00e9", "10.0", '": ', '":"', "\n", "{ "):
        assert any(mark in text for text in texts), mark


def test_an_answer_in_pieces_is_the_answer() -> None:
    writer = Writer("pieces")
    calls = (Call("call_1", "read", '{ "a" : 1 }\n'), Call("call_2", "bash", "{}"))
    for number in range(60):
        step = Step(writer.thought(80), writer.answer(90, odd=0.9), calls)
        got: dict[str, str] = {"reasoning_content": "", "content": "", "0": "", "1": ""}
        for _, delta, _ in deltas(step, writer.rng):
            for name, value in delta.items():
                if name == "tool_calls":
                    got[str(value[0]["index"])] += value[0]["function"]["arguments"]
                else:
                    got[name] += value
        assert got["reasoning_content"] == step.reasoning and got["content"] == step.content, number
        assert (got["0"], got["1"]) == (calls[0].arguments, calls[1].arguments)
    assert pieces("", writer.rng) == [] and "".join(pieces(" \n ", writer.rng)) == " \n "


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def placed(step: Step, folder: str) -> Step:
    calls = [
        Call(c.id, c.name, c.arguments.replace("{CWD}", f"{ROOT}/{folder}")) for c in step.calls
    ]
    return Step(step.reasoning, step.content, tuple(calls))


def test_the_model_walks_a_turn_through_a_compaction(night: Night) -> None:
    model, session = ScriptedModel(night, ROOT), night.sessions["oc1"]
    turn = session.turns[1]
    body: dict[str, Any] = {"tools": [{}], "messages": [user(f'"{turn.prompt}"\n<reminder>')]}
    for step in turn.steps[:2]:
        reply = model.answer(body, "ses_a")
        assert reply.step == placed(step, session.folder)
        # The client asks again after an error: the same answer.
        assert model.answer(body, "ses_a") == reply
        body["messages"] += [{"role": "assistant", "content": ""}, {"role": "tool", "content": ""}]
    asked = [user(f"<conversation>\n[User]: {turn.prompt}\n</conversation>")]
    summary = model.answer({"messages": asked}, "ses_a")
    assert (summary.label, summary.step) == ("oc1.compaction1", session.summaries[0])
    after: list[dict[str, Any]] = [user("What did we do so far?"), user("Continue if you can")]
    reply = model.answer({"tools": [{}], "messages": after}, "ses_a")
    assert reply.step == placed(turn.steps[2], session.folder) and reply.think_s is None
    for number in range(3, len(turn.steps) + 1):
        after = [*after, {"role": "assistant", "content": str(number)}]
        reply = model.answer({"tools": [{}], "messages": after}, "ses_a")
    assert reply.step == CLOSING


def test_first_steps_carry_the_think_time_and_titles_their_session(night: Night) -> None:
    model, turn = ScriptedModel(night, ROOT), night.sessions["oc3"].turns[0]
    reply = model.answer({"tools": [{}], "messages": [user(turn.prompt)]}, "ses_b")
    assert (reply.label, reply.think_s) == (f"{turn.label}.s1", turn.think_s)
    title = model.answer({"messages": [user("Generate a title"), user(turn.prompt)]}, "ses_b")
    assert title.step.content == night.sessions["oc3"].title


def page(model: ScriptedModel, *texts: str, stream: bool = True) -> Any:
    messages = [
        {"role": "user" if n % 2 == 0 else "assistant", "content": t} for n, t in enumerate(texts)
    ]
    return model.answer({"stream": stream, "messages": messages}, None)


def test_the_page_gets_another_answer_when_it_regenerates(night: Night) -> None:
    model = ScriptedModel(night, ROOT)
    turn = next(t for t in night.turns().values() if t.again)
    first, again = page(model, turn.prompt), page(model, turn.prompt)
    assert (first.step, first.take) == (turn.steps[0], 1)
    assert (again.step, again.take) == (turn.again[0], 2)
    assert "again" in again.label and again.think_s == turn.again_think_s


def test_side_requests_are_told_apart(night: Night) -> None:
    model, turn = ScriptedModel(night, ROOT), night.sessions["w1"].turns[2]
    history = f"USER: {night.sessions['w1'].turns[1].prompt}\nUSER: {turn.prompt}\n"
    for kind, wanted in (("followups", "follow_ups"), ("title", "title"), ("tags", "tags")):
        reply = page(model, f'{history}Answer with {{"{wanted}": ...}}', stream=False)
        assert reply.label == f"{turn.label}.{kind}" and wanted in json.loads(reply.step.content)
        assert reply.turn is None


def test_prompts_are_known_in_any_wrapping(night: Night) -> None:
    turns: list[Turn] = list(night.turns().values())
    for turn in turns:
        assert turn.key in even("> " + turn.prompt.replace(" ", "\n\t"))
        assert sum(turn.key in other.key for other in turns) == 1


def test_common_prefix() -> None:
    for one, other, length in (("", "", 0), ("ab", "ac", 1), ("abc", "abc", 3), ("a", "abc", 1)):
        assert common_prefix(one, other) == length


def exchange(t: float, messages: list[dict[str, Any]], **reply: Any) -> Exchange:
    body = {"messages": messages, "stream": True}
    return Exchange({"t": t, "t_end": t + 1, "headers": [], "body": body, "reply": reply})


def test_the_check_sees_how_conversations_part() -> None:
    ask, answer = user("one"), {"role": "assistant", "content": "two"}
    turns = [
        exchange(0, [ask]),
        exchange(1, [ask, answer, user("three")]),
        exchange(2, [ask, answer, user("three")]),
        exchange(3, [user("other")]),
    ]
    assert changes(turns) == {"extended": 1, "regenerated": 1, "user message changed": 1}


def test_the_check_misses_what_is_not_there() -> None:
    names = (
        "requests|opencode sessions|Open WebUI chats|past 100k tokens|sub-agent sessions|hours|"
        "plan-mode requests|both clients at once (s)|broken tool calls|unplanned|without a mark|"
        "not 200|images"
    )
    nothing: dict[str, Any] = dict.fromkeys(names.split("|"), 0)
    empty: dict[str, Any] = {
        "kinds": {}, "cut": {}, "departures": {}, "opencode folders": [],
        "reasoning answered": {}, "longest thoughts (tokens)": [],
        "returns to an older conversation": {"opencode": 0},
    }  # fmt: skip
    lacks = missing({**nothing, **empty})
    assert len(lacks) == 21 and "2 compactions" in lacks and "no images" not in lacks
    assert "no images" in missing({**nothing, **empty, "images": 1})
