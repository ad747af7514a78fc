"""Reasoning on the chat route: split, streamed, limited; and what the prompt of a request would be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxcel.api.errors import ApiError
from mlxcel.api.openai.reasoning import resolve_budget
from mlxcel.api.openai.schema import GenerationFields
from mlxcel.config import ChatConfig, ServerConfig
from tests.engine.scripted import EOS, ScriptedBackend

from ..stub import Served, frames, run, says, serving, with_info

THINKS = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{# <think> #}"
PRIMED = "{% for m in messages %}{{ m.content }}{% endfor %}<think>\n"
TEXT = "<think>\nhm hm\n</think>\n\nYes."
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
NAMED = {"type": "function", "function": {"name": "f"}}


def thinker(text: str = TEXT, template: str = THINKS, *, ends: bool = True) -> ScriptedBackend:
    return with_info(says(text, ends=ends), chat_template=template)


def wanting(text: str, template: str) -> ScriptedBackend:
    """A backend that goes through `text`, whatever it was made to say: to a prompt of one character, or of 8 tokens."""
    tokens = [*text.encode(), EOS]
    start = 1 + len("x<think>")  # the tokenizer puts one in front

    def follow(fed: Sequence[int]) -> int:
        return tokens[min(len(fed) - start, len(tokens) - 1)]

    return with_info(ScriptedBackend(follow=follow), chat_template=template)


def configured(**values: Any) -> ServerConfig:
    return ServerConfig(chat=ChatConfig(**values))


async def both(served: Served, **fields: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The first choice of the whole answer, and the choices of the streamed one's chunks."""
    whole = (await served.chat(**fields)).json()
    chunks = frames((await served.chat(stream=True, **fields)).text)
    return whole["choices"][0], [choice for chunk in chunks for choice in chunk["choices"]]


def answers(backend: ScriptedBackend, config: ServerConfig | None = None, **fields: Any) -> dict[str, Any]:
    """The message of an answer, which is the same streamed."""

    async def work() -> dict[str, Any]:
        async with serving(backend, config) as served:
            whole, streamed = await both(served, **fields)
        message = whole["message"]
        assert streamed[0]["delta"] == {"role": "assistant"}
        for name in ("content", "reasoning_content", "reasoning"):
            joined = "".join(choice["delta"].get(name, "") for choice in streamed)
            assert joined == message.get(name, "")
        assert streamed[-1]["finish_reason"] == whole["finish_reason"]
        assert streamed[-1]["delta"] == {key: value for key, value in message.items() if key == "reasoning_only"}
        assert not any("reasoning_only" in choice["delta"] for choice in streamed[:-1])
        return {**message, "finish_reason": whole["finish_reason"]}

    return run(work())


def test_reasoning_has_a_field_of_its_own_and_an_alias() -> None:
    assert answers(thinker()) == {
        "role": "assistant",
        "content": "Yes.",
        "reasoning_content": "hm hm",
        "reasoning": "hm hm",
        "finish_reason": "stop",
    }
    assert "reasoning" not in answers(thinker(), configured(reasoning_alias="none"))
    assert answers(thinker("Yes. ")) == {"role": "assistant", "content": "Yes. ", "finish_reason": "stop"}


def test_a_prompt_that_opened_the_block() -> None:
    message = answers(thinker("hm\n</think>\n\nYes.", PRIMED))
    assert (message["reasoning_content"], message["content"]) == ("hm", "Yes.")
    message = answers(thinker("hm", PRIMED), max_tokens=2)
    assert (message["reasoning_content"], message["content"]) == ("hm", "")
    assert (message["reasoning_only"], message["finish_reason"]) == (True, "length")


@pytest.mark.parametrize(
    ("values", "content", "reasoning"),
    [
        ({"reasoning_format": "none"}, TEXT, None),
        ({"reasoning_format": "deepseek-legacy"}, TEXT, "hm hm"),
        ({"skip_parsing": True}, TEXT, None),
    ],
)
def test_formats(values: dict[str, Any], content: str, reasoning: str | None) -> None:
    message = answers(thinker(), configured(**values))
    assert (message["content"], message.get("reasoning_content")) == (content, reasoning)
    assert "reasoning_only" not in message


def test_stop_strings_end_an_answer_inside_its_reasoning() -> None:
    message = answers(thinker(), stop=[" hm"])
    assert (message["content"], message["reasoning_content"], message["finish_reason"]) == ("", "hm", "stop")


def test_every_token_has_one_entry() -> None:
    async def work() -> None:
        async with serving(thinker()) as served:
            whole, streamed = await both(served, logprobs=True, top_logprobs=1)
        entries = whole["logprobs"]["content"]
        assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == TEXT
        parts = [choice["logprobs"]["content"] for choice in streamed if choice["logprobs"]]
        assert [entry for part in parts for entry in part] == entries
        hidden = [choice for choice in streamed if choice["delta"].get("content") == ""]
        # A chunk for each token of both markers and the white space beside them.
        assert len(hidden) == len("<think>\n") + len("\n</think>\n\n")
        assert all(len(choice["logprobs"]["content"]) == 1 for choice in hidden)

    run(work())


def test_several_choices_are_split_each_for_itself() -> None:
    async def work() -> None:
        async with serving(thinker()) as served:
            chunks = frames((await served.chat(stream=True, n=3)).text)
        for index in range(3):
            deltas = [c["delta"] for chunk in chunks for c in chunk["choices"] if c["index"] == index]
            assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "hm hm"
            assert "".join(delta.get("content", "") for delta in deltas) == "Yes."

    run(work())


@pytest.mark.parametrize(
    "name", ["thinking_budget_tokens", "reasoning_budget_tokens", "thinking_token_budget", "thinking_budget"]
)
def test_a_budget_ends_the_block(name: str) -> None:
    message = answers(wanting("abcdefghijklmno", PRIMED), content="x", **{name: 3})
    assert (message["reasoning_content"], message["content"]) == ("abc", "lmno")


def test_whose_budget_counts() -> None:
    config = configured(reasoning_budget=0)
    assert "reasoning_content" not in answers(wanting("abcdefghijk", PRIMED), config, content="x")
    assert answers(wanting("abcdefghijk", PRIMED), config, content="x")["content"] == "ijk"
    unlimited = answers(wanting("abcdefghijk", PRIMED), config, content="x", thinking_budget=-1)
    assert unlimited["reasoning_content"] == "abcdefghijk"
    most = answers(wanting("abcdefghijk", PRIMED), configured(reasoning_budget=99), content="x", max_tokens=4)
    assert (most["reasoning_content"], most["finish_reason"]) == ("abcd", "length")


def test_a_model_without_markers_ignores_budgets() -> None:
    assert answers(says("abc"), thinking_budget=0)["content"] == "abc"


def test_completions_are_not_split_but_a_block_has_its_budget() -> None:
    async def work() -> None:
        async with serving(wanting("<think>abcdefghijkl", PRIMED)) as served:
            body = (await served.complete("x" * 8, thinking_budget=2)).json()
        assert body["choices"][0]["text"] == "<think>ab</think>kl"

    run(work())


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "\n", "a", "\u20ac", " ", "<"]), max_size=8).map("".join),
    st.sampled_from([THINKS, PRIMED, "{{ messages[0].content }}"]),
    st.sampled_from(["deepseek", "deepseek-legacy", "none"]),
)
@settings(max_examples=25)
def test_streamed_equals_whole(text: str, template: str, style: str) -> None:
    answers(thinker(text, template), configured(reasoning_format=style))


class TestBudget:
    @pytest.mark.parametrize(
        ("fields", "server", "expected"),
        [
            ({}, -1, None),
            ({}, 7, 7),
            ({"thinking_budget": 3}, 7, 3),
            ({"thinking_budget": -1}, 7, None),
            ({"thinking_budget": 3, "thinking_budget_tokens": 0}, -1, 0),
            ({"thinking_budget": 3, "thinking_token_budget": 4}, -1, 4),
            ({"reasoning_budget_tokens": 10, "thinking_token_budget": 4}, -1, 10),
        ],
    )
    def test_which_counts(self, fields: dict[str, int], server: int, expected: int | None) -> None:
        assert resolve_budget(GenerationFields(**fields), server, 10) == expected

    def test_more_than_the_answer_can_have(self) -> None:
        with pytest.raises(ApiError) as caught:
            resolve_budget(GenerationFields(thinking_token_budget=11), -1, 10)
        assert (caught.value.status, caught.value.param) == (400, "thinking_token_budget")
        assert resolve_budget(GenerationFields(), 11, 10) == 11


class TestPromptRoutes:
    SOURCE = "{% for m in messages %}{{ m.role }}={{ m.content }};{% endfor %}{{ tools | tojson if tools is defined }}"

    def ask(self, path: str, config: ServerConfig | None = None, **fields: Any) -> Any:
        async def work() -> Any:
            async with serving(with_info(says(""), chat_template=self.SOURCE), config) as served:
                body = {"messages": [{"role": "user", "content": "hi"}], **fields}
                return (await served.http.post(path, json=body)).json()

        return run(work())

    def test_the_prompt_of_a_request(self) -> None:
        assert self.ask("/apply-template") == {"prompt": "user=hi;"}
        assert self.ask("/apply-template", tools=[]) == {"prompt": "user=hi;"}
        shown = '[{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]'
        assert self.ask("/apply-template", tools=[TOOL]) == {"prompt": f"user=hi;{shown}"}
        assert self.ask("/apply-template", tools=[TOOL], tool_choice="none") == {"prompt": "user=hi;"}
        forced = self.ask("/apply-template", tools=[TOOL], tool_choice=NAMED)["prompt"]
        assert forced.startswith("user=hi\n\n")
        assert forced.endswith(";" + shown)

    def test_an_answer_that_goes_on(self) -> None:
        messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "so"}]
        assert self.ask("/apply-template", messages=messages) == {"prompt": "user=hi;assistant=so"}
        off = configured(prefill_assistant=False)
        assert self.ask("/apply-template", off, messages=messages) == {"prompt": "user=hi;assistant=so;"}

    @pytest.mark.parametrize("path", ["/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"])
    def test_its_length(self, path: str) -> None:
        assert self.ask(path) == {"input_tokens": 1 + len("user=hi;")}

    @pytest.mark.parametrize("path", ["/apply-template", "/v1/chat/completions/input_tokens"])
    def test_the_same_refusals_as_chat(self, path: str) -> None:
        for fields, param in (
            ({"messages": []}, "messages"),
            ({"tool_choice": "required"}, "tool_choice"),
            ({"tools": [{}]}, "tools"),
            ({"chat_template_kwargs": 1}, "chat_template_kwargs"),
        ):
            error = self.ask(path, **fields)["error"]
            assert (error["type"], error["param"]) == ("invalid_request_error", param)
