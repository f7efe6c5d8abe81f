"""The fields that both completion routes have: defaults, bounds, and one clear line for each fault.

Method: table of what is accepted and what comes of it, table of what is refused with the field that
is named; hypothesis puts any JSON value into any field, and nothing but an ApiError may come out.
"""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.penalties import Penalties
from engine.sampling import Sampling
from serve.errors import ApiError
from serve.wire import STOPS_MAX
from serve.wire_chat import ChatBody
from serve.wire_completion import CompletionBody
from serve.wish import Defaults, Wish

VOCAB = 100
MODEL = Sampling(temperature=0.6, top_p=0.95, top_k=20)
DEFAULTS = Defaults(VOCAB, 77, MODEL, 1.05, None, {"low": 512})
USER = [{"role": "user", "content": "x"}]


def chat(**fields: Any) -> Wish:
    return ChatBody.of({"messages": USER, **fields}).wish(DEFAULTS)


def refused(**fields: Any) -> ApiError:
    """Why both routes refuse the fields, in the same words."""
    errors = []
    for body in (ChatBody, CompletionBody):
        with pytest.raises(ApiError) as error:
            body.of({"messages": USER, "prompt": "x", **fields}).wish(DEFAULTS)
        errors.append(error.value)
    a, b = errors
    assert (a.status, a.message, a.param) == (b.status, b.message, b.param)
    assert a.status == 400 and a.param
    return a


def test_what_is_absent_or_null_is_the_models_own() -> None:
    named = {name: None for name in ChatBody.model_fields if name != "messages"}
    for wish in (chat(), chat(**named)):
        assert wish == Wish(
            sampling=Sampling(0.6, 0.95, 20, seed=77), penalties=Penalties(repetition=1.05)
        )


def test_what_is_named_counts() -> None:
    wish = chat(
        model="m",
        stream=True,
        stream_options={"include_usage": True, "other": 3},
        n=3.0,
        max_tokens=10,
        stop=["a", "b", "a"],
        seed=-5,
        temperature=1,
        top_p=0.5,
        top_k=-1,
        min_p=0.1,
        presence_penalty=-2,
        frequency_penalty=2.0,
        repetition_penalty=1.2,
        logit_bias={"50": 3, "7": -100, "9": 0},
        user="somebody",
        metadata={"a": "b"},
        nobody_knows_this={"a": [1]},
    )
    assert wish == Wish(
        "m",
        stream=True,
        include_usage=True,
        n=3,
        answer_max=10,
        stop=("a", "b"),
        sampling=Sampling(1.0, 0.5, 0, -5, 0.1),
        penalties=Penalties(-2.0, 2.0, 1.2, ((7, -100.0), (50, 3.0))),
    )
    assert not chat(stream=False, stream_options={}).include_usage
    assert chat(stop="end").stop == ("end",) and chat(stop=[]).stop == ()


@pytest.mark.parametrize("temperature", [0, 0.0, 1e-9, 5e-324])
def test_no_warmth_is_greedy(temperature: float) -> None:
    assert chat(temperature=temperature).greedy and not chat(temperature=0.01).greedy


WRONG: list[tuple[str, Any]] = [
    ("n", 0),
    ("n", 9),
    ("n", True),
    ("n", "2"),
    ("n", 1.5),
    ("n", 10**400),
    ("n", math.nan),
    ("max_tokens", 0),
    ("max_tokens", -1),
    ("max_tokens", 2**31),
    ("max_tokens", 1e300),
    ("temperature", -0.1),
    ("temperature", 2.1),
    ("temperature", "1"),
    ("temperature", False),
    ("temperature", math.nan),
    ("temperature", math.inf),
    ("temperature", 10**400),
    ("temperature", [1]),
    ("top_p", 0),
    ("top_p", 1.1),
    ("top_k", -2),
    ("top_k", 2**40),
    ("min_p", -0.1),
    ("min_p", 1.1),
    ("presence_penalty", 2.1),
    ("frequency_penalty", -2.1),
    ("repetition_penalty", 0),
    ("repetition_penalty", 1e-300),
    ("repetition_penalty", 1e300),
    ("seed", 2**63),
    ("seed", "1"),
    ("seed", 0.5),
    ("stop", 3),
    ("stop", [3]),
    ("stop", ""),
    ("stop", ["a", ""]),
    ("stop", ["x"] * (STOPS_MAX + 1)),
    ("stop", "x" * 1_001),
    ("stop", {"a": "b"}),
    ("stream", 1),
    ("stream", "true"),
    ("stream_options", 3),
    ("stream_options", {"include_usage": 1}),
    ("logit_bias", [1]),
    ("logit_bias", {"x": 1}),
    ("logit_bias", {"-1": 1}),
    ("logit_bias", {" 5": 1}),
    ("logit_bias", {"٣": 1}),
    ("logit_bias", {"1_0": 1}),
    ("logit_bias", {str(VOCAB): 1}),
    ("logit_bias", {"9" * 5_000: 1}),
    ("logit_bias", {"5": 101}),
    ("logit_bias", {"5": True}),
    ("logit_bias", {str(key): 1 for key in range(1_025)}),
    ("model", 3),
    ("user", {"a": 1}),
    ("metadata", "x"),
    ("guided_json", {}),
    ("grammar", "root ::= x"),
    ("structured_outputs", {"regex": "x"}),
]


@pytest.mark.parametrize(("name", "value"), WRONG, ids=lambda value: str(value)[:20])
def test_what_makes_no_sense_is_refused_by_name(name: str, value: Any) -> None:
    error = refused(**{name: value})
    assert error.param is not None and error.param.split(".")[0].split("[")[0] == name
    assert name in error.message and len(error.message) < 300
    assert "dictionary" not in error.message and "Value error" not in error.message
    json.dumps(error.body(), allow_nan=False)


def test_the_field_inside_is_named() -> None:
    assert refused(stream_options={"include_usage": 1}).param == "stream_options.include_usage"
    assert refused(logit_bias={"5": 101}).param == "logit_bias.5"
    assert refused(n=9).message == "n should be less than or equal to 8, not 9."
    assert refused(grammar="x").code == "unsupported_parameter"


@pytest.mark.parametrize("value", [None, 3, "x", [], [{}], True])
def test_a_body_that_is_no_object_is_refused(value: Any) -> None:
    for body in (ChatBody, CompletionBody):
        with pytest.raises(ApiError) as error:
            body.of(value)
        assert error.value.status == 400 and "object" in error.value.message


def test_the_schema_says_the_bounds() -> None:
    """What the OpenAPI document shows is what is checked."""
    fields = ChatBody.model_json_schema()["properties"]
    (bounds,) = (kind for kind in fields["temperature"]["anyOf"] if kind["type"] == "number")
    assert (bounds["minimum"], bounds["maximum"]) == (0.0, 2.0)
    assert fields["messages"]["minItems"] == 1


# any value in any field

VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-3, 3),
        st.integers(),
        st.floats(),
        st.text(max_size=5),
        st.sampled_from(["auto", "none", "required", "function", "user", "assistant", "tool"]),
        st.just(10**400),
        st.just("\ud800"),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.one_of(
                st.text(max_size=3),
                st.sampled_from(["role", "content", "type", "function", "name", "tool_calls"]),
                st.sampled_from(["effort", "tool_call_id", "id", "enable_thinking", "parameters"]),
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=8,
)


def outcome(body: type[ChatBody] | type[CompletionBody], data: dict[str, Any]) -> int:
    """200 or the status of the refusal; whatever else is raised fails the test."""
    try:
        read = body.of(data)
        read.wish(DEFAULTS)
        if isinstance(read, ChatBody):
            read.tools_in()
    except ApiError as error:
        json.dumps(error.body(), allow_nan=False, ensure_ascii=False).encode()
        return error.status
    return 200


@given(st.data())
@settings(max_examples=2 * settings().max_examples)
def test_any_value_in_any_field_is_taken_or_refused(data: st.DataObject) -> None:
    for body in (ChatBody, CompletionBody):
        names = st.sampled_from(sorted(body.model_fields))
        fields = data.draw(st.dictionaries(names, VALUES, max_size=3))
        assert outcome(body, {"messages": USER, "prompt": "x", **fields}) in (200, 400)


def test_canary_a_fault_that_is_no_refusal_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were a bound left to the sampler, its assertion would come out as a server's error."""
    monkeypatch.setattr(ChatBody, "sampling", lambda body, defaults: Sampling(top_p=0.0))
    with pytest.raises(AssertionError):
        outcome(ChatBody, {"messages": USER})
