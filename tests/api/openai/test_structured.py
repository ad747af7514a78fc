"""`response_format` on the chat and completion routes."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from mlxcel.api.errors import ApiError
from mlxcel.api.openai.schema import ResponseFormat
from mlxcel.api.openai.structured import wanted_schema
from mlxcel.config import EngineConfig, GrammarConfig, ServerConfig
from mlxcel.engine.constraint import ConstraintError
from mlxcel.grammar.compiler import Compiler
from mlxcel.grammar.matcher import Matcher
from tests.api.stub import AsgiCall, Served, frames, run, serving, until, with_info
from tests.engine.scripted import EOS, VOCABULARY, ScriptedBackend
from tests.grammar.tokenizers import byte_tokenizer

TOKENIZER = byte_tokenizer(words=())
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"kind": {"enum": ["cat", "dog"]}, "age": {"type": "integer", "minimum": 0, "maximum": 40}},
    "required": ["kind", "age"],
    "additionalProperties": False,
}


def rambling(seed: int = 0) -> ScriptedBackend:
    """A model that wants to say anything, and to end at any time."""
    chance = random.Random(seed)

    def follow(fed: Sequence[int]) -> int:
        return chance.randrange(EOS + 1)

    return with_info(ScriptedBackend(follow=follow), tokenizer=TOKENIZER, vocabulary=VOCABULARY)


def wants(schema: Any, **wrapper: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "strict": True, **wrapper, "schema": schema}}


async def ask(served: Served, route: str, **fields: Any) -> httpx.Response:
    fields = {"max_tokens": 300, **fields}
    return await (served.chat if route == "chat" else served.complete)(**fields)


def text_of(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    return choice["message"]["content"] if "message" in choice else choice["text"]


@pytest.mark.parametrize("route", ["chat", "text"])
def test_answers_are_valid_whatever_the_model_wants(route: str) -> None:
    async def work() -> None:
        async with serving(rambling()) as served:
            answers = [await ask(served, route, response_format=wants(SCHEMA), temperature=0) for _ in range(10)]
            for answer in answers:
                value = json.loads(text_of(answer))
                assert value["kind"] in ("cat", "dog")
                assert value["age"] in range(41)
                assert answer.json()["choices"][0]["finish_reason"] == "stop"
            assert len({text_of(answer) for answer in answers}) > 1

    run(work())


@pytest.mark.parametrize("route", ["chat", "text"])
@pytest.mark.parametrize("format", [None, {"type": "text"}, {}, {"type": None}, {"json_schema": 5}])
def test_formats_that_ask_for_nothing(route: str, format: Any) -> None:
    async def work() -> None:
        async with serving() as served:
            assert text_of(await ask(served, route, response_format=format)) == "Hello!"

    run(work())


@pytest.mark.parametrize("route", ["chat", "text"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("format", "words"),
    [
        ({"type": "json_schema"}, "json_schema must be an object"),
        ({"type": "json_schema", "json_schema": "hunter2"}, "json_schema must be an object"),
        ({"type": "json_schema", "json_schema": {"name": "hunter2"}}, "json_schema.schema is required"),
        (wants("hunter2"), "json_schema.schema must be an object"),
        (wants(True), "json_schema.schema must be an object"),
        ({"type": "json_object"}, "json_schema"),
        ({"type": "hunter2"}, "'text' or 'json_schema'"),
        (wants({"not": {"const": "hunter2"}}), "not supported: not"),
        (wants({"enum": [], "title": "hunter2"}), "could not be compiled"),
        (wants({"title": "hunter2" * 10_000}), "too large"),
    ],
)
def test_refusals_name_the_field_and_nothing_of_the_schema(route: str, stream: bool, format: Any, words: str) -> None:
    async def work() -> None:
        async with serving(rambling()) as served:
            response = await ask(served, route, response_format=format, stream=stream)
            error = response.json()["error"]
            assert (response.status_code, error["type"]) == (400, "invalid_request_error")
            assert error["param"] == "response_format"
            assert words in error["message"]
            assert "hunter2" not in response.text
            assert served.snapshot.sequences_started == 0

    run(work())


def test_a_format_that_is_no_object() -> None:
    async def work() -> None:
        async with serving() as served:
            for value in ("json", 5, ["json_schema"]):
                assert (await served.chat(response_format=value)).status_code == 400

    run(work())


def test_a_tokenizer_that_cannot_be_constrained_is_a_400() -> None:
    async def work() -> None:
        async with serving() as served:  # the stub's own tokenizer is not BPE
            response = await served.chat(response_format=wants(SCHEMA))
            assert response.status_code == 400
            assert "UnsupportedTokenizer" in response.json()["error"]["message"]
            assert response.json()["error"]["type"] == "invalid_request_error"

    run(work())


def test_a_server_may_allow_json_objects() -> None:
    assert wanted_schema(ResponseFormat("json_object"), allow_json_object=True) == {"type": "object"}
    with pytest.raises(ApiError, match="json_schema"):
        wanted_schema(ResponseFormat("json_object"), allow_json_object=False)

    async def work() -> None:
        async with serving(rambling(), ServerConfig(grammar=GrammarConfig(allow_json_object=True))) as served:
            for _ in range(5):
                response = await served.chat(response_format={"type": "json_object"}, temperature=0, max_tokens=2000)
                if response.json()["choices"][0]["finish_reason"] == "stop":
                    assert isinstance(json.loads(text_of(response)), dict)

    run(work())


def test_a_streamed_answer_is_the_whole_one() -> None:
    """Of a model with a mind of its own: what it says depends on what it has said."""

    def follow(fed: Sequence[int]) -> int:
        return random.Random(bytes(token % 256 for token in fed)).randrange(EOS + 1)

    async def work() -> None:
        backend = with_info(ScriptedBackend(follow=follow), tokenizer=TOKENIZER, vocabulary=VOCABULARY)
        async with serving(backend) as served:
            fields = {"response_format": wants(SCHEMA), "temperature": 1.5, "seed": 3}
            whole = text_of(await ask(served, "chat", **fields))
            streamed = frames((await ask(served, "chat", **fields, stream=True)).text)
            deltas = [chunk["choices"][0]["delta"] for chunk in streamed]
            assert "".join(delta.get("content", "") for delta in deltas) == whole
            assert json.loads(whole)

    run(work())


def test_choices_and_neighbours() -> None:
    async def work() -> None:
        async with serving(rambling(), ServerConfig(engine=EngineConfig(parallel=8))) as served:
            held, free = await asyncio.gather(
                served.chat(n=4, response_format=wants(SCHEMA), temperature=2.0, max_tokens=300, logprobs=True),
                served.chat(max_tokens=40, ignore_eos=True, temperature=0),
            )
            choices = held.json()["choices"]
            for choice in choices:
                value = json.loads(choice["message"]["content"])
                assert set(value) == {"kind", "age"}
                tokens = [bytes(entry["bytes"]) for entry in choice["logprobs"]["content"]]
                assert b"".join(tokens).decode() == choice["message"]["content"]
            assert free.json()["usage"]["completion_tokens"] == 40

    run(work())


def test_a_budget_can_cut_the_text() -> None:
    async def work() -> None:
        async with serving(rambling()) as served:
            response = await served.chat(response_format=wants(SCHEMA), max_tokens=5)
            assert response.json()["choices"][0]["finish_reason"] == "length"
            assert text_of(response).startswith("{")

    run(work())


def test_a_rule_that_fails_on_the_way_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Matcher, token: int) -> bool:
        raise ConstraintError("the grammar engine failed")

    monkeypatch.setattr(Matcher, "consume", fail)

    async def work() -> None:
        async with serving(rambling()) as served:
            response = await served.chat(response_format=wants(SCHEMA))
            assert (response.status_code, response.json()["error"]["type"]) == (500, "server_error")
            chunks = frames((await served.chat(response_format=wants(SCHEMA), stream=True)).text)
            assert chunks[-1]["choices"][0]["finish_reason"] == "error"
            assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == ""
            await served.idle()

    run(work())


def test_a_client_that_leaves_while_its_schema_is_compiled_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    compiling, go_on = threading.Event(), threading.Event()
    compile_schema = Compiler.schema

    def slowly(self: Compiler, schema: dict[str, Any]) -> Any:
        compiling.set()
        assert go_on.wait(20)
        return compile_schema(self, schema)

    monkeypatch.setattr(Compiler, "schema", slowly)

    async def work() -> None:
        async with serving(rambling()) as served:
            body = {"messages": [{"role": "user", "content": "hi"}], "response_format": wants({"type": "string"})}
            calls = [
                AsgiCall(served.app, "/v1/chat/completions", {**body, "stream": stream}) for stream in (True, False)
            ]
            await until(compiling.is_set)
            assert (await served.http.get("/health")).status_code == 200, "the event loop goes on"
            for call in calls:
                call.leave()
            go_on.set()
            await asyncio.wait_for(asyncio.gather(*(call.task for call in calls)), 20)
            await served.idle()
            assert text_of(await served.chat(response_format=wants({"enum": ["only"]}))) == '"only"'

    run(work())


@pytest.mark.parametrize(
    ("template", "thought"),
    [
        ("{{ messages[0].content }}<think>\n", "hm {} hm"),
        ("{{ messages[0].content }}{# <think> #}", "<think>hm {} hm"),
        ("{{ messages[0].content }}{# <think> #}", ""),
        ("{{ messages[0].content }}<think>\n\n</think>\n\n", ""),
    ],
    ids=["primed", "opens", "may open", "closed"],
)
def test_the_schema_holds_what_comes_after_the_reasoning(template: str, thought: str) -> None:
    chance = random.Random(2)
    wanted = iter((f"{thought}</think>\n\n" if thought else "{").encode())  # "{": it does not want to think

    def follow(fed: Sequence[int]) -> int:
        return next(wanted, None) or chance.choice(range(0x20, 0x3C)) + 0x40 * chance.randrange(2)

    backend = with_info(
        ScriptedBackend(follow=follow), tokenizer=TOKENIZER, vocabulary=VOCABULARY, chat_template=template
    )

    async def work() -> None:
        async with serving(backend) as served:
            message = (await served.chat(response_format=wants(SCHEMA), max_tokens=300)).json()["choices"][0]["message"]
            assert message.get("reasoning_content", "") == thought.removeprefix("<think>")
            assert json.loads(message["content"])["kind"] in ("cat", "dog")

    run(work())


@pytest.mark.parametrize(
    "value",
    [
        *("<think>one two three</think>", "a</think>b", '<tool_call>{"name": "clock", "arguments": {}}</tool_call>'),
        {"name": "clock", "arguments": {}},
    ],
)
def test_what_looks_like_markup_inside_the_answer_is_data(value: Any) -> None:
    """A tag in a string is no reasoning, which no budget ends; and what satisfies a schema is no call."""
    template = "{{ messages[0].content }}{{ tools }}{# <think> <tool_call> #}<think></think>"
    tools = [{"type": "function", "function": {"name": "clock"}}]

    async def work() -> None:
        async with serving(with_info(rambling(), chat_template=template)) as served:
            fields = {"response_format": wants({"const": value}), "tools": tools, "thinking_budget": 2}
            answer = await ask(served, "chat", **fields)
            assert json.loads(text_of(answer)) == value
            assert answer.json()["choices"][0]["message"].keys() == {"role", "content"}
            chunks = frames((await ask(served, "chat", stream=True, **fields)).text)
            deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
            assert json.loads("".join(delta.get("content", "") for delta in deltas)) == value

    run(work())
