"""The thinking budget: every name that clients have for it, and which one wins.

Method: a table of bodies and the budget of each, another of bodies that are refused.
Covers serve.wire_thinking.
"""

from __future__ import annotations

from typing import Any

import pytest

from serve.errors import ApiError
from serve.wire_chat import ChatBody
from serve.wish import Defaults

EFFORTS = {"minimal": 0, "low": 512, "medium": 2_048, "high": None}
USER = [{"role": "user", "content": "x"}]


def budget(unsaid: int | None = 1_000, **fields: Any) -> int | None:
    defaults = Defaults(100, 1, thinking_max=unsaid, efforts=EFFORTS)
    return ChatBody.of({"messages": USER, **fields}).wish(defaults).thinking_max


CASES: list[tuple[dict[str, Any], int | None]] = [
    ({}, 1_000),
    ({"reasoning_effort": "none"}, 0),
    ({"reasoning_effort": "minimal"}, 0),
    ({"reasoning_effort": "low"}, 512),
    ({"reasoning_effort": "medium"}, 2_048),
    ({"reasoning_effort": "high"}, None),
    ({"reasoning_effort": "xhigh"}, 1_000),
    ({"reasoning_budget": 7}, 7),
    ({"reasoning_budget": -1}, None),
    ({"reasoning_budget": 0}, 0),
    ({"thinking_budget": 8}, 8),
    ({"thinking_token_budget": 9.0}, 9),
    ({"max_reasoning_tokens": 10}, 10),
    ({"reasoning": {"max_tokens": 11}}, 11),
    ({"reasoning": {"effort": "low", "exclude": True}}, 512),
    ({"reasoning": {"enabled": False}}, 0),
    ({"reasoning": {"enabled": True}}, 1_000),
    ({"thinking": {"type": "enabled", "budget_tokens": 12}}, 12),
    ({"thinking": {"type": "disabled"}}, 0),
    ({"thinking": {"type": "adaptive"}}, 1_000),
    ({"thinking": False}, 0),
    ({"thinking": True}, 1_000),
    ({"enable_thinking": False}, 0),
    ({"enable_thinking": True}, 1_000),
    ({"chat_template_kwargs": {"enable_thinking": False}}, 0),
    ({"chat_template_kwargs": {"enable_thinking": True}}, 1_000),
    ({"chat_template_kwargs": {"thinking": False}}, 0),
    ({"chat_template_kwargs": {"thinking_budget": 13}}, 13),
    ({"chat_template_kwargs": {"reasoning_effort": "low", "other": [1]}}, 512),
    # which one wins
    ({"enable_thinking": False, "thinking_budget": 5, "reasoning_effort": "high"}, 0),
    ({"enable_thinking": True, "chat_template_kwargs": {"thinking": False}}, 0),
    ({"thinking_budget": 5, "reasoning_effort": "high"}, 5),
    ({"reasoning_effort": "low", "reasoning": {"effort": "high"}}, 512),
]


@pytest.mark.parametrize(("fields", "wanted"), CASES, ids=str)
def test_each_name_gives_its_budget(fields: dict[str, Any], wanted: int | None) -> None:
    assert budget(**fields) == wanted


def test_who_asks_for_thinking_where_none_is_the_rule_gets_it() -> None:
    assert budget(0) == 0 and budget(0, reasoning_effort="none") == 0
    assert budget(0, enable_thinking=True) is None
    assert budget(0, reasoning_effort="xhigh") is None
    assert budget(0, reasoning_effort="low") == 512
    assert budget(None) is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
        ({"reasoning_effort": 3}, "reasoning_effort"),
        ({"reasoning_budget": -2}, "reasoning_budget"),
        ({"thinking_budget": True}, "thinking_budget"),
        ({"thinking_budget": 2**31}, "thinking_budget"),
        ({"reasoning": "low"}, "reasoning"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"reasoning": {"max_tokens": "5"}}, "reasoning.max_tokens"),
        ({"thinking": 3}, "thinking"),
        ({"thinking": {"type": "much"}}, "thinking.type"),
        ({"enable_thinking": "false"}, "enable_thinking"),
        ({"chat_template_kwargs": [1]}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"thinking": "no"}}, "chat_template_kwargs.thinking"),
        (
            {"chat_template_kwargs": {"thinking_budget": True}},
            "chat_template_kwargs.thinking_budget",
        ),
        (
            {"chat_template_kwargs": {"reasoning_effort": ["low"]}},
            "chat_template_kwargs.reasoning_effort",
        ),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as error:
        budget(**fields)
    assert (error.value.status, error.value.param) == (400, param)


def test_canary_a_switch_that_is_read_as_absent_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChatBody, "_switch", lambda body, name: None)
    wrong = [fields for fields, wanted in CASES if budget(**fields) != wanted]
    assert wrong and all("chat_template_kwargs" in fields for fields in wrong)
