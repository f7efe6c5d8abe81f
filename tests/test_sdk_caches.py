"""Goal: a client of the openai SDK that sends its conversation back, as agents do, resumes at the
end of the last answer, whatever it leaves out or writes anew, and is told so in the usage.

Method: the real application on a socket, given answers by a script and the small random model's
own; `usage` is held to itself (sdk_client.tandem) and to the journal's row. Canaries at the end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import openai
import pytest
from photos import data_url, image_part, photo, text_part
from sdk_client import TOOLS, Heard, script_of, sdk, streamed, tandem, user, whole
from served import DIALECT, Served, house, serving

from cache.journal import TurnRow
from engine.decode import Rule
from engine.forced import Forced

RULES: list[dict[str, Any]] = [
    {
        "when": {"last_user": "tidy up", "step": 1},
        "say": [["reasoning", "Look first."], ["tool", "list_files", {"path": ".", "depth": 2}]],
    },
    {
        "when": {"last_user": "tidy up", "step": 2},
        "say": [
            ["content", "Two files to write."],
            ["tool", "write_file", {"path": "a", "text": "x y\n", "lines": 1}],
            ["tool", "write_file", {"path": "b", "text": '"é"', "tags": ["p", "q"]}],
        ],
    },
    {"when": {"last_user": "tidy up"}, "say": [["reasoning", "Done?"], ["content", "All tidy."]]},
    {"say": [["reasoning", "So they ask.\nWell."], ["content", "An answer, in short.\n"]]},
]
RESULTS = {"list_files": "a\nb\nc", "write_file": "written"}


@dataclass(frozen=True, slots=True)
class Talk:
    """A client, and what serves it."""

    served: Served
    client: openai.OpenAI

    @property
    def row(self) -> TurnRow:
        return self.served.house.journal.rows[-1]


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Talk]:
    script = script_of(tmp_path_factory.mktemp("said"), RULES)
    with serving(house(), script) as one, sdk(one) as client:
        yield Talk(one, client)


@pytest.fixture(scope="module")
def modelled() -> Iterator[Talk]:
    with serving(house(parallel=0)) as one, sdk(one) as client:
        yield Talk(one, client)


def resumed(talk: Talk, heard: Heard, rows: int) -> dict[str, Any]:
    """What the usage says of a turn that went on where the last one ended, after `rows` tokens."""
    found, row = tandem(heard.usage), talk.row
    # A short one was a guest, and is in the pool.
    assert (found["tier"], found["source"]) in (("resident", "end"), ("ram_park", "park.end"))
    assert row.source == found["source"] and row.cached == found["cached"]
    assert row.prompt == found["cached"] + found["reread"]
    # The last token of an answer is mostly not forwarded when it ends.
    assert rows - found["cached"] in (0, 1), (rows, found)
    return found


def results(heard: Heard) -> list[dict[str, Any]]:
    return [
        {"role": "tool", "tool_call_id": id, "content": RESULTS[name]}
        for id, name, _ in heard.calls
    ]


Copy = Callable[[dict[str, Any]], dict[str, Any]]


def as_it_was(message: dict[str, Any]) -> dict[str, Any]:
    return message


def without_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name != "reasoning_content"}


def written_anew(message: dict[str, Any]) -> dict[str, Any]:
    """Arguments as another language would write them, keys sorted and spaced."""
    for call in message.get("tool_calls", ()):
        given = json.loads(call["function"]["arguments"])
        call["function"]["arguments"] = json.dumps(given, indent=1, sort_keys=True)
    return message


def stripped(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "content": message["content"].strip()}


COPIES = [as_it_was, without_reasoning, written_anew, stripped]


def check_loop(talk: Talk, copy: Copy, ask: Callable[..., Heard] = streamed) -> None:
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You tidy. " * 30}]
    messages.append(user(f"tidy up {copy.__name__} {ask.__name__}"))
    heard, steps = ask(talk.client, messages, tools=TOOLS), 1
    while heard.finish == "tool_calls":
        rows = talk.row.prompt + talk.row.output
        messages += [copy(heard.message), *results(heard)]
        heard, steps = ask(talk.client, messages, tools=TOOLS), steps + 1
        resumed(talk, heard, rows)
    assert steps == 3 and heard.content == "All tidy."
    rows = talk.row.prompt + talk.row.output
    messages += [copy(heard.message), user("thanks")]
    resumed(talk, ask(talk.client, messages, tools=TOOLS), rows)


@pytest.mark.parametrize("ask", [whole, streamed], ids=["whole", "streamed"])
@pytest.mark.parametrize("copy", COPIES)
def test_a_tool_loop_goes_on_where_the_answer_ended(
    scripted: Talk, copy: Copy, ask: Callable[..., Heard]
) -> None:
    check_loop(scripted, copy, ask)


def test_reasoning_comes_out_and_goes_in(scripted: Talk) -> None:
    for copy in (as_it_was, without_reasoning):
        asked = user(f"what then, {copy.__name__}?")
        first = whole(scripted.client, [asked])
        assert first.reasoning == "So they ask.\nWell."
        assert first.content == "An answer, in short.\n"
        assert 0 < first.usage.completion_tokens_details.reasoning_tokens < 12
        rows = scripted.row.prompt + scripted.row.output
        talk = [asked, copy(first.message), user("and then?")]
        found = resumed(scripted, whole(scripted.client, talk), rows)
        # The rows' thoughts are in what was served.
        assert (found["parts"]["injected"] > 0) == (copy is without_reasoning)


def check_budget(talk: Talk, effort: dict[str, Any], thought_max: int) -> None:
    phrase = talk.served.house.settings.serving.thinking_phrase
    hidden = len(DIALECT.tokenizer.encode(phrase, specials=False))
    messages = [user(f"think about {sorted(effort)} " * 6)]
    asked: dict[str, Any] = {"max_tokens": thought_max + hidden + 12, "temperature": 0, **effort}
    heard = streamed(talk.client, messages, **asked)
    once = whole(talk.client, messages, **asked)
    assert heard.said == once.said
    assert phrase.strip() not in heard.reasoning + heard.content and heard.content
    details = heard.usage.completion_tokens_details
    # The tokens and the mark behind them.
    assert details.reasoning_tokens == thought_max + bool(thought_max)
    assert talk.row.output - hidden * bool(thought_max) == heard.usage.completion_tokens
    tandem(heard.usage)


def test_a_thought_is_held_to_its_budget_and_what_ends_it_is_hidden(modelled: Talk) -> None:
    check_budget(modelled, {"extra_body": {"reasoning_budget": 9}}, 9)


@pytest.mark.parametrize("effort", ["minimal", "low"])
def test_an_effort_is_a_budget(modelled: Talk, effort: str) -> None:
    served = modelled.served.house
    before = served.settings
    served.settings = before.changed({"serving": {"thinking": {"minimal": 4, "low": 11}}})
    try:
        check_budget(modelled, {"reasoning_effort": effort}, {"minimal": 4, "low": 11}[effort])
    finally:
        served.settings = before


def test_without_an_effort_nothing_is_thought(modelled: Talk) -> None:
    check_budget(modelled, {"reasoning_effort": "none"}, 0)


def check_hidden_resumes(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    encode = DIALECT.tokenizer.encode
    phrase = talk.served.house.settings.serving.thinking_phrase
    hidden = len(encode(phrase, specials=False))
    thought = encode("Hm, let me see now.", specials=False)[:5].tolist()
    answer = encode("An answer.<|im_end|>", specials=True).tolist()
    gap = len(encode(DIALECT.gaps.content, specials=False))

    def written(self: Any, wish: Any, number: int) -> Rule:
        """A model that thinks until it is stopped, and then answers."""
        ids = np.array([*thought, *answer], np.int32)
        return Forced(ids, seed="", vocab=DIALECT.tokenizer.vocab, drafts=0, accepted=0.0)

    monkeypatch.setattr("serve.choice.Choosing._written", written)
    messages, rows = [user("say a word " * 30)], 0
    for turn in range(3):
        heard = streamed(talk.client, messages, extra_body={"reasoning_budget": 5})
        assert heard.reasoning == DIALECT.tokenizer.decode(np.array(thought, np.int32))
        assert heard.content == "An answer." and heard.finish == "stop"
        assert heard.usage.completion_tokens == len(thought) + 1 + gap + len(answer)
        if turn:
            resumed(talk, heard, rows)
            # The template has a line end where the phrase has its own.
            assert abs(tandem(heard.usage)["parts"]["injected"] - turn * hidden) <= 2 * turn
        rows = talk.row.prompt + talk.row.output
        messages += [heard.message, user("again")]


def test_a_hidden_phrase_is_put_in_again_for_the_next_turn(
    modelled: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_hidden_resumes(modelled, monkeypatch)


def test_a_picture_is_counted_and_met_again(scripted: Talk) -> None:
    shown = {
        "role": "user",
        "content": [text_part("What is this? " * 40), image_part(data_url(photo(3)))],
    }
    first = whole(scripted.client, [shown])
    found = tandem(first.usage)
    assert found["parts"]["images"] > 0 and found["tier"] == "none"
    again = whole(scripted.client, [shown])
    assert tandem(again.usage)["cached"] > found["parts"]["images"]
    other = {"role": "user", "content": [shown["content"][0], image_part(data_url(photo(4)))]}
    parted = tandem(whole(scripted.client, [other]).usage)
    assert parted["cached"] < again.usage.prompt_tokens - found["parts"]["images"]
    talk = [shown, again.message, user("and its colours?")]
    after = tandem(whole(scripted.client, talk).usage)
    assert after["parts"]["images"] == found["parts"]["images"]


def test_a_header_names_the_conversation(scripted: Talk) -> None:
    for name in ("ses_a", "ses_b"):
        headers = {"x-session-id": name}
        whole(scripted.client, [user("the same words")], extra_headers=headers)
        assert scripted.row.session == name
    whole(scripted.client, [user("the same words")], extra_body={"conversation_id": "ses_c"})
    assert scripted.row.session == "ses_c"
    whole(scripted.client, [user("the same words, and no name")])
    assert (scripted.row.session or "").startswith("auto-")


def test_two_conversations_in_turn_both_go_on(scripted: Talk) -> None:
    talks: dict[str, list[Any]] = {}
    for name in ("one", "two"):
        talks[name] = [user(f"{name}, a long question " * 60)]
    for turn in range(3):
        for name, messages in talks.items():
            headers = {"x-session-id": f"turns-{name}"}
            heard = streamed(scripted.client, messages, extra_headers=headers)
            if turn:
                found = tandem(heard.usage)
                assert found["source"] in ("end", "park.end"), found
            messages += [heard.message, user(f"go on {turn}")]


# Faults that the tests above must see.


def no_alignment(patch: pytest.MonkeyPatch, talk: Talk) -> None:
    patch.setattr(talk.served.house.meets, "on", False)


def nothing_hidden(patch: pytest.MonkeyPatch, talk: Talk) -> None:
    patch.setattr("serve.voice.Speaking.hidden", lambda self, answer: ())


def hidden_counted(patch: pytest.MonkeyPatch, talk: Talk) -> None:
    from serve import usage

    real = usage.usage_of
    patch.setattr(
        "serve.speech.usage_of",
        lambda rendered, row, written, *rest: real(rendered, row, row.output, *rest),
    )


def hidden_thought(patch: pytest.MonkeyPatch, talk: Talk) -> None:
    from serve import usage

    def wrong(rendered: Any, row: TurnRow, written: int, thought: int, *rest: Any) -> Any:
        return real(rendered, row, written, row.output, *rest)

    real = usage.usage_of
    patch.setattr("serve.speech.usage_of", wrong)


def all_of_the_window(patch: pytest.MonkeyPatch, talk: Talk) -> None:
    """An answer without a limit is taken for one that fills what the client's copy leaves."""

    def left(asked: Any, wish: Any) -> int:
        return talk.served.house.engine.window - len(asked.rendered.ids)

    patch.setattr(talk.served.service, "room", left)


def no_end(patch: pytest.MonkeyPatch, talk: Talk) -> None:
    patch.setattr(talk.served.house.box.stack.resident, "keeps_end", False)


def cached_of_sent(patch: pytest.MonkeyPatch, talk: Talk) -> None:
    from serve import usage

    def wrong(row: TurnRow, source: str | None = None) -> dict[str, Any]:
        return {**real(row, source), "reread": row.asked - row.cached}

    real = usage.cache_of
    patch.setattr(usage, "cache_of", wrong)


Plant = Callable[[pytest.MonkeyPatch, Talk], None]
CANARIES: list[tuple[str, Callable[[Talk], None], Plant]] = [
    ("scripted", lambda talk: check_loop(talk, without_reasoning), no_alignment),
    ("scripted", lambda talk: check_loop(talk, written_anew), no_alignment),
    ("scripted", lambda talk: check_loop(talk, as_it_was), no_end),
    ("scripted", lambda talk: check_loop(talk, without_reasoning), cached_of_sent),
    (
        "modelled",
        lambda talk: check_budget(talk, {"extra_body": {"reasoning_budget": 7}}, 7),
        nothing_hidden,
    ),
    (
        "modelled",
        lambda talk: check_budget(talk, {"extra_body": {"reasoning_budget": 7}}, 7),
        hidden_counted,
    ),
    (
        "modelled",
        lambda talk: check_budget(talk, {"extra_body": {"reasoning_budget": 7}}, 7),
        hidden_thought,
    ),
    ("scripted", lambda talk: check_loop(talk, without_reasoning), all_of_the_window),
]


@pytest.mark.parametrize(("where", "check", "plant"), CANARIES)
def test_canary(
    where: str,
    check: Callable[[Talk], None],
    plant: Plant,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    talk = request.getfixturevalue(where)
    plant(monkeypatch, talk)
    with pytest.raises(AssertionError):
        check(talk)
