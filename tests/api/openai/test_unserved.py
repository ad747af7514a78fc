"""Fields that are known and not served."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mlxcel.api.errors import ApiError
from mlxcel.api.openai.schema import ChatRequest
from mlxcel.api.openai.unserved import check_fields


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
        {"cache_prompt": False, "user": "u", "metadata": {"a": 1}},
        {"cache_prompt": True},
        {"samplers": ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]},
        {"samplers": "edskypmxt"},
    ],
)
def test_values_that_ask_for_nothing_are_accepted(values: dict[str, Any]) -> None:
    check_fields(chat(**values))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("grammar", "root ::= x"),
        ("json_schema", {"type": "object"}),
        ("samplers", ["top_k", "temperature"]),
        ("samplers", "kt"),
    ],
)
def test_values_that_ask_for_something_are_refused_by_name(name: str, value: Any) -> None:
    error = refusal(check_fields, **{name: value})
    assert error.param == name
    assert name in error.message
    assert "not supported by this version" in error.message
