"""From a checked request and its prompt to the answer, streamed or whole."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from msgspec import UNSET
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from mlxcel.api.auth import tenant
from mlxcel.api.connection import ClientGone, cancel_on_disconnect
from mlxcel.api.errors import generation_failed, invalid
from mlxcel.api.openai.caching import conversation, wants_cache
from mlxcel.api.openai.reasoning import resolve_budget
from mlxcel.api.openai.sampling import resolve_loops, resolve_max_tokens, resolve_sampling, with_choice_seed
from mlxcel.api.openai.schema import GenerationFields
from mlxcel.api.openai.wire import Choice, PromptDetails, Usage, Wire
from mlxcel.api.sse import EventStream, SseWriter
from mlxcel.api.state import AppState, ServedModel
from mlxcel.api.totals import RequestTotals
from mlxcel.chat.prompt import Prompt
from mlxcel.engine.constraint import Rule
from mlxcel.engine.events import Finished, FinishReason, TextPiece
from mlxcel.engine.generation import Generation
from mlxcel.engine.request import GenerationRequest, Priority


def choice_count(state: AppState, fields: GenerationFields) -> int:
    """`n`, which the slots must be able to run together. Raises ApiError 400."""
    n, slots = fields.n or 1, state.engine.slots
    if n > slots:
        raise invalid(f"n must be between 1 and {slots}, the number of slots of this server", "n")
    return n


def submit(
    state: AppState,
    model: ServedModel,
    request: Request,
    fields: GenerationFields,
    prompt: Prompt,
    logprobs: int | None,
    *,
    rule: Rule | None,
    budget: int | None,
    spelling: Mapping[int, str] | None = None,
) -> list[Generation]:
    """Queue one generation per choice. Raises ApiError 400 and what `Engine.submit` raises.

    rule: what the answers are held to. budget: tokens that the reasoning of an answer may have; None: any number.
    spelling: special tokens that are shown in the text, and what as.
    """
    sampling = resolve_sampling(fields, model.sampling)
    loops = resolve_loops(fields, model.loops)
    max_tokens = resolve_max_tokens(fields, state.config.engine)
    thinking = model.prompts.thinking_rule(inside=prompt.thinking, budget=budget, held=rule is not None)
    priority = read_priority(request.headers)
    return state.engine.submit(
        [
            GenerationRequest(
                prompt.tokens,
                with_choice_seed(sampling, index),
                max_tokens=max_tokens,
                stop=fields.stop_strings,
                logprobs=logprobs,
                loops=loops,
                rule=rule,
                thinking=thinking,
                spelling=spelling or {},
                priority=priority,
                cache_prompt=wants_cache(fields),
                tenant=tenant(request.scope),
                conversation=conversation(fields),
                history=prompt.history,
            )
            for index in range(choice_count(state, fields))
        ]
    )


def thinking_budget(state: AppState, fields: GenerationFields) -> int | None:
    """Tokens that the reasoning of an answer may have; None: any number. Raises ApiError 400, Loading, Dead."""
    asked, context = resolve_max_tokens(fields, state.config.engine), state.engine.slot_context
    most = context if asked is None else min(asked, context)
    return resolve_budget(fields, state.config.chat.reasoning_budget, most)


def read_priority(headers: Headers) -> Priority:
    """The class named by `X-Priority`; normal for anything unknown."""
    return Priority.__members__.get(headers.get("x-priority", "").strip().upper(), Priority.NORMAL)


async def answer(
    state: AppState,
    request: Request,
    fields: GenerationFields,
    generations: list[Generation],
    wire: Wire,
    *,
    counted: bool,
) -> ASGIApp:
    """The response to `fields`, made of `generations`. Raises ApiError 500, Dead, Stuck, Closing, ClientGone.

    counted: whether `/metrics` counts the request once it is done.
    """
    totals = state.totals if counted else RequestTotals()
    if fields.stream:
        stream = _Stream(generations, wire, fields.wants_usage, state.config.cache.kept, totals)
        return EventStream(generations, stream.produce, state.config.network.sse_ping_interval)
    async with cancel_on_disconnect(request.receive, generations):
        choices = [await _collect(generation) for generation in generations]
    if any(choice.finished.reason is FinishReason.ERROR for choice in choices):
        raise state.engine.outage or generation_failed()
    finished = [choice.finished for choice in choices]
    totals.record(finished)
    body = wire.whole(choices, _total(finished, state.config.cache.kept))
    return Response(body, media_type="application/json")


async def _collect(generation: Generation) -> Choice:
    pieces: list[TextPiece] = []
    async for event in generation:
        if isinstance(event, Finished):
            return Choice(pieces, event)
        pieces.append(event)
    raise ClientGone


class _Stream:
    """Writes generations that run side by side into one event stream.

    usage: whether it ends with one. cached: whether that tells of the cache. totals: count the request.
    """

    def __init__(
        self, generations: Sequence[Generation], wire: Wire, usage: bool, cached: bool, totals: RequestTotals
    ) -> None:
        self._generations = generations
        self._wire = wire
        self._usage = usage
        self._cached = cached
        self._totals = totals
        self._ended: list[Finished] = []

    async def produce(self, writer: SseWriter) -> None:
        for index in range(len(self._generations)):
            opening = self._wire.opening(index)
            if opening is not None:
                writer.data(opening)
        await writer.flush()
        relays = [self._relay(index, writer) for index in range(len(self._generations))]
        finished = [await relays[0]] if len(relays) == 1 else await asyncio.gather(*relays)
        failed = any(end.reason is FinishReason.ERROR for end in finished)
        if self._usage and not failed:
            writer.data(self._wire.usage(_total(finished, self._cached)))
        writer.data(b"[DONE]")

    async def _relay(self, index: int, writer: SseWriter) -> Finished:
        """Write the chunks of one choice; what is ready together is sent together."""
        generation = self._generations[index]
        async for event in generation:
            if isinstance(event, TextPiece):
                for chunk in self._wire.piece(index, event):
                    writer.data(chunk)
            else:
                self._end(event)
                for chunk in self._wire.finish(index, event):
                    writer.data(chunk)
                await writer.flush()
                return event
            if not generation.ready:
                await writer.flush()
        raise ClientGone

    def _end(self, event: Finished) -> None:
        """One choice is done. With the last one the request is, whether or not its client reads the rest."""
        self._ended.append(event)
        if len(self._ended) == len(self._generations):
            self._totals.record(self._ended)


def _total(finished: Sequence[Finished], cached: bool) -> Usage:
    """Counts of all choices; they share one prompt.

    cached: tell how much of it was known, of the first choice, for which least was.
    """
    first = finished[0].usage
    completion = sum(end.usage.completion_tokens for end in finished)
    details = PromptDetails(first.cached_tokens) if cached else UNSET
    return Usage(first.prompt_tokens, completion, first.prompt_tokens + completion, details)
