"""GET /health: is the model there, and is a slot free?"""

from __future__ import annotations

from http import HTTPStatus

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from mlxcel.api.state import AppState
from mlxcel.engine.engine import EngineState


class Batch(msgspec.Struct):
    """Slots in use and requests waiting."""

    active_sequences: int
    queue_depth: int
    max_batch_size: int


class Observability(msgspec.Struct):
    """Counters since the start."""

    sequences_started: int
    sequences_completed: int
    total_prefill_tokens: int
    total_decode_tokens: int
    decode_steps_processed: int
    prefill_chunks_processed: int
    current_batch_size: int
    cache_pool_active: int


class Health(msgspec.Struct):
    """The answer once a model is loaded."""

    status: str
    model: str
    batch: Batch
    observability: Observability
    context_size: int
    tool_call_parser: str | None


async def health(state: AppState, request: Request) -> Response:
    """200 when a request would find a slot at once, else 503. Raises Dead, Stuck."""
    engine = state.engine
    if engine.state is EngineState.LOADING:
        return _answer({"status": "loading model"}, ok=False)
    model, numbers = await state.model(), engine.snapshot()
    free = numbers.active_sequences < numbers.max_batch_size
    body = Health(
        status="ok" if free else "no slot available",
        model=model.info.name,
        batch=msgspec.convert(numbers, Batch, from_attributes=True),
        observability=msgspec.convert(numbers, Observability, from_attributes=True),
        context_size=state.context_size,
        tool_call_parser="mlxcel" if model.prompts.supports_tools else None,
    )
    return _answer(body, ok=free)


def _answer(body: object, *, ok: bool) -> Response:
    status = HTTPStatus.OK if ok else HTTPStatus.SERVICE_UNAVAILABLE
    return Response(msgspec.json.encode(body), status_code=status, media_type="application/json")
