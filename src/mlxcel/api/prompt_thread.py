"""Rendering and tokenising of prompts beside the event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import anyio.to_thread
from starlette.requests import Request

from mlxcel.api.connection import ClientGone
from mlxcel.api.state import AppState
from mlxcel.engine.errors import Busy

T = TypeVar("T")


async def on_prompt_thread(state: AppState, request: Request, work: Callable[[], T]) -> T:
    """The result of `work`, done when one of the prompt threads is free; unless the client has left by then, or the
    server does not answer any more.

    Long conversations take a while to render and tokenise, and other streams must not wait for them. Enter it after
    the request body was read. Raises Busy (as many prompts wait as the engine has room for), ClientGone, Closing, Dead,
    Stuck, and what `work` raises.
    """
    room = state.engine.slots + state.config.engine.max_queue_depth
    if state.prompt_threads.statistics().tasks_waiting >= room:
        raise Busy
    async with state.prompt_threads:
        if (outage := state.engine.outage) is not None:
            raise outage
        if await request.is_disconnected():
            raise ClientGone
        return await anyio.to_thread.run_sync(work)
