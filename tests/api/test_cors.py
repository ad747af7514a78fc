"""Cross-origin requests."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from .stub import network, run, serving

PREFLIGHT = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization, x-new"}


def ask(method: str, path: str, headers: dict[str, str], **values: Any) -> httpx.Response:
    async def work() -> httpx.Response:
        async with serving(config=network(**values)) as served:
            return await served.http.request(method, path, headers=headers)

    return run(work())


def allowed(origin: str | None, **values: Any) -> str | None:
    response = ask("GET", "/health", {} if origin is None else {"Origin": origin}, **values)
    return response.headers.get("access-control-allow-origin")


def test_the_preflight_is_answered_without_a_key_and_for_any_path() -> None:
    for path in ("/v1/chat/completions", "/nowhere"):
        response = ask("OPTIONS", path, {"Origin": "http://a.example", **PREFLIGHT}, api_keys=("k",))
        assert response.status_code == 204
        assert response.headers["access-control-allow-origin"] == "*"
        assert response.headers["access-control-allow-methods"] == "GET, POST, OPTIONS"
        assert response.headers["access-control-allow-headers"] == "authorization, x-new"
        assert "access-control-allow-credentials" not in response.headers


def test_configured_methods_and_headers() -> None:
    response = ask(
        "OPTIONS", "/", {"Origin": "http://a.example", **PREFLIGHT}, cors_methods="POST", cors_headers="x-one"
    )
    assert response.headers["access-control-allow-methods"] == "POST"
    assert response.headers["access-control-allow-headers"] == "x-one"


def test_refusals_carry_the_header_too() -> None:
    response = ask("GET", "/v1/models", {"Origin": "http://a.example"}, api_keys=("k",))
    assert response.status_code == 401
    assert response.headers["access-control-allow-origin"] == "*"


def test_any_origin_is_echoed_when_credentials_are_on() -> None:
    response = ask("GET", "/health", {"Origin": "http://a.example"}, cors_credentials=True)
    assert response.headers["access-control-allow-origin"] == "http://a.example"
    assert response.headers["access-control-allow-credentials"] == "true"
    assert response.headers["vary"] == "Origin"
    assert allowed(None, cors_credentials=True) is None


@pytest.mark.parametrize(
    ("origin", "ok"),
    [
        ("http://localhost", True),
        ("https://localhost:3000", True),
        ("http://127.0.0.1:8080", True),
        ("http://[::1]:5173", True),
        ("http://localhost.evil.example", False),
        ("http://evil.example/localhost", False),
        ("file://localhost", False),
        ("null", False),
        ("http://[", False),
    ],
)
def test_localhost_admits_pages_of_this_machine_only(origin: str, ok: bool) -> None:
    assert allowed(origin, cors_origins=("localhost",)) == (origin if ok else None)


def test_exact_origins() -> None:
    origins = ("https://a.example", "https://b.example")
    assert allowed("https://b.example", cors_origins=origins) == "https://b.example"
    assert allowed("https://b.example:444", cors_origins=origins) is None
    refused = ask("GET", "/health", {"Origin": "https://c.example"}, cors_origins=origins)
    assert refused.headers["vary"] == "Origin"


def test_no_origins_no_headers() -> None:
    assert allowed("http://localhost", cors_origins=()) is None
