"""Event streams: whole frames in order, pings between them, and an end when the client leaves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Message

from mlxcel.api.connection import ClientGone
from mlxcel.api.sse import EventStream, SseWriter
from mlxcel.engine.generation import Generation
from mlxcel.engine.request import GenerationRequest

from .stub import run, until


class Wire:
    """A connection that takes one message at a time, and only while `open`."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.messages: list[Message] = []
        self.open = asyncio.Event()
        self.open.set()
        self.broken = False
        self._busy = False

    async def send(self, message: Message) -> None:
        assert not self._busy, "two messages at once"
        self._busy = True
        await self.open.wait()
        self._busy = False
        if self.broken:
            raise ClientGone
        self.messages.append(message)
        self.bodies.append(message.get("body", b""))


def test_frames_that_are_ready_together_go_out_together() -> None:
    async def work() -> None:
        wire = Wire()
        writer = SseWriter(wire.send)
        writer.data(b"1")
        writer.data(b"2")
        await writer.flush()
        await writer.flush()
        writer.data(b"[DONE]")
        await writer.close()
        assert wire.bodies == [b"data: 1\n\ndata: 2\n\n", b"data: [DONE]\n\n"]
        assert [message["more_body"] for message in wire.messages] == [True, False]

    run(work())


def test_characters_that_some_clients_take_for_line_ends_are_escaped() -> None:
    async def work() -> None:
        wire = Wire()
        writer = SseWriter(wire.send)
        writer.data('"a\u2028b\u2029c\u0085d\u00e9"'.encode())
        await writer.flush()
        (frame,) = wire.bodies
        assert frame.decode() == 'data: "a\\u2028b\\u2029c\\u0085d\u00e9"\n\n'
        assert len(frame.decode().splitlines()) == 2

    run(work())


def test_what_is_queued_while_a_slow_client_blocks_is_neither_lost_nor_mixed() -> None:
    async def work() -> None:
        wire = Wire()
        writer = SseWriter(wire.send)
        wire.open.clear()
        writer.data(b"1")
        first = asyncio.create_task(writer.flush())
        await asyncio.sleep(0)
        ping = asyncio.create_task(writer.ping())
        writer.data(b"2")
        closing = asyncio.create_task(writer.close())
        await asyncio.sleep(0)
        late_ping = asyncio.create_task(writer.ping())
        wire.open.set()
        await asyncio.gather(first, ping, closing, late_ping)
        assert b"".join(wire.bodies) == b"data: 1\n\ndata: 2\n\n:\n\n"
        assert [message["more_body"] for message in wire.messages] == [True, True, False]

    run(work())


def test_a_failing_send_means_that_the_client_is_gone() -> None:
    async def work() -> None:
        wire = Wire()
        wire.broken = True
        writer = SseWriter(wire.send)
        for attempt in (writer.ping(), writer.close()):
            with pytest.raises(ClientGone):
                await attempt

    run(work())


class Exchange:
    """One `EventStream` that writes a frame and then waits until it is released, or its generation ends."""

    def __init__(self, interval: float) -> None:
        self.wire = Wire()
        self.release = asyncio.Event()
        self.generation = Generation(GenerationRequest((1,)))
        self.inbox: asyncio.Queue[Any] = asyncio.Queue()
        stream = EventStream([self.generation], self._produce, interval)
        self.task = asyncio.create_task(stream({"type": "http"}, self.inbox.get, self.wire.send))

    async def _produce(self, writer: SseWriter) -> None:
        writer.data(b"start")
        await writer.flush()
        waiting = asyncio.ensure_future(anext(aiter(self.generation), None))
        released = asyncio.ensure_future(self.release.wait())
        await asyncio.wait([waiting, released], return_when=asyncio.FIRST_COMPLETED)
        released.cancel()
        if waiting.done():
            raise ClientGone
        waiting.cancel()
        writer.data(b"end")

    @property
    def text(self) -> bytes:
        return b"".join(self.wire.bodies)


def test_pings_follow_the_clock_while_nothing_is_generated() -> None:
    async def work() -> None:
        exchange = Exchange(0.001)
        await until(lambda: exchange.text.count(b":\n\n") >= 3)
        exchange.release.set()
        await exchange.task
        head, tail = exchange.text.split(b"data: start\n\n")
        assert head == b""
        pings, end = tail.split(b"data: end\n\n")
        assert end == b""
        assert set(pings.split(b"\n\n")) == {b":", b""}
        assert exchange.wire.messages[0]["headers"][0] == (b"content-type", b"text/event-stream; charset=utf-8")

    run(work())


@pytest.mark.parametrize("interval", [-1, 0])
def test_pings_can_be_switched_off(interval: float) -> None:
    async def work() -> None:
        before = len(asyncio.all_tasks())
        exchange = Exchange(interval)
        await until(lambda: exchange.text != b"")
        # The stream itself, its watcher, and the two waits of the test's producer: no pinger.
        assert len(asyncio.all_tasks()) == before + 4
        exchange.release.set()
        await exchange.task
        assert exchange.text == b"data: start\n\ndata: end\n\n"

    run(work())


def test_the_generation_is_cancelled_when_the_client_leaves() -> None:
    async def work() -> None:
        exchange = Exchange(-1)
        await until(lambda: exchange.text != b"")
        exchange.inbox.put_nowait({"type": "http.request", "body": b""})
        exchange.inbox.put_nowait({"type": "http.disconnect"})
        with pytest.raises(ClientGone):
            await exchange.task
        assert exchange.generation.cancelled

    run(work())


def test_the_generation_is_cancelled_when_a_ping_cannot_be_sent() -> None:
    async def work() -> None:
        exchange = Exchange(0.001)
        await until(lambda: exchange.text != b"")
        exchange.wire.broken = True
        with pytest.raises(ClientGone):
            await exchange.task
        assert exchange.generation.cancelled

    run(work())


def test_the_generation_is_cancelled_when_the_server_drops_the_request() -> None:
    async def work() -> None:
        exchange = Exchange(0.001)
        await until(lambda: exchange.text != b"")
        exchange.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await exchange.task
        assert exchange.generation.cancelled

    run(work())


def test_no_task_outlives_the_response() -> None:
    async def work() -> None:
        exchange = Exchange(0.001)
        exchange.release.set()
        await exchange.task
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(work())
