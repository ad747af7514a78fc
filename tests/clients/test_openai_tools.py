"""Tool loops and structured answers with the OpenAI SDK's `parse` and `stream` helpers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, pydantic_function_tool
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

from tests.api.stub import frames, run, serving
from tests.engine.scripted import ScriptedBackend

from .test_openai_sdk import check
from .weather import ANSWER, CITIES, LEAD, QUESTION, REPORT, WITHIN_CALL, Forecast, Report, at, call, model, weather_in

MESSAGES: list[Any] = [{"role": "user", "content": QUESTION}]


class get_weather(BaseModel):  # the function has the name of the class
    """The weather in a city."""

    city: str


TOOLS = [pydantic_function_tool(get_weather)]
FORM = [pydantic_function_tool(Report)]
NAMED: Any = {"type": "function", "function": {"name": "Report"}}


@asynccontextmanager
async def client_of(url: str) -> AsyncIterator[Any]:
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client.chat.completions


@asynccontextmanager
async def scripted(backend: ScriptedBackend | None = None) -> AsyncIterator[Any]:
    """The SDK's chat completions, in front of the model of two cities."""
    async with at(backend or model(*CITIES)) as url, client_of(url) as completions:
        yield completions


def results_of(calls: Any) -> list[Any]:
    """The tool's answers to calls."""
    return [
        {"role": "tool", "tool_call_id": each.id, "content": weather_in(json.loads(each.function.arguments)["city"])}
        for each in calls
    ]


def test_bodies_with_calls_match_the_sdks_types() -> None:
    async def work() -> None:
        async with serving(model(*CITIES)) as served:
            fields: dict[str, Any] = {"messages": MESSAGES, "tools": TOOLS, "logprobs": True}
            check(ChatCompletion, (await served.chat(**fields)).json())
            for chunk in frames((await served.chat(stream=True, **fields)).text):
                check(ChatCompletionChunk, chunk)

    run(work())


@pytest.mark.parametrize("dumped", [False, True], ids=["as it came", "dumped with its nulls"])
def test_two_steps(dumped: bool) -> None:
    async def work() -> None:
        async with scripted(model(*CITIES, lead="")) as completions:
            first = await completions.create(model="any", messages=MESSAGES, tools=TOOLS)
            called = first.choices[0].message
            assert called.content is None
            assert [json.loads(each.function.arguments)["city"] for each in called.tool_calls] == list(CITIES)
            history = [*MESSAGES, called.model_dump() if dumped else called, *results_of(called.tool_calls)]
            second = await completions.create(model="any", messages=history, tools=TOOLS)
            assert second.choices[0].message.content == ANSWER
            assert second.choices[0].message.tool_calls is None

    run(work())


def test_two_steps_with_parsed_arguments() -> None:
    async def work() -> None:
        async with scripted() as completions:
            first = await completions.parse(model="any", messages=MESSAGES, tools=TOOLS)
            called = first.choices[0].message
            parsed = [each.function.parsed_arguments for each in called.tool_calls]
            assert parsed == [get_weather(city=city) for city in CITIES]
            second = await completions.parse(
                model="any", messages=[*MESSAGES, called, *results_of(called.tool_calls)], tools=TOOLS
            )
            assert second.choices[0].message.content == ANSWER

    run(work())


def test_two_steps_streamed() -> None:
    async def work() -> None:
        async with scripted() as completions:
            async with completions.stream(model="any", messages=MESSAGES, tools=TOOLS) as stream:
                events = [event async for event in stream]
                final = await stream.get_final_completion()
            assert final.choices[0].finish_reason == "tool_calls"
            called = final.choices[0].message
            assert called.content == LEAD.strip()
            assert [each.function.parsed_arguments.city for each in called.tool_calls] == list(CITIES)
            done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
            assert [(event.index, event.name, event.parsed_arguments.city) for event in done] == [
                (index, "get_weather", city) for index, city in enumerate(CITIES)
            ]
            for index, city in enumerate(CITIES):
                deltas = [
                    event.arguments_delta
                    for event in events
                    if event.type == "tool_calls.function.arguments.delta" and event.index == index
                ]
                assert json.loads("".join(deltas)) == {"city": city}
            history = [*MESSAGES, called, *results_of(called.tool_calls)]
            async with completions.stream(model="any", messages=history, tools=TOOLS) as stream:
                final = await stream.get_final_completion()
            assert final.choices[0].message.content == ANSWER

    run(work())


def test_a_call_that_is_cut_off() -> None:
    async def work() -> None:
        async with scripted() as completions:
            fields: dict[str, Any] = {
                "model": "any",
                "messages": MESSAGES,
                "tools": TOOLS,
                "max_completion_tokens": WITHIN_CALL,
            }
            choice = (await completions.create(**fields)).choices[0]
            assert (choice.finish_reason, choice.message.tool_calls) == ("length", None)
            assert choice.message.content == LEAD.strip()
            with pytest.raises(openai.LengthFinishReasonError):
                await completions.parse(**fields)
            async with completions.stream(**fields) as stream:
                with pytest.raises(openai.LengthFinishReasonError) as cut:
                    await stream.get_final_completion()
            message = cut.value.completion.choices[0].message
            assert message.content == LEAD.strip()
            # What was streamed cannot be taken back; it must not look complete.
            assert [each.function.arguments for each in message.tool_calls] == ['{"city": "Os']

    run(work())


def test_refusals_have_our_words() -> None:
    report = {"type": "json_schema", "json_schema": {"name": "report", "schema": {"type": "object"}}}
    refused: list[tuple[dict[str, Any], str]] = [
        ({"tools": TOOLS, "tool_choice": NAMED}, "'Report' is not among the tools"),
        ({"tool_choice": "required"}, "'required' needs a non-empty list of tools"),
        ({"response_format": {"type": "json_object"}}, "use 'json_schema'"),
        ({"tools": TOOLS, "tool_choice": "required", "response_format": report}, "excludes a response_format"),
    ]

    async def work() -> None:
        async with scripted() as completions:
            for fields, why in refused:
                for stream in (False, True):
                    with pytest.raises(openai.BadRequestError, match=why) as error:
                        await completions.create(model="any", messages=MESSAGES, stream=stream, **fields)
                    assert error.value.param in ("tool_choice", "response_format")

    run(work())


@pytest.mark.real_model
@pytest.mark.parametrize("kind", [Report, Forecast])
def test_structured_answers_of_the_default_model(real_url: str, kind: Any) -> None:
    async def work() -> None:
        async with client_of(real_url) as completions:
            fields: dict[str, Any] = {"model": "any", "messages": MESSAGES, "temperature": 0, "response_format": kind}
            parsed = (await completions.parse(**fields)).choices[0].message.parsed
            assert isinstance(parsed, kind)
            async with completions.stream(**fields) as stream:
                [done] = [event.parsed async for event in stream if event.type == "content.done"]
                final = await stream.get_final_completion()
            assert done == final.choices[0].message.parsed == parsed
            with pytest.raises(openai.LengthFinishReasonError):
                await completions.parse(**fields, max_completion_tokens=3)

    run(work())


@pytest.mark.real_model
@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_forced_calls_of_the_default_model(real_url: str, choice: Any) -> None:
    async def work() -> None:
        async with client_of(real_url) as completions:
            fields: dict[str, Any] = {
                "model": "any",
                "messages": MESSAGES,
                "temperature": 0,
                "tools": FORM,
                "tool_choice": choice,
                "parallel_tool_calls": False,
            }
            [whole] = (await completions.parse(**fields)).choices[0].message.tool_calls
            assert isinstance(whole.function.parsed_arguments, Report)
            async with completions.stream(**fields) as stream:
                final = await stream.get_final_completion()
            [streamed] = final.choices[0].message.tool_calls
            assert streamed.function.parsed_arguments == whole.function.parsed_arguments
            history = [*MESSAGES, final.choices[0].message]
            history.append({"role": "tool", "tool_call_id": streamed.id, "content": "filed"})
            rest = await completions.create(model="any", messages=history, tools=FORM, max_completion_tokens=8)
            assert rest.usage.completion_tokens

    run(work())


def test_the_last_step_may_be_a_call_too() -> None:
    """A structured answer by way of a tool."""

    async def work() -> None:
        async with scripted(model(*CITIES, then=call("Report", **REPORT.model_dump()))) as completions:
            tools = [*TOOLS, *FORM]
            called = (await completions.parse(model="any", messages=MESSAGES, tools=tools)).choices[0].message
            history = [*MESSAGES, called, *results_of(called.tool_calls)]
            second = await completions.parse(model="any", messages=history, tools=tools)
            [answer] = second.choices[0].message.tool_calls
            assert answer.function.parsed_arguments == REPORT
            assert second.choices[0].message.content is None

    run(work())
