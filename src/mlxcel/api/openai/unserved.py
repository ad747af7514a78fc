"""Request fields this version knows and cannot honour: harmless when they ask for nothing, refused otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlxcel.api.errors import invalid
from mlxcel.api.openai.schema import ChatRequest, GenerationFields

_INERT: Mapping[str, Any] = {
    "thinking_budget_tokens": -1,
    "reasoning_budget_tokens": -1,
    "thinking_token_budget": -1,
    "thinking_budget": -1,
    "grammar": "",
    "json_schema": {},
}


def check_fields(request: GenerationFields) -> None:
    """Refuse fields that would have to act. Raises ApiError 400."""
    for name, inert in _INERT.items():
        if getattr(request, name) not in (None, inert):
            raise invalid(f"'{name}' is not supported by this version", name)


def check_tools(request: ChatRequest) -> None:
    """Refuse tools, and choices that need some. Raises ApiError 400."""
    if request.tools:
        raise invalid("tools are not supported by this version", "tools")
    choice = request.tool_choice
    if choice == "required" or isinstance(choice, dict):
        raise invalid("tool_choice needs a non-empty list of tools", "tool_choice")
    if choice not in (None, "none", "auto"):
        raise invalid("tool_choice must be 'none', 'auto', 'required' or name a function", "tool_choice")
