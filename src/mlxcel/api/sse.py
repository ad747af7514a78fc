"""Server-sent events (HTML standard, section 9.2): whole frames, in order, with keep-alive comments between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from starlette.types import Receive, Scope, Send

from mlxcel.api.connection import ClientGone, cancel_all, cancel_on_disconnect
from mlxcel.engine.generation import Generation

PING = b":\n\n"
# Valid inside JSON, yet clients that cut lines by Unicode's rules would break a frame here.
_ESCAPES = [
    ("\u0085".encode(), rb"\u0085"),
    ("\u2028".encode(), rb"\u2028"),
    ("\u2029".encode(), rb"\u2029"),
]
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class SseWriter:
    """Collects frames and sends all that are there in one piece.

    send: raises ClientGone when nobody takes them any more (`mlxcel.api.errors.ErrorBoundary` sees to that).
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._frames: list[bytes] = []
        self._sending = asyncio.Lock()
        self._closed = False

    def data(self, payload: bytes) -> None:
        """Queue one frame with `payload`, encoded JSON."""
        for character, escape in _ESCAPES:
            payload = payload.replace(character, escape)
        self._frames.append(b"data: %b\n\n" % payload)

    async def flush(self) -> None:
        """Send what is queued. Raises ClientGone."""
        async with self._sending:
            if self._frames:
                await self._write(more=True)

    async def ping(self) -> None:
        """Send a comment, which clients skip. Raises ClientGone."""
        async with self._sending:
            if not self._closed:
                self._frames.append(PING)
                await self._write(more=True)

    async def close(self) -> None:
        """Send what is queued and end the response. Raises ClientGone."""
        async with self._sending:
            self._closed = True
            await self._write(more=False)

    async def _write(self, *, more: bool) -> None:
        body = b"".join(self._frames)
        self._frames.clear()
        await self._send({"type": "http.response.body", "body": body, "more_body": more})


class EventStream:
    """A response whose frames `produce` writes while `generations` run.

    The generations are cancelled when the client leaves or the response ends, whichever way.
    ping_interval: seconds between keep-alive comments, by the clock, from now on; not positive: none.
    """

    def __init__(
        self,
        generations: Sequence[Generation],
        produce: Callable[[SseWriter], Awaitable[None]],
        ping_interval: float,
    ) -> None:
        self._generations = generations
        self._produce = produce
        self._ping_interval = ping_interval

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writer = SseWriter(send)
        async with cancel_on_disconnect(receive, self._generations):
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            async with self._pings(writer):
                await self._produce(writer)
                await writer.close()

    @asynccontextmanager
    async def _pings(self, writer: SseWriter) -> AsyncGenerator[None]:
        if self._ping_interval <= 0:
            yield
            return
        pinger = asyncio.create_task(self._ping_forever(writer))
        try:
            yield
        finally:
            pinger.cancel()
            await asyncio.gather(pinger, return_exceptions=True)

    async def _ping_forever(self, writer: SseWriter) -> None:
        try:
            while True:
                await asyncio.sleep(self._ping_interval)
                await writer.ping()
        except ClientGone:
            cancel_all(self._generations)
