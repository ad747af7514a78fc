"""Messages as clients send them, brought into the form chat templates are written for."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from mlxcel.chat.errors import PromptError
from mlxcel.chat.template import ChatTemplate

Message = dict[str, Any]

_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
# A block that was never closed is a turn that was cut off while thinking: nothing after it is an answer.
_THINK_BLOCK = re.compile(r"<think>.*?(?:</think>\n*|\Z)", re.DOTALL)
_PROBE_VALUE = "probe_value"
_PROBE_ARGUMENTS = {"probe_key": _PROBE_VALUE}
_PROBE_TOOL: Message = {
    "type": "function",
    "function": {"name": "probe", "description": "", "parameters": {"type": "object", "properties": {}}},
}
_PROBE_CONVERSATION: list[Message] = [
    {"role": "user", "content": "question"},
    {
        "role": "assistant",
        # Nine letters and digits: Mistral's templates refuse any other form of id.
        "tool_calls": [{"id": "probecall", "function": {"name": "probe", "arguments": json.dumps(_PROBE_ARGUMENTS)}}],
    },
]


@dataclass(frozen=True, slots=True)
class TemplateStyle:
    """What a template wants of an assistant message with tool calls."""

    object_arguments: bool = True
    """Arguments as an object; False: as the JSON text of one."""
    null_content: bool = False
    """None instead of an empty string when such a message has no text."""
    tool_fields: frozenset[str] = frozenset()
    """Fields of a tool's function that clients may leave out, and without which the template fails."""


def probe_style(template: ChatTemplate) -> TemplateStyle:
    """Find out how `template` writes tool calls, by rendering one in each style.

    The first style whose output shows the call as a model would write it wins. Templates that write no calls at
    all, or refuse the probe for another reason, get the default.
    """
    for object_arguments in (True, False):
        for null_content in (False, True):
            style = TemplateStyle(object_arguments, null_content)
            if _shows_call(template, style):
                return replace(style, tool_fields=_needed_fields(template))
    return TemplateStyle(tool_fields=_needed_fields(template))


def complete(tools: Sequence[Mapping[str, Any]] | None, style: TemplateStyle) -> Sequence[Mapping[str, Any]] | None:
    """Tools ready for a template; the given ones are not changed."""
    if not tools or not style.tool_fields:
        return tools
    empty = {field: _PROBE_TOOL["function"][field] for field in sorted(style.tool_fields)}
    return [{**tool, "function": {**empty, **tool["function"]}} if "function" in tool else tool for tool in tools]


def normalize(messages: Sequence[Any], *, style: TemplateStyle, preserve_thinking: bool) -> list[Message]:
    """Messages ready for a template; the given ones are not changed.

    `developer` becomes `system`, missing content becomes empty, text parts become one string, tool-call arguments
    take the form the template wants, and prior reasoning stands under all of its names.

    preserve_thinking: True keeps the reasoning of every assistant message. False drops it, blocks inside the text
    included, from those before the last user message that is no tool result: Qwen3's rolling checkpoint.

    Raises PromptError naming the message that is not well-formed.
    """
    normalized = [_normalize_message(message, f"messages[{index}]", style) for index, message in enumerate(messages)]
    if not preserve_thinking:
        for message in normalized[: _last_question(normalized)]:
            if message["role"] == "assistant":
                _strip_reasoning(message)
    return normalized


def _normalize_message(raw: Any, where: str, style: TemplateStyle) -> Message:
    if not isinstance(raw, Mapping):
        raise PromptError(f"{where} must be an object")
    fields = cast(Mapping[str, Any], raw)
    message: Message = {key: value for key, value in fields.items() if value is not None}
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise PromptError(f"{where}.role must be a string")
    message["role"] = "system" if role == "developer" else role
    message["content"] = _content_text(message.get("content"), f"{where}.content")
    _alias_reasoning(message, where)
    if "tool_calls" in message:
        calls = _tool_calls(message.pop("tool_calls"), f"{where}.tool_calls", style)
        if calls:
            message["tool_calls"] = calls
            if style.null_content and not message["content"]:
                message["content"] = None
    return message


def _content_text(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise PromptError(f"{where} must be a string or a list of parts")
    parts = cast(list[Any], content)
    # Every template takes a plain string; only some iterate parts. llama-server and vLLM join the texts with a
    # newline for such templates, and clients rely on it: their blocks are separate paragraphs, not pieces of a word.
    return "\n".join(_part_text(part, f"{where}[{index}]") for index, part in enumerate(parts))


def _part_text(part: Any, where: str) -> str:
    if not isinstance(part, Mapping):
        raise PromptError(f"{where} must be an object")
    fields = cast(Mapping[str, Any], part)
    kind = fields.get("type")
    if kind not in ("text", "refusal"):
        raise PromptError(f"{where}: this model takes text parts only, not {kind!r}")
    text = fields.get(kind)
    if not isinstance(text, str):
        raise PromptError(f"{where}.{kind} must be a string")
    return text


def _alias_reasoning(message: Message, where: str) -> None:
    """Put prior reasoning under all its names: templates read one, clients send another.

    GPT-OSS's template, which reads `thinking`, refuses it beside a call and text.
    """
    refused = bool(message.get("tool_calls") and message["content"])
    for field in _REASONING_FIELDS:
        text = message.get(field)
        if text is None:
            continue
        if not isinstance(text, str):
            raise PromptError(f"{where}.{field} must be a string")
        message.update((name, text) for name in _REASONING_FIELDS if not (refused and name == "thinking"))
        return


def _tool_calls(calls: Any, where: str, style: TemplateStyle) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise PromptError(f"{where} must be a list")
    return [_tool_call(call, f"{where}[{index}]", style) for index, call in enumerate(cast(list[Any], calls))]


def _tool_call(call: Any, where: str, style: TemplateStyle) -> dict[str, Any]:
    function: Any = cast(Mapping[str, Any], call).get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise PromptError(f"{where}.function must be an object")
    fields = dict(cast(Mapping[str, Any], function))
    if not isinstance(fields.get("name"), str):
        raise PromptError(f"{where}.function.name must be a string")
    fields["arguments"] = _arguments(fields.get("arguments"), style)
    said = {key: value for key, value in cast(Mapping[str, Any], call).items() if value is not None}
    return {"type": "function", **said, "function": fields}


def _arguments(arguments: Any, style: TemplateStyle) -> Any:
    """Arguments in the template's form. Text that is no JSON object is the model's own slip and stays as it is."""
    if arguments is None or arguments == "":
        arguments = {}
    if not style.object_arguments:
        return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    if not isinstance(arguments, str):
        return arguments
    try:
        decoded = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return cast(Any, decoded) if isinstance(decoded, dict) else arguments


def _last_question(messages: Sequence[Message]) -> int:
    """Position of the last user message that is no tool result; 0 without one."""
    for index in range(len(messages) - 1, -1, -1):
        if messages[index]["role"] == "user" and not _is_tool_result(messages[index]["content"]):
            return index
    return 0


def _is_tool_result(content: str) -> bool:
    """Whether a user message only carries a tool's answer, in the markup of Qwen's templates."""
    return content.startswith("<tool_response>") and content.endswith("</tool_response>")


def _strip_reasoning(message: Message) -> None:
    for field in _REASONING_FIELDS:
        message.pop(field, None)
    if message["content"]:
        message["content"] = _THINK_BLOCK.sub("", message["content"])


def _needed_fields(template: ChatTemplate) -> frozenset[str]:
    function = cast(dict[str, Any], _PROBE_TOOL["function"])
    if not _renders(template, function):
        return frozenset()
    without = {
        field: {key: function[key] for key in function if key != field} for field in ("description", "parameters")
    }
    return frozenset(field for field, rest in without.items() if not _renders(template, rest))


def _renders(template: ChatTemplate, function: Mapping[str, Any]) -> bool:
    tool = {"type": "function", "function": function}
    try:
        template.render(_PROBE_CONVERSATION[:1], tools=[tool], add_generation_prompt=False)
    except PromptError:
        return False
    return True


def _shows_call(template: ChatTemplate, style: TemplateStyle) -> bool:
    conversation = normalize(_PROBE_CONVERSATION, style=style, preserve_thinking=True)
    try:
        text = template.render(conversation, tools=[_PROBE_TOOL], add_generation_prompt=False)
    except PromptError:
        return False
    # An object printed as Python writes it, or a string put into JSON a second time: the wrong style.
    wrong = (str(_PROBE_ARGUMENTS), json.dumps(json.dumps(_PROBE_ARGUMENTS)))
    return _PROBE_VALUE in text and not any(form in text for form in wrong)
