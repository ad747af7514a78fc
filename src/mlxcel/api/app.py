"""The ASGI application: routes, and what stands in front of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp

from mlxcel.api.auth import KeyAuth
from mlxcel.api.cors import Cors
from mlxcel.api.errors import ErrorBoundary, answer_routing_error
from mlxcel.api.openai.chat import apply_template, chat_completions, input_tokens
from mlxcel.api.openai.completions import completions
from mlxcel.api.ops.cache import cache_reset, cache_stats
from mlxcel.api.ops.health import health
from mlxcel.api.ops.metrics import metrics
from mlxcel.api.ops.models import models
from mlxcel.api.ops.slots import slots
from mlxcel.api.state import AppState
from mlxcel.config import ServerConfig
from mlxcel.engine.engine import Engine

Handler = Callable[[AppState, Request], Awaitable[ASGIApp]]

Routes = tuple[tuple[str, Handler, tuple[str, ...]], ...]

ROUTES: Routes = (
    ("GET", health, ("/", "/health", "/v1/health")),
    ("GET", models, ("/v1/models", "/models")),
    ("GET", cache_stats, ("/v1/cache/stats",)),
    ("POST", cache_reset, ("/v1/cache/reset",)),
    ("POST", chat_completions, ("/v1/chat/completions", "/chat/completions")),
    ("POST", input_tokens, ("/v1/chat/completions/input_tokens", "/chat/completions/input_tokens")),
    ("POST", apply_template, ("/apply-template",)),
    ("POST", completions, ("/v1/completions",)),
)
"""Method, handler, and the paths it is served under."""

METRICS: Routes = (("GET", metrics, ("/metrics",)),)
SLOTS: Routes = (("GET", slots, ("/slots",)),)


def create_app(engine: Engine, config: ServerConfig) -> ASGIApp:
    """The HTTP application in front of `engine`, which somebody else starts and closes.

    It answers in every state of the engine: while the model is loading, and after the worker has died.
    """
    state = AppState(engine, config)
    network = config.network
    routes = (*ROUTES, *(METRICS if network.metrics else ()), *(SLOTS if network.slots else ()))
    prefix = "/" + network.api_prefix.strip("/") if network.api_prefix.strip("/") else ""
    app = Starlette(
        routes=[
            Route(prefix + path, _bind(handler, state), methods=[method])
            for method, handler, paths in routes
            for path in paths
        ],
        middleware=[
            Middleware(Cors, network),
            Middleware(ErrorBoundary),
            Middleware(KeyAuth, network.api_keys),
        ],
        exception_handlers={HTTPException: answer_routing_error},
        lifespan=partial(_lifespan, state) if config.model.warmup else None,
    )
    app.router.redirect_slashes = False
    return app


@asynccontextmanager
async def _lifespan(state: AppState, app: Starlette) -> AsyncGenerator[None]:
    """While the server runs: once the model is there, do what its first requests would else have to wait for."""
    preparing = asyncio.create_task(state.prepare())
    try:
        yield
    finally:
        preparing.cancel()
        await asyncio.gather(preparing, return_exceptions=True)


def _bind(handler: Handler, state: AppState) -> Callable[[Request], Awaitable[Any]]:
    async def endpoint(request: Request) -> ASGIApp:
        return await handler(state, request)

    return endpoint
