"""Applications in front of the real engine with scripted tokens, and three ways to talk to them.

`serving` gives an HTTP client inside the process, `AsgiCall` drives one request message by message, and `listening`
runs a real server on a free port.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx
import uvicorn
from starlette.types import ASGIApp, Message

from mlxcel.api.app import create_app
from mlxcel.config import NetworkConfig, ServerConfig
from mlxcel.engine.engine import Engine
from tests.engine.scripted import EOS, ScriptedBackend

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def says(text: str | bytes, *, ends: bool = True) -> ScriptedBackend:
    """A backend that answers everything with `text`, byte by byte."""
    tokens = [*(text.encode() if isinstance(text, str) else text), *([EOS] if ends else [])]
    return ScriptedBackend(lambda prompt: tokens)


def with_info(backend: ScriptedBackend, **changes: Any) -> ScriptedBackend:
    """The backend with another `ModelInfo`."""
    backend.info = dataclasses.replace(backend.info, **changes)
    return backend


def network(**values: Any) -> ServerConfig:
    return ServerConfig(network=NetworkConfig(**values))


@dataclass
class Served:
    """A running application."""

    http: httpx.AsyncClient
    app: ASGIApp
    engine: Engine
    backend: ScriptedBackend

    async def chat(self, content: Any = "hi", **fields: Any) -> httpx.Response:
        messages = fields.pop("messages", [{"role": "user", "content": content}])
        return await self.http.post("/v1/chat/completions", json={"messages": messages, **fields})

    async def complete(self, prompt: Any = "hi", **fields: Any) -> httpx.Response:
        return await self.http.post("/v1/completions", json={"prompt": prompt, **fields})

    async def idle(self) -> None:
        """Wait until no sequence runs or waits."""
        await until(lambda: not (self.snapshot.active_sequences or self.snapshot.queue_depth))

    @property
    def snapshot(self) -> Any:
        return self.engine.snapshot()


@asynccontextmanager
async def started(backend: ScriptedBackend, config: ServerConfig) -> AsyncIterator[Engine]:
    engine = Engine(config.engine, lambda: backend, config.cache)
    engine.start()
    await engine.wait_ready()
    try:
        yield engine
    finally:
        backend.gate.set()
        await engine.close()


@asynccontextmanager
async def serving(backend: ScriptedBackend | None = None, config: ServerConfig | None = None) -> AsyncIterator[Served]:
    """A running application with an HTTP client that reads whole responses."""
    backend, config = backend or says("Hello!"), config or ServerConfig()
    async with started(backend, config) as engine:
        app = create_app(engine, config)
        async with client(app) as http:
            yield Served(http, app, engine, backend)


def client(app: ASGIApp) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


@asynccontextmanager
async def listening(app: ASGIApp) -> AsyncIterator[str]:
    """The application behind a real server; gives its address."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="on"))
        task = asyncio.create_task(server.serve(sockets=[listener]))
        await until(lambda: server.started)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await task


class AsgiCall:
    """One POST whose connection the test holds in its hands.

    fail_send: sending raises, as servers do when the client is gone.
    """

    def __init__(
        self,
        app: ASGIApp,
        path: str,
        body: Any,
        *,
        chunks: Sequence[bytes] | None = None,
        complete: bool = True,
    ) -> None:
        self.sent: list[Message] = []
        self.fail_send = False
        self._to_app: asyncio.Queue[Message] = asyncio.Queue()
        parts = list(chunks) if chunks is not None else [json.dumps(body).encode()]
        for index, part in enumerate(parts):
            more = index < len(parts) - 1 or not complete
            self._to_app.put_nowait({"type": "http.request", "body": part, "more_body": more})
        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [],
            "http_version": "1.1",
            "scheme": "http",
            "root_path": "",
        }
        self.task = asyncio.ensure_future(app(scope, self._to_app.get, self._send))

    async def _send(self, message: Message) -> None:
        if self.fail_send:
            raise OSError("connection lost")
        self.sent.append(message)

    def leave(self) -> None:
        """The client closes the connection."""
        self._to_app.put_nowait({"type": "http.disconnect"})

    @property
    def status(self) -> int | None:
        return self.sent[0]["status"] if self.sent else None

    @property
    def text(self) -> str:
        return b"".join(message.get("body", b"") for message in self.sent[1:]).decode()


def frames(stream: str) -> list[Any]:
    """The decoded `data:` frames of an event stream, whose form is checked; the last is "[DONE]"."""
    blocks = stream.split("\n\n")
    assert blocks.pop() == "", "the stream ends with a whole frame"
    data = []
    for block in blocks:
        assert "\n" not in block
        if not block.startswith(":"):
            assert block.startswith("data: ")
            data.append(block[6:])
    assert data[-1] == "[DONE]"
    assert data.count("[DONE]") == 1
    return [json.loads(frame) for frame in data[:-1]]


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that comes without an event; the test's timeout is the limit."""
    while not condition():
        await asyncio.sleep(0.001)
