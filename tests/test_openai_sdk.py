"""Goal: whoever uses the openai SDK finds here what its documentation promises: answers whole and
streamed, thoughts, tool calls, choices, seeds, stop strings, log probabilities, limits and errors.

Method: the real application on a socket (tests/served.py), given answers by a script and the small
random model's own; whole and streamed answers are held to one another. Canaries are at the end:
each plants a fault and sees its test fail. What the caches have to do with it is in
tests/test_sdk_caches.py.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from sdk_client import TOOLS, of_choice, script_of, sdk, streamed, tandem, user, whole
from served import DIALECT, MODEL, house, serving

from serve.chat.deltas import joined
from serve.chat.writer import Writer
from serve.wire_chat import ChatBody

TEXT = 'A line, "quoted"\nand another: naïve é 漢字 🙂 \\n {"a": [1, 2]}\n' * 3
ARGUMENTS = {"path": "notes/new.txt", "text": TEXT, "lines": 6, "tags": ["a", "b c"]}
RULES: list[dict[str, Any]] = [
    {
        "when": {"last_user": "two calls"},
        "say": [
            ["reasoning", "First I look, then I write."],
            ["content", "I look and write."],
            ["tool", "list_files", {"path": "."}],
            ["tool", "write_file", ARGUMENTS],
        ],
    },
    {"when": {"last_user": "a call"}, "say": [["tool", "list_files", {"path": "src"}]]},
    {
        "when": {"last_user": "a poem"},
        "say": [["reasoning", "A STOP here."], ["content", "One. Two. STOP Three."]],
    },
    {"when": {"last_user": "cut"}, "say": [["content", "This is cut he"]], "finish": "length"},
    {"say": [["content", "What do you mean?"]]},
]
OFF: dict[str, Any] = {"reasoning_effort": "none"}


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    script = script_of(tmp_path_factory.mktemp("said"), RULES)
    with serving(house(parallel=1), script) as one, sdk(one) as client:
        yield client


@pytest.fixture(scope="module")
def model() -> Iterator[openai.OpenAI]:
    with serving(house(parallel=1)) as one, sdk(one) as client:
        yield client


@pytest.mark.parametrize("asked", ["two calls", "a call", "a poem", "cut", "anything"])
def test_whole_and_streamed_say_the_same(scripted: openai.OpenAI, asked: str) -> None:
    once = whole(scripted, [user(asked)], tools=TOOLS)
    pieces = streamed(scripted, [user(asked)], tools=TOOLS)
    assert pieces.said == once.said
    assert pieces.usage.completion_tokens == once.usage.completion_tokens
    tandem(once.usage), tandem(pieces.usage)


def check_calls(client: openai.OpenAI) -> None:
    heard = streamed(client, [user("two calls")], tools=TOOLS)
    assert heard.reasoning == "First I look, then I write."
    assert heard.content == "I look and write." and heard.finish == "tool_calls"
    assert [name for _, name, _ in heard.calls] == ["list_files", "write_file"]
    assert [json.loads(given) for *_, given in heard.calls] == [{"path": "."}, ARGUMENTS]
    assert len({id for id, *_ in heard.calls}) == 2
    assert heard.argument_pieces > 10, "arguments did not come as they were written"
    assert 0 < heard.usage.completion_tokens_details.reasoning_tokens < 15


def test_several_calls_come_with_streamed_arguments(scripted: openai.OpenAI) -> None:
    check_calls(scripted)


def test_the_sdks_own_stream_helper_reads_it(scripted: openai.OpenAI) -> None:
    with scripted.chat.completions.stream(
        model=MODEL, messages=[user("two calls")], tools=TOOLS
    ) as stream:
        kinds = Counter(event.type for event in stream)
        final = stream.get_final_completion()
    assert kinds["tool_calls.function.arguments.done"] == 2 and kinds["content.done"] == 1
    calls = final.choices[0].message.tool_calls
    assert calls is not None and json.loads(calls[1].function.arguments) == ARGUMENTS


def check_stop(client: openai.OpenAI) -> None:
    for ask in (whole, streamed):
        heard = ask(client, [user("a poem")], stop=["STOP", "never"])
        # Thoughts are not searched.
        assert heard.said == ("A STOP here.", "One. Two. ", [], "stop")


def test_a_stop_string_ends_the_text_and_is_not_in_it(scripted: openai.OpenAI) -> None:
    check_stop(scripted)


def test_a_cut_answer_says_so(scripted: openai.OpenAI) -> None:
    assert whole(scripted, [user("cut")]).said == ("", "This is cut he", [], "length")


def check_no_calls(client: openai.OpenAI) -> None:
    heard = streamed(client, [user("a call")], tools=TOOLS, tool_choice="none")
    assert heard.calls == [] and heard.finish == "stop"


def test_tool_choice_none_reads_no_calls(scripted: openai.OpenAI) -> None:
    check_no_calls(scripted)


@pytest.mark.parametrize("effort", ["none", "low"])
def test_required_and_named_tools_are_called(model: openai.OpenAI, effort: str) -> None:
    budget = {} if effort == "none" else {"extra_body": {"reasoning_budget": 6}}
    named = {"type": "function", "function": {"name": "write_file"}}
    for choice, names in (("required", {"list_files", "write_file"}), (named, {"write_file"})):
        heard = streamed(
            model,
            [user("do something")],
            tools=TOOLS,
            tool_choice=choice,
            max_tokens=40,
            temperature=0,
            reasoning_effort=effort,
            **budget,
        )
        assert heard.calls and heard.calls[0][1] in names and heard.content == ""


def check_choices(client: openai.OpenAI) -> None:
    def said(n: int, seed: int, **more: Any) -> list[str]:
        answer = client.chat.completions.create(
            model=MODEL, messages=[user("choose")], n=n, seed=seed, max_tokens=12, **OFF, **more
        )
        assert [choice.index for choice in answer.choices] == list(range(n))
        assert answer.usage is not None and answer.usage.completion_tokens == 12 * n
        tandem(answer.usage)
        return [of_choice(choice, None).content for choice in answer.choices]

    three = said(3, 7, temperature=1.0)
    assert len(set(three)) == 3 and said(3, 7, temperature=1.0) == three
    assert said(1, 7, temperature=1.0) == three[:1]
    assert said(1, 8, temperature=1.0) != three[:1]
    assert len(set(said(2, 7, temperature=0))) == 1


def test_choices_differ_and_a_seed_repeats_them(model: openai.OpenAI) -> None:
    check_choices(model)


def test_streamed_choices_have_their_index(model: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"n": 2, "seed": 5, "max_tokens": 8, "temperature": 1.0, **OFF}
    once = model.chat.completions.create(model=MODEL, messages=[user("two")], **asked)
    texts, ends = ["", ""], []
    for chunk in model.chat.completions.create(
        model=MODEL, messages=[user("two")], stream=True, **asked
    ):
        assert chunk.usage is None, "nobody asked for it"
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            ends += [choice.index] if choice.finish_reason else []
    assert texts == [choice.message.content for choice in once.choices] and ends == [0, 1]


def check_scores(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"max_tokens": 9, "temperature": 0, "logprobs": True}
    asked |= {"top_logprobs": 4, **OFF}
    once = client.chat.completions.create(model=MODEL, messages=[user("score")], **asked)
    scores = once.choices[0].logprobs
    assert scores is not None and scores.content is not None
    assert len(scores.content) == 9 == once.usage.completion_tokens  # type: ignore[union-attr]
    spelt = b"".join(bytes(score.bytes or ()) for score in scores.content)
    assert spelt.decode("utf-8", "replace") == once.choices[0].message.content
    for score in scores.content:
        tops = [top.logprob for top in score.top_logprobs]
        assert len(tops) == 4 and tops == sorted(tops, reverse=True) and tops[0] <= 0.0
        assert score.logprob == tops[0], "greedy takes the likeliest"
        assert sum(map(math.exp, tops)) <= 1.0 + 1e-6
    pieces = []
    for chunk in client.chat.completions.create(
        model=MODEL, messages=[user("score")], stream=True, **asked
    ):
        for choice in chunk.choices:
            pieces += choice.logprobs.content or () if choice.logprobs else ()
    assert pieces == scores.content
    bare = client.chat.completions.create(
        model=MODEL, messages=[user("score")], **asked | {"top_logprobs": None}
    )
    assert bare.choices[0].message.content == once.choices[0].message.content
    found = bare.choices[0].logprobs
    assert found is not None and [s.top_logprobs for s in found.content or ()] == [[]] * 9


def test_log_probabilities_are_of_the_tokens_said(model: openai.OpenAI) -> None:
    check_scores(model)


def check_penalties(client: openai.OpenAI) -> None:
    first, second = DIALECT.tokenizer.encode("one two", specials=False).tolist()[:2]
    bias = {str(first): 100, str(second): 92}

    def written(**more: Any) -> set[str]:
        answer = client.chat.completions.create(
            model=MODEL,
            messages=[user("count")],
            logit_bias=bias,
            max_tokens=30,
            temperature=0,
            logprobs=True,
            **OFF,
            **more,
        )
        scores = answer.choices[0].logprobs
        assert scores is not None
        return {score.token for score in scores.content or ()}

    assert written() == {"one"}
    assert written(frequency_penalty=2.0) == {"one", " two"}
    assert written(presence_penalty=2.0) == {"one"}


def test_penalties_and_biases_move_what_is_said(model: openai.OpenAI) -> None:
    check_penalties(model)


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_limit_is_a_limit(model: openai.OpenAI, name: str) -> None:
    for limit in (1, 5):
        heard = whole(model, [user("on")], temperature=0, **{name: limit})
        assert heard.finish == "length" and heard.usage.completion_tokens == limit


def test_usage_comes_with_the_last_chunk_when_asked_for(model: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"messages": [user("x")], "max_tokens": 3, "stream": True}
    chunks = list(
        model.chat.completions.create(model=MODEL, stream_options={"include_usage": True}, **asked)
    )
    assert [chunk.usage is None for chunk in chunks] == [True] * (len(chunks) - 1) + [False]
    assert chunks[-1].choices == [] and len({chunk.id for chunk in chunks}) == 1
    assert all(c.usage is None for c in model.chat.completions.create(model=MODEL, **asked))


def test_texts_go_on(model: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 6, "temperature": 0}
    once = model.completions.create(prompt=["once upon", "a time"], echo=True, **asked)
    assert once.choices[0].text.startswith("once upon")
    assert once.choices[1].text.startswith("a time") and len(once.choices) == 2
    ids = DIALECT.tokenizer.encode("once upon", specials=False).tolist()
    by_ids = model.completions.create(prompt=ids, logprobs=2, **asked)
    assert once.choices[0].text == "once upon" + by_ids.choices[0].text
    assert by_ids.choices[0].finish_reason == "length"
    found = by_ids.choices[0].logprobs
    assert found is not None and len(found.tokens or ()) == 6
    pieces = model.completions.create(prompt=ids, stream=True, **asked)
    assert "".join(c.choices[0].text for c in pieces) == by_ids.choices[0].text
    several = model.completions.create(prompt="once upon", n=2, **asked)
    assert [choice.text for choice in several.choices] == [by_ids.choices[0].text] * 2
    assert several.usage is not None and several.usage.completion_tokens == 12


def test_models_are_listed_and_found(model: openai.OpenAI) -> None:
    assert [one.id for one in model.models.list()] == [MODEL]
    assert model.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        model.models.retrieve("gpt-9")


def held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers come at their end."""
    wrote, end, held = Writer.wrote, Writer.end, list[Any]()
    monkeypatch.setattr(Writer, "wrote", lambda *args: held.extend(wrote(*args)) or [])
    monkeypatch.setattr(Writer, "end", lambda self: joined(held + end(self)))


def unnoticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every choice has the request's seed."""
    monkeypatch.setattr("serve.wish.seed_of", lambda seed, choice: seed)


def all_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probabilities come one token late."""
    monkeypatch.setattr("serve.speech.seen", lambda scores, *_: scores[1:])


CANARIES: list[tuple[Callable[[Any], None], bool, Callable[[pytest.MonkeyPatch], None]]] = [
    (check_calls, True, held_back),
    (check_calls, True, lambda patch: patch.setattr("serve.choice.inside_thought", outside)),
    (check_stop, True, lambda patch: patch.setattr("serve.wire.Body.stops", lambda self: ())),
    (check_no_calls, True, lambda patch: patch.setattr(ChatBody, "choice_in", calls_anyway)),
    (check_choices, False, unnoticed),
    (check_scores, False, all_scored),
    (check_penalties, False, lambda patch: patch.setattr("serve.choice._penalised", as_it_is)),
]


def calls_anyway(self: Any) -> tuple[str, bool]:
    return "auto", False


def outside(dialect: Any, prompt: Any) -> bool:
    return False


def as_it_is(rule: Any, wish: Any) -> Any:
    return rule


@pytest.mark.parametrize(("check", "says", "plant"), CANARIES)
def test_canary(
    check: Callable[[Any], None],
    says: bool,
    plant: Callable[[pytest.MonkeyPatch], None],
    scripted: openai.OpenAI,
    model: openai.OpenAI,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        check(scripted if says else model)
