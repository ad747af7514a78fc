"""Fields that are known and not served."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mlxcel.api.errors import ApiError
from mlxcel.api.openai.schema import ChatRequest
from mlxcel.api.openai.unserved import check_fields, check_tools

TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


def chat(**values: Any) -> ChatRequest:
    return msgspec.convert({"messages": [], **values}, ChatRequest)


def refusal(check: Any, **values: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        check(chat(**values))
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    "values",
    [
        {"grammar": "", "json_schema": {}},
        {"thinking_budget_tokens": -1, "thinking_budget": None},
        {"cache_prompt": False, "user": "u", "metadata": {"a": 1}},
        {"cache_prompt": True},
    ],
)
def test_values_that_ask_for_nothing_are_accepted(values: dict[str, Any]) -> None:
    check_fields(chat(**values))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("thinking_budget_tokens", 0),
        ("reasoning_budget_tokens", 100),
        ("thinking_token_budget", 100),
        ("thinking_budget", 100),
        ("grammar", "root ::= x"),
        ("json_schema", {"type": "object"}),
    ],
)
def test_values_that_ask_for_something_are_refused_by_name(name: str, value: Any) -> None:
    error = refusal(check_fields, **{name: value})
    assert error.param == name
    assert name in error.message
    assert "not supported by this version" in error.message


def test_tools() -> None:
    for values in ({}, {"tools": []}, {"tools": None, "tool_choice": "auto"}, {"tool_choice": "none"}):
        check_tools(chat(**values))
    error = refusal(check_tools, tools=[TOOL], tool_choice="auto")
    assert (error.message, error.param) == ("tools are not supported by this version", "tools")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}, {}, "sometimes", ""])
def test_choices_that_need_tools(choice: Any) -> None:
    assert refusal(check_tools, tool_choice=choice).param == "tool_choice"
