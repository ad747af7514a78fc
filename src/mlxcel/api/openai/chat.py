"""POST /v1/chat/completions."""

from __future__ import annotations

import anyio.to_thread
import msgspec
from starlette.requests import Request
from starlette.types import ASGIApp

from mlxcel.api.body import read_json
from mlxcel.api.errors import invalid
from mlxcel.api.openai import unserved
from mlxcel.api.openai.generate import answer, choice_count, submit
from mlxcel.api.openai.messages import check_input, check_media, plain_messages
from mlxcel.api.openai.schema import ChatRequest
from mlxcel.api.openai.structured import response_rule, wanted_schema
from mlxcel.api.openai.wire import ChatWire
from mlxcel.api.state import AppState, ServedModel
from mlxcel.chat.kwargs import request_kwargs
from mlxcel.chat.prompt import Prompt
from mlxcel.engine.cache.storage import Reuse

_DECODER = msgspec.json.Decoder(ChatRequest)


async def chat_completions(state: AppState, request: Request) -> ASGIApp:
    """Answer one chat request. All refusals come before the first byte of a stream."""
    chat = await read_json(request, _DECODER, state.config.network.max_body_bytes)
    _check(chat)
    schema = wanted_schema(chat.response_format, allow_json_object=state.config.grammar.allow_json_object)
    model = await state.model()
    choice_count(state, chat)
    # Long conversations take a while to render and tokenise; other streams must not wait for them.
    prompt = await anyio.to_thread.run_sync(_build_prompt, model, chat, limiter=state.prompt_threads)
    rule = await response_rule(state, model, schema)
    logprobs = (chat.top_logprobs or 0) if chat.logprobs else None
    generations = submit(state, model, request, chat, prompt, logprobs, rule)
    wire = ChatWire(model.info.name, logprobs is not None)
    return await answer(state, request, chat, generations, wire, counted=True)


def _check(chat: ChatRequest) -> None:
    """What can be refused without a model. Raises ApiError."""
    check_input(chat.messages)
    if chat.top_logprobs is not None and not chat.logprobs:
        raise invalid("top_logprobs needs logprobs to be true", "top_logprobs")
    check_media(chat.messages)
    unserved.check_tools(chat)
    unserved.check_fields(chat)


def _build_prompt(model: ServedModel, chat: ChatRequest) -> Prompt:
    kwargs = request_kwargs(chat.chat_template_kwargs, chat.extra_body, chat.preserve_thinking, chat.reasoning_effort)
    history = model.info.reuse is Reuse.WHOLE
    return model.prompts.chat(plain_messages(chat.messages), kwargs=kwargs, history=history)
