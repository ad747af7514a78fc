"""Structured output of the default model through the real server, and the OpenAI SDK's helpers for it."""

from __future__ import annotations

import concurrent.futures
import json
from collections.abc import Iterator
from datetime import date
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import httpx
import jsonschema
import openai
import pytest
from pydantic import BaseModel, Field

from .server import ServerProcess, server

pytestmark = pytest.mark.real_model

ORDER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "customer": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "minLength": 1, "maxLength": 20},
                "tier": {"enum": ["bronze", "silber", "gold \U0001f947"]},
            },
            "required": ["name", "tier"],
            "additionalProperties": False,
        },
        "ordered": {"type": "string", "format": "date"},
        "items": {
            "type": "array",
            "minItems": 1,
            "maxItems": 3,
            "items": {
                "type": "object",
                "properties": {
                    "sku": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
                    "count": {"type": "integer", "minimum": 1, "maximum": 99},
                    "price": {"type": "number", "minimum": 0, "maximum": 500},
                },
                "required": ["sku", "count", "price"],
                "additionalProperties": False,
            },
        },
        "paid": {"type": ["boolean", "null"]},
    },
    "required": ["customer", "ordered", "items", "paid"],
    "additionalProperties": False,
}
VALIDATOR = jsonschema.Draft202012Validator(ORDER, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)


@pytest.fixture(scope="module")
def running(default_model_path: Path) -> Iterator[ServerProcess]:
    with server("--model", default_model_path, "--parallel", "8", "--ctx-size", "8192") as process:
        yield process


def body(schema: dict[str, Any] | None = ORDER, **fields: Any) -> dict[str, Any]:
    held = {"type": "json_schema", "json_schema": {"name": "order", "strict": True, "schema": schema}}
    return {
        "messages": [{"role": "user", "content": "Make up an order as JSON."}],
        "max_tokens": 400,
        "temperature": 0,
        **({"response_format": held} if schema is not None else {}),
        **fields,
    }


def ask(running: ServerProcess, route: str = "/v1/chat/completions", **fields: Any) -> dict[str, Any]:
    response = httpx.post(f"{running.url}{route}", json=fields, timeout=300)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


def streamed(running: ServerProcess, **fields: Any) -> str:
    lines = httpx.post(f"{running.url}/v1/chat/completions", json={**fields, "stream": True}, timeout=300).text
    chunks = [json.loads(line[6:]) for line in lines.splitlines() if line.startswith("data: {")]
    return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 1.0, "seed": 4},
        {"temperature": 2.0, "seed": 5, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
        {"repetition_penalty": 1.2, "dry_multiplier": 0.8, "frequency_penalty": 0.3},
        {"temperature": 1.0, "seed": 6, "mirostat": 2},
        {"temperature": 1.0, "seed": 7, "xtc_probability": 0.5, "typical_p": 0.9},
    ],
)
def test_a_nested_schema_is_kept_streamed_and_whole(running: ServerProcess, fields: dict[str, Any]) -> None:
    choice = ask(running, **body(**fields))
    text = choice["message"]["content"]
    assert streamed(running, **body(**fields)) == text
    if choice["finish_reason"] == "stop":
        VALIDATOR.validate(json.loads(text))
    else:
        assert choice["finish_reason"] == "length"
    if not fields:
        assert choice["finish_reason"] == "stop"


def test_text_completions_too(running: ServerProcess) -> None:
    fields = {"prompt": "An order:", "max_tokens": 400, "temperature": 0}
    choice = ask(running, "/v1/completions", **fields, response_format=body()["response_format"])
    VALIDATOR.validate(json.loads(choice["text"]))


def test_neighbours_do_not_notice(running: ServerProcess) -> None:
    free = {"schema": None, "temperature": 1.0, "seed": 11, "max_tokens": 40, "logprobs": True}
    alone = ask(running, **body(**free))
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        held = [pool.submit(ask, running, **body(temperature=1.0, seed=seed)) for seed in range(3)]
        together = ask(running, **body(**free))
        for future in held:
            choice = future.result()
            if choice["finish_reason"] == "stop":
                VALIDATOR.validate(json.loads(choice["message"]["content"]))
    assert together == alone


def test_log_probabilities_do_not_know_the_mask(running: ServerProcess) -> None:
    choice = ask(running, **body({"enum": ["\u6771\u4eac"]}, logprobs=True, top_logprobs=1))
    entries = choice["logprobs"]["content"]
    assert (
        b"".join(bytes(entry["bytes"]) for entry in entries).decode()
        == choice["message"]["content"]
        == '"\u6771\u4eac"'
    )
    assert any(entry["top_logprobs"][0]["token"] != entry["token"] for entry in entries)


def test_a_recursive_schema_ends_or_is_cut(running: ServerProcess) -> None:
    node = {
        "type": "object",
        "properties": {"next": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}},
        "required": ["next"],
        "additionalProperties": False,
    }
    choice = ask(running, **body(node, max_tokens=60))
    assert choice["finish_reason"] in ("stop", "length")
    if choice["finish_reason"] == "stop":
        jsonschema.validate(json.loads(choice["message"]["content"]), node)


def test_json_object_on_request_of_the_server_only(running: ServerProcess, default_model_path: Path) -> None:
    wanted = {**body(None, max_tokens=60), "response_format": {"type": "json_object"}}
    refused = httpx.post(f"{running.url}/v1/chat/completions", json=wanted)
    assert refused.status_code == 400
    assert "json_schema" in refused.json()["error"]["message"]
    with server("--model", default_model_path, "--allow-json-object") as allowing:
        assert ask(allowing, **wanted)["message"]["content"].startswith("{")


class Colour(StrEnum):
    RED = "red"
    GREEN = "green"


class Circle(BaseModel):
    kind: Literal["circle"]
    radius: float


class Square(BaseModel):
    kind: Literal["square"]
    side: int


class Drawing(BaseModel):
    colour: Colour
    made: date
    shape: Annotated[Circle | Square, Field(discriminator="kind")]
    note: str | None


def test_the_openai_sdk_parses_an_answer(running: ServerProcess) -> None:
    with openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client:
        messages: Any = [{"role": "user", "content": "Draw something red."}]
        answer = client.chat.completions.parse(
            model="any", messages=messages, response_format=Drawing, temperature=0, max_tokens=400
        )
        drawing = answer.choices[0].message.parsed
        assert isinstance(drawing, Drawing)
        with client.chat.completions.stream(
            model="any", messages=messages, response_format=Drawing, temperature=0, max_tokens=400
        ) as stream:
            assert stream.get_final_completion().choices[0].message.parsed == drawing
