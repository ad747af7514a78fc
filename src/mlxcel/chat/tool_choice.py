"""The tools of a request: which of them the model is shown, and what it is told about using them."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from mlxcel.chat.errors import PromptError

MAX_TOOLS = 128


class Choice(enum.Enum):
    """Whether tools are called."""

    AUTO = "auto"
    """As the model likes."""
    NONE = "none"
    REQUIRED = "required"
    """At least one."""
    NAMED = "named"
    """The one that is shown."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Tools of one request."""

    shown: tuple[Mapping[str, Any], ...] = ()
    """Definitions that the model is shown, and whose calls are read; none: no calls are read."""
    choice: Choice = Choice.AUTO

    @property
    def names(self) -> tuple[str, ...]:
        """Functions that may be called."""
        return tuple(tool["function"]["name"] for tool in self.shown)

    @property
    def forced(self) -> bool:
        """Whether the model has to call one."""
        return self.choice in (Choice.REQUIRED, Choice.NAMED)

    @property
    def instruction(self) -> str:
        """What the model is told of a forced choice; the same for every request with the same choice. Else empty."""
        match self.choice:
            case Choice.REQUIRED:
                return "Do not answer in words: answer by calling one or more of the functions that you were given."
            case Choice.NAMED:
                return f'Do not answer in words: answer by calling the function "{self.names[0]}", and no other.'
            case _:
                return ""


def read_tools(tools: Sequence[Any] | None, tool_choice: Any) -> ToolUse:
    """The tools of a request, from the raw JSON of its two fields (None: absent). Raises PromptError."""
    declared = tuple(_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools or ()))
    if len(declared) > MAX_TOOLS:
        raise PromptError(f"there are {len(declared)} tools; at most {MAX_TOOLS} are allowed", "tools")
    match tool_choice:
        case None | "auto":
            return ToolUse(declared)
        case "none":
            return ToolUse((), Choice.NONE)
        case "required":
            if not declared:
                raise _refused("'required' needs a non-empty list of tools")
            return ToolUse(declared, Choice.REQUIRED)
        case _:
            name = _chosen_name(tool_choice)
            chosen = tuple(tool for tool in declared if tool["function"]["name"] == name)[:1]
            if not chosen:
                raise _refused(f"the function {name!r} is not among the tools")
            return ToolUse(chosen, Choice.NAMED)


def instruct(messages: Sequence[Mapping[str, Any]], instruction: str) -> list[Mapping[str, Any]]:
    """A copy of `messages` that ends its first system message with `instruction`; without one, the last message of the
    user; without either, there is a new system message in front. An empty instruction adds nothing."""
    copied = list(messages)
    if not instruction:
        return copied
    systems = [i for i, message in enumerate(copied) if message.get("role") in ("system", "developer")]
    users = [i for i, message in enumerate(copied) if message.get("role") == "user"]
    places = systems[:1] or users[-1:]
    if not places:
        return [{"role": "system", "content": instruction}, *copied]
    message = copied[places[0]]
    copied[places[0]] = {**message, "content": _appended(message.get("content"), instruction)}
    return copied


def _appended(content: Any, instruction: str) -> Any:
    if isinstance(content, list):
        return [*cast(list[Any], content), {"type": "text", "text": instruction}]
    return f"{content}\n\n{instruction}" if content else instruction


def _tool(tool: Any, where: str) -> Mapping[str, Any]:
    fields = _object(tool)
    if fields is None or fields.get("type", "function") != "function":
        raise PromptError(f"{where} must be a tool of type 'function'", "tools")
    function = _object(fields.get("function"))
    if function is None:
        raise PromptError(f"{where}.function must be an object", "tools")
    if not isinstance(function.get("name"), str) or not function["name"]:
        raise PromptError(f"{where}.function.name must be a string that is not empty", "tools")
    if function.get("parameters") is not None and _object(function["parameters"]) is None:
        raise PromptError(f"{where}.function.parameters must be an object", "tools")
    return fields


def _chosen_name(tool_choice: Any) -> str:
    choice = _object(tool_choice)
    if choice is None or choice.get("type") != "function":
        raise _refused("it must be 'none', 'auto', 'required' or an object of type 'function'")
    function = _object(choice.get("function")) or {}
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise _refused("function.name must be a string that is not empty")
    return name


def _object(value: Any) -> Mapping[str, Any] | None:
    return cast(Mapping[str, Any], value) if isinstance(value, Mapping) else None


def _refused(why: str) -> PromptError:
    return PromptError(f"tool_choice: {why}", "tool_choice")
