"""Template variables a client may set: the shapes they come in, and which one wins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from mlxcel.chat.errors import PromptError
from mlxcel.config import ChatConfig

_RESERVED = frozenset({"messages", "tools"})
_EFFORT_OFF = frozenset({"none", "off", "disabled", "false", "0"})


def request_kwargs(
    chat_template_kwargs: Any, extra_body: Any, preserve_thinking: Any, reasoning_effort: Any
) -> dict[str, Any]:
    """Template variables of one request, from the raw JSON values of its fields (None: absent).

    The first of these that is present counts, the others are not looked at: `chat_template_kwargs`;
    `extra_body.chat_template_kwargs`; `preserve_thinking` as a field of its own, at the root (where the OpenAI SDK
    puts the fields of its `extra_body` argument) or else inside `extra_body`.

    `reasoning_effort` adds `enable_thinking`, and `reasoning_effort` itself unless it switches thinking off. Keys
    that the variables above hold already are left as they are.

    Raises PromptError when a value has the wrong JSON type or names a variable the server sets.
    """
    nested = _optional_object(extra_body, "extra_body") or {}
    if chat_template_kwargs is not None:
        chosen = _variables(chat_template_kwargs, "chat_template_kwargs")
    elif nested.get("chat_template_kwargs") is not None:
        chosen = _variables(nested["chat_template_kwargs"], "extra_body.chat_template_kwargs")
    else:
        flat = nested.get("preserve_thinking") if preserve_thinking is None else preserve_thinking
        chosen = {} if flat is None else {"preserve_thinking": flat}
    if not isinstance(chosen.get("preserve_thinking", False), bool):
        raise PromptError("preserve_thinking must be true or false")
    return {**_effort_variables(reasoning_effort), **chosen}


def server_kwargs(config: ChatConfig, chat_template_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Template variables of requests that do not set them. `chat_template_kwargs` wins over the other flags."""
    variables = _effort_variables(config.reasoning_effort)
    if config.reasoning is not None:
        variables["enable_thinking"] = config.reasoning
    if config.reasoning_preserve:
        variables |= {"preserve_reasoning": True, "preserve_thinking": True}
    return {**variables, **chat_template_kwargs}


def merge(server_defaults: Mapping[str, Any], request: Mapping[str, Any]) -> dict[str, Any]:
    """Server-wide template variables with those of a request over them, key by key."""
    return {**server_defaults, **request}


def _effort_variables(reasoning_effort: Any) -> dict[str, Any]:
    if reasoning_effort is None:
        return {}
    if not isinstance(reasoning_effort, str):
        raise PromptError("reasoning_effort must be a string")
    if reasoning_effort.strip().lower() in _EFFORT_OFF:
        return {"enable_thinking": False}
    return {"enable_thinking": True, "reasoning_effort": reasoning_effort}


def _variables(value: Any, field: str) -> dict[str, Any]:
    variables = _optional_object(value, field) or {}
    for name in sorted(_RESERVED & variables.keys()):
        raise PromptError(f"{field} cannot set {name!r}: it has a field of its own in the request")
    return variables


def _optional_object(value: Any, field: str) -> dict[str, Any] | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise PromptError(f"{field} must be an object")
    return dict(cast(dict[str, Any], value))
