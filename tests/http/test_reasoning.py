"""Reasoning of the default model, which a template makes it do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI

from .server import ServerProcess, server

pytestmark = pytest.mark.real_model
TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{{- '<think>\\n' if enable_thinking | default(true) else '<think>\\n\\n</think>\\n\\n' }}
{%- endif %}
"""
FRANCE: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def running(default_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    template = tmp_path_factory.mktemp("template") / "thinking.jinja"
    template.write_text(TEMPLATE, encoding="utf-8")
    arguments = ("--model", default_model_path, "--ctx-size", "4096", "--chat-template-file", template)
    with server(*arguments, "--reasoning-alias-field", "none") as process:
        yield process


@pytest.fixture
def client(running: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{running.url}/v1", api_key="none", timeout=120, max_retries=0) as client:
        yield client


def ask(client: OpenAI, **fields: Any) -> Any:
    """The first choice; `budget` and template variables are no fields of OpenAI's."""
    body = {key: fields.pop(key) for key in ("thinking_budget_tokens", "chat_template_kwargs") if key in fields}
    return client.chat.completions.create(
        model="any", messages=FRANCE, temperature=0, extra_body=body, **{"max_tokens": 24, **fields}
    )


def test_a_budget_ends_the_block_and_the_answer_follows(client: OpenAI) -> None:
    whole = ask(client, thinking_budget_tokens=4, logprobs=True)
    message = whole.choices[0].message
    assert message.reasoning_content
    assert "Paris" in message.content
    assert "think>" not in message.content + message.reasoning_content
    assert not hasattr(message, "reasoning")
    entries = whole.choices[0].logprobs.content
    assert len(entries) == whole.usage.completion_tokens
    written = bytes(byte for entry in entries for byte in entry.bytes).decode()
    before, _, after = written.partition("</think>")
    assert (before.strip(), after.strip()) == (message.reasoning_content.strip(), message.content.strip())

    chunks = list(ask(client, thinking_budget_tokens=4, logprobs=True, stream=True))
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == message.reasoning_content
    assert "".join(delta.content or "" for delta in deltas) == message.content
    streamed = [entry for chunk in chunks for entry in (chunk.choices[0].logprobs or Nothing).content]
    assert [entry.token for entry in streamed] == [entry.token for entry in entries]


class Nothing:
    """Of a chunk without log probabilities."""

    content: tuple[Any, ...] = ()


def test_no_reasoning_at_all(client: OpenAI) -> None:
    for fields in ({"thinking_budget_tokens": 0}, {"reasoning_effort": "none"}):
        message = ask(client, **fields).choices[0].message
        assert not hasattr(message, "reasoning_content")
        assert "Paris" in message.content


def test_an_answer_that_ends_inside_its_reasoning(client: OpenAI) -> None:
    choice = ask(client, max_tokens=3).choices[0]
    assert (choice.message.content, choice.finish_reason) == ("", "length")
    assert choice.message.reasoning_only is True
    last = list(ask(client, max_tokens=3, stream=True))[-1].choices[0]
    assert (last.finish_reason, last.delta.reasoning_only) == ("length", True)


def test_a_budget_larger_than_the_answer(running: ServerProcess) -> None:
    body = {"messages": FRANCE, "max_tokens": 8, "thinking_budget": 9}
    answer = httpx.post(f"{running.url}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "thinking_budget"


def test_the_prompt_and_its_length(running: ServerProcess) -> None:
    def post(path: str, **fields: Any) -> Any:
        return httpx.post(f"{running.url}{path}", json={"messages": FRANCE, **fields}, timeout=60).json()

    expected = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n<think>\n"
    assert post("/apply-template") == {"prompt": expected}
    begun = [*FRANCE, {"role": "assistant", "content": "It is"}]
    assert post("/apply-template", messages=begun)["prompt"].endswith("<|im_start|>assistant\nIt is")
    usage = post("/v1/chat/completions", max_tokens=1)["usage"]
    assert post("/v1/chat/completions/input_tokens") == {"input_tokens": usage["prompt_tokens"]}
