"""The client at the other end: noticing that it left, and ending its generations then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager

from starlette.types import Receive

from mlxcel.engine.generation import Generation


class ClientGone(Exception):
    """The client closed the connection; nobody is left to answer."""


@asynccontextmanager
async def cancel_on_disconnect(receive: Receive, generations: Iterable[Generation]) -> AsyncGenerator[None]:
    """Cancel `generations` as soon as the client leaves, and in any case when the block ends.

    Enter it after the request body was read. A cancelled generation ends without a `Finished` event.
    """
    watcher = asyncio.create_task(_cancel_when_gone(receive, generations))
    try:
        yield
    finally:
        cancel_all(generations)
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)


def cancel_all(generations: Iterable[Generation]) -> None:
    """Free the slots of all `generations`; harmless for those that ended."""
    for generation in generations:
        generation.cancel()


async def _cancel_when_gone(receive: Receive, generations: Iterable[Generation]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    cancel_all(generations)
