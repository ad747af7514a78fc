"""Request fields this version knows and cannot honour: harmless when they ask for nothing, refused otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mlxcel.api.errors import ApiError, invalid
from mlxcel.api.openai.schema import ChatRequest, GenerationFields


def _is(*inert: Any) -> Callable[[Any], bool]:
    return lambda value: value in inert


# Fields that only tune one of these (dry_base, xtc_threshold, mirostat_tau, min_count, ...) change nothing alone.
_INERT: Mapping[str, Callable[[Any], bool]] = {
    "xtc_probability": _is(0),
    "top_n_sigma": _is(0),
    "typical_p": _is(1),
    "p_less": _is(False),
    "dry_multiplier": _is(0),
    "mirostat": _is(0),
    "dynatemp_range": _is(0),
    "adaptive_target": lambda value: value < 0,
    "logit_bias": _is({}, []),
    "ignore_eos": _is(False),
    "max_pattern_size": _is(0),
    "thinking_budget_tokens": _is(-1),
    "reasoning_budget_tokens": _is(-1),
    "thinking_token_budget": _is(-1),
    "thinking_budget": _is(-1),
    "grammar": _is(""),
    "json_schema": _is({}),
}


def check_fields(request: GenerationFields) -> None:
    """Refuse sampling fields that would have to act. Raises ApiError 400."""
    for name, inert in _INERT.items():
        value = getattr(request, name)
        if value is not None and not inert(value):
            raise invalid(f"'{name}' is not supported by this version", name)


def check_response_format(request: GenerationFields) -> None:
    """Refuse output formats other than text. Raises ApiError 400."""
    kind = None if request.response_format is None else request.response_format.type
    match kind:
        case None | "text":
            return
        case "json_schema":
            raise _unsupported("response_format of type 'json_schema' is not supported by this version")
        case "json_object":
            raise _unsupported("response_format of type 'json_object' is not supported: use 'json_schema'")
        case _:
            raise _unsupported("response_format.type must be 'text', 'json_schema' or 'json_object'")


def check_tools(request: ChatRequest) -> None:
    """Refuse tools, and choices that need some. Raises ApiError 400."""
    if request.tools:
        raise invalid("tools are not supported by this version", "tools")
    choice = request.tool_choice
    if choice == "required" or isinstance(choice, dict):
        raise invalid("tool_choice needs a non-empty list of tools", "tool_choice")
    if choice not in (None, "none", "auto"):
        raise invalid("tool_choice must be 'none', 'auto', 'required' or name a function", "tool_choice")


def _unsupported(message: str) -> ApiError:
    return invalid(message, "response_format")
