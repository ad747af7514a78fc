"""Request bodies, good and hostile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest

from mlxcel.api import body
from mlxcel.api.body import MAX_CONTAINERS

from .stub import AsgiCall, network, run, serving

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def post(body: bytes | AsyncIterator[bytes], limit: int = 10_000) -> httpx.Response:
    async def work() -> httpx.Response:
        async with serving(config=network(max_body_bytes=limit)) as served:
            return await served.http.post("/v1/chat/completions", content=body)

    return run(work())


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "empty"),
        (b"{", "not valid JSON"),
        (b"[]", "Expected `object`"),
        (b"null", "Expected `object`"),
        (b"\xef\xbb\xbf{}", "not valid JSON"),
        (b'{"messages": [], "unknown": "\xff"}', "UTF-8"),
        (b'{"messages": "\\ud800"}', "not valid JSON"),
        (b'{"messages": [], "temperature": NaN}', "not valid JSON"),
        (b'{"messages": [], "temperature": Infinity}', "not valid JSON"),
        (b'{"messages": [], "temperature": 1e999}', "out of range"),
        (b'{"messages": [], "max_tokens": ' + b"9" * 5000 + b"}", "out of range"),
        (b'{"unknown":' + b"[" * 5000, "nested too deeply"),
        (b"{}", "Missing required field 'messages'"),
    ],
)
def test_bad_bodies_are_refused_with_the_reason(body: bytes, words: str) -> None:
    response = post(body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["code"] is None
    assert words in error["message"]


def test_content_type_is_not_needed_and_of_repeated_keys_the_last_counts() -> None:
    body = json.dumps(CHAT).encode()[:-1] + b', "max_tokens": 9, "max_tokens": 1}'
    assert post(body).json()["usage"]["completion_tokens"] == 1


def test_a_body_of_exactly_the_limit_is_read() -> None:
    body = json.dumps(CHAT).encode()
    assert post(body, limit=len(body)).status_code == 200
    assert post(body, limit=len(body) - 1).status_code == 413


def test_the_limit_holds_while_a_body_of_unknown_length_is_read() -> None:
    read = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal read
        while True:
            read += 1
            yield b" " * 100

    async def work() -> None:
        async with serving(config=network(max_body_bytes=1000)) as served:
            response = await served.http.post("/v1/completions", content=endless())
            assert response.status_code == 413
            assert response.json()["error"]["type"] == "invalid_request_error"

    run(work())
    assert read == 11


def test_a_declared_length_above_the_limit_is_refused_unread() -> None:
    async def untouched() -> AsyncIterator[bytes]:
        raise AssertionError("the body was read")
        yield b""

    async def work() -> httpx.Response:
        async with serving(config=network(max_body_bytes=1000)) as served:
            headers = {"content-length": "1001"}
            return await served.http.post("/v1/completions", content=untouched(), headers=headers)

    assert run(work()).status_code == 413


def test_a_client_that_leaves_while_sending_gets_no_answer() -> None:
    async def work() -> None:
        async with serving() as served:
            call = AsgiCall(served.app, "/v1/completions", None, chunks=[b'{"prompt"'], complete=False)
            call.leave()
            await call.task
            assert call.sent == []

    run(work())


def test_a_body_of_very_many_lists_is_refused_and_one_that_only_shows_them_is_not() -> None:
    half = MAX_CONTAINERS // 2
    many = {**CHAT, "extra_body": {"a": [[]] * half, "b": [{}] * half}}
    response = post(json.dumps(many).encode(), limit=1 << 20)
    assert response.status_code == 400
    assert "lists and objects" in response.json()["error"]["message"]
    shown = {**CHAT, "user": '[[{"\\' * half}
    assert post(json.dumps(shown).encode(), limit=1 << 20).status_code == 200


def test_large_bodies_that_are_not_all_there_have_a_limit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "MAX_ARRIVING", 250_000)

    async def slow(arrived: asyncio.Event, go_on: asyncio.Event) -> AsyncIterator[bytes]:
        yield b'{"messages": [{"role": "user", "content": "' + b"x" * 100_000
        arrived.set()
        await go_on.wait()
        yield b'"}]}'

    async def work() -> None:
        async with serving(config=network(max_body_bytes=1 << 20)) as served:
            go_on = asyncio.Event()

            async def post_slowly() -> asyncio.Task[httpx.Response]:
                arrived = asyncio.Event()
                posting = asyncio.create_task(
                    served.http.post("/v1/chat/completions/input_tokens", content=slow(arrived, go_on))
                )
                await asyncio.wait({posting, asyncio.create_task(arrived.wait())}, return_when="FIRST_COMPLETED")
                return posting

            first, second = await post_slowly(), await post_slowly()
            third = await post_slowly()
            assert (await third).status_code == 503
            assert (await served.http.post("/v1/chat/completions", json=CHAT)).status_code == 200
            go_on.set()
            assert [(await posting).status_code for posting in (first, second)] == [200, 200]
            assert (await (await post_slowly())).status_code == 200

    run(work())
