"""The body of a chat completion request, checked; its messages stay as they were sent"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from engine.chat.messages import ROLES, ChatError, Message, See, messages_of
from serve.errors import ApiError, bad_request, shown, unsupported
from serve.wire import TOKENS_MAX, Body, Whole
from serve.wire_thinking import ThinkingFields
from serve.wish import Defaults, Wish

NAME = re.compile(r"[^\s<>\"\x00-\x1f\x7f]{1,256}")
"""A tool's name: it has to come through every form in which a model writes a call."""

Choice = Literal["auto", "none", "required"] | dict[str, Any]


class ChatBody(Body, ThinkingFields):
    """The body of `POST /v1/chat/completions`."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    tools: list[dict[str, Any]] | None = None
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = None
    functions: list[dict[str, Any]] | None = None
    function_call: Literal["auto", "none"] | dict[str, Any] | None = None
    max_completion_tokens: Annotated[Whole, Field(ge=1, le=TOKENS_MAX)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[Whole, Field(ge=0, le=20)] | None = None
    response_format: dict[str, Any] | None = None
    modalities: list[str] | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None

    @field_validator("messages", mode="before")
    @classmethod
    def _messages(cls, value: Any) -> Any:
        if not isinstance(value, list) or not value:
            raise ValueError("should be a list with a message in it")
        return value

    @field_validator("tool_choice", mode="before")
    @classmethod
    def _tool_choice(cls, value: Any) -> Any:
        if value is not None and value not in ("auto", "none", "required"):
            if isinstance(value, dict):
                return value
            raise ValueError("should be auto, none, required or an object that names a function")
        return value

    @field_validator("function_call", mode="before")
    @classmethod
    def _function_call(cls, value: Any) -> Any:
        if value is None or value in ("auto", "none") or isinstance(value, dict):
            return value
        raise ValueError("should be auto, none or an object with a name")

    def messages_in(self, see: See) -> tuple[Message, ...]:
        """The messages as the renderer takes them; raises ApiError."""
        try:
            return messages_of(self.messages, see)
        except ChatError as error:
            raise bad_request(f"{error}.", "messages") from None

    def tools_in(self) -> list[dict[str, Any]]:
        """The tools as they were sent, old-style functions among them; raises ApiError."""
        if not self.tools:
            old = [{"type": "function", "function": function} for function in self.functions or ()]
            return [_tool(tool, f"functions[{at}]") for at, tool in enumerate(old)]
        return [_tool(tool, f"tools[{at}]") for at, tool in enumerate(self.tools)]

    def choice_in(self) -> tuple[str, bool]:
        """(auto, none or required; or a tool's name, and then True); raises ApiError."""
        names = [tool["function"]["name"] for tool in self.tools_in()]
        param, choice = "tool_choice", self.tool_choice
        if choice is None and self.function_call is not None:
            param, choice = "function_call", self.function_call
        if choice is None or isinstance(choice, str):
            if choice == "required" and not names:
                raise bad_request("tool_choice is required, and there are no tools.", param)
            return choice or "auto", False
        if param == "tool_choice" and choice.get("type") != "function":
            raise unsupported(f"tool_choice has the type {shown(choice.get('type'))}.", param)
        named = choice.get("function") if param == "tool_choice" else choice
        name = named.get("name") if isinstance(named, dict) else None
        if not isinstance(name, str) or name not in names:
            raise bad_request(f"{param} names {shown(name)}, which is none of the tools.", param)
        return name, True

    def wish(self, defaults: Defaults) -> Wish:
        """What is asked of the answer; raises ApiError for what makes no sense."""
        self._check_form()
        self._check_continues()
        check_results(self.messages)
        choice, named = self.choice_in()
        newer = self.max_completion_tokens
        return Wish(
            model=self.model or "",
            stream=self.streams,
            include_usage=self.with_usage,
            n=self.n or 1,
            answer_max=self.max_tokens if newer is None else newer,
            stop=self.stops(),
            sampling=self.sampling(defaults),
            penalties=self.penalties(defaults),
            logprobs=self._logprobs(),
            thinking_max=self.thinking_max(defaults),
            tool_choice=choice,
            tool_named=named,
            parallel_tool_calls=self.parallel_tool_calls is not False,
        )

    def _check_form(self) -> None:
        """Answers are text, and are not held to a schema."""
        kind = "text" if self.response_format is None else self.response_format.get("type")
        if kind in ("json_object", "json_schema", "grammar", "structural_tag"):
            raise unsupported(f"response_format {kind} is not supported.", "response_format")
        if kind != "text":
            raise bad_request(f"response_format has the type {shown(kind)}.", "response_format")
        if set(self.modalities or ()) - {"text"}:
            raise unsupported("Answers are text only.", "modalities")

    def _logprobs(self) -> int | None:
        if self.logprobs:
            return self.top_logprobs or 0
        if self.top_logprobs:
            raise bad_request("top_logprobs needs logprobs to be true.", "top_logprobs")
        return None

    def _check_continues(self) -> None:
        """A last message of the assistant is gone on with, asked for or not; nothing else is."""
        param = "continue_final_message"
        if not self.continue_final_message:
            if self.add_generation_prompt is False:
                raise unsupported(
                    "Without a generation prompt there must be a message to continue.",
                    "add_generation_prompt",
                )
            return
        if self.add_generation_prompt:
            raise bad_request(f"{param} and add_generation_prompt exclude each other.", param)
        if self.messages[-1].get("role") != "assistant":
            raise bad_request(f"{param} needs a last message of the assistant.", param)


def check_results(messages: list[dict[str, Any]]) -> None:
    """Hold every tool result to a call that came before it, and roles to those known."""
    calls, called = set[str](), False
    for at, message in enumerate(messages):
        role = message.get("role")
        if not isinstance(role, str) or role not in ROLES:
            raise bad_request(
                f"messages[{at}] has the role {shown(role)}; there are {', '.join(ROLES)}.",
                f"messages[{at}].role",
            )
        if role == "assistant":
            for call in _calls(message, at):
                called = True
                calls.add(str(call.get("id") or ""))
        elif role == "tool" and (wrong := _result(message, at, calls, called)):
            raise wrong


def _calls(message: dict[str, Any], at: int) -> list[dict[str, Any]]:
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        param = f"messages[{at}].tool_calls"
        raise bad_request(f"{param} should be a list of objects.", param)
    return calls


def _result(message: dict[str, Any], at: int, calls: set[str], called: bool) -> ApiError | None:
    """Why a tool's result belongs to no call; None when it does."""
    given, param = message.get("tool_call_id"), f"messages[{at}].tool_call_id"
    if given is not None and not isinstance(given, str):
        return bad_request(f"{param} should be a string, not {shown(given)}.", param)
    if not called:
        return bad_request(
            f"messages[{at}] is the result of the tool call {shown(given)}, and no message before "
            "it has tool calls.",
            param,
        )
    # Without an id, on one side or the other, the order says which call is meant.
    if given and given not in calls and "" not in calls:
        return bad_request(
            f"messages[{at}] is the result of the tool call {shown(given)}, which no message "
            "before it has.",
            param,
        )
    return None


def _tool(tool: dict[str, Any], param: str) -> dict[str, Any]:
    """A tool, when it is a function with a name; raises ApiError."""
    if tool.get("type", "function") != "function":
        raise unsupported(f"{param} has the type {shown(tool['type'])}; functions only.", param)
    function = tool.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(function, dict) or not isinstance(name, str):
        raise bad_request(f"{param} has no function with a name.", f"{param}.function.name")
    if not NAME.fullmatch(name):
        raise bad_request(
            f"{param} has the name {shown(name)}; a name is 1 to 256 characters, without blanks, "
            "quotes or angle brackets.",
            f"{param}.function.name",
        )
    wrong = function.get("parameters")
    if wrong is not None and not isinstance(wrong, dict):
        raise bad_request(f"{param} has parameters that are no object.", f"{param}.function")
    return tool
