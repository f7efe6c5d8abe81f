"""How long an answer may think, under every name that clients have for it"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator

from serve.errors import ApiError, bad_request, shown
from serve.wire import TOKENS_MAX, Budget, Whole
from serve.wish import Defaults

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
EFFORTS: tuple[str, ...] = get_args(Effort)


class Reasoning(BaseModel):
    """`reasoning`, as routers have it."""

    model_config = ConfigDict(strict=True)

    effort: Effort | None = None
    max_tokens: Budget | None = None
    enabled: bool | None = None


class Thinking(BaseModel):
    """`thinking`, as it came from another API."""

    model_config = ConfigDict(strict=True)

    type: Literal["enabled", "disabled", "auto", "adaptive"] | None = None
    budget_tokens: Annotated[Whole, Field(ge=0, le=TOKENS_MAX)] | None = None


class ThinkingFields(BaseModel):
    """Of a chat body. A switch that says no wins, then a number of tokens, then an effort."""

    model_config = ConfigDict(strict=True)

    reasoning_effort: Effort | None = None
    reasoning_budget: Budget | None = None
    thinking_budget: Budget | None = None
    thinking_token_budget: Budget | None = None
    max_reasoning_tokens: Budget | None = None
    reasoning: Reasoning | None = None
    thinking: bool | Thinking | None = None
    enable_thinking: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @field_validator("thinking", mode="before")
    @classmethod
    def _thinking(cls, value: Any) -> Any:
        if isinstance(value, dict):
            return Thinking.model_validate(value)
        if value is not None and not isinstance(value, bool):
            raise ValueError("should be true, false or an object")
        return value

    def thinking_max(self, defaults: Defaults) -> int | None:
        """Tokens of thinking; 0 is none at all, None no limit. Raises ApiError."""
        switches = [value for value in self._switches() if value is not None]
        if not all(switches):
            return 0
        budgets = [value for value in self._budgets() if value is not None]
        if budgets:
            return None if budgets[0] == -1 else budgets[0]
        efforts = [value for value in self._efforts() if value is not None]
        if efforts and efforts[0] in defaults.efforts:
            return defaults.efforts[efforts[0]]
        if efforts and efforts[0] == "none":
            return 0
        # Whoever asks for thinking, of a server that does none by itself, sets no limit to it.
        asks = bool(switches or efforts)
        return None if asks and defaults.thinking_max == 0 else defaults.thinking_max

    def _switches(self) -> list[bool | None]:
        object_ = self.thinking if isinstance(self.thinking, Thinking) else Thinking()
        return [
            self.enable_thinking,
            self.thinking if isinstance(self.thinking, bool) else None,
            None if object_.type is None else object_.type != "disabled",
            self.reasoning.enabled if self.reasoning else None,
            self._switch("enable_thinking"),
            self._switch("thinking"),
        ]

    def _budgets(self) -> list[int | None]:
        return [
            self.reasoning_budget,
            self.thinking_budget,
            self.thinking_token_budget,
            self.max_reasoning_tokens,
            self.reasoning.max_tokens if self.reasoning else None,
            self.thinking.budget_tokens if isinstance(self.thinking, Thinking) else None,
            self._kwarg_budget("thinking_budget"),
            self._kwarg_budget("reasoning_budget"),
        ]

    def _efforts(self) -> list[str | None]:
        given = (self.chat_template_kwargs or {}).get("reasoning_effort")
        if given is not None and given not in EFFORTS:
            raise _wrong("reasoning_effort", f"one of {', '.join(EFFORTS)}", given)
        return [self.reasoning_effort, self.reasoning.effort if self.reasoning else None, given]

    def _switch(self, name: str) -> bool | None:
        value = (self.chat_template_kwargs or {}).get(name)
        if value is not None and not isinstance(value, bool):
            raise _wrong(name, "true or false", value)
        return value

    def _kwarg_budget(self, name: str) -> int | None:
        value = (self.chat_template_kwargs or {}).get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not -1 <= value <= TOKENS_MAX:
            raise _wrong(name, "a number of tokens", value)
        return value


def _wrong(name: str, wanted: str, value: Any) -> ApiError:
    param = f"chat_template_kwargs.{name}"
    return bad_request(f"{param} should be {wanted}, not {shown(value)}.", param)
