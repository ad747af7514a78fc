"""Tool calls on the chat route: in the body, in the stream, forced, and what the log says."""

from __future__ import annotations

import json
import logging
import random
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxcel.config import ChatConfig, ServerConfig
from tests.engine.scripted import EOS, VOCABULARY, ScriptedBackend
from tests.grammar.tokenizers import byte_tokenizer

from ..stub import Served, frames, run, says, serving, with_info

HERMES = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{{ tools }}{# <tool_call> #}"
THINKING = HERMES + "{# <think> #}"
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Rom"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}
TOOLS = [WEATHER, CLOCK]
OSLO = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "days": 2}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
NAMED = {"type": "function", "function": {"name": "get_weather"}}


def saying(text: str, template: str = HERMES, *, ends: bool = True) -> ScriptedBackend:
    return with_info(says(text, ends=ends), chat_template=template)


async def both(served: Served, **fields: Any) -> dict[str, Any]:
    """The choice of the whole answer, to which the streamed one adds up."""
    response = await served.chat(**fields)
    assert response.status_code == 200, response.text
    whole = response.json()["choices"][0]
    chunks = frames((await served.chat(stream=True, **fields)).text)
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    message = whole["message"]
    for name in ("content", "reasoning_content"):
        assert "".join(choice["delta"].get(name, "") for choice in choices) == (message.get(name) or "")
    assert joined_calls(choices) == [call["function"] for call in message.get("tool_calls", [])]
    assert choices[-1]["finish_reason"] == whole["finish_reason"]
    assert "tool_calls" not in choices[-1]["delta"]
    if fields.get("logprobs"):
        entries = [entry for choice in choices for entry in (choice["logprobs"] or {}).get("content", [])]
        assert entries == whole["logprobs"]["content"]
    return whole


def joined_calls(choices: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []
    for choice in choices:
        for delta in choice["delta"].get("tool_calls", []):
            function = delta["function"]
            if delta["index"] == len(calls):
                assert re.fullmatch("call_[0-9a-f]{24}", delta["id"])
                assert delta["type"] == "function"
                assert set(function) == {"name"}
                calls.append({"name": function["name"], "arguments": ""})
            else:
                assert set(delta) == {"index", "function"}
                assert delta["index"] == len(calls) - 1
                calls[-1]["arguments"] += function["arguments"]
    return calls


def answer(backend: ScriptedBackend, config: ServerConfig | None = None, **fields: Any) -> dict[str, Any]:
    async def work() -> dict[str, Any]:
        async with serving(backend, config) as served:
            return await both(served, **{"tools": TOOLS, **fields})

    return run(work())


def called(choice: dict[str, Any]) -> list[tuple[str, str]]:
    return [(call["function"]["name"], call["function"]["arguments"]) for call in choice["message"]["tool_calls"]]


def test_calls_have_a_field_of_their_own() -> None:
    choice = answer(saying(f"I look it up.\n{OSLO}\n{NOW}"))
    assert called(choice) == [("get_weather", '{"city": "Oslo", "days": 2}'), ("clock", "{}")]
    assert choice["message"]["content"] == "I look it up."
    assert choice["finish_reason"] == "tool_calls"
    assert len({call["id"] for call in choice["message"]["tool_calls"]}) == 2


def test_nothing_but_calls_has_no_content() -> None:
    assert answer(saying(OSLO))["message"]["content"] is None


def test_an_answer_without_calls_is_an_ordinary_one() -> None:
    choice = answer(saying("Sunny <b>today</b>."))
    assert choice["message"] == {"role": "assistant", "content": "Sunny <b>today</b>."}
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("fields", [{"tools": []}, {"tools": None}, {"tool_choice": "none"}])
def test_without_tools_the_text_is_as_it_stands(fields: dict[str, Any]) -> None:
    assert answer(saying(OSLO), **fields)["message"]["content"] == OSLO


def test_unparsed_chat_is_raw() -> None:
    config = ServerConfig(chat=ChatConfig(skip_parsing=True))
    assert answer(saying(OSLO), config)["message"]["content"] == OSLO


def test_a_named_choice_shows_one_tool_and_takes_calls_of_it_only() -> None:
    async def work() -> None:
        async with serving(saying(f"{OSLO}\n{NOW}", HERMES.replace("<tool_call>", "<function="))) as served:
            fields = {"tools": TOOLS, "tool_choice": NAMED}
            text = (await served.http.post("/apply-template", json={"messages": ASK, **fields})).json()["prompt"]
            assert "get_weather" in text
            assert "clock" not in text
            assert [name for name, _ in called(await both(served, **fields))] == ["get_weather"]

    run(work())


ASK = [{"role": "user", "content": "hi"}]


def test_reasoning_comes_first_and_may_speak_of_calls() -> None:
    choice = answer(saying(f"<think>\nI need {NOW}\n</think>\n\n{OSLO}", THINKING))
    assert choice["message"]["reasoning_content"] == f"I need {NOW}"
    assert [name for name, _ in called(choice)] == ["get_weather"]
    assert "reasoning_only" not in choice["message"]


def test_a_call_that_is_cut_off_is_none_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        choice = answer_whole(saying(NOW + OSLO), max_tokens=len(NOW) + 60)
    assert [name for name, _ in called(choice)] == ["clock"]
    assert choice["finish_reason"] == "length"
    assert "cut off" in caplog.text
    assert "Oslo" not in caplog.text


def test_a_call_that_a_stop_string_cuts_is_none() -> None:
    text = "Hm.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo, old town\n</parameter>\n</function>"
    template = HERMES.replace("<tool_call>", "<function=x><parameter=y>")
    choice = answer_whole(saying(text, template), stop=["old"])
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Hm.", "stop")
    assert "tool_calls" not in choice["message"]
    assert answer_whole(saying(text, template), stop=["</function>"])["finish_reason"] == "tool_calls"


def answer_whole(backend: ScriptedBackend, **fields: Any) -> dict[str, Any]:
    async def work() -> dict[str, Any]:
        async with serving(backend) as served:
            return (await served.chat(tools=TOOLS, **fields)).json()["choices"][0]

    return run(work())


def test_a_forced_choice_that_is_not_followed_is_logged_with_the_requests_id(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work() -> str:
        async with serving(saying("No.", HERMES.replace("<tool_call>", "<function="))) as served:
            body = (await served.chat(tools=TOOLS, tool_choice="required")).json()
            assert body["choices"][0]["finish_reason"] == "stop"
            return body["id"]

    with caplog.at_level(logging.WARNING):
        assert run(work()) in caplog.text


@given(st.text("ab <tool_cal>/\n", max_size=12), st.sampled_from(["", OSLO, f"{NOW} {OSLO}", OSLO[:40]]))
@settings(max_examples=40)
def test_every_token_has_its_entry_once_and_in_order(prose: str, calls: str) -> None:
    text = prose + calls
    choice = answer(saying(text), logprobs=True)
    assert bytes(byte for entry in choice["logprobs"]["content"] for byte in entry["bytes"]).decode() == text


def rambling(template: str, seed: int) -> ScriptedBackend:
    """A model that wants to say anything, and to end at any time."""
    chance = random.Random(seed)

    def follow(fed: Sequence[int]) -> int:
        return chance.randrange(EOS + 1)

    tokenizer = byte_tokenizer(words=())
    backend = ScriptedBackend(follow=follow)
    return with_info(backend, tokenizer=tokenizer, vocabulary=VOCABULARY, chat_template=template)


LLAMA = '{{ messages[0].content }}{{ tools }}{# <|start_header_id|> {"name": x, "parameters": y} #}'


@pytest.mark.parametrize("template", [HERMES, LLAMA, "{{ messages[0].content }}"], ids=["hermes", "llama3", "unknown"])
@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_a_forced_call_is_one_whatever_the_model_wants(template: str, choice: Any) -> None:
    async def work() -> None:
        async with serving(rambling(template, 7)) as served:
            for _ in range(5):
                response = await served.chat(
                    tools=[WEATHER, CLOCK_WITHOUT], tool_choice=choice, parallel_tool_calls=False, max_tokens=300
                )
                answered = response.json()["choices"][0]
                [(name, arguments)] = called(answered)
                assert answered["finish_reason"] == "tool_calls"
                assert answered["message"]["content"] is None
                if name == "get_weather":
                    assert set(json.loads(arguments)) == {"city", "days"}
                else:
                    assert (name, choice) == ("clock", "required")

    run(work())


def test_several_calls_may_be_forced() -> None:
    async def work() -> set[int]:
        counts: set[int] = set()
        async with serving(rambling(HERMES, 3)) as served:
            for _ in range(12):
                response = await served.chat(tools=[CLOCK_WITHOUT], tool_choice="required", max_tokens=900)
                answered = response.json()["choices"][0]
                counts.add(len(called(answered)))
                assert answered["finish_reason"] in ("tool_calls", "length")
        return counts

    assert max(run(work())) > 1


CLOCK_WITHOUT = {
    "type": "function",
    "function": {"name": "clock", "parameters": {"type": "object", "additionalProperties": False}},
}


def test_a_forced_call_comes_after_the_reasoning() -> None:
    async def work() -> None:
        primed = HERMES + "<think>\n"
        text = "hm</think>\n\nno call, but an answer"
        backend = with_info(
            scripted_then(text), tokenizer=byte_tokenizer(words=()), vocabulary=VOCABULARY, chat_template=primed
        )
        async with serving(backend) as served:
            response = await served.chat(tools=TOOLS, tool_choice=NAMED, max_tokens=300)
            answered = response.json()["choices"][0]
            assert answered["message"]["reasoning_content"].startswith("hm")
            assert [name for name, _ in called(answered)] == ["get_weather"]

    run(work())


def scripted_then(text: str) -> ScriptedBackend:
    """Wants to say `text`, and then anything."""
    chance, wanted = random.Random(5), iter(text.encode())

    def follow(fed: Sequence[int]) -> int:
        return next(wanted, None) or chance.randrange(EOS)

    return ScriptedBackend(follow=follow)


def test_tools_too_hard_for_a_grammar_go_without(caplog: pytest.LogCaptureFixture) -> None:
    deep: dict[str, Any] = {"type": "object"}
    for _ in range(60):
        deep = {"type": "object", "properties": {"x": deep}}
    tool = {"type": "function", "function": {"name": "clock", "parameters": deep}}
    with caplog.at_level(logging.WARNING):
        choice = answer(saying(NOW), tools=[tool], tool_choice="required")
    assert called(choice) == [("clock", "{}")]
    assert "without a grammar" in caplog.text
