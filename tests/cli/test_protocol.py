"""Connections whose client does not do its part are closed; those that wait for us are not."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import h11
import pytest
import uvicorn
from uvicorn.server import ServerState

from mlxcel.cli.protocol import EnvelopeProtocol
from mlxcel.config import NetworkConfig
from tests.engine.scripted import ScriptedBackend

from .test_serving import ASK, Lines, Running, lines, served

__all__ = ["lines"]

LIMIT = NetworkConfig(port=0, timeout=1)
BODY = json.dumps(ASK).encode()
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(BODY)
FOREVER = 20.0
"""Seconds after which a connection counts as one that is never closed."""


@contextlib.contextmanager
def connection(server: Running) -> Iterator[socket.socket]:
    port = int(server.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=FOREVER) as made:
        yield made


def answer(made: socket.socket) -> bytes:
    """One answer that states its length."""
    with made.makefile("rb") as lines:
        head = list(iter(lines.readline, b"\r\n"))
        length = int(next(line for line in head if line.lower().startswith(b"content-length")).split()[1])
        assert len(lines.read(length)) == length
        return head[0]


def closed(made: socket.socket) -> bool:
    """Whether the server closes it without another word, in time."""
    return made.recv(65536) == b""


@pytest.mark.parametrize("sent", [b"", b"POST /v1/chat/comp", HEAD[:-2], HEAD, HEAD + BODY[:-1]])
def test_a_request_that_is_never_finished(sent: bytes, lines: Lines) -> None:
    def user(server: Running) -> None:
        lines.wait("ready")
        with connection(server) as made:
            made.sendall(sent)
            assert closed(made)

    served(ScriptedBackend, user, LIMIT)


@pytest.mark.parametrize(("size", "status"), [(1, b"400"), (31, b"400"), (33, b"200")])
def test_a_body_in_crumbs(size: int, status: bytes, lines: Lines) -> None:
    """Refused after a thousand of them; pieces of a few tokens are none."""
    body = BODY + b" " * (size * 2000)
    pieces = (body[begin : begin + size] for begin in range(0, len(body), size))
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"

    def user(server: Running) -> None:
        lines.wait("ready")
        with connection(server) as made:
            made.sendall(head + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n")
            assert answer(made).split()[1] == status
        with connection(server) as made:
            made.sendall(HEAD + BODY)
            assert answer(made).startswith(b"HTTP/1.1 200")

    served(ScriptedBackend, user)


def test_crumbs_behind_an_answer_only_end_the_connection(lines: Lines, caplog: pytest.LogCaptureFixture) -> None:
    def user(server: Running) -> None:
        lines.wait("ready")
        with connection(server) as made:
            made.sendall(b"POST /nowhere HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n \r\n")
            assert answer(made).startswith(b"HTTP/1.1 404")
            with contextlib.suppress(ConnectionError):
                made.sendall(b"1\r\n \r\n" * 2000)
                assert made.recv(65536) == b""

    served(ScriptedBackend, user)
    assert not [record for record in caplog.records if record.exc_info]


def test_a_request_that_trickles(lines: Lines) -> None:
    """Bytes that keep coming do not put the end off."""

    def user(server: Running) -> None:
        lines.wait("ready")
        with connection(server) as made:
            began = time.monotonic()
            made.settimeout(0.1)
            while time.monotonic() - began < FOREVER:
                with contextlib.suppress(TimeoutError, ConnectionError):
                    made.sendall(b"x")
                    if made.recv(1) == b"":
                        return
            raise AssertionError("it is still open")

    served(ScriptedBackend, user, LIMIT)


def test_the_second_request_of_a_connection_has_the_same_time(lines: Lines) -> None:
    def user(server: Running) -> None:
        lines.wait("ready")
        with connection(server) as made:
            made.sendall(HEAD + BODY)
            assert answer(made).startswith(b"HTTP/1.1 200")
            made.sendall(HEAD + BODY + HEAD)
            assert answer(made).startswith(b"HTTP/1.1 200")
            assert closed(made)

    served(ScriptedBackend, user, LIMIT)


def test_an_answer_may_take_its_time(lines: Lines) -> None:
    backend = ScriptedBackend()
    backend.gate.clear()

    def user(server: Running) -> None:
        lines.wait("ready")
        with connection(server) as made:
            made.sendall(HEAD + BODY)
            threading.Timer(2.5 * LIMIT.timeout, backend.gate.set).start()
            assert answer(made).startswith(b"HTTP/1.1 200")

    served(lambda: backend, user, LIMIT)


class Transport(asyncio.Transport):
    """Takes everything and tells how it ended."""

    ended: str | None = None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def is_closing(self) -> bool:
        return self.ended is not None

    def close(self) -> None:
        self.ended = self.ended or "closed"

    def abort(self) -> None:
        self.ended = self.ended or "aborted"


def protocol(timeout: float) -> tuple[EnvelopeProtocol, Transport]:
    config = uvicorn.Config(cast("Any", None), timeout_keep_alive=cast("int", timeout), log_config=None, lifespan="off")
    made, transport = EnvelopeProtocol(config, ServerState(), {}), Transport()
    made.connection_made(transport)
    return made, transport


@pytest.mark.parametrize(
    ("acts", "ended"), [(["pause_writing"], "aborted"), (["pause_writing", "resume_writing"], None)]
)
def test_an_answer_that_nobody_takes(acts: list[str], ended: str | None) -> None:
    async def work() -> None:
        made, transport = protocol(0.05)
        made.data_received(HEAD + BODY)
        for act in acts:
            cast("Callable[[], None]", getattr(made, act))()
        await asyncio.sleep(0.3)
        assert transport.ended == ended
        made.connection_lost(None)

    asyncio.run(work())


@pytest.mark.parametrize(("sent", "ended"), [(HEAD + BODY[:-1], "closed"), (HEAD + BODY, None)])
def test_a_server_that_stops_waits_for_answers_but_not_for_questions(sent: bytes, ended: str | None) -> None:
    async def work() -> None:
        made, transport = protocol(FOREVER)
        made.data_received(sent)
        made.shutdown()
        assert transport.ended is None
        await asyncio.sleep(1.3)
        assert transport.ended == ended
        made.connection_lost(None)

    asyncio.run(work())


def test_a_connection_that_is_gone_leaves_no_timers() -> None:
    async def work() -> None:
        made, transport = protocol(0.05)
        made.pause_writing()
        made.connection_lost(OSError())
        await asyncio.sleep(0.2)
        assert transport.ended is None

    asyncio.run(work())


@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_a_body_in_pieces_is_framed_as_its_version_wants(version: str) -> None:
    """Pieces are framed here and not by h11, which reads them again as the judge."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for body in (b"a", b"", b"bc" * 4000, b"\r\n0\r\n\r\n"):
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b"end"})

    async def work() -> list[bytes]:
        server = uvicorn.Server(uvicorn.Config(app, http=EnvelopeProtocol, log_config=None, lifespan="off"))
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            task = asyncio.create_task(server.serve(sockets=[listener]))
            while not server.started:
                await asyncio.sleep(0.001)
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            bodies: list[bytes] = []
            for _ in range(1 if version == "1.0" else 3):  # one connection, several answers
                client = h11.Connection(h11.CLIENT)
                writer.write(f"GET / HTTP/{version}\r\nHost: a\r\n\r\n".encode())
                client.send(h11.Request(method="GET", target="/", headers=[("Host", "a")]))
                client.send(h11.EndOfMessage())
                body = b""
                while not isinstance(event := client.next_event(), h11.EndOfMessage):
                    if event is h11.NEED_DATA:
                        client.receive_data(await reader.read(1 << 16))
                    elif isinstance(event, h11.Data):
                        body += event.data
                bodies.append(body)
            writer.close()
            await writer.wait_closed()
            server.should_exit = True
            await task
        return bodies

    assert set(asyncio.run(work())) == {b"a" + b"bc" * 4000 + b"\r\n0\r\n\r\n" + b"end"}
