"""POST /v1/chat/completions: from messages to a prompt, refusals in order, and hostile bodies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlxcel.api.openai.schema import ChatRequest, CompletionRequest
from mlxcel.config import EngineConfig, ModelConfig, ServerConfig
from tests.engine.scripted import ScriptedBackend, echo

from ..stub import Served, frames, run, says, serving, with_info

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}={{ m.content }};{% endfor %}"
    "{{ enable_thinking }}|{{ mode }}|{{ preserve_thinking }}"
)


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def rendering(template: str | None = TEMPLATE) -> ScriptedBackend:
    """A backend that answers with the prompt it got."""
    return with_info(ScriptedBackend(echo), chat_template=template)


def ask(backend: ScriptedBackend | None = None, config: ServerConfig | None = None, **fields: Any) -> Any:
    """The answer's text, or the error."""

    async def work() -> Any:
        async with serving(backend or rendering(), config) as served:
            response = await served.chat(**fields)
            body = response.json()
            return body["choices"][0]["message"]["content"] if response.is_success else body["error"]

    return run(work())


def test_messages_reach_the_template() -> None:
    messages = [
        {"role": "developer", "content": "rules"},
        {"role": "user", "content": [{"type": "text", "text": "question"}]},
        {"role": "assistant", "content": None},
    ]
    assert ask(messages=messages) == "system=rules;user=question;assistant=;||"


@pytest.mark.parametrize(
    "fields",
    [
        {"chat_template_kwargs": {"mode": "a"}, "extra_body": {"chat_template_kwargs": {"mode": "b"}}},
        {"extra_body": {"chat_template_kwargs": {"mode": "a"}}, "preserve_thinking": True},
        {"chat_template_kwargs": {"mode": "a"}, "preserve_thinking": True},
    ],
)
def test_template_variables(fields: dict[str, Any]) -> None:
    assert ask(**fields) == "user=hi;|a|"


def test_flat_variables_and_effort() -> None:
    assert ask(preserve_thinking=True) == "user=hi;||True"
    assert ask(extra_body={"preserve_thinking": True}) == "user=hi;||True"
    assert ask(reasoning_effort="none") == "user=hi;False||"


def test_the_servers_variables_and_template() -> None:
    model = ModelConfig(chat_template_kwargs={"mode": "s", "enable_thinking": 1}, chat_template="{{ mode }}!")
    assert ask(config=ServerConfig(model=model)) == "s!"
    assert ask(config=ServerConfig(model=model), chat_template_kwargs={"mode": "r"}) == "r!"


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% for", "template"),
        (None, "no chat template"),
    ],
)
def test_conversations_no_prompt_can_be_made_of(template: str | None, words: str) -> None:
    for stream in (False, True):
        error = ask(rendering(template), stream=stream)
        assert error["type"] == "invalid_request_error"
        assert words in error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": False, "top_logprobs": 0}, "top_logprobs"),
        ({"logprobs": 3}, "logprobs"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tools": {}}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": "json"}, "response_format"),
        ({"xtc_probability": 1.5}, "xtc_probability"),
        ({"thinking_budget_tokens": -2}, "thinking_budget_tokens"),
        ({"thinking_budget_tokens": 5, "max_tokens": 4}, "thinking_budget_tokens"),
        ({"reasoning_budget_tokens": 5000}, "reasoning_budget_tokens"),
        ({"grammar": "root ::= x"}, "grammar"),
        ({"tools": [TOOL] * 129, "tool_choice": "none"}, "tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        (
            {"tools": [TOOL], "tool_choice": "required", "response_format": {"type": "json_schema"}},
            "tool_choice",
        ),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
        ({"seed": 2**64}, "seed"),
        ({"messages": {}}, "messages"),
        ({"messages": [{"role": "wizard"}]}, "messages[0].role"),
    ],
)
def test_refusals_come_before_any_stream(fields: dict[str, Any], param: str) -> None:
    for stream in (False, True):
        error = ask(stream=stream, **fields)
        assert error["type"] == "invalid_request_error"
        assert error["param"] == param


def test_missing_input_is_reported_before_anything_else_and_media_before_tools() -> None:
    assert ask(content=" ", top_logprobs=2)["param"] == "messages"
    picture = [{"type": "image_url", "image_url": {"url": "http://10.0.0.1/"}}]
    assert ask(content=picture, tools=[{}])["type"] == "not_supported_error"
    assert ask(content=picture, top_logprobs=2)["param"] == "top_logprobs"


def test_requests_as_clients_send_them() -> None:
    fields = {
        "model": "some/other-model",
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "response_format": {"type": "text"},
        "stream_options": {"include_usage": True},
        "max_tokens": 32000,
        "user": "u",
        "prompt_cache_key": "k",
        "metadata": {"a": "b"},
        "store": False,
        "logit_bias": {},
        "service_tier": "auto",
        "n": 1,
        "stop": None,
        "temperature": None,
    }
    assert ask(**fields) == "user=hi;||"
    assert ask(tools=[TOOL], tool_choice="none") == "user=hi;||"
    call = {"id": None, "type": None, "function": {"name": "f", "arguments": None}}
    history = [{"role": "assistant", "content": "so", "tool_calls": [call]}, {"role": "tool", "content": "1"}]
    assert ask(messages=history) == "assistant=so;tool=1;||"


def test_log_probabilities_are_null_unless_asked_for() -> None:
    async def work() -> None:
        async with serving(says("ab")) as served:
            plain = (await served.chat()).json()
            assert plain["choices"][0]["logprobs"] is None
            bare = (await served.chat(logprobs=True)).json()["choices"][0]["logprobs"]["content"]
            assert [one["top_logprobs"] for one in bare] == [[], []]

    run(work())


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def served(runner: asyncio.Runner) -> Iterator[Served]:
    async def enter() -> Served:
        return await stack.enter_async_context(serving(says("ok"), ServerConfig(engine=EngineConfig(parallel=2))))

    stack = AsyncExitStack()
    yield runner.run(enter())
    runner.run(stack.aclose())


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)
parts = st.fixed_dictionaries({"type": st.sampled_from(["text", "image_url", "x"])}, optional={"text": values})
messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool"]) | values},
    optional={"content": st.text(max_size=5) | st.lists(parts, max_size=2) | values, "tool_calls": values},
)
likely = st.sampled_from([None, 0, 1, 2, -1, 0.5, True, False, "x", "none", "text", [], {}, ["a"], {"type": "text"}])


def bodies(kind: type[Any], needed: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    optional = {name: likely | values for name in kind.__struct_fields__ if name not in needed}
    chosen = st.sets(st.sampled_from(sorted(optional)), max_size=4)
    return chosen.flatmap(lambda names: st.fixed_dictionaries({**needed, **{name: optional[name] for name in names}}))


hostile = st.one_of(
    st.tuples(
        st.just("/v1/chat/completions"), bodies(ChatRequest, {"messages": st.lists(messages, max_size=2) | values})
    ),
    st.tuples(st.just("/v1/completions"), bodies(CompletionRequest, {"prompt": st.text(max_size=5) | values})),
    st.tuples(st.just("/v1/completions"), st.binary(max_size=20)),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(sent=hostile)
def test_any_body_gets_an_answer_or_a_refusal(runner: asyncio.Runner, served: Served, sent: tuple[str, Any]) -> None:
    path, body = sent
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = runner.run(served.http.post(path, content=content))
    if response.status_code != 200:
        assert response.status_code in {400, 501}
        assert set(response.json()["error"]) - {"param"} == {"message", "type", "code"}
    elif response.headers["content-type"] != "application/json":
        frames(response.text)
