from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from mlxcel.api.app import create_app
from mlxcel.cli import serving
from mlxcel.cli.command import CommandError
from mlxcel.cli.listener import Listener, bound
from mlxcel.cli.serving import serve
from mlxcel.config import NetworkConfig, ServerConfig
from mlxcel.engine.backend import Backend
from mlxcel.engine.engine import Engine
from mlxcel.models.errors import ModelError
from tests.engine.scripted import ScriptedBackend

TLS = Path(__file__).parent / "tls"
ASK = {"messages": [{"role": "user", "content": "hello"}]}


class Lines(logging.Handler):
    """Waits for log lines."""

    def __init__(self) -> None:
        super().__init__()
        self._news = threading.Condition()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        with self._news:
            self.lines.append(record.getMessage())
            self._news.notify_all()

    def wait(self, text: str) -> None:
        with self._news:
            assert self._news.wait_for(lambda: any(text in line for line in self.lines), 30), self.lines


@pytest.fixture
def lines() -> Any:
    handler = Lines()
    logger = logging.getLogger("mlxcel.cli")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


class Running:
    """A server as its user sees it, from another thread."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self.ended = threading.Event()
        self._stopped = False

    @property
    def url(self) -> str:
        return self._listener.url

    def stop(self) -> None:
        """Send the signal, once."""
        if not self._stopped and not self.ended.is_set():
            self._stopped = True
            os.kill(os.getpid(), signal.SIGTERM)

    def request(self, method: str, path: str, body: Any = None) -> httpx.Response:
        url = self._listener.url
        uds = url.removeprefix("unix:") if url.startswith("unix:") else None
        verify = ssl.create_default_context(cafile=str(TLS / "certificate.pem"))
        transport = httpx.HTTPTransport(uds=uds, verify=verify)
        with httpx.Client(transport=transport, base_url="http://server" if uds else url, timeout=30) as client:
            return client.request(method, path, json=body)

    def exchange(self, data: bytes) -> bytes:
        """Send these bytes and return what comes back until the server is silent or closes."""
        address = self._listener.url.rpartition(":")
        with socket.create_connection(("127.0.0.1", int(address[2])), timeout=30) as connection:
            connection.sendall(data)
            connection.settimeout(1)
            received = b""
            with contextlib.suppress(TimeoutError):
                while part := connection.recv(65536):
                    received += part
            return received


def served(load: Callable[[], Backend], user: Callable[[Running], None], network: NetworkConfig | None = None) -> None:
    """Serve on this, the main thread, while `user` does its part on another; then the server is stopped."""
    config = ServerConfig(network=network or NetworkConfig(port=0))
    with bound(config.network) as listener, ThreadPoolExecutor(1) as pool:
        running = Running(listener)

        def part() -> None:
            try:
                user(running)
            finally:
                running.stop()

        outcome = pool.submit(part)
        try:
            engine = Engine(config.engine, load)
            serve(engine, lambda engine: create_app(engine, config), config.network, listener)
        finally:
            running.ended.set()
        outcome.result()


def test_http_is_served_while_the_model_loads_and_after(lines: Lines) -> None:
    loaded = threading.Event()

    def load() -> Backend:
        loaded.wait(30)
        return ScriptedBackend()

    def user(server: Running) -> None:
        lines.wait("loading the model")
        assert server.request("GET", "/health").status_code == 503
        loaded.set()
        lines.wait("ready on")
        response = server.request("GET", "/health")
        assert response.status_code == 200
        assert "server" not in response.headers
        answer = server.request("POST", "/v1/chat/completions", ASK).json()
        assert "hello" in answer["choices"][0]["message"]["content"]

    served(load, user)
    assert any("scripted" in line for line in lines.lines)
    assert any("4 slots of 4096 tokens" in line for line in lines.lines)


def test_requests_under_way_may_end_after_the_signal(lines: Lines) -> None:
    backend = ScriptedBackend()
    backend.gate.clear()
    computing = threading.Event()
    backend.fail_prefill = lambda tokens: computing.set()

    def user(server: Running) -> None:
        lines.wait("ready on")
        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(server.request, "POST", "/v1/chat/completions", ASK)
            try:
                assert computing.wait(30)
                server.stop()
                lines.wait("stopping")
            finally:
                backend.gate.set()
            answer = asking.result(30)
        assert answer.json()["choices"][0]["finish_reason"] == "stop"

    served(lambda: backend, user)


def test_a_signal_while_loading_ends_the_server(lines: Lines) -> None:
    stopped = threading.Event()

    def load() -> Backend:
        stopped.wait(30)
        return ScriptedBackend()

    def user(server: Running) -> None:
        try:
            lines.wait("loading the model")
            assert server.request("GET", "/health").status_code == 503
            server.stop()
            lines.wait("stopping")
        finally:
            stopped.set()

    served(load, user)


@pytest.mark.parametrize("where", ["https", "unix"])
def test_other_listeners(where: str, lines: Lines, tmp_path: Path) -> None:
    networks = {
        "https": NetworkConfig(port=0, ssl_cert_file=TLS / "certificate.pem", ssl_key_file=TLS / "key.pem"),
        "unix": NetworkConfig(host=str(tmp_path / "s.sock")),
    }

    def user(server: Running) -> None:
        lines.wait("ready on")
        assert server.request("GET", "/health").status_code == 200

    served(ScriptedBackend, user, networks[where])
    assert not (tmp_path / "s.sock").exists()


@pytest.mark.parametrize(
    ("failure", "raised", "words"),
    [
        (ModelError("weights are missing"), ModelError, "^weights are missing$"),
        (RuntimeError("out of memory"), CommandError, "^the model cannot be loaded: RuntimeError: out of memory$"),
    ],
)
def test_a_model_that_does_not_load_ends_the_server(failure: Exception, raised: type[Exception], words: str) -> None:
    def load() -> Backend:
        raise failure

    config = ServerConfig(network=NetworkConfig(port=0))
    with bound(config.network) as listener, pytest.raises(raised, match=words):
        serve(Engine(config.engine, load), lambda engine: create_app(engine, config), config.network, listener)


HANGING = """
import faulthandler, logging, sys, threading
faulthandler.dump_traceback_later(120, exit=True, file=sys.stdout)  # what it hung in, for the test to show
from mlxcel.api.app import create_app
from mlxcel.cli.listener import bound
from mlxcel.cli.serving import serve
from mlxcel.config import NetworkConfig, ServerConfig
from mlxcel.engine.engine import Engine

logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")
config = ServerConfig(network=NetworkConfig(port=0))
with bound(config.network) as listener:
    engine = Engine(config.engine, threading.Event().wait)
    serve(engine, lambda engine: create_app(engine, config), config.network, listener)
"""


def test_a_second_signal_leaves_at_once() -> None:
    said: list[str] = []
    with subprocess.Popen([sys.executable, "-c", HANGING], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            for awaited in ("loading the model", "stopping"):
                while not (said and awaited in said[-1]):
                    said.append(process.stdout.readline())
                    assert said[-1], f"the process ended early: {''.join(said)}"
                process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130
        finally:
            process.kill()


def test_freed_memory_goes_back_while_it_serves(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    returned = threading.Semaphore(0)
    monkeypatch.setattr(serving, "TIDY_SECONDS", 0.01)
    monkeypatch.setattr(serving.heap, "return_free_memory", returned.release)

    def user(server: Running) -> None:
        lines.wait("ready")
        assert returned.acquire(timeout=30)
        assert returned.acquire(timeout=30)
        server.stop()

    served(ScriptedBackend, user)


def test_answers_that_do_not_end_in_time_are_ended(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream gets its last chunk, a whole answer an error in the envelope; nothing is just cut off."""
    monkeypatch.setattr(serving, "DRAIN_SECONDS", 0.2)
    endless = ScriptedBackend(lambda prompt: [120] * 10**6, context=10**6)

    def user(server: Running) -> None:
        lines.wait("ready")
        with ThreadPoolExecutor(2) as pool:
            stream = pool.submit(server.request, "POST", "/v1/chat/completions", {**ASK, "stream": True})
            whole = pool.submit(server.request, "POST", "/v1/chat/completions", ASK)
            while server.request("GET", "/health").json()["batch"]["active_sequences"] < 2:
                pass
            server.stop()
            frames = [line for line in stream.result().text.splitlines() if line]
            answer = whole.result()
        assert frames[-1] == "data: [DONE]"
        assert '"finish_reason":"error"' in frames[-2]
        assert answer.status_code == 503
        assert answer.json()["error"]["type"] == "server_error"

    served(lambda: endless, user)


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
        b"HTTP2-Settings: AAMAAABkAAQAAP__\r\nContent-Length: %d\r\n\r\n%b",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nContent-Length: %d\r\n\r\n%b",
    ],
)
def test_an_offer_to_upgrade_is_not_taken_and_the_body_is_read(request_bytes: bytes, lines: Lines) -> None:
    body = json.dumps(ASK).encode()

    def user(server: Running) -> None:
        lines.wait("ready")
        answer = server.exchange(request_bytes % (len(body), body))
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert answer.count(b"HTTP/1.1") == 1

    served(ScriptedBackend, user)


def test_what_is_no_http_gets_the_error_envelope(lines: Lines) -> None:
    def user(server: Running) -> None:
        lines.wait("ready")
        for nonsense in (b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n"):
            head, _, body = server.exchange(nonsense).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 400 ")
            assert json.loads(body)["error"]["type"] == "invalid_request_error"

    served(ScriptedBackend, user)
