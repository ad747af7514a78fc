"""POST /v1/chat/completions, and what its prompt would be."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from mlxcel.api.auth import tenant
from mlxcel.api.errors import invalid
from mlxcel.api.openai import next_turn, unserved
from mlxcel.api.openai.generate import answer, choice_count, submit, thinking_budget
from mlxcel.api.openai.messages import check_input, check_media, plain_messages
from mlxcel.api.openai.next_turn import NextTurn
from mlxcel.api.openai.schema import ChatRequest
from mlxcel.api.openai.structured import response_rule, tool_rule, wanted_schema
from mlxcel.api.openai.wire import ChatWire
from mlxcel.api.prompt_thread import on_prompt_thread
from mlxcel.api.state import AppState, ServedModel
from mlxcel.chat.answer import AnswerStream
from mlxcel.chat.errors import PromptError
from mlxcel.chat.held import HeldReader
from mlxcel.chat.kwargs import request_kwargs
from mlxcel.chat.overheard import Overheard, OverheardStream
from mlxcel.chat.prompt import Prompt
from mlxcel.chat.reasoning import PlainReader, make_reader
from mlxcel.chat.stream import MessageStream, ReasoningFormat
from mlxcel.chat.tool_choice import Choice, ToolUse, instruct, read_tools
from mlxcel.chat.tools import ToolSet, ToolStream
from mlxcel.config import ChatConfig
from mlxcel.engine.cache.storage import Reuse

T = TypeVar("T")

_DECODER = msgspec.json.Decoder(ChatRequest)


async def chat_completions(state: AppState, request: Request) -> ASGIApp:
    """Answer one chat request. All refusals come before the first byte of a stream."""
    chat = await state.bodies.read_json(request, _DECODER)
    tools = _check(chat)
    unserved.check_fields(chat)
    schema = wanted_schema(chat.response_format, allow_json_object=state.config.grammar.allow_json_object)
    model = await state.model()
    n = choice_count(state, chat)
    budget = thinking_budget(state, chat)
    make = partial(model.prompts.chat, history=model.info.reuse is Reuse.WHOLE)
    prompt, turn = await _rendered(state, model, request, chat, tools, make)
    rule = await response_rule(state, model, schema, prompt.lead) or await tool_rule(
        state, model, tools, prompt.lead, parallel=chat.parallel_tool_calls is not False
    )
    logprobs = (chat.top_logprobs or 0) if chat.logprobs else None
    if schema is not None:
        tools = dataclasses.replace(tools, shown=())  # nothing that satisfies it is a call
    config = state.config.chat
    spelling = _spelling(config, model, tools)
    generations = submit(state, model, request, chat, prompt, logprobs, rule=rule, budget=budget, spelling=spelling)
    ended = None if turn is None else partial(turn.answered, generations[0].request)
    streams = [_answer_stream(config, model, prompt, tools, ended, held=rule is not None) for _ in range(n)]
    wire = ChatWire(model.info.name, logprobs is not None, streams, alias=config.reasoning_alias == "reasoning")
    return await answer(state, request, chat, generations, wire, counted=True)


async def apply_template(state: AppState, request: Request) -> ASGIApp:
    """The text of the prompt that a chat request would have. Nothing is generated."""
    chat = await state.bodies.read_json(request, _DECODER)
    tools = _check(chat)
    model = await state.model()
    text, _ = await _rendered(state, model, request, chat, tools, model.prompts.render)
    return Response(msgspec.json.encode({"prompt": text}), media_type="application/json")


async def input_tokens(state: AppState, request: Request) -> ASGIApp:
    """How many tokens the prompt of a chat request would have. Nothing is generated."""
    chat = await state.bodies.read_json(request, _DECODER)
    tools = _check(chat)
    model = await state.model()
    prompt, _ = await _rendered(state, model, request, chat, tools, model.prompts.chat)
    return Response(msgspec.json.encode({"input_tokens": len(prompt.tokens)}), media_type="application/json")


def _check(chat: ChatRequest) -> ToolUse:
    """What can be refused without a model; the tools. Raises ApiError, PromptError."""
    check_input(chat.messages)
    if chat.top_logprobs is not None and not chat.logprobs:
        raise invalid("top_logprobs needs logprobs to be true", "top_logprobs")
    check_media(chat.messages)
    tools = read_tools(chat.tools, chat.tool_choice)
    constrained = chat.response_format is not None and chat.response_format.type != "text"
    if tools.forced and constrained:
        raise invalid("a tool_choice that forces a call excludes a response_format", "tool_choice")
    return tools


async def _rendered(
    state: AppState, model: ServedModel, request: Request, chat: ChatRequest, tools: ToolUse, make: Callable[..., T]
) -> tuple[T, NextTurn | None]:
    """What `make`, a method of the prompt builder, makes of a conversation; and what its answer is to be told to, if
    that matters. Raises ApiError, PromptError."""
    who = tenant(request.scope)
    return await on_prompt_thread(state, request, partial(_render, state, model, who, chat, tools, make))


def _render(
    state: AppState, model: ServedModel, who: str, chat: ChatRequest, tools: ToolUse, make: Callable[..., T]
) -> tuple[T, NextTurn | None]:
    arguments: dict[str, Any] = {
        "kwargs": request_kwargs(
            chat.chat_template_kwargs, chat.extra_body, chat.preserve_thinking, chat.reasoning_effort
        ),
        "tools": list(tools.shown),
        "prefill": state.config.chat.prefill_assistant,
    }
    messages = plain_messages(chat.messages)
    if not next_turn.matters(state, model, chat):
        return make(messages=instruct(messages, tools.instruction), **arguments), None
    recalled, said = state.echo.recall(who, messages)
    try:
        arguments["messages"] = instruct(recalled, tools.instruction)
        made = make(**arguments)
    except PromptError:
        if recalled == messages:
            raise
        # The template may want no reasoning there.
        arguments["messages"] = instruct(messages, tools.instruction)
        made = make(**arguments)
    return made, NextTurn(state, model, chat, arguments, said)


def _spelling(config: ChatConfig, model: ServedModel, tools: ToolUse) -> Mapping[int, str]:
    """The special tokens whose text the answer is read by."""
    if config.skip_parsing:
        return {}
    return model.prompts.tool_spelling if tools.shown else model.prompts.spelling


def _answer_stream(
    config: ChatConfig,
    model: ServedModel,
    prompt: Prompt,
    tools: ToolUse,
    ended: Callable[[Overheard], None] | None,
    *,
    held: bool,
) -> AnswerStream:
    """ended: takes the complete answer. held: the answer is held to a rule."""
    if config.skip_parsing:
        return AnswerStream(MessageStream(PlainReader(), ReasoningFormat.CONTENT))
    reader = make_reader(model.prompts.dialect, inside=prompt.thinking, calls=bool(tools.shown))
    if held:
        reader = HeldReader(reader, prompt.lead)
    message = MessageStream(reader, ReasoningFormat(config.reasoning_format))
    calls = None
    if tools.shown:
        only = tools.names[0] if tools.choice is Choice.NAMED else None
        calls = ToolStream(ToolSet.of_request(tools.shown, only), model.prompts.tool_dialect)
    if ended is None:
        return AnswerStream(message, calls, forced=tools.forced)
    return OverheardStream(message, calls, forced=tools.forced, ended=ended)
