"""Tool calls of the default model through the real server, with a template that has a place for tools."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from .server import ServerProcess, server

pytestmark = pytest.mark.real_model
TEMPLATE = Path(__file__).parents[1] / "chat" / "templates" / "hermes.jinja"
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1, "maxLength": 20},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
    },
    "required": ["city", "unit", "days"],
    "additionalProperties": False,
}
ALARM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "at": {
            "type": "object",
            "properties": {
                "hour": {"type": "integer", "minimum": 0, "maximum": 23},
                "day": {"enum": ["today", "Montag"]},
            },
            "required": ["hour", "day"],
            "additionalProperties": False,
        },
        "loud": {"type": "boolean"},
    },
    "required": ["at"],
    "additionalProperties": False,
}
SCHEMAS = {"get_weather": WEATHER, "set_alarm": ALARM}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in SCHEMAS.items()]
NAMED = {"type": "function", "function": {"name": "set_alarm"}}


@pytest.fixture(scope="module")
def running(default_model_path: Path) -> Iterator[ServerProcess]:
    arguments = ("--model", default_model_path, "--parallel", "8", "--ctx-size", "8192")
    with server(*arguments, "--chat-template-file", TEMPLATE) as process:
        yield process


def body(**fields: Any) -> dict[str, Any]:
    question = {"role": "user", "content": "How will the weather be in Oslo tomorrow?"}
    return {"messages": [question], "tools": TOOLS, "max_tokens": 600, "temperature": 1.2, **fields}


def whole(url: str, fields: dict[str, Any]) -> dict[str, Any]:
    response = httpx.post(f"{url}/v1/chat/completions", json=fields, timeout=300)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


def streamed(url: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The choice that the chunks of a stream add up to."""
    text = httpx.post(f"{url}/v1/chat/completions", json={**fields, "stream": True}, timeout=300).text
    content, calls, reason = "", list[dict[str, Any]](), None
    for line in text.splitlines():
        if line.startswith("data: {"):
            choice = json.loads(line[6:])["choices"][0]
            content += choice["delta"].get("content", "")
            for delta in choice["delta"].get("tool_calls", []):
                if delta["index"] == len(calls):
                    calls.append({"function": {"name": delta["function"]["name"], "arguments": ""}})
                calls[delta["index"]]["function"]["arguments"] += delta["function"].get("arguments", "")
            reason = choice["finish_reason"] or reason
    return {"message": {"content": content or None, "tool_calls": calls}, "finish_reason": reason}


def calls_of(choice: dict[str, Any]) -> list[tuple[str, str]]:
    return [(call["function"]["name"], call["function"]["arguments"]) for call in choice["message"]["tool_calls"]]


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_forced_calls_satisfy_their_schemas_for_fifty_seeds(running: ServerProcess, choice: Any) -> None:
    requests = [body(tool_choice=choice, seed=seed, parallel_tool_calls=seed % 2 == 0) for seed in range(50)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda fields: whole(running.url, fields), requests))
        streams = list(pool.map(lambda fields: streamed(running.url, fields), requests))
    for seed, (answer, stream) in enumerate(zip(answers, streams, strict=True)):
        assert calls_of(answer) == calls_of(stream)
        assert answer["finish_reason"] == stream["finish_reason"] == "tool_calls", seed
        assert answer["message"]["content"] is stream["message"]["content"] is None
        calls = calls_of(answer)
        assert len(calls) == 1 or (choice == "required" and seed % 2 == 0 and calls)
        for name, arguments in calls:
            jsonschema.validate(json.loads(arguments), SCHEMAS[name])
            assert choice == "required" or name == "set_alarm"
    assert len({str(calls_of(answer)) for answer in answers}) > 25, "the model chooses the values"


def test_without_a_template_for_tools_a_forced_call_is_one_too(default_model_path: Path) -> None:
    with server("--model", default_model_path) as running:
        answer = whole(running.url, body(tool_choice=NAMED, temperature=0))
        [(name, arguments)] = calls_of(answer)
        assert name == "set_alarm"
        jsonschema.validate(json.loads(arguments), ALARM)


def test_a_free_choice_beside_a_forced_one(running: ServerProcess) -> None:
    """Rows under a grammar and free rows share a batch."""
    free = body(temperature=0, max_tokens=40)
    alone = whole(running.url, free)
    with ThreadPoolExecutor(4) as pool:
        forced = [pool.submit(whole, running.url, body(tool_choice="required", seed=seed)) for seed in range(3)]
        beside = pool.submit(whole, running.url, free).result()
        assert all(calls_of(answer.result()) for answer in forced)
    assert beside["message"] == alone["message"]


def test_a_conversation_with_results_goes_on(running: ServerProcess) -> None:
    fields = body(tool_choice=NAMED, temperature=0)
    called = whole(running.url, fields)["message"]
    result = {"role": "tool", "tool_call_id": called["tool_calls"][0]["id"], "content": "It rings at 7."}
    messages = [*fields["messages"], called, result]
    answer = whole(running.url, {**fields, "messages": messages, "tool_choice": "none", "max_tokens": 20})
    assert answer["message"]["content"]
    prompt = httpx.post(f"{running.url}/apply-template", json={"messages": messages, "tools": TOOLS}).json()["prompt"]
    assert '<tool_call>\n{"name": "set_alarm", "arguments": {"at": {' in prompt
    assert "It rings at 7." in prompt
