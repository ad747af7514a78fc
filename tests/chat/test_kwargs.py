"""Which template variables a request sets."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxcel.chat.errors import PromptError
from mlxcel.chat.kwargs import merge, request_kwargs, server_kwargs
from mlxcel.config import ChatConfig

ABSENT = st.none()
names = st.sampled_from(["enable_thinking", "reasoning_effort", "other", "ключ"])
variables = st.dictionaries(names, st.integers() | st.text(max_size=3), max_size=3)
flags = st.booleans()


@given(
    root=ABSENT | variables,
    nested=ABSENT | variables,
    flat_root=ABSENT | flags,
    flat_nested=ABSENT | flags,
    use_extra=st.booleans(),
)
def test_the_first_shape_present_is_the_only_one(
    root: Any, nested: Any, flat_root: Any, flat_nested: Any, use_extra: bool
) -> None:
    extra = {"chat_template_kwargs": nested, "preserve_thinking": flat_nested} if use_extra else None
    shapes = [root, nested if use_extra else None]
    shapes += [
        None if flag is None else {"preserve_thinking": flag}
        for flag in (flat_root, flat_nested if use_extra else None)
    ]
    expected = next((shape for shape in shapes if shape is not None), {})
    assert request_kwargs(root, extra, flat_root, None) == expected


@given(effort=st.text(max_size=8), chosen=variables)
def test_effort_never_overrides_explicit_variables(effort: str, chosen: dict[str, Any]) -> None:
    result = request_kwargs(chosen, None, None, effort)
    assert {key: result[key] for key in chosen} == chosen
    assert isinstance(result["enable_thinking"], bool) or "enable_thinking" in chosen


@pytest.mark.parametrize("effort", ["none", "off", "disabled", "false", "0", " None ", "OFF"])
def test_effort_that_switches_thinking_off(effort: str) -> None:
    assert request_kwargs(None, None, None, effort) == {"enable_thinking": False}


@pytest.mark.parametrize("effort", ["low", "High", " x ", ""])
def test_any_other_effort_is_forwarded_verbatim(effort: str) -> None:
    assert request_kwargs(None, None, None, effort) == {"enable_thinking": True, "reasoning_effort": effort}


@given(defaults=variables, request=variables)
def test_merge_lets_the_request_win_per_key(defaults: dict[str, Any], request: dict[str, Any]) -> None:
    merged = merge(defaults, request)
    assert merged.keys() == defaults.keys() | request.keys()
    assert all(merged[key] == request.get(key, defaults.get(key)) for key in merged)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], None, None, None), "chat_template_kwargs must be an object"),
        ((None, "x", None, None), "extra_body must be an object"),
        ((None, {"chat_template_kwargs": 1}, None, None), "extra_body.chat_template_kwargs must be an object"),
        ((None, None, "yes", None), "preserve_thinking must be true or false"),
        ((None, {"preserve_thinking": 1}, None, None), "preserve_thinking must be true or false"),
        (({"preserve_thinking": "no"}, None, None, None), "preserve_thinking must be true or false"),
        ((None, None, None, 3), "reasoning_effort must be a string"),
        (({"messages": []}, None, None, None), "cannot set 'messages'"),
        ((None, {"chat_template_kwargs": {"tools": []}}, None, None), "cannot set 'tools'"),
    ],
)
def test_wrong_types_are_refused(arguments: tuple[Any, Any, Any, Any], message: str) -> None:
    with pytest.raises(PromptError, match=message):
        request_kwargs(*arguments)


def test_the_given_objects_are_not_changed_or_shared() -> None:
    given_variables = {"a": 1}
    request_kwargs(given_variables, None, None, "low")["a"] = 2
    assert given_variables == {"a": 1}


def test_what_the_flags_set() -> None:
    assert server_kwargs(ChatConfig(), {}) == {}
    assert server_kwargs(ChatConfig(reasoning=False), {}) == {"enable_thinking": False}
    assert server_kwargs(ChatConfig(reasoning_effort="low"), {}) == {"enable_thinking": True, "reasoning_effort": "low"}
    assert server_kwargs(ChatConfig(reasoning_effort="none"), {}) == {"enable_thinking": False}
    both = ChatConfig(reasoning=False, reasoning_effort="low", reasoning_preserve=True)
    assert server_kwargs(both, {"enable_thinking": "x", "a": 1}) == {
        "enable_thinking": "x",
        "reasoning_effort": "low",
        "preserve_thinking": True,
        "preserve_reasoning": True,
        "a": 1,
    }
