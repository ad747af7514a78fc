"""Conversations to prompt tokens."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from mlxcel.chat.errors import PromptError
from mlxcel.chat.prompt import PromptBuilder
from mlxcel.engine.thinking import ThinkingRule
from tests.chat.tokenizers import CharTokenizer, MarkerTokenizer

ANSWER = {"role": "assistant", "content": "Yes.", "reasoning_content": "hm"}
CLOCK = {
    "type": "function",
    "function": {"name": "clock", "description": "", "parameters": {"type": "object", "properties": {}}},
}
WITH_CALLS = [
    "command_r",
    "deepseek",
    "function_gemma",
    "gemma4",
    "glm",
    "gpt_oss",
    "granite",
    "hermes",
    "inkling",
    "kimi_k2",
    "lfm2",
    "llama3",
    "longcat",
    "minimax",
    "mistral",
    "qwen3",
    "qwen3_coder",
]
ONE_AT_A_TIME = ("llama3",)
ASK = [{"role": "user", "content": "Hi"}]
PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}"
WITH_BOS = "{{ bos_token }}" + PLAIN
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


def builder(
    source: str | None, tokenizer: CharTokenizer | None = None, special: dict[str, str] = SPECIAL, **defaults: Any
) -> PromptBuilder:
    return PromptBuilder(source, special, tokenizer or CharTokenizer(), defaults)


class TestBos:
    @pytest.mark.parametrize("source", [PLAIN, WITH_BOS])
    @pytest.mark.parametrize("add_eos", [False, True])
    def test_once_where_the_tokenizer_adds_one(self, source: str, add_eos: bool) -> None:
        tokenizer = CharTokenizer(add_bos=True, add_eos=add_eos)
        assert builder(source, tokenizer).chat(ASK, kwargs={}).tokens == (1, ord("H"), ord("i"))

    @pytest.mark.parametrize(("source", "ids"), [(PLAIN, ()), (WITH_BOS, (1,))])
    def test_only_the_template_s_otherwise(self, source: str, ids: tuple[int, ...]) -> None:
        tokens = builder(source, CharTokenizer(add_eos=True)).chat(ASK, kwargs={}).tokens
        assert tokens == (*ids, ord("H"), ord("i"))

    def test_undefined_bos_is_no_text(self) -> None:
        assert builder(WITH_BOS, special={}).render(ASK, kwargs={}) == "Hi"


class TestVariables:
    SOURCE = "{{ enable_thinking }},{{ reasoning_effort }},{{ preserve_thinking is defined }}"

    def test_request_over_defaults(self) -> None:
        prompt = builder(self.SOURCE, enable_thinking=True, reasoning_effort="low")
        assert prompt.render(ASK, kwargs={}) == "True,low,False"
        assert prompt.render(ASK, kwargs={"enable_thinking": False}) == "False,low,False"

    def test_effort_under_its_other_name(self) -> None:
        prompt = builder("{{ reasoning_strength }}")
        assert prompt.render(ASK, kwargs={"reasoning_effort": "high"}) == "high"
        assert prompt.render(ASK, kwargs={"reasoning_effort": "high", "reasoning_strength": "x"}) == "x"

    @pytest.mark.parametrize(
        ("defaults", "request_value", "kept"),
        [
            ({}, None, False),
            ({}, True, True),
            ({"preserve_thinking": True}, None, True),
            ({"preserve_thinking": True}, False, False),
        ],
    )
    def test_preserve_thinking(self, defaults: dict[str, Any], request_value: bool | None, kept: bool) -> None:
        messages = [{"role": "assistant", "content": "<think>hm</think>"}, *ASK]
        kwargs = {} if request_value is None else {"preserve_thinking": request_value}
        text = builder(PLAIN, **defaults).render(messages, kwargs=kwargs)
        assert text == ("<think>hm</think>Hi" if kept else "Hi")


class TestProblems:
    def test_no_template(self) -> None:
        prompt = builder(None)
        assert not prompt.supports_tools
        with pytest.raises(PromptError, match=r"/v1/completions.*--chat-template-file"):
            prompt.chat(ASK, kwargs={})

    def test_invalid_template(self) -> None:
        prompt = builder("{% if %}")
        assert prompt.problem is not None
        assert not prompt.supports_tools
        with pytest.raises(PromptError, match="not valid"):
            prompt.chat(ASK, kwargs={})

    def test_a_usable_template_has_no_problem(self) -> None:
        assert builder(PLAIN).problem is None

    def test_refusal_in_the_template_s_words(self, template_source: Callable[[str], str]) -> None:
        with pytest.raises(PromptError) as caught:
            builder(template_source("gemma")).chat([{"role": "system", "content": "x"}], kwargs={})
        assert str(caught.value) == "There is no system role here"

    def test_empty_prompt(self) -> None:
        with pytest.raises(PromptError, match="empty prompt"):
            builder(PLAIN).chat([{"role": "user", "content": ""}], kwargs={})

    def test_lone_surrogates(self) -> None:
        with pytest.raises(PromptError, match="Unicode"):
            builder(PLAIN).chat([{"role": "user", "content": "\ud800"}], kwargs={})


class TestTools:
    def test_two_turns_with_a_call(self, template_source: Callable[[str], str]) -> None:
        prompt = builder(template_source("qwen3"))
        assert prompt.supports_tools
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
        messages = [
            *ASK,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "2"},
        ]
        text = prompt.render(messages, kwargs={}, tools=[{"type": "function", "function": {"name": "f"}}])
        assert '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>' in text
        assert "<tool_response>\n2\n</tool_response>" in text
        assert '<tools>\n{"type": "function", "function": {"name": "f"}}\n</tools>' in text

    def test_no_tools_section_without_tools(self, template_source: Callable[[str], str]) -> None:
        assert "<tools>" not in builder(template_source("qwen3")).render(ASK, kwargs={}, tools=[])


class TestHistory:
    SCAFFOLD = PLAIN + "{% if add_generation_prompt %}:{% endif %}"

    def history(self, source: str, tokenizer: CharTokenizer | None = None, **kwargs: Any) -> tuple[int, int | None]:
        prompt = builder(source, tokenizer).chat(ASK, kwargs=kwargs, history=True)
        return len(prompt.tokens), prompt.history

    def test_it_ends_where_the_scaffold_begins(self) -> None:
        assert self.history(self.SCAFFOLD) == (3, 2)
        assert self.history(self.SCAFFOLD, CharTokenizer(add_bos=True)) == (4, 3)

    def test_it_is_all_when_there_is_no_scaffold(self) -> None:
        assert self.history(PLAIN) == (2, 2)
        assert self.history(self.SCAFFOLD, add_generation_prompt=False) == (2, 2)

    def test_it_is_unknown_when_it_is_written_differently(self) -> None:
        assert self.history("{% if add_generation_prompt %}>{% endif %}" + PLAIN) == (3, None)
        assert self.history("{% if not add_generation_prompt %}{{ raise_exception('no') }}{% endif %}x") == (1, None)

    def test_it_is_unknown_when_no_token_ends_there(self) -> None:
        class PairTokenizer(CharTokenizer):
            """Two characters a token."""

            def encode(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]:
                return [hash(text[i : i + 2]) for i in range(0, len(text), 2)]

        even = [{"role": "user", "content": "Hey"}]
        prompt = builder(self.SCAFFOLD, PairTokenizer()).chat(even, kwargs={}, history=True)
        assert (len(prompt.tokens), prompt.history) == (2, None)

    def test_it_is_looked_for_on_request_only(self) -> None:
        assert builder(self.SCAFFOLD).chat(ASK, kwargs={}).history is None


class TestNextBeginning:
    SOURCE = (
        "{% for m in messages %}<{{ m.role }}>{% if m.thinking %}({{ m.thinking }}){% endif %}{{ m.content }};"
        "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
    )

    @pytest.mark.parametrize("preserved", [False, True])
    def test_it_is_what_the_next_prompt_begins_with(self, preserved: bool) -> None:
        prompts, kwargs = builder(self.SOURCE), {"preserve_thinking": preserved}
        beginning = prompts.next_beginning(ASK, ANSWER, kwargs=kwargs)
        thoughts = "(hm)" if preserved else ""
        assert "".join(map(chr, beginning)) == f"<user>Hi;<assistant>{thoughts}Yes.;<user>"
        for question in ("Why?", "2 + 2", "Wh", "anything else", "\n\nmore", '{"'):
            following = [*ASK, ANSWER, {"role": "user", "content": question}]
            assert prompts.chat(following, kwargs=kwargs).tokens[: len(beginning)] == beginning

    @pytest.mark.parametrize(
        ("name", "calls"), [(name, n) for name in WITH_CALLS for n in (1, 2) if n == 1 or name not in ONE_AT_A_TIME]
    )
    def test_what_functions_give_back_follows_their_calls(
        self, name: str, calls: int, template_source: Callable[[str], str]
    ) -> None:
        prompts = builder(template_source(name))
        ids = [f"{name[:8]:x<8}{index}" for index in range(calls)]
        answer = {
            **ANSWER,
            "content": "",
            "tool_calls": [
                {"id": one, "type": "function", "function": {"name": "clock", "arguments": '{"city": "Oslo"}'}}
                for one in ids
            ],
        }
        beginning = prompts.next_beginning(ASK, answer, kwargs={}, tools=[CLOCK])
        assert "Oslo" in "".join(map(chr, beginning)), "the call is part of it"
        for results in (["Why?", "12"], ["12", "12"], ["\n12", ""], ['{"time": 12}', "x"]):
            following = [
                {"role": "tool", "tool_call_id": one, "content": result}
                for one, result in zip(ids, results, strict=False)
            ]
            prompt = prompts.chat([*ASK, answer, *following], kwargs={}, tools=[CLOCK])
            assert prompt.tokens[: len(beginning)] == beginning

    def test_a_tokenizer_may_join_line_breaks(self) -> None:
        class Joining(CharTokenizer):
            """Line breaks in a row are one token."""

            def encode(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]:
                return [ord(run[0]) + 1000 * len(run) for run in re.findall(r"\n+|.", text)]

        prompts = builder("{% for m in messages %}{{ m.role }}\n{{ m.content }};{% endfor %}", Joining())
        beginning = prompts.next_beginning(ASK, ANSWER, kwargs={})
        for question in ("Why?", "\nWhy?", "\n\nWhy?"):
            following = [*ASK, ANSWER, {"role": "user", "content": question}]
            assert prompts.chat(following, kwargs={}).tokens[: len(beginning)] == beginning

    def test_a_template_that_refuses_says_so(self) -> None:
        with pytest.raises(PromptError):
            builder(None).next_beginning(ASK, ANSWER, kwargs={})


class TestThinking:
    def test_a_prompt_that_opens_a_block(self, template_source: Callable[[str], str]) -> None:
        prompt = builder(template_source("primed"))
        assert prompt.chat(ASK, kwargs={}).thinking
        assert prompt.chat(ASK, kwargs={}, history=True).thinking
        assert not prompt.chat(ASK, kwargs={"enable_thinking": False}).thinking
        assert not builder(PLAIN).chat([{"role": "user", "content": "<think>"}], kwargs={}).thinking

    def test_what_the_engine_follows(self, template_source: Callable[[str], str]) -> None:
        assert builder(PLAIN).thinking_rule(inside=False, budget=3) is None
        rule = builder(template_source("gemma4")).thinking_rule(inside=True, budget=3)
        assert rule == ThinkingRule(("<|channel>thought",), ("<channel|>",), True, 3, {})

    def test_special_tokens_among_the_markers(self, template_source: Callable[[str], str]) -> None:
        prompt = builder(template_source("primed"), MarkerTokenizer("<think>", plain=("</think>",)))
        assert prompt.spelling == {0x110000: "<think>"}
        rule = prompt.thinking_rule(inside=False, budget=None)
        assert rule is not None
        assert rule.spelling == prompt.spelling


BEGUN = [*ASK, {"role": "assistant", "content": "So far "}]


class TestPrefill:
    def test_the_answer_goes_on(self, template_source: Callable[[str], str]) -> None:
        prompt = builder(template_source("chatml"))
        assert prompt.render(BEGUN, kwargs={}, prefill=True).endswith("<|im_start|>assistant\nSo far ")
        assert "So far <|im_end|>\n<|im_start|>assistant\n" in prompt.render(BEGUN, kwargs={})
        without = prompt.render(BEGUN, kwargs={}, prefill=True, add_generation_prompt=False)
        assert without.rstrip().endswith("So far <|im_end|>")
        parts = [*ASK, {"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
        assert prompt.render(parts, kwargs={}, prefill=True).endswith("assistant\na\nb")

    def test_a_turn_that_is_complete_stays_so(self, template_source: Callable[[str], str]) -> None:
        prompt = builder(template_source("qwen3"))
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        for last in ({"role": "assistant", "content": ""}, {"role": "assistant", "content": "x", "tool_calls": [call]}):
            messages = [*ASK, last]
            assert prompt.render(messages, kwargs={}, prefill=True) == prompt.render(messages, kwargs={})
        assert prompt.render(ASK, kwargs={}, prefill=True) == prompt.render(ASK, kwargs={})

    def test_tools_without_a_description_reach_a_template_that_needs_one(self) -> None:
        source = "{% for t in tools %}{{ t.function.name + t.function.description + '.' }}{% endfor %}"
        tools = [{"type": "function", "function": {"name": "f"}}]
        assert builder(source).render(BEGUN, kwargs={}, tools=tools) == "f."

    def test_a_template_that_drops_the_message(self) -> None:
        source = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"
        assert builder(source).render(BEGUN, kwargs={}, prefill=True) == "Hi"

    @pytest.mark.parametrize(
        ("begun", "thinking"), [("<think>hm", True), ("<think>hm</think>Yes", False), ("Yes", False)]
    )
    def test_an_answer_that_begins_with_thinking(
        self, begun: str, thinking: bool, template_source: Callable[[str], str]
    ) -> None:
        messages = [*ASK, {"role": "assistant", "content": begun}]
        prompt = builder(template_source("primed")).chat(messages, kwargs={}, prefill=True)
        assert prompt.thinking is thinking
