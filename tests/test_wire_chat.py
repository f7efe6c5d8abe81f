"""A chat body: the shapes that real clients send, tools and who must call one, results of calls.

Method: bodies in the shapes that opencode and Open WebUI were recorded with are accepted; tables of
what each field means, and of what is refused with the message and field that is named.
"""

from __future__ import annotations

from typing import Any

import pytest

from engine.chat.messages import blind
from serve import wire_chat
from serve.errors import ApiError
from serve.wire_chat import ChatBody, check_results
from serve.wish import Defaults, Wish

DEFAULTS = Defaults(vocab=100, seed=1)
USER: dict[str, Any] = {"role": "user", "content": "x"}
GREP = {"type": "function", "function": {"name": "grep", "parameters": {"type": "object"}}}
READ = {"type": "function", "function": {"name": "mcp.read-file/2", "description": "Reads"}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "grep", "arguments": "{}"}}
CALLED = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "found"}


def wish(*messages: dict[str, Any], **fields: Any) -> Wish:
    return ChatBody.of({"messages": list(messages) or [USER], **fields}).wish(DEFAULTS)


def refused(*messages: dict[str, Any], **fields: Any) -> ApiError:
    with pytest.raises(ApiError) as error:
        wish(*messages, **fields)
    assert error.value.status == 400
    return error.value


# what real clients send

RECORDED: list[dict[str, Any]] = [
    {  # opencode: a turn inside a tool loop
        "model": "rc-model",
        "max_tokens": 32_000,
        "messages": [
            {"role": "system", "content": "You are opencode"},
            USER,
            {**CALLED, "reasoning_content": "First I look."},
            RESULT,
            {"role": "user", "content": [{"type": "text", "text": "Plan mode is active."}]},
        ],
        "tools": [GREP, READ],
        "tool_choice": "auto",
        "stream": True,
        "stream_options": {"include_usage": True},
        "promptCacheKey": "ses_dd6613bd8ffe",
        "chat_template_kwargs": {"enable_thinking": True},
        "reasoning_effort": "high",
    },
    {  # opencode: a broken call came back under another name
        "model": "rc-model",
        "messages": [
            USER,
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{**CALL, "function": {"name": "invalid", "arguments": '{"a":1}'}}],
            },
            RESULT,
        ],
        "stream": True,
    },
    {"stream": True, "model": "m", "messages": [USER], "tools": [GREP] * 36},  # Open WebUI
    {  # Open WebUI: a title, then an answer that is continued
        "model": "m",
        "messages": [USER],
        "stream": False,
        "max_tokens": 1_000,
        "temperature": 0.5,
        "top_p": 0.95,
    },
    {
        "stream": True,
        "model": "m",
        "messages": [USER, {"role": "assistant", "content": "So", "reasoning_content": "Hm"}],
        "continue_final_message": True,
        "add_generation_prompt": False,
    },
    {  # nulls where a library writes every field it has
        "model": "m",
        "messages": [{**USER, "name": None}, {**CALLED, "content": None}, RESULT],
        "tools": None,
        "tool_choice": None,
        "response_format": {"type": "text"},
        "logprobs": False,
        "stop": None,
        "store": False,
        "service_tier": "auto",
    },
]


@pytest.mark.parametrize("body", RECORDED, ids=range(len(RECORDED)))
def test_what_real_clients_send_is_accepted(body: dict[str, Any]) -> None:
    read = ChatBody.of(body)
    assert read.wish(DEFAULTS).answer_max == body.get("max_tokens")
    assert len(read.messages_in(blind)) == len(body["messages"])
    assert read.tools_in() == (body.get("tools") or [])


# tools


def test_who_may_and_must_call() -> None:
    tools = [GREP, READ]
    assert not wish(tools=tools).must_call and wish(tools=tools).tool_choice == "auto"
    assert wish(tools=tools, tool_choice="none").tool_choice == "none"
    assert wish(tools=tools, tool_choice="required").must_call
    named = {"type": "function", "function": {"name": "grep"}}
    found = wish(tools=tools, tool_choice=named, parallel_tool_calls=False)
    assert (found.tool_choice, found.tool_named, found.must_call) == ("grep", True, True)
    assert not found.parallel_tool_calls and wish().parallel_tool_calls
    none = {"type": "function", "function": {"name": "none"}}
    assert wish(tools=[none], tool_choice=none).must_call
    assert wish(tool_choice="auto").tool_choice == "auto"


def test_functions_are_tools_in_the_older_way() -> None:
    body = ChatBody.of({"messages": [USER], "functions": [GREP["function"]]})
    assert body.tools_in() == [GREP]
    functions = [GREP["function"]]
    found = wish(functions=functions, function_call={"name": "grep"})
    assert (found.tool_choice, found.tool_named) == ("grep", True)
    assert wish(functions=functions, function_call="none").tool_choice == "none"
    assert refused(functions=functions, function_call={"name": "x"}).param == "function_call"
    assert refused(functions=[{"description": "x"}]).param == "functions[0].function.name"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "any", "tools": [GREP]}, "tool_choice"),
        ({"tool_choice": 3, "tools": [GREP]}, "tool_choice"),
        ({"tool_choice": {"type": "function"}, "tools": [GREP]}, "tool_choice"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "x"}}, "tools": [GREP]},
            "tool_choice",
        ),
        ({"tool_choice": {"type": "allowed_tools"}, "tools": [GREP]}, "tool_choice"),
        ({"tools": [3]}, "tools[0]"),
        ({"tools": {"a": 1}}, "tools"),
        ({"tools": [GREP, {"type": "web_search"}]}, "tools[1]"),
        ({"tools": [{"type": "function"}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a>"}}]}, "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "parameters": 3}}]},
            "tools[0].function",
        ),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
    ],
    ids=str,
)
def test_tools_that_make_no_sense_are_refused(fields: dict[str, Any], param: str) -> None:
    assert refused(**fields).param == param


# messages


def test_a_result_needs_a_call_before_it() -> None:
    assert wish(USER, CALLED, RESULT, RESULT)
    # Without ids the order says which call is meant.
    assert wish(USER, CALLED, {"role": "tool", "content": "found"})
    unnamed = {"role": "assistant", "tool_calls": [{"function": {"name": "grep"}}]}
    assert wish(USER, unnamed, RESULT)
    error = refused(USER, RESULT, CALLED)
    assert error.param == "messages[1].tool_call_id"
    assert "'call_1'" in error.message and "no message before it" in error.message
    error = refused(USER, CALLED, {**RESULT, "tool_call_id": "call_2"})
    assert "'call_2'" in error.message and error.param == "messages[2].tool_call_id"
    assert refused(USER, CALLED, {**RESULT, "tool_call_id": 5}).param == "messages[2].tool_call_id"


def test_messages_that_make_no_sense_are_refused() -> None:
    error = refused(USER, {"role": "wizard", "content": "x"})
    assert error.param == "messages[1].role" and "'wizard'" in error.message
    assert refused({"content": "x"}).param == "messages[0].role"
    assert refused({**USER, "role": ["user"]}).param == "messages[0].role"
    assert refused(messages=[]).param == "messages"
    assert refused(messages="x").param == "messages"
    assert refused(messages=None).param == "messages"
    assert refused(messages=[3]).param == "messages[0]"
    assert refused({**CALLED, "tool_calls": 3}).param == "messages[0].tool_calls"
    with pytest.raises(ApiError) as missing:
        ChatBody.of({"model": "m"})
    assert missing.value.message == "messages is missing."


def test_what_the_renderer_refuses_is_the_clients_mistake() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    for content in ([image], 3, [{"type": "sound"}]):
        body = ChatBody.of({"messages": [{"role": "user", "content": content}]})
        with pytest.raises(ApiError) as error:
            body.messages_in(blind)
        assert error.value.status == 400 and error.value.param == "messages"
        assert error.value.message.startswith("message 0")


# the answer


def test_the_newer_limit_wins() -> None:
    assert wish(max_tokens=5, max_completion_tokens=7).answer_max == 7
    assert wish(max_tokens=5).answer_max == 5 and wish().answer_max is None
    assert refused(max_completion_tokens=0).param == "max_completion_tokens"


def test_logprobs_and_how_many() -> None:
    assert wish().logprobs is None and wish(logprobs=False, top_logprobs=0).logprobs is None
    assert wish(logprobs=True).logprobs == 0
    assert wish(logprobs=True, top_logprobs=20).logprobs == 20
    assert refused(top_logprobs=5).param == "top_logprobs"
    assert refused(logprobs=True, top_logprobs=21).param == "top_logprobs"
    assert refused(logprobs=5).param == "logprobs"


def test_what_no_answer_is_held_to_is_refused() -> None:
    assert wish(response_format={"type": "text"}, modalities=["text"])
    for kind in ("json_object", "json_schema"):
        error = refused(response_format={"type": kind, "json_schema": {}})
        assert (error.param, error.code) == ("response_format", "unsupported_parameter")
    assert refused(response_format={}).param == "response_format"
    assert refused(modalities=["text", "audio"]).code == "unsupported_parameter"


def test_an_answer_that_goes_on() -> None:
    begun = {"role": "assistant", "content": "So"}
    for more in ({"continue_final_message": True}, {}, {"add_generation_prompt": True}):
        assert wish(USER, begun, **more) == wish(USER, begun)
    assert refused(USER, continue_final_message=True).param == "continue_final_message"
    both = {"continue_final_message": True, "add_generation_prompt": True}
    assert refused(USER, begun, **both).param == "continue_final_message"
    assert refused(add_generation_prompt=False).param == "add_generation_prompt"


def test_canary_results_that_nobody_checks_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    check_results([CALLED, RESULT])
    with pytest.raises(ApiError):
        check_results([RESULT])
    monkeypatch.setattr(wire_chat, "_result", lambda *message: None)
    check_results([RESULT])
