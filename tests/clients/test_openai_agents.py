"""Tool loops and structured answers with `openai-agents`, over chat completions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import openai
import pytest
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    ReasoningItem,
    RunConfig,
    Runner,
    ToolCallItem,
    ToolCallOutputItem,
    function_tool,
)
from openai import AsyncOpenAI

from tests.api.stub import run

from .weather import (
    ANSWER,
    CITIES,
    LEAD,
    QUESTION,
    THINKING,
    THOUGHT,
    WITHIN_CALL,
    Forecast,
    Report,
    at,
    model,
    weather_in,
)

SILENT = RunConfig(tracing_disabled=True)


@function_tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return weather_in(city)


@function_tool
def file_report(city: Literal["Oslo", "Zürich"], windy: bool) -> str:
    """File a report."""
    return f"filed: {city}, {windy}"


@asynccontextmanager
async def agent(url: str, **options: Any) -> AsyncIterator[Agent[Any]]:
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        chat = OpenAIChatCompletionsModel("any", client)
        yield Agent("forecaster", instructions="Be brief.", model=chat, **options)


async def finished(agent: Agent[Any], streamed: bool) -> Any:
    """The result of a run."""
    if not streamed:
        return await Runner.run(agent, QUESTION, run_config=SILENT, max_turns=3)
    result = Runner.run_streamed(agent, QUESTION, run_config=SILENT, max_turns=3)
    async for _ in result.stream_events():
        pass
    return result


both_ways = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])


@both_ways
def test_two_steps(streamed: bool) -> None:
    async def work() -> None:
        async with at(model(*CITIES)) as url, agent(url, tools=[get_weather]) as forecaster:
            result = await finished(forecaster, streamed)
            assert result.final_output == ANSWER
            calls = [item.raw_item for item in result.new_items if isinstance(item, ToolCallItem)]
            assert [(each.name, each.arguments) for each in calls] == [
                ("get_weather", f'{{"city": "{city}"}}') for city in CITIES
            ]
            outputs = [item.output for item in result.new_items if isinstance(item, ToolCallOutputItem)]
            assert outputs == [weather_in(city) for city in CITIES]

    run(work())


@both_ways
def test_two_steps_of_a_model_that_thinks(streamed: bool) -> None:
    async def work() -> None:
        async with at(model(*CITIES, lead=THINKING)) as url, agent(url, tools=[get_weather]) as forecaster:
            result = await finished(forecaster, streamed)
            assert result.final_output == ANSWER
            [thought] = [item.raw_item for item in result.new_items if isinstance(item, ReasoningItem)]
            assert thought.summary[0].text == THOUGHT

    run(work())


@both_ways
def test_an_agent_hands_over_to_another(streamed: bool) -> None:
    async def work() -> None:
        async with at(model("", tool="transfer_to_reader", lead="")) as url, agent(url) as reader:
            reader = reader.clone(name="reader")
            async with agent(url, handoffs=[reader]) as forecaster:
                result = await finished(forecaster, streamed)
                assert result.last_agent.name == "reader"
                assert result.final_output.startswith("It is as follows.")

    run(work())


@both_ways
def test_a_call_that_is_cut_off(streamed: bool) -> None:
    settings = ModelSettings(max_tokens=WITHIN_CALL)

    async def work() -> None:
        async with (
            at(model(*CITIES)) as url,
            agent(
                url, tools=[get_weather], model_settings=settings, tool_use_behavior="stop_on_first_tool"
            ) as forecaster,
        ):
            result = await finished(forecaster, streamed)
            if streamed:  # the client sees that the arguments are no JSON; the model would be told
                assert result.final_output.startswith("An error occurred")
            else:
                assert result.final_output == LEAD.strip()

    run(work())


@both_ways
def test_refusals_have_our_words(streamed: bool) -> None:
    async def work() -> None:
        async with (
            at(model(*CITIES)) as url,
            agent(url, model_settings=ModelSettings(temperature=-1)) as forecaster,
        ):
            with pytest.raises(openai.BadRequestError, match="'temperature'"):
                await finished(forecaster, streamed)

    run(work())


@pytest.mark.real_model
@pytest.mark.parametrize("kind", [Report, Forecast])
def test_structured_answers_of_the_default_model(real_url: str, kind: Any) -> None:
    async def work() -> None:
        async with agent(real_url, output_type=kind, model_settings=ModelSettings(temperature=0)) as reporter:
            whole = (await finished(reporter, streamed=False)).final_output
            assert isinstance(whole, kind)
            assert (await finished(reporter, streamed=True)).final_output == whole

    run(work())


@pytest.mark.real_model
@both_ways
def test_forced_calls_of_the_default_model(real_url: str, streamed: bool) -> None:
    settings = ModelSettings(temperature=0, tool_choice="required", parallel_tool_calls=False)

    async def work() -> None:
        options: dict[str, Any] = {"tools": [file_report], "tool_use_behavior": "stop_on_first_tool"}
        async with agent(real_url, model_settings=settings, **options) as reporter:
            result = await finished(reporter, streamed)
            assert result.final_output.startswith("filed: ")

    run(work())


@pytest.mark.real_model
def test_an_output_type_leaves_no_room_for_calls(real_url: str) -> None:
    """Every answer is held to the schema; who wants both has one agent call, and another one report."""

    async def work() -> None:
        async with agent(real_url, output_type=Report, tools=[get_weather]) as reporter:
            result = await finished(reporter.clone(model_settings=ModelSettings(temperature=0)), streamed=False)
            assert isinstance(result.final_output, Report)
            assert not any(isinstance(item, ToolCallItem) for item in result.new_items)
            with pytest.raises(openai.BadRequestError, match="excludes a response_format"):
                await finished(reporter.clone(model_settings=ModelSettings(tool_choice="required")), streamed=False)

    run(work())
