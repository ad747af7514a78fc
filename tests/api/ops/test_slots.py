"""GET /slots."""

from __future__ import annotations

import asyncio
from typing import Any

from mlxcel.config import EngineConfig, NetworkConfig, ServerConfig

from ..stub import AsgiCall, run, says, serving, until


def slot(id: int, state: str, context_size: int = 1024) -> dict[str, Any]:
    return {
        "id": id,
        "state": state,
        "model": "scripted",
        "context_size": context_size,
        "is_processing": state == "decoding",
    }


def test_free_slots_and_busy_ones() -> None:
    async def work() -> None:
        engine = EngineConfig(parallel=2, ctx_size=2048)
        async with serving(says("abc"), ServerConfig(engine=engine)) as served:

            async def slots() -> Any:
                response = await served.http.get("/slots")
                assert response.status_code == 200
                return response.json()

            assert await slots() == [slot(0, "idle"), slot(1, "idle")]
            assert (await served.http.get("/slots?fail_on_no_slot=1")).status_code == 200
            served.backend.gate.clear()
            call = AsgiCall(served.app, "/v1/completions", {"prompt": "hi"})
            await until(lambda: served.snapshot.active_sequences == 1)
            assert await slots() == [slot(0, "decoding"), slot(1, "idle")]
            served.backend.gate.set()
            await call.task
            await served.idle()
            assert await slots() == [slot(0, "idle"), slot(1, "idle")]

    run(work())


def test_the_queue_and_a_probe_that_wants_a_free_slot() -> None:
    async def work() -> None:
        async with serving(config=ServerConfig(engine=EngineConfig(parallel=1))) as served:
            served.backend.gate.clear()
            calls = [AsgiCall(served.app, "/v1/completions", {"prompt": "hi"}) for _ in range(3)]
            await until(lambda: served.snapshot.active_sequences == 1 and served.snapshot.queue_depth == 2)
            states = [slot(0, "decoding", 0), slot(1, "queued", 0), slot(2, "queued", 0)]
            assert (await served.http.get("/slots")).json() == states
            refused = await served.http.get("/slots?fail_on_no_slot=1")
            assert (refused.status_code, refused.json()["error"]["type"]) == (503, "server_busy")
            served.backend.gate.set()
            await asyncio.gather(*(call.task for call in calls))

    run(work())


def test_context_size_is_that_of_health() -> None:
    async def work() -> None:
        for context in (0, 1024):
            async with serving(config=ServerConfig(engine=EngineConfig(ctx_size=context, parallel=1))) as served:
                health = (await served.http.get("/health")).json()
                assert (await served.http.get("/slots")).json()[0]["context_size"] == health["context_size"] == context

    run(work())


def test_switched_off_there_is_no_such_path() -> None:
    async def work() -> None:
        async with serving(config=ServerConfig(network=NetworkConfig(slots=False))) as served:
            missing = await served.http.get("/slots")
            assert (missing.status_code, missing.json()["error"]["type"]) == (404, "not_found_error")

    run(work())
