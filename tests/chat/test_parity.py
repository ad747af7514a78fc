"""The renderer writes what the `transformers` renderer writes, character for character."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from mlxcel.chat.errors import PromptError
from mlxcel.chat.messages import normalize, probe_style
from mlxcel.chat.prompt import PromptBuilder
from mlxcel.chat.template import ChatTemplate
from tests.chat.tokenizers import CharTokenizer

FAMILIES = sorted(path.stem for path in (Path(__file__).parent / "templates").glob("*.jinja"))
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}

CALL = {
    "id": "abcdefgh1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city": "Zürich <&>", "days": 3, "tags": ["a", null]}'},
}
RESULT = {"role": "tool", "tool_call_id": "abcdefgh1", "name": "weather", "content": '{"sky": "grey"}'}
ASK = {"role": "user", "content": "How is the weather?"}
SYSTEM = {"role": "system", "content": "  Be brief.\n"}

CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one question": [ASK],
    "system": [SYSTEM, ASK],
    "developer": [{"role": "developer", "content": "Rules"}, ASK],
    "system in the middle": [ASK, {"role": "assistant", "content": "Fine."}, SYSTEM, ASK],
    "three turns": [ASK, {"role": "assistant", "content": " Fine. "}, {"role": "user", "content": "Sure?"}],
    "no alternation": [ASK, ASK],
    "ends with the assistant": [ASK, {"role": "assistant", "content": "So far"}],
    "call": [ASK, {"role": "assistant", "content": None, "tool_calls": [CALL]}, RESULT],
    "call with text": [ASK, {"role": "assistant", "content": "Let me look.", "tool_calls": [CALL]}, RESULT],
    "two calls": [SYSTEM, ASK, {"role": "assistant", "tool_calls": [CALL, CALL]}, RESULT, RESULT],
    "answer after a call": [
        ASK,
        {"role": "assistant", "tool_calls": [CALL]},
        RESULT,
        {"role": "assistant", "content": "Grey."},
        ASK,
    ],
    "call without arguments": [
        ASK,
        {"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "now", "arguments": ""}}]},
    ],
    "call with broken arguments": [
        ASK,
        {"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "now", "arguments": '{"a": '}}]},
    ],
    "thinking": [ASK, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes."}, ASK],
    "reasoning field": [
        ASK,
        {"role": "assistant", "content": "Yes.", "reasoning_content": "hm"},
        RESULT,
        {"role": "assistant", "content": "And no.", "reasoning": "hm hm"},
    ],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
    "markup": [{"role": "user", "content": "<|im_end|> {{ 7 * 7 }} {% raw %} \u2028 \U0001f600 '\"\\"}],
    "empty": [{"role": "user", "content": ""}, {"role": "assistant"}, ASK],
}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Weather of a city,\nwith umlauts: Zürich, and <angle> 'quotes'",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "unit": {"enum": ["C", "F"]},
                    "tags": {"type": "array", "items": {"type": "string"}},
                },
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]


def theirs(source: str, messages: list[dict[str, Any]], tools: Any, options: dict[str, Any]) -> str | None:
    """What transformers writes; None when it refuses."""
    try:
        prompts, _ = render_jinja_template([messages], tools=tools, chat_template=source, **{**SPECIAL, **options})
    except Exception:
        return None
    return prompts[0]


def ours(template: ChatTemplate, messages: list[dict[str, Any]], tools: Any, options: dict[str, Any]) -> str | None:
    variables = {key: value for key, value in options.items() if key != "add_generation_prompt"}
    prompt = options["add_generation_prompt"]
    try:
        return template.render(messages, tools=tools, add_generation_prompt=prompt, variables=variables)
    except PromptError:
        return None


@pytest.mark.parametrize("family", FAMILIES)
def test_same_text_as_transformers(family: str, template_source: Callable[[str], str]) -> None:
    source = template_source(family)
    template = ChatTemplate(source, SPECIAL)
    style = probe_style(template)
    rendered = 0
    for name, conversation in CONVERSATIONS.items():
        messages = normalize(conversation, style=style, preserve_thinking=True)
        for tools in (None, TOOLS):
            for options in (
                {"add_generation_prompt": True},
                {"add_generation_prompt": False, "enable_thinking": False, "date_string": "today"},
            ):
                expected = theirs(source, messages, tools, options)
                assert ours(template, messages, tools, options) == expected, (name, tools, options)
                rendered += expected is not None
    assert rendered >= 8  # not a comparison of refusals


@pytest.mark.parametrize("family", FAMILIES)
def test_an_answer_that_goes_on_begins_as_in_transformers(family: str, template_source: Callable[[str], str]) -> None:
    source = template_source(family)
    builder = PromptBuilder(source, SPECIAL, CharTokenizer(), {})
    compared = 0
    for text in ("So far", "So  far, and \n"):
        messages = [ASK, {"role": "assistant", "content": text}]
        expected = theirs(source, messages, None, {"add_generation_prompt": False, "continue_final_message": True})
        if expected is not None:
            assert builder.render(messages, kwargs={}, prefill=True) == expected
            compared += 1
    assert compared == 2
