"""Tool loops and structured answers with `pydantic-ai`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from openai import AsyncOpenAI
from pydantic_ai import Agent, ModelSettings, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.exceptions import IncompleteToolCall, ModelHTTPError
from pydantic_ai.messages import FunctionToolCallEvent, ModelResponse, ThinkingPart, ToolCallPart
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.api.stub import run

from .weather import (
    ANSWER,
    CITIES,
    LEAD,
    QUESTION,
    REPORT,
    THINKING,
    THOUGHT,
    WITHIN_CALL,
    Forecast,
    Report,
    at,
    call,
    model,
    weather_in,
)


async def get_weather(city: str) -> str:
    """The weather in a city."""
    return weather_in(city)


@asynccontextmanager
async def agent(
    url: str, output_type: Any = str, profile: Any = None, **options: Any
) -> AsyncIterator[Agent[None, Any]]:
    """An agent that takes what the server gives: nothing is asked for twice."""
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        chat = OpenAIChatModel("any", provider=OpenAIProvider(openai_client=client), profile=profile)
        yield Agent(chat, output_type=output_type, retries=0, **options)


def called(messages: Any) -> list[tuple[str, Any]]:
    """Calls in the history of a run."""
    parts = [part for message in messages if isinstance(message, ModelResponse) for part in message.parts]
    return [(part.tool_name, part.args_as_dict()) for part in parts if isinstance(part, ToolCallPart)]


CALLS = [("get_weather", {"city": city}) for city in CITIES]


def test_two_steps() -> None:
    async def work() -> None:
        async with at(model(*CITIES)) as url, agent(url, tools=[get_weather]) as forecaster:
            result = await forecaster.run(QUESTION)
            assert result.output == ANSWER
            assert called(result.all_messages()) == CALLS
            assert result.usage.requests == 2
            assert result.usage.output_tokens > len(ANSWER.encode())

    run(work())


async def streamed(forecaster: Agent[None, Any], **options: Any) -> tuple[Any, list[Any]]:
    """The result of a run whose answers were streamed, and its events."""
    seen: list[Any] = []

    async def watch(_: Any, events: Any) -> None:
        seen.extend([event async for event in events])

    return await forecaster.run(QUESTION, event_stream_handler=watch, **options), seen


def test_two_steps_streamed() -> None:
    async def work() -> None:
        async with at(model(*CITIES)) as url, agent(url, tools=[get_weather]) as forecaster:
            result, events = await streamed(forecaster)
            assert result.output == ANSWER
            assert called(result.all_messages()) == CALLS
            calls = [event.part for event in events if isinstance(event, FunctionToolCallEvent)]
            assert [(part.tool_name, part.args_as_dict()) for part in calls] == CALLS

    run(work())


def test_two_steps_of_a_model_that_thinks() -> None:
    async def work() -> None:
        async with at(model(*CITIES, lead=THINKING)) as url, agent(url, tools=[get_weather]) as forecaster:
            for result in (await forecaster.run(QUESTION), (await streamed(forecaster))[0]):
                assert result.output == ANSWER
                history = [part for message in result.all_messages() for part in message.parts]
                assert [part.content for part in history if isinstance(part, ThinkingPart)] == [THOUGHT]

    run(work())


def test_two_steps_to_a_structured_answer() -> None:
    """The answer is a call too, of a tool that the client made of the type."""

    async def work() -> None:
        backend = model(*CITIES, lead="", then=call("final_result", **REPORT.model_dump()))
        async with at(backend) as url, agent(url, ToolOutput(Report), tools=[get_weather]) as forecaster:
            result = await forecaster.run(QUESTION)
            assert result.output == REPORT
            assert called(result.all_messages())[:2] == CALLS

    run(work())


def test_an_answer_in_json_that_was_only_asked_for() -> None:
    """`json_object` is refused, so the client has to be told not to ask for it."""
    profile = {"supports_json_object_output": False}

    async def work() -> None:
        async with at(model(then=REPORT.model_dump_json())) as url:
            async with agent(url, PromptedOutput(Report)) as reporter:
                with pytest.raises(ModelHTTPError, match="use 'json_schema'"):
                    await reporter.run(QUESTION)
            async with agent(url, PromptedOutput(Report), profile) as reporter:
                assert (await reporter.run(QUESTION)).output == REPORT

    run(work())


def test_a_call_that_is_cut_off() -> None:
    settings = ModelSettings(max_tokens=WITHIN_CALL)

    async def work() -> None:
        async with at(model(*CITIES)) as url, agent(url, tools=[get_weather]) as forecaster:
            result = await forecaster.run(QUESTION, model_settings=settings)
            assert result.output == LEAD.strip()
            assert result.response.finish_reason == "length"
            with pytest.raises(IncompleteToolCall):
                await streamed(forecaster, model_settings=settings)

    run(work())


def test_refusals_have_our_words() -> None:
    async def work() -> None:
        async with at(model(*CITIES)) as url, agent(url) as forecaster:
            with pytest.raises(ModelHTTPError, match="'temperature'") as refused:
                await forecaster.run(QUESTION, model_settings=ModelSettings(temperature=-1))
            assert refused.value.status_code == 400

    run(work())


@pytest.mark.real_model
@pytest.mark.parametrize(("mode", "kind"), [(NativeOutput, Report), (NativeOutput, Forecast), (ToolOutput, Report)])
def test_structured_answers_of_the_default_model(real_url: str, mode: Any, kind: Any) -> None:
    async def work() -> None:
        async with agent(real_url, mode(kind), model_settings=ModelSettings(temperature=0)) as reporter:
            result = await reporter.run(QUESTION)
            assert isinstance(result.output, kind)
            async with reporter.run_stream(QUESTION) as stream:
                assert await stream.get_output() == result.output

    run(work())
