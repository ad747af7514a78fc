"""A model that looks up the weather: it calls a tool for each city, and then reads out the results."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import date
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from tests.api.stub import listening, serving, with_info
from tests.engine.scripted import EOS, ScriptedBackend

TEMPLATE = Path(__file__).parents[1] / "chat" / "templates" / "hermes.jinja"
QUESTION = "How is the weather?"
CITIES = ("Oslo", "Zürich")
LEAD = "I look it up.\n"
THOUGHT = "Two cities."
THINKING = f"<think>\n{THOUGHT}\n</think>\n\n"
ANSWER = "It is as follows. Oslo: 3 °C; Zürich: 3 °C"
"""How two cities' loop ends."""
WITHIN_CALL = len(LEAD + '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Os')
"""Tokens after which an answer breaks off in the arguments of its first call."""


class Report(BaseModel):
    """A structured answer that a small model can hardly make long."""

    city: Literal["Oslo", "Zürich"]
    sky: Literal["clear", "cloudy"]
    windy: bool


class Wind(BaseModel):
    """A part of a forecast."""

    kind: Literal["wind"]
    speed: Annotated[int, Field(ge=0, le=200)]


class Rain(BaseModel):
    """Another one."""

    kind: Literal["rain"]
    likely: bool


class Forecast(BaseModel):
    """A structured answer of many kinds of values, whose schema every client spells in its own way."""

    day: date
    station: Annotated[str, Field(pattern="^[A-Z]{2}-[0-9]{3}$")]
    first: Annotated[Wind | Rain, Field(discriminator="kind")]
    later: Annotated[list[Wind | Rain], Field(max_length=2)]
    best: Report | None = None
    range: tuple[Annotated[int, Field(ge=-9, le=9)], bool]


REPORT = Report(city="Zürich", sky="clear", windy=False)


def weather_in(city: str) -> str:
    """What the tool says."""
    return f"{city}: 3 °C"


def call(name: str, **arguments: object) -> str:
    """A call as the model writes it."""
    written = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{written}\n</tool_call>"


def model(*cities: str, tool: str = "get_weather", lead: str = LEAD, then: str = "") -> ScriptedBackend:
    """The model. A prompt that has as many results as there are cities is answered in words, or with `then`.

    lead: what it says before its calls; reasoning in tags is reasoning.
    """

    def script(prompt: bytes) -> list[int]:
        results = re.findall("<tool_response>\n(.*?)\n</tool_response>", prompt.decode(), re.DOTALL)
        if len(results) >= len(cities):
            text = then or f"It is as follows. {'; '.join(results)}"
        else:
            text = lead + "\n".join(call(tool, city=city) for city in cities)
        return [*text.encode(), EOS]

    template = TEMPLATE.read_text() + "{# <think> #}" * ("<think>" in lead)
    return with_info(ScriptedBackend(script, context=32768), chat_template=template)


@asynccontextmanager
async def at(backend: ScriptedBackend) -> AsyncIterator[str]:
    """The address of a server with this model."""
    async with serving(backend) as served, listening(served.app) as address:
        yield f"{address}/v1"
