"""Tool loops and structured answers with `langchain-openai`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.tools import BaseTool, tool
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from tests.api.stub import run

from .weather import ANSWER, CITIES, LEAD, QUESTION, THINKING, WITHIN_CALL, Forecast, Report, at, model, weather_in

MESSAGES: list[BaseMessage] = [HumanMessage(QUESTION)]


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return weather_in(city)


WEATHER: BaseTool = get_weather


@asynccontextmanager
async def chat(url: str, **options: Any) -> AsyncIterator[ChatOpenAI]:
    async with openai.DefaultAsyncHttpxClient() as http:  # its own would stay open
        yield ChatOpenAI(
            model="any", base_url=url, api_key=SecretStr("none"), max_retries=0, http_async_client=http, **options
        )


async def joined(chain: Any, messages: list[BaseMessage]) -> AIMessageChunk:
    """The chunks of an answer, added up."""
    chunks = [chunk async for chunk in chain.astream(messages)]
    total = chunks[0]
    for chunk in chunks[1:]:
        total += chunk
    return total


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_two_steps(streamed: bool) -> None:
    async def work() -> None:
        async with at(model(*CITIES)) as url, chat(url, stream_usage=True) as llm:
            chain = llm.bind_tools([WEATHER])

            async def ask(messages: list[BaseMessage]) -> AIMessage:
                return await (joined(chain, messages) if streamed else chain.ainvoke(messages))

            called = await ask(MESSAGES)
            assert called.content == LEAD.strip()
            assert [(each["name"], each["args"]) for each in called.tool_calls] == [
                ("get_weather", {"city": city}) for city in CITIES
            ]
            assert called.invalid_tool_calls == []
            assert called.response_metadata["finish_reason"] == "tool_calls"
            results = [await WEATHER.ainvoke(each) for each in called.tool_calls]
            answer = await ask([*MESSAGES, called, *results])
            assert (answer.content, answer.tool_calls) == (ANSWER, [])
            assert answer.response_metadata["finish_reason"] == "stop"
            assert answer.usage_metadata is not None
            assert answer.usage_metadata["output_tokens"] == len(ANSWER.encode())

    run(work())


def test_two_steps_of_a_model_that_thinks() -> None:
    async def work() -> None:
        async with at(model(*CITIES, lead=THINKING)) as url, chat(url) as llm:
            chain = llm.bind_tools([WEATHER])
            called = await joined(chain, MESSAGES)
            assert called.content == ""
            results = [await WEATHER.ainvoke(each) for each in called.tool_calls]
            assert (await joined(chain, [*MESSAGES, called, *results])).content == ANSWER

    run(work())


def test_a_call_that_is_cut_off() -> None:
    async def work() -> None:
        async with at(model(*CITIES)) as url, chat(url, max_tokens=WITHIN_CALL) as llm:
            chain = llm.bind_tools([WEATHER])
            whole = await chain.ainvoke(MESSAGES)
            assert (whole.content, whole.tool_calls) == (LEAD.strip(), [])
            streamed = await joined(chain, MESSAGES)
            assert streamed.content == LEAD.strip()
            # The client completes what it has of the arguments: only the reason tells.
            assert [each["args"] for each in streamed.tool_calls] == [{"city": "Os"}]
            for answer in (whole, streamed):
                assert answer.response_metadata["finish_reason"] == "length"

    run(work())


def test_refusals_have_our_words() -> None:
    async def work() -> None:
        async with at(model(*CITIES)) as url, chat(url, temperature=-1) as cold, chat(url) as plain:
            with pytest.raises(openai.BadRequestError, match="'temperature'"):
                await cold.ainvoke(MESSAGES)
            with pytest.raises(openai.BadRequestError, match="use 'json_schema'"):
                await plain.with_structured_output(Report, method="json_mode").ainvoke(MESSAGES)

    run(work())


@pytest.mark.real_model
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning")  # the client dumps what the SDK parsed
@pytest.mark.parametrize(
    ("method", "kind"), [("json_schema", Report), ("json_schema", Forecast), ("function_calling", Report)]
)
def test_structured_answers_of_the_default_model(real_url: str, method: Any, kind: Any) -> None:
    async def work() -> None:
        async with chat(real_url, temperature=0) as llm:
            structured = llm.with_structured_output(kind, method=method)
            whole = await structured.ainvoke(MESSAGES)
            assert isinstance(whole, kind)
            streamed = [part async for part in structured.astream(MESSAGES)]
            assert streamed[-1] == whole

    run(work())


@pytest.mark.real_model
def test_forced_calls_of_the_default_model(real_url: str) -> None:
    async def work() -> None:
        async with chat(real_url, temperature=0) as llm:
            for choice in ("any", "Report"):
                chain = llm.bind_tools([Report], tool_choice=choice, parallel_tool_calls=False)
                [whole] = (await chain.ainvoke(MESSAGES)).tool_calls
                [streamed] = (await joined(chain, MESSAGES)).tool_calls
                assert Report(**whole["args"]) == Report(**streamed["args"])

    run(work())
