"""GET /v1/models: the one model this process serves."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from mlxcel.api.state import AppState


async def models(state: AppState, request: Request) -> Response:
    """The list with its single entry. Raises Loading, Dead or Stuck."""
    entry = {
        "id": state.engine.info.name,
        "object": "model",
        "created": state.created,
        "owned_by": "user",
    }
    return Response(
        msgspec.json.encode({"object": "list", "data": [entry]}),
        media_type="application/json",
    )
