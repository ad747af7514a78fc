"""GET /slots: what each slot does, and who waits for one."""

from __future__ import annotations

from http import HTTPStatus
from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from mlxcel.api.errors import SERVER_BUSY, ApiError
from mlxcel.api.state import AppState

State = Literal["decoding", "idle", "queued"]


class Slot(msgspec.Struct):
    """A decode slot, or a request in the queue."""

    id: int
    state: State
    model: str
    context_size: int
    is_processing: bool


async def slots(state: AppState, request: Request) -> Response:
    """Slots in use, then free ones, then one entry for each request in the queue.

    With `fail_on_no_slot` in the query the answer is 503 when none is free. Raises ApiError 503, Loading, Dead.
    """
    name, numbers = state.engine.info.name, state.engine.snapshot()
    free = numbers.max_batch_size - numbers.active_sequences
    if not free and request.query_params.get("fail_on_no_slot"):
        raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, SERVER_BUSY, "no slot available")
    counts: dict[State, int] = {"decoding": numbers.active_sequences, "idle": free, "queued": numbers.queue_depth}
    states: list[State] = [each for each, count in counts.items() for _ in range(count)]
    body = [Slot(id, each, name, state.context_size, each == "decoding") for id, each in enumerate(states)]
    return Response(msgspec.json.encode(body), media_type="application/json")
