"""POST /v1/completions: raw text in, its continuation out."""

from __future__ import annotations

from functools import partial

import msgspec
from starlette.requests import Request
from starlette.types import ASGIApp

from mlxcel.api.errors import invalid
from mlxcel.api.openai import unserved
from mlxcel.api.openai.generate import answer, choice_count, submit, thinking_budget
from mlxcel.api.openai.schema import CompletionRequest
from mlxcel.api.openai.structured import response_rule, wanted_schema
from mlxcel.api.openai.wire import TextWire
from mlxcel.api.prompt_thread import on_prompt_thread
from mlxcel.api.state import AppState
from mlxcel.chat.prompt import Prompt
from mlxcel.engine.backend import ModelInfo

_DECODER = msgspec.json.Decoder(CompletionRequest)


async def completions(state: AppState, request: Request) -> ASGIApp:
    """Answer one text completion. All refusals come before the first byte of a stream."""
    body = await state.bodies.read_json(request, _DECODER)
    prompt = _check(body)
    schema = wanted_schema(body.response_format, allow_json_object=state.config.grammar.allow_json_object)
    model = await state.model()
    n = choice_count(state, body)
    if body.best_of not in (None, 1, n):
        raise invalid("best_of must equal n: answers are not ranked", "best_of")
    budget = thinking_budget(state, body)
    ids = await on_prompt_thread(state, request, partial(_tokenise, model.info, prompt))
    rule = await response_rule(state, model, schema)
    generations = submit(state, model, request, body, Prompt(ids), body.logprobs, rule=rule, budget=budget)
    wire = TextWire(model.info.name, body.logprobs, n)
    return await answer(state, request, body, generations, wire, counted=not body.stream)


def _check(body: CompletionRequest) -> str | list[int]:
    """The prompt, as text or token ids. Raises ApiError 400 for what can be refused without a model."""
    prompt = _single_prompt(body.prompt)
    if isinstance(prompt, str) and prompt.isspace():
        raise invalid("prompt holds nothing but white space", "prompt")
    if body.echo:
        raise invalid("echo is not supported by this version", "echo")
    if body.suffix:
        raise invalid("suffix is not supported by this version", "suffix")
    unserved.check_fields(body)
    return prompt


def _single_prompt(prompt: str | list[str | int]) -> str | list[int]:
    if isinstance(prompt, str):
        return prompt
    if len(prompt) == 1 and isinstance(prompt[0], str):
        return prompt[0]
    ids = [part for part in prompt if isinstance(part, int)]
    if not ids or len(ids) < len(prompt):
        raise invalid("prompt must be one string, or one list of token ids", "prompt")
    return ids


def _tokenise(info: ModelInfo, prompt: str | list[int]) -> tuple[int, ...]:
    """Token ids of `prompt`; an empty text becomes the token that begins texts. Raises ApiError 400."""
    tokenizer = info.tokenizer
    if isinstance(prompt, list):
        return tuple(prompt)
    ids = tokenizer.encode(prompt, add_special=True)
    if not ids:
        ids = tokenizer.encode(info.special_tokens.get("bos_token", ""))
    if not ids:
        raise invalid("prompt is empty, and this model has no token to begin a text with", "prompt")
    return tuple(ids)
