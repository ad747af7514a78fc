"""GET /v1/cache/stats and POST /v1/cache/reset: what the prompt cache holds, and emptying it."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from mlxcel.api.state import AppState
from mlxcel.engine.cache.stats import CacheStats


async def cache_stats(state: AppState, request: Request) -> Response:
    """The prompt cache in numbers, in every state of the server."""
    return _answer(state.engine.cache_stats())


async def cache_reset(state: AppState, request: Request) -> Response:
    """Empty the prompt cache; the answer is its numbers of before."""
    return _answer(await state.engine.reset_cache())


def _answer(stats: CacheStats) -> Response:
    return Response(msgspec.json.encode(stats), media_type="application/json")
