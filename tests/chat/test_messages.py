"""Client messages in the form templates expect."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxcel.chat.errors import PromptError
from mlxcel.chat.messages import TemplateStyle, complete, normalize, probe_style
from mlxcel.chat.template import ChatTemplate

OBJECTS = TemplateStyle()
STRINGS = TemplateStyle(object_arguments=False)


def one(message: dict[str, Any], style: TemplateStyle = OBJECTS) -> dict[str, Any]:
    return normalize([message], style=style, preserve_thinking=True)[0]


def with_call(arguments: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"id": "x", "function": {"name": "f", "arguments": arguments}}], **more}


class TestShape:
    def test_developer_is_system(self) -> None:
        assert one({"role": "developer", "content": "x"}) == {"role": "system", "content": "x"}

    @pytest.mark.parametrize("message", [{"role": "user"}, {"role": "user", "content": None}])
    def test_missing_content_is_empty(self, message: dict[str, Any]) -> None:
        assert one(message) == {"role": "user", "content": ""}

    def test_text_parts_become_lines(self) -> None:
        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": ""}, {"type": "refusal", "refusal": "b"}]
        assert one({"role": "user", "content": parts})["content"] == "a\n\nb"

    def test_names_and_ids_stay(self) -> None:
        message = {"role": "tool", "tool_call_id": "c", "name": "f", "content": "1"}
        assert one(message) == message

    @pytest.mark.parametrize("field", ["reasoning", "reasoning_content", "thinking"])
    def test_reasoning_has_all_names(self, field: str) -> None:
        message = one({"role": "assistant", "content": "x", field: "hm"})
        assert message["reasoning"] == message["reasoning_content"] == message["thinking"] == "hm"

    @pytest.mark.parametrize(
        ("message", "reason"),
        [
            ("text", r"messages\[0\] must be an object"),
            ({"content": "x"}, r"messages\[0\].role"),
            ({"role": 1}, r"messages\[0\].role"),
            ({"role": "user", "content": 3}, r"messages\[0\].content must be"),
            ({"role": "user", "content": ["x"]}, r"content\[0\] must be an object"),
            ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "text parts only"),
            ({"role": "user", "content": [{"type": "text"}]}, r"content\[0\].text must be a string"),
            ({"role": "assistant", "reasoning": 1}, "reasoning must be a string"),
            ({"role": "assistant", "tool_calls": {}}, "tool_calls must be a list"),
            ({"role": "assistant", "tool_calls": [1]}, r"tool_calls\[0\].function must be an object"),
            ({"role": "assistant", "tool_calls": [{"function": {}}]}, r"function.name must be a string"),
        ],
    )
    def test_malformed_messages_are_named(self, message: Any, reason: str) -> None:
        with pytest.raises(PromptError, match=reason):
            one(message)


class TestToolCallArguments:
    @pytest.mark.parametrize(
        ("arguments", "decoded"),
        [
            ('{"a": [1, {"b": null}]}', {"a": [1, {"b": None}]}),
            ({"a": 1}, {"a": 1}),
            ("", {}),
            (None, {}),
            ('{"a": ', '{"a": '),
            ("[1]", "[1]"),
            ("[" * 100_000, "[" * 100_000),
        ],
    )
    def test_json_objects_are_decoded(self, arguments: Any, decoded: Any) -> None:
        call = one(with_call(arguments))["tool_calls"][0]
        assert call["type"] == "function"
        assert call["function"]["arguments"] == decoded

    @pytest.mark.parametrize(("arguments", "text"), [('{"a":1}', '{"a":1}'), ({"a": "ü"}, '{"a": "ü"}'), ("", "{}")])
    def test_strings_where_the_template_wants_them(self, arguments: Any, text: str) -> None:
        assert one(with_call(arguments), STRINGS)["tool_calls"][0]["function"]["arguments"] == text

    def test_null_fields_of_a_call_are_absent(self) -> None:
        calls = [{"id": None, "type": None, "function": {"name": "f", "arguments": None}}]
        call = one({"role": "assistant", "tool_calls": calls})["tool_calls"][0]
        assert call == {"type": "function", "function": {"name": "f", "arguments": {}}}

    def test_no_calls_is_no_field(self) -> None:
        assert "tool_calls" not in one({"role": "assistant", "content": "x", "tool_calls": []})

    @pytest.mark.parametrize(
        ("family", "style"),
        [
            ("qwen3", TemplateStyle()),
            ("llama3", TemplateStyle()),
            ("mistral", TemplateStyle()),
            ("typescript_tools", TemplateStyle(tool_fields=frozenset({"parameters"}))),
            ("deepseek", TemplateStyle(object_arguments=False, null_content=True)),
            ("chatml", TemplateStyle()),  # writes no calls at all
        ],
    )
    def test_style_of_a_template(
        self, template_source: Callable[[str], str], family: str, style: TemplateStyle
    ) -> None:
        assert probe_style(ChatTemplate(template_source(family), {"bos_token": "", "eos_token": ""})) == style

    def test_style_of_a_template_that_prints_arguments_as_they_are(self) -> None:
        source = "{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.arguments }}{% endfor %}{% endfor %}"
        assert probe_style(ChatTemplate(source, {})) == STRINGS

    def test_null_content_only_where_there_is_no_text(self) -> None:
        style = TemplateStyle(null_content=True)
        assert one(with_call("{}"), style)["content"] is None
        assert one(with_call("{}", content="x"), style)["content"] == "x"
        assert one({"role": "assistant"}, style)["content"] == ""


THINKING = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes.", "reasoning_content": "hm"}
KINDS: dict[str, dict[str, Any]] = {
    "system": {"role": "system", "content": "<think>kept</think>"},
    "user": {"role": "user", "content": "<think>kept</think>"},
    "tool": {"role": "tool", "tool_call_id": "x", "content": "<think>kept</think>"},
    "wrapped tool": {"role": "user", "content": "<tool_response>\n1\n</tool_response>"},
    "assistant": THINKING,
}


class TestPreserveThinking:
    @given(st.lists(st.sampled_from(sorted(KINDS)), max_size=8))
    def test_strips_before_the_last_question_only(self, kinds: list[str]) -> None:
        messages = [KINDS[kind] for kind in kinds]
        before = copy.deepcopy(messages)
        last = max((index for index, kind in enumerate(kinds) if kind == "user"), default=-1)
        stripped = normalize(messages, style=OBJECTS, preserve_thinking=False)
        kept = normalize(messages, style=OBJECTS, preserve_thinking=True)
        for index, kind in enumerate(kinds):
            if kind == "assistant" and index < last:
                assert stripped[index] == {"role": "assistant", "content": "Yes."}
            else:
                assert stripped[index] == kept[index]
            assert kept[index]["content"] == messages[index]["content"]
        assert messages == before

    @pytest.mark.parametrize(
        ("content", "rest"),
        [
            ("<think>a</think>b", "b"),
            ("<think>a</think>\n\n b", " b"),
            ("a <think>x</think>b<think>\ny</think>\nc", "a bc"),
            ("<think></think>", ""),
            ("<think>cut off", ""),
            ("a<think>b</think>c<think>d", "ac"),
            ("a</think>b", "a</think>b"),
            ("<thinking>a</thinking>", "<thinking>a</thinking>"),
        ],
    )
    def test_blocks_inside_the_text(self, content: str, rest: str) -> None:
        messages = [{"role": "assistant", "content": content}, {"role": "user", "content": "?"}]
        assert normalize(messages, style=OBJECTS, preserve_thinking=False)[0]["content"] == rest

    def test_null_content_of_a_call(self) -> None:
        messages = [with_call(json.dumps({})), {"role": "user", "content": "?"}]
        style = TemplateStyle(null_content=True)
        assert normalize(messages, style=style, preserve_thinking=False)[0]["content"] is None


class TestWholeTools:
    BARE: ClassVar[dict[str, Any]] = {"type": "function", "function": {"name": "f", "strict": True}}
    WHOLE: ClassVar[dict[str, Any]] = {
        "type": "function",
        "function": {
            "name": "f",
            "description": "",
            "parameters": {"type": "object", "properties": {}},
            "strict": True,
        },
    }

    def test_for_a_template_that_fails_without_their_fields(self) -> None:
        source = "{% for t in tools %}{{ '// ' + t.function.description }}{{ t.function.parameters.type }}{% endfor %}"
        style = probe_style(ChatTemplate(source, {}))
        assert complete([self.BARE, {"type": "other"}], style) == [self.WHOLE, {"type": "other"}]
        described = {"type": "function", "function": {**self.WHOLE["function"], "description": "Does f."}}
        assert complete([described], style) == [described]
        assert "description" not in self.BARE["function"]
        style = probe_style(ChatTemplate("{% for t in tools %}{{ '// ' + t.function.description }}{% endfor %}", {}))
        assert complete([self.BARE], style) == [
            {"type": "function", "function": {"description": "", **self.BARE["function"]}}
        ]

    @pytest.mark.parametrize("source", ["{{ tools | tojson }}", "{{ raise_exception('no') }}", "x"])
    def test_others_show_tools_as_they_came(self, source: str) -> None:
        style = probe_style(ChatTemplate(source, {}))
        assert complete([self.BARE], style) == [self.BARE]
        assert complete(None, style) is None
