"""What tests of real clients share: no name but this machine's is ever looked up, and one real server for all."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.http.server import server

from .weather import TEMPLATE


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Clients like to report what they do, from threads of their own, and to hide that it failed."""
    look_up, asked = socket.getaddrinfo, list[Any]()

    def local(host: Any, *arguments: Any, **options: Any) -> Any:
        if host not in ("127.0.0.1", b"127.0.0.1"):
            asked.append(host)
            raise socket.gaierror(f"{host}: tests stay on this machine")
        return look_up(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", local)
    yield
    assert asked == []


@pytest.fixture(scope="session")
def real_url(default_model_path: Path) -> Iterator[str]:
    """The address of a server with the default model, which is shown tools by `TEMPLATE`."""
    arguments = ("--model", default_model_path, "--parallel", "4", "--ctx-size", "8192")
    with server(*arguments, "--chat-template-file", TEMPLATE) as running:
        yield f"{running.url}/v1"
