"""The OpenAI SDK as judge: its own types check every body, and its helpers take what the server streams."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from openai.pagination import AsyncPage
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

from mlxcel.config import EngineConfig, NetworkConfig, ServerConfig
from tests.api.stub import Served, frames, listening, run, says, serving
from tests.engine.scripted import ScriptedBackend

TEXT = "Gr\u00fc\u00df dich \U0001f389, *world*\n\u2028end"
MESSAGES: Any = [{"role": "user", "content": "hi"}]


@asynccontextmanager
async def sdk(
    backend: ScriptedBackend | None = None, *, key: str = "key", config: ServerConfig | None = None
) -> AsyncIterator[tuple[AsyncOpenAI, Served]]:
    """The SDK's client, connected over HTTP."""
    async with (
        serving(backend or says(TEXT), config) as served,
        listening(served.app) as address,
        AsyncOpenAI(base_url=f"{address}/v1", api_key=key, max_retries=0) as client,
    ):
        yield client, served


def check(kind: type[BaseModel], body: Any) -> None:
    """Every required field is there, every type is exact, and nothing is there that the type does not know."""
    model = kind.model_validate(body, strict=True)
    assert _unknown(model) == set()


def _unknown(value: Any) -> set[str]:
    """Names of fields the SDK's types do not have, at any depth."""
    if isinstance(value, list):
        return set().union(*map(_unknown, value))
    if not isinstance(value, BaseModel):
        return set()
    return set(value.model_extra or ()).union(*(_unknown(getattr(value, name)) for name in type(value).model_fields))


@pytest.mark.parametrize("fields", [{}, {"n": 2}, {"logprobs": True, "top_logprobs": 3}, {"max_tokens": 0}])
def test_chat_bodies_match_the_sdks_types(fields: dict[str, Any]) -> None:
    async def work() -> None:
        async with serving(says(TEXT)) as served:
            check(ChatCompletion, (await served.chat(**fields)).json())
            stream = await served.chat(stream=True, stream_options={"include_usage": True}, **fields)
            for chunk in frames(stream.text):
                check(ChatCompletionChunk, chunk)

    run(work())


@pytest.mark.parametrize("fields", [{}, {"n": 2}, {"logprobs": 3}])
def test_completion_bodies_match_the_sdks_types(fields: dict[str, Any]) -> None:
    async def work() -> None:
        async with serving(says(TEXT)) as served:
            check(Completion, (await served.complete(**fields)).json())
            stream = await served.complete(stream=True, stream_options={"include_usage": True}, **fields)
            for chunk in frames(stream.text):
                for choice in chunk["choices"]:
                    del choice["delta"]  # the one field of ours
                    # The type has no null here, although running choices have no reason yet at OpenAI either.
                    choice["finish_reason"] = choice["finish_reason"] or "stop"
                check(Completion, chunk)

    run(work())


def test_the_model_list_matches_the_sdks_type() -> None:
    async def work() -> None:
        async with sdk() as (client, served):
            body = (await served.http.get("/v1/models")).json()
            check(AsyncPage[Model], body)
            assert [model.id async for model in client.models.list()] == ["scripted"]

    run(work())


def test_chat_streamed_and_whole() -> None:
    async def work() -> None:
        async with sdk() as (client, _):
            whole = await client.chat.completions.create(model="any", messages=MESSAGES)
            assert whole.choices[0].message.content == TEXT
            assert whole.model == "scripted"
            text = ""
            async for chunk in await client.chat.completions.create(model="any", messages=MESSAGES, stream=True):
                text += chunk.choices[0].delta.content or ""
            assert text == TEXT

    run(work())


def test_the_stream_helper_accumulates() -> None:
    async def work() -> None:
        async with sdk() as (client, _):
            stream = client.chat.completions.stream(
                model="any", messages=MESSAGES, n=2, logprobs=True, stream_options={"include_usage": True}
            )
            async with stream as events:
                deltas = [event.delta async for event in events if event.type == "content.delta"]
                final = await events.get_final_completion()
            assert [choice.message.content for choice in final.choices] == [TEXT, TEXT]
            assert "".join(deltas) != ""
            assert final.usage is not None
            assert final.usage.completion_tokens == 2 * len(TEXT.encode())
            logprobs = final.choices[1].logprobs
            assert logprobs is not None
            assert logprobs.content is not None
            assert b"".join(bytes(entry.bytes or []) for entry in logprobs.content).decode() == TEXT

    run(work())


def test_the_stream_helper_reports_a_cut_answer() -> None:
    async def work() -> None:
        async with sdk() as (client, _):
            stream = client.chat.completions.stream(model="any", messages=MESSAGES, max_completion_tokens=2)
            async with stream as events:
                with pytest.raises(openai.LengthFinishReasonError) as cut:
                    await events.get_final_completion()
            assert cut.value.completion.choices[0].message.content == "Gr"

    run(work())


def test_text_completions_streamed_and_whole() -> None:
    async def work() -> None:
        async with sdk() as (client, _):
            whole = await client.completions.create(model="any", prompt="hi", logprobs=2)
            text = ""
            stream = await client.completions.create(model="any", prompt="hi", logprobs=2, stream=True)
            async for chunk in stream:
                text += chunk.choices[0].text
            assert text == whole.choices[0].text == TEXT

    run(work())


def test_leaving_a_stream_frees_the_slot() -> None:
    async def work() -> None:
        async with sdk() as (client, served):
            served.backend.gate.clear()
            stream = await client.chat.completions.create(model="any", messages=MESSAGES, stream=True)
            await anext(aiter(stream))
            await stream.close()
            served.backend.gate.set()
            await served.idle()

    run(work())


def test_errors_become_the_sdks_exceptions() -> None:
    config = ServerConfig(
        engine=EngineConfig(ctx_size=512, parallel=1),
        network=NetworkConfig(api_keys=("key",), max_body_bytes=5000),
    )

    async def work() -> None:
        async with sdk(config=config) as (client, _):
            create = client.chat.completions.create
            with pytest.raises(openai.BadRequestError) as bad:
                await create(model="any", messages=MESSAGES, temperature=-1)
            assert bad.value.param == "temperature"
            assert bad.value.type == "invalid_request_error"
            for stream in (False, True):
                with pytest.raises(openai.BadRequestError) as overflow:
                    await create(model="any", messages=[{"role": "user", "content": "x" * 600}], stream=stream)
                assert overflow.value.code == "context_length_exceeded"
            with pytest.raises(openai.NotFoundError):
                await client.models.retrieve("other")
            with pytest.raises(openai.InternalServerError) as media:
                await create(
                    model="any",
                    messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
                )
            assert (media.value.status_code, media.value.type) == (501, "not_supported_error")
            with pytest.raises(openai.APIStatusError) as large:
                await create(model="any", messages=[{"role": "user", "content": "x" * 6000}])
            assert large.value.status_code == 413
            with pytest.raises(openai.AuthenticationError) as refused:
                await client.with_options(api_key="wrong").models.list()
            assert refused.value.type == "invalid_api_key"

    run(work())


def test_a_busy_server_is_an_exception_also_for_streams() -> None:
    config = ServerConfig(engine=EngineConfig(parallel=1, max_queue_depth=0))

    async def work() -> None:
        async with sdk(config=config) as (client, served):
            served.backend.gate.clear()
            stream = await client.chat.completions.create(model="any", messages=MESSAGES, stream=True)
            with pytest.raises(openai.InternalServerError) as busy:
                await client.chat.completions.create(model="any", messages=MESSAGES, stream=True)
            assert (busy.value.status_code, busy.value.type) == (503, "server_busy")
            await stream.close()
            served.backend.gate.set()
            await served.idle()

    run(work())
