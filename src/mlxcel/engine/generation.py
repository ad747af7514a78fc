"""The event loop's end of one sequence: an async iterator of events, and a way to stop caring."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator

from mlxcel.engine.events import Event, Finished
from mlxcel.engine.request import GenerationRequest


class Generation:
    """One submitted request. Everything but `cancelled` belongs to the event loop's thread."""

    def __init__(self, request: GenerationRequest) -> None:
        self.request = request
        self.submitted = time.monotonic()
        self._events: deque[Event] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._ended = False
        self._cancelled = False

    @property
    def cancelled(self) -> bool:
        """True once nobody wants the events. The worker reads it between two steps."""
        return self._cancelled

    @property
    def ready(self) -> bool:
        """True when the next event can be had without waiting."""
        return bool(self._events)

    def cancel(self) -> None:
        """Free the slot at the next step; no more events come. Harmless after the end, or twice."""
        self._cancelled = True
        self._ended = True
        self._events.clear()
        self._wake()

    def deliver(self, event: Event) -> None:
        """Append an event (event-loop thread)."""
        if not self._cancelled:
            self._events.append(event)
            self._wake()

    def abandon(self, end: Finished) -> None:
        """End it from this side: `end` is its last event, and the worker frees its slot as after `cancel`."""
        self.deliver(end)
        self._cancelled = True

    def __aiter__(self) -> AsyncIterator[Event]:
        """Events in order; ends after `Finished`, or when cancelled."""
        return self

    async def __anext__(self) -> Event:
        while not self._events:
            if self._ended:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        event = self._events.popleft()
        if isinstance(event, Finished):
            self._ended = True
        return event

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
