"""API keys."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from mlxcel.api.auth import KeyAuth

from .stub import network, run, serving

KEYS = ("first-key", "s\u00e9cond")


def get(path: str, headers: dict[str, Any] | None = None, **values: Any) -> httpx.Response:
    async def work() -> httpx.Response:
        async with serving(config=network(api_keys=KEYS, **values)) as served:
            return await served.http.get(path, headers=headers or {})

    return run(work())


@pytest.mark.parametrize(
    "value",
    [b"Bearer first-key", b"bearer first-key", b"first-key", "Bearer s\u00e9cond".encode(), "s\u00e9cond".encode()],
)
def test_any_key_opens_with_or_without_the_scheme(value: bytes) -> None:
    assert get("/v1/models", {"Authorization": value}).status_code == 200


@pytest.mark.parametrize(
    ("headers", "kind"),
    [
        ({}, "missing_api_key"),
        ({"Authorization": ""}, "missing_api_key"),
        ({"Authorization": "Bearer first-ke"}, "invalid_api_key"),
        ({"Authorization": "Bearer first-key2"}, "invalid_api_key"),
        ({"Authorization": "Bearer  first-key"}, "invalid_api_key"),
        ({"Authorization": "Basic first-key"}, "invalid_api_key"),
        ({"Authorization": "Bearer"}, "invalid_api_key"),
        ({"X-Api-Key": "first-key"}, "missing_api_key"),
    ],
)
def test_everything_else_is_401(headers: dict[str, str], kind: str) -> None:
    response = get("/v1/models", headers)
    assert response.status_code == 401
    assert response.json()["error"]["type"] == kind
    assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("path", ["/v1/models?api_key=first-key", "/v1/health", "/nowhere", "/health/"])
def test_paths_that_need_a_key_also_when_they_do_not_exist(path: str) -> None:
    assert get(path).status_code == 401


@pytest.mark.parametrize("path", ["/health", "/", "/health?x=1"])
def test_public_paths(path: str) -> None:
    assert get(path).status_code == 200


def test_below_a_prefix_nothing_is_public() -> None:
    key = {"Authorization": "first-key"}
    assert get("/api/health", api_prefix="/api").status_code == 401
    assert get("/api/health", key, api_prefix="/api").status_code == 200
    assert get("/api/", key, api_prefix="/api/").status_code == 200
    assert get("/health", api_prefix="/api").status_code == 404


def test_only_get_is_public() -> None:
    async def work() -> None:
        async with serving(config=network(api_keys=KEYS)) as served:
            assert (await served.http.post("/health")).status_code == 401

    run(work())


def test_without_keys_everything_is_open() -> None:
    async def work() -> None:
        async with serving() as served:
            assert (await served.http.get("/v1/models", headers={"Authorization": "x"})).status_code == 200

    run(work())


def test_websockets_are_closed_before_they_open() -> None:
    async def work() -> None:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def app(*_: Any) -> None:
            sent.append("reached")

        auth = KeyAuth(app, KEYS)
        scope: dict[str, Any] = {"type": "websocket", "path": "/", "headers": []}
        await auth(scope, asyncio.Queue().get, send)
        assert sent == [{"type": "websocket.close", "code": 1008}]
        scope["headers"] = [(b"authorization", b"first-key")]
        await auth(scope, asyncio.Queue().get, send)
        assert sent[1:] == ["reached"]

    run(work())
